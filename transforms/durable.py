"""DURABLE: elements go on only when a checkpoint has them.

A sink that is no part of the runner's checkpoints may be given an element, and after a failure,
from the replay, another in its place: a row under two generalizations, which can be intersected.
So what is to be sent waits here, in state. What is sent twice is then sent identical.

A runner tells a step that a checkpoint is complete by finalizing bundles. Flink does so for all
bundles that are over by then, those after the checkpoint's barrier too: to have been finalized
proves nothing yet. But a probe that is sent after one was confirmed is confirmed by a later
checkpoint, and its barrier came after all that was written before the first. See `CONFIRMATIONS`.
"""

from __future__ import annotations

import random
import secrets
import struct
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam import pvalue, typehints
from apache_beam.coders import BytesCoder, Coder, IterableCoder
from apache_beam.coders import registry as coders
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow, GlobalWindows
from apache_beam.utils import windowed_value
from apache_beam.utils.timestamp import Timestamp

from crenel.transforms._hold.local_runners import is_local

__all__ = ["CONFIRMATIONS", "Durable"]

#: Confirmations, each by another checkpoint, that an element waits for. The first may be of a checkpoint whose barrier
#: came before the element. The second is of one whose barrier came after the first confirmation, unless that was on
#: its way for longer than until the next barrier; the third, unless it was for a whole checkpoint longer.
CONFIRMATIONS = 3

_SENT, _PROBES = "sent", "probes"
#: A pack's number in the bag, so that sorting bytes sorts packs.
_NUMBER = struct.Struct(">Q")
#: Elements of one pack.
_MOST = 500
#: Seconds after which a probe is sent once more: a failure may have swallowed it.
_PATIENCE = 60.0
_GLOBAL = (GlobalWindow(),)
#: The token of a book that is being written: no state has it.
_OPEN = b""


class Durable(beam.PTransform):
    """Hold elements back until checkpoints have them.

    The elements come out in the global window, in random order, each as it went in: one that was let through before a
    failure, and again after it, is the same element. They wait for three checkpoints; without checkpoints they wait for
    the end. When the watermark is at the end of time (the input is over, or the runner drains the pipeline) all of them
    leave, durable or not. Beam's local runners have no checkpoints, and replay nothing: there they pass.

    On Flink, leave `num_concurrent_checkpoints` at 1 and `load_balance_bundles` off: with keys that change processes
    nothing is ever confirmed.

    Args:
        keys: How many boxes there are: what works side by side.
        confirmations: How many checkpoints elements wait for.
        period: Seconds between two looks at what was confirmed, while something waits.
    """

    def __init__(self, *, keys: int = 8, confirmations: int = CONFIRMATIONS, period: float = 1.0) -> None:
        super().__init__()
        self._keys = keys
        self._confirmations = confirmations
        self._period = period

    def expand(self, elements: pvalue.PCollection) -> pvalue.PCollection:
        """Gather, keep, let go."""
        coder = IterableCoder(coders.get_coder(elements.element_type or Any))
        # Local runners replay nothing, and leave timers of processing time pending at the end.
        is_here = is_local(elements.pipeline)
        if is_here and isinstance(elements.windowing.windowfn, GlobalWindows):
            return elements  # assigning the window again would cost some microseconds for each
        # State of a window that is over would be cleared, and what waits with it.
        everywhere = elements | "Everywhere" >> beam.WindowInto(GlobalWindows())
        if is_here:
            return everywhere
        packs = everywhere | "Gather" >> beam.ParDo(Gather(coder, self._keys))
        packs.element_type = typehints.Tuple[int, bytes]
        outbox = beam.ParDo(Outbox(uuid.uuid4().hex, self._confirmations, self._period))
        outbox.label = "ParDo"
        kept = packs | "Outbox" >> outbox.with_outputs(_PROBES, main=_SENT)
        kept[_PROBES].element_type = typehints.Tuple[str, int, str, int]
        kept[_SENT].element_type = bytes
        _ = kept[_PROBES] | "Probe" >> beam.ParDo(Probe())
        sent = kept[_SENT] | "Open" >> beam.FlatMap(coder.decode)
        sent.element_type = elements.element_type
        return sent


class Gather(beam.DoFn):
    """Packs elements within a bundle, so that Beam's cost per element is paid per pack.

    Packs go to boxes at random, and a pack's elements are in random order: as they came they would tell shards.
    """

    def __init__(self, coder: Coder, keys: int) -> None:
        self._coder = coder
        self._keys = keys

    def start_bundle(self) -> None:
        """Begin without elements: what a failed bundle left is not this one's."""
        self._elements: list[Any] = []
        self._latest = GlobalWindow().start.micros

    def process(self, element: Any, value: Any = beam.DoFn.WindowedValueParam) -> Iterator[Any] | None:
        """Keep an element until its pack is full."""
        self._elements.append(element)
        self._latest = max(self._latest, value.timestamp_micros)
        return self.finish_bundle() if len(self._elements) >= _MOST else None

    def finish_bundle(self) -> Iterator[Any]:
        """Let go of the pack."""
        if self._elements:
            random.SystemRandom().shuffle(self._elements)
            pack = secrets.randbelow(self._keys), self._coder.encode(self._elements)
            yield windowed_value.create(pack, self._latest, _GLOBAL)
            self.start_bundle()


@dataclass(eq=False)
class Book:
    """What a process knows of one key's packs, and that no state can know: which of them a checkpoint has."""

    #: The number of the next pack.
    next: int
    #: As the state has it, if nobody else has touched it. A bundle that fails leaves it open, and it is not used again.
    token: bytes = _OPEN
    #: Tells this book from others of the same key.
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    #: Confirmations so far; the probe of this number is on its way since `probed`.
    confirmed: int = 0
    probed: float | None = None
    #: With how many confirmations packs were written: those, and the number of the next then.
    marks: deque[tuple[int, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        if self.next:
            self.marks.append((0, self.next))

    def write(self) -> int:
        """The number of a pack that is written now."""
        number = self.next
        self.next += 1
        if self.marks and self.marks[-1][0] == self.confirmed:
            self.marks.pop()
        self.marks.append((self.confirmed, self.next))
        return number

    def durable(self, confirmations: int) -> int:
        """The number below which all packs are in a checkpoint that is complete."""
        below = 0
        while self.marks and self.marks[0][0] + confirmations <= self.confirmed:
            below = self.marks.popleft()[1]
        return below

    def confirm(self, probe: int) -> None:
        """A probe's bundle was finalized. One that was sent twice counts once."""
        if probe == self.confirmed:
            self.confirmed += 1
            self.probed = None


class Books:
    """The books of this process, by transform and key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._books: dict[tuple[str, int], Book] = {}

    def open(self, key: tuple[str, int], token: bytes | None, next_number: Callable[[], int]) -> Book:
        """The book, if it is up to date; a new one otherwise, in which nothing is confirmed.

        Packs of a state that was restored are in a checkpoint, and could go at once. But nothing tells them from those
        of a key that has come from another process; so all of them wait once more.
        """
        with self._lock:
            book = self._books.get(key)
            if book is None or token is None or book.token != token:
                book = self._books[key] = Book(next_number())
            book.token = _OPEN
            return book

    def forget(self, key: tuple[str, int]) -> None:
        """There is nothing left to be known."""
        with self._lock:
            self._books.pop(key, None)

    def confirm(self, key: tuple[str, int], name: str, probe: int) -> None:
        """Write a confirmation down, if it is for the book of today."""
        with self._lock:
            book = self._books.get(key)
            if book is not None and book.name == name:
                book.confirm(probe)


BOOKS = Books()


class Probe(beam.DoFn):
    """Asks to be told when the bundle that it is in is final. A timer cannot ask for it, and so sends a probe here.

    Runners fuse it with the outbox. If one does not, nothing is confirmed, or later: nothing leaves early.
    """

    def process(self, element: tuple[str, int, str, int], finalizer: Any = beam.DoFn.BundleFinalizerParam) -> list[Any]:
        """Take a probe."""
        uid, key, name, number = element
        finalizer.register(partial(BOOKS.confirm, (uid, key), name, number))
        return []


class Outbox(beam.DoFn):
    """Keeps packs until they are confirmed.

    Args:
        uid: What tells this transform from others in the same process.
        confirmations: How many checkpoints packs wait for.
        period: Seconds between two looks.
        clock: Tells the time, in seconds.
    """

    WAITING = BagStateSpec("waiting", BytesCoder())
    TOKEN = ReadModifyWriteStateSpec("token", BytesCoder())
    LOOK = TimerSpec("look", TimeDomain.REAL_TIME)
    END = TimerSpec("end", TimeDomain.WATERMARK)

    def __init__(self, uid: str, confirmations: int, period: float, clock: Callable[[], float] = time.time) -> None:
        self._uid = uid
        self._confirmations = confirmations
        self._period = period
        self._clock = clock

    def process(
        self,
        element: tuple[int, bytes],
        waiting: Any = beam.DoFn.StateParam(WAITING),
        token: Any = beam.DoFn.StateParam(TOKEN),
        look: Any = beam.DoFn.TimerParam(LOOK),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> Iterator[Any]:
        """Take a pack."""
        key, pack = element
        if token.read() is None:  # the first since it was empty
            look.set(self._next_look())
            end.set(GlobalWindow().max_timestamp())
        book = self._book(key, waiting, token)
        waiting.add(_NUMBER.pack(book.write()) + pack)
        self._turn(book, token)
        yield from self._probe(key, book)

    @on_timer(LOOK)
    def on_look(
        self,
        key: Any = beam.DoFn.KeyParam,
        waiting: Any = beam.DoFn.StateParam(WAITING),
        token: Any = beam.DoFn.StateParam(TOKEN),
        look: Any = beam.DoFn.TimerParam(LOOK),
    ) -> Iterator[Any]:
        """Let go of what is durable."""
        book = self._book(key, waiting, token)
        below = book.durable(self._confirmations)
        if below:
            yield from self._let_go(waiting, below)
        if below == book.next:
            token.clear()
            BOOKS.forget((self._uid, key))
            return
        look.set(self._next_look())
        self._turn(book, token)
        yield from self._probe(key, book)

    @on_timer(END)
    def on_end(
        self,
        key: Any = beam.DoFn.KeyParam,
        waiting: Any = beam.DoFn.StateParam(WAITING),
        token: Any = beam.DoFn.StateParam(TOKEN),
    ) -> Iterator[Any]:
        """Let go of everything: at the end of time no timer of the clock fires any more (Flink)."""
        yield from self._let_go(waiting, self._book(key, waiting, token).next)
        token.clear()
        BOOKS.forget((self._uid, key))

    def _let_go(self, waiting: Any, below: int) -> Iterator[bytes]:
        packs = sorted(waiting.read())  # a bag promises no order; each pack begins with its number
        waiting.clear()
        for pack in packs:
            if _NUMBER.unpack_from(pack)[0] < below:
                yield pack[_NUMBER.size :]
            else:
                waiting.add(pack)

    def _book(self, key: int, waiting: Any, token: Any) -> Book:
        def next_number() -> int:
            return max((_NUMBER.unpack_from(pack)[0] for pack in waiting.read()), default=-1) + 1

        return BOOKS.open((self._uid, key), token.read(), next_number)

    def _turn(self, book: Book, token: Any) -> None:
        """Mark the state, so that a book that is not of this state is known."""
        book.token = secrets.token_bytes(8)
        token.write(book.token)

    def _probe(self, key: int, book: Book) -> Iterator[Any]:
        """Send the next probe, unless it is on its way."""
        now = self._clock()
        if book.probed is None or now - book.probed > _PATIENCE:
            book.probed = now
            yield TaggedOutput(_PROBES, (self._uid, key, book.name, book.confirmed))

    def _next_look(self) -> Timestamp:
        return Timestamp(micros=int((self._clock() + self._period) * 1e6))
