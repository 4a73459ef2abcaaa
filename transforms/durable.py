"""DURABLE: elements go on only when a checkpoint has them.

A sink outside of the runner's checkpoints may be given an element, and after a failure, from the replay, another in its
place: a row under two generalizations, which an attacker can intersect. So elements for such a sink wait here, in
state. An element that is sent twice is then sent identical.

A runner tells a step that a checkpoint is complete by finalizing bundles. Flink finalizes all bundles that are over by
then, also those after the checkpoint's barrier: so one finalization proves nothing. But a probe that is sent after a
first one was confirmed is confirmed by a later checkpoint, whose barrier came after everything that was written before
the first. See `CONFIRMATIONS`.

A sink that can remember what it has written, as Kafka's transactions can, may ask for whole packs. Each then has its
number in the history of its key, and a digest of the history up to it. By these the sink recognizes a pack that comes
again, and a job that was started from an older state.

Waiting packs are sealed: each pack when it is gathered, its number when it is written. They are accepted only if each
is unchanged and under its own key, and none is missing.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
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

from crenel.avro import expect
from crenel.errors import Rejected
from crenel.policy import Policy
from crenel.policy.secret import Secret
from crenel.seal import TAG, Seal, compare
from crenel.transforms._hold.local_runners import is_local
from crenel.transforms._pack.element_coders import CarriedCoder, unpickles
from crenel.transforms._publish.random_order import shuffled

__all__ = ["CONFIRMATIONS", "UNNUMBERED", "Durable", "WholePack"]

#: Confirmations, each by another checkpoint, that an element waits for. The first may come from a checkpoint whose
#: barrier came before the element. The second comes from one whose barrier came after the first confirmation, unless
#: this took longer than until the next barrier to arrive; the third, unless it took a whole checkpoint longer.
CONFIRMATIONS = 3

#: A whole pack: its key, its number there, the digest of all packs of the key up to it, and its elements.
WholePack = tuple[int, int, bytes, Iterable[Any]]
#: The number of a whole pack that no checkpoint has: at the end of time, all packs are emitted.
UNNUMBERED = -1

_SENT, _PROBES = "sent", "probes"
#: What is sealed: a pack, the number that it has in the bag, and the token.
_PACK, _ENTRY, _STATE = "crenel.durable", "crenel.outbox", "crenel.outbox.is"
#: The number of a pack in the bag, so that sorting bytes sorts packs.
_NUMBER = struct.Struct(">Q")
#: Bytes before a pack in the bag: its number, and a digest.
_HEAD = _NUMBER.size + TAG
#: The most elements of a pack.
_MOST = 500
#: Seconds after which a probe is sent again: a failure may have lost it.
_PATIENCE = 60.0
_GLOBAL = (GlobalWindow(),)
#: The token of a ledger that is being changed: no state has it.
_OPEN = b""
#: A token: random bytes, the numbers of the first pack that waits and of the next one, and the digest of the packs
#: before the first.
_TOKEN = struct.Struct(">8sQQ16s")
_NO_PACKS = bytes(16)


class Durable(beam.PTransform):
    """Holds elements back until checkpoints have them.

    The elements are emitted in the global window, in random order, unchanged: an element that is emitted before a
    failure, and again after it, is the same. Elements wait for three checkpoints; without checkpoints they wait for the
    end. When the watermark reaches the end of time (the input is over, or the runner drains the pipeline) all of them
    are emitted, durable or not. Beam's local runners have no checkpoints, and replay nothing: there elements pass.

    On Flink, leave `num_concurrent_checkpoints` at 1 and `load_balance_bundles` off: while keys move between processes
    nothing is ever confirmed.

    Elements are stored by the coder of their type. Elements of no type, or of one that Beam would pickle, must be of
    values that rows may have, too: numbers, text, moments, and lists, dicts and NamedTuples of these.

    Args:
        keys: The number of keys, which runners may process side by side.
        confirmations: The number of checkpoints that elements wait for.
        period: Seconds between two checks of what was confirmed, while elements wait.
        policy: Names the secret that what waits is sealed with. Without one, a key is drawn and stored beside what
            waits: damage is then found, but not a forger.
        lists: Whether elements are lists. Their items wait and are mixed, and are emitted in other lists.
        whole: Whether packs are emitted whole, as `WholePack`; not on local runners, where there are no packs. The
            packs of a key that become durable together come in one bundle.
    """

    def __init__(
        self,
        *,
        keys: int = 8,
        confirmations: int = CONFIRMATIONS,
        period: float = 1.0,
        policy: Policy | None = None,
        lists: bool = False,
        whole: bool = False,
    ) -> None:
        super().__init__()
        self._keys = keys
        self._confirmations = confirmations
        self._period = period
        self._policy = policy
        self._lists = lists
        self._whole = whole

    def expand(self, elements: pvalue.PCollection) -> pvalue.PCollection:
        """Gather elements, keep them, emit them."""
        kind = elements.element_type
        item = (kind.inner_type if self._lists else kind) or Any
        coder = coders.get_coder(item)
        coder = IterableCoder(CarriedCoder() if unpickles(coder) else coder)
        # Local runners replay nothing, and leave timers of processing time pending at the end.
        is_here = is_local(elements.pipeline)
        if is_here and isinstance(elements.windowing.windowfn, GlobalWindows):
            return elements  # assigning the window again would cost some microseconds for each
        # State of a window that is over would be cleared, and what waits with it.
        everywhere = elements | "Everywhere" >> beam.WindowInto(GlobalWindows())
        if is_here:
            return everywhere
        secret = _drawn() if self._policy is None else Secret.of(self._policy, is_here=False)
        packs = everywhere | "Gather" >> beam.ParDo(Gather(coder, self._keys, secret, lists=self._lists))
        packs.element_type = typehints.Tuple[int, bytes]
        outbox = beam.ParDo(
            Outbox(uuid.uuid4().hex, self._confirmations, self._period, secret=secret, whole=self._whole)
        )
        outbox.label = "ParDo"
        kept = packs | "Outbox" >> outbox.with_outputs(_PROBES, main=_SENT)
        kept[_PROBES].element_type = typehints.Tuple[str, int, str, int]
        kept[_SENT].element_type = typehints.Tuple[int, int, bytes, bytes] if self._whole else bytes
        nothing = kept[_PROBES] | "Probe" >> beam.ParDo(Probe())
        nothing.element_type = bytes
        if self._whole:
            whole = kept[_SENT] | "Open" >> beam.ParDo(OpenWhole(coder, secret))
            whole.element_type = typehints.Tuple[int, int, bytes, typehints.Iterable[item]]
            return whole
        sent = kept[_SENT] | "Open" >> beam.ParDo(Open(coder, secret, lists=self._lists))
        sent.element_type = elements.element_type
        return sent


def _drawn() -> Secret:
    return Secret.given(secrets.token_bytes(32), is_drawn=True)


class Gather(beam.DoFn):
    """Packs elements within a bundle, so that Beam's cost per element is paid per pack.

    Packs get random keys, and the elements of a pack are in random order: their own order would tell their shards.

    Args:
        coder: Writes lists of elements.
        keys: The number of keys.
        secret: Keys the seal of packs; by default one is drawn.
        lists: Whether elements are lists, whose items are packed.
    """

    def __init__(self, coder: Coder, keys: int, secret: Secret | None = None, *, lists: bool = False) -> None:
        self._coder = coder
        self._keys = keys
        self._secret = secret or _drawn()
        self._lists = lists

    def setup(self) -> None:
        """Prepare what does not travel."""
        self._seal = self._secret.seal

    def start_bundle(self) -> None:
        """Begin without elements: a bundle that failed leaves none."""
        self._elements: list[Any] = []
        self._latest = GlobalWindow().start.micros

    def process(self, element: Any, value: Any = beam.DoFn.WindowedValueParam) -> Iterator[Any] | None:
        """Keep an element until its pack is full."""
        self._elements.extend(element if self._lists else (element,))
        self._latest = max(self._latest, value.timestamp_micros)
        return self.finish_bundle() if len(self._elements) >= _MOST else None

    def finish_bundle(self) -> Iterator[Any]:
        """Emit the pack, or several if there are that many elements."""
        elements = shuffled(self._elements)
        for start in range(0, len(elements), _MOST):
            pack = self._seal.close(_PACK, self._encoded(elements[start : start + _MOST]))
            yield windowed_value.create((secrets.randbelow(self._keys), pack), self._latest, _GLOBAL)
        self.start_bundle()

    def _encoded(self, elements: list[Any]) -> bytes:
        try:
            data: bytes = self._coder.encode(elements)
        except Rejected as rejected:
            message = f"Durable: an element holds a {rejected.reason}. Give elements a type that has a coder."
            raise TypeError(message) from None
        return data


class Open(beam.DoFn):
    """Emits the elements of packs.

    Args:
        coder: Reads lists of elements.
        secret: The one that packs were sealed with; by default one is drawn, which opens what carries its own key.
        lists: Whether elements are lists: a pack is then emitted as one.
    """

    def __init__(self, coder: Coder, secret: Secret | None = None, *, lists: bool = False) -> None:
        self._coder = coder
        self._secret = secret or _drawn()
        self._lists = lists

    def setup(self) -> None:
        """Prepare what does not travel."""
        self._seal = self._secret.seal

    def process(self, pack: bytes) -> Iterable[Any]:
        """Open a pack, if it is as it was gathered."""
        elements: Iterable[Any] = self._coder.decode(self._seal.open(_PACK, pack))
        return [list(elements)] if self._lists else elements


class OpenWhole(Open):
    """Emits packs with their elements, and with their place in the history of their key."""

    def process(self, pack: Any) -> Iterable[WholePack]:
        """Open a pack, if it is as it was gathered."""
        key, number, history, sealed = pack
        return [(key, number, history, list(super().process(sealed)))]


@dataclass(eq=False)
class Ledger:
    """Which packs of one key are in a complete checkpoint. It is kept in the process, since state cannot tell."""

    #: The numbers of the first pack that waits, and of the next one.
    first: int
    next: int
    #: The seal of the state.
    seal: Seal
    #: The digest of the packs before the first.
    history: bytes = _NO_PACKS
    #: The token in the state, if nobody else has changed that. A bundle that fails leaves `_OPEN`, which fits no state.
    token: bytes = _OPEN
    #: Tells this ledger from others of the same key.
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    #: Confirmations so far; the probe of this number has been on its way since `probed`.
    confirmed: int = 0
    probed: float | None = None
    #: Pairs (c, n): the packs below number n were written when there were at most c confirmations.
    marks: deque[tuple[int, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        if self.next:
            self.marks.append((0, self.next))

    def write(self) -> int:
        """Number a pack that is written now."""
        number = self.next
        self.next += 1
        if self.marks and self.marks[-1][0] == self.confirmed:
            self.marks.pop()
        self.marks.append((self.confirmed, self.next))
        return number

    def durable(self, confirmations: int) -> int:
        """Return the number below which all packs are in a complete checkpoint."""
        below = 0
        while self.marks and self.marks[0][0] + confirmations <= self.confirmed:
            below = self.marks.popleft()[1]
        return below

    def confirm(self, probe: int) -> None:
        """Note that the bundle of a probe was finalized. A probe that was sent twice counts once."""
        if probe == self.confirmed:
            self.confirmed += 1
            self.probed = None


class Ledgers:
    """The ledgers of this process, by transform and key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ledgers: dict[tuple[str, int], Ledger] = {}

    def open(self, key: tuple[str, int], token: bytes | None, new: Callable[[], Ledger]) -> Ledger:
        """Return the ledger if it fits the state, else a new one, in which nothing is confirmed.

        Packs of restored state are in a checkpoint, and could be emitted at once. But nothing tells them from those of
        a key that came from another process; so all of them wait once more.
        """
        with self._lock:
            ledger = self._ledgers.get(key)
            if ledger is None or token is None or ledger.token != token:
                ledger = self._ledgers[key] = new()
            ledger.token = _OPEN
            return ledger

    def forget(self, key: tuple[str, int]) -> None:
        """Drop the ledger of a key that has no packs left."""
        with self._lock:
            self._ledgers.pop(key, None)

    def confirm(self, key: tuple[str, int], name: str, probe: int) -> None:
        """Note a confirmation, if it is for the current ledger."""
        with self._lock:
            ledger = self._ledgers.get(key)
            if ledger is not None and ledger.name == name:
                ledger.confirm(probe)


LEDGERS = Ledgers()


class Probe(beam.DoFn):
    """Registers for the finalization of its bundle. A timer cannot do that, so it sends a probe here.

    Runners fuse this step with the outbox. If one does not, confirmations come later or never: no element is emitted
    early.
    """

    def process(self, element: tuple[str, int, str, int], finalizer: Any = beam.DoFn.BundleFinalizerParam) -> list[Any]:
        """Register a probe."""
        uid, key, name, number = element
        finalizer.register(partial(LEDGERS.confirm, (uid, key), name, number))
        return []


class Outbox(beam.DoFn):
    """Keeps packs until they are confirmed.

    Args:
        uid: Tells this transform from others in the same process.
        confirmations: The number of checkpoints that packs wait for.
        period: Seconds between two checks.
        clock: Tells the time, in seconds.
        secret: Keys the seal of the state; by default one is drawn.
        whole: Whether packs are emitted with their place in the history of their key. Then the state of a key keeps its
            number and digest when nothing waits.
    """

    WAITING = BagStateSpec("waiting", BytesCoder())
    TOKEN = ReadModifyWriteStateSpec("token", BytesCoder())
    LOOK = TimerSpec("look", TimeDomain.REAL_TIME)
    END = TimerSpec("end", TimeDomain.WATERMARK)

    def __init__(
        self,
        uid: str,
        confirmations: int,
        period: float,
        clock: Callable[[], float] = time.time,
        secret: Secret | None = None,
        *,
        whole: bool = False,
    ) -> None:
        self._whole = whole
        self._uid = uid
        self._confirmations = confirmations
        self._period = period
        self._clock = clock
        self._secret = secret or _drawn()

    def setup(self) -> None:
        """Prepare what does not travel."""
        self._seal = self._secret.seal

    def process(
        self,
        element: tuple[int, bytes],
        waiting: Any = beam.DoFn.StateParam(WAITING),
        token: Any = beam.DoFn.StateParam(TOKEN),
        look: Any = beam.DoFn.TimerParam(LOOK),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> Iterator[Any]:
        """Keep a pack."""
        key, pack = element
        ledger = self._ledger(key, waiting, token)
        if ledger.first == ledger.next:  # the first pack since the key was empty
            look.set(self._next_look())
            end.set(GlobalWindow().max_timestamp())
        waiting.add(self._head(key, ledger.seal, ledger.write(), pack) + pack)
        self._turn(key, ledger, token)
        yield from self._probe(key, ledger)

    @on_timer(LOOK)
    def on_look(
        self,
        key: Any = beam.DoFn.KeyParam,
        waiting: Any = beam.DoFn.StateParam(WAITING),
        token: Any = beam.DoFn.StateParam(TOKEN),
        look: Any = beam.DoFn.TimerParam(LOOK),
    ) -> Iterator[Any]:
        """Emit the packs that are durable."""
        ledger = self._ledger(key, waiting, token)
        below = ledger.durable(self._confirmations)
        if below:
            yield from self._emit(key, ledger, waiting, below)
        if ledger.first == ledger.next:
            self._rest(key, ledger, token)
            return
        look.set(self._next_look())
        self._turn(key, ledger, token)
        yield from self._probe(key, ledger)

    @on_timer(END)
    def on_end(
        self,
        key: Any = beam.DoFn.KeyParam,
        waiting: Any = beam.DoFn.StateParam(WAITING),
        token: Any = beam.DoFn.StateParam(TOKEN),
    ) -> Iterator[Any]:
        """Emit everything: at the end of time, timers of processing time fire no more (Flink)."""
        ledger = self._ledger(key, waiting, token)
        for pack in self._emit(key, ledger, waiting, ledger.next):
            yield (key, UNNUMBERED, b"", pack[-1]) if self._whole else pack
        token.clear()
        LEDGERS.forget((self._uid, key))

    def _rest(self, key: int, ledger: Ledger, token: Any) -> None:
        """Tidy up a key in which nothing waits: keep its number and digest if packs are whole, else clear its state."""
        if self._whole:
            self._turn(key, ledger, token)
        else:
            token.clear()
            LEDGERS.forget((self._uid, key))

    def _emit(self, key: int, ledger: Ledger, waiting: Any, below: int) -> Iterator[Any]:
        entries = self._entries(key, ledger, waiting)
        waiting.clear()
        for number, entry in enumerate(entries, ledger.first):
            if number < below:
                pack = entry[_HEAD:]
                ledger.history = self._continued(ledger.history, pack)
                yield (key, number, ledger.history, pack) if self._whole else pack
            else:
                waiting.add(entry)
        ledger.first = below

    def _ledger(self, key: int, waiting: Any, token: Any) -> Ledger:
        stored = token.read()

        def new() -> Ledger:
            first, after, history = 0, 0, _NO_PACKS
            seal = self._seal
            if stored is not None:
                seal = seal.of(stored)
                _, first, after, history = _TOKEN.unpack(seal.open(_STATE, stored, b"%d" % key))
            ledger = Ledger(first, after, seal, history)
            self._entries(key, ledger, waiting)
            return ledger

        return LEDGERS.open((self._uid, key), stored, new)

    def _entries(self, key: int, ledger: Ledger, waiting: Any) -> list[bytes]:
        """Read the packs that wait, each with its number; all of them must be there.

        Raises:
            SnapshotError: one is missing, too many, or was changed.
        """
        entries = sorted(waiting.read())  # a bag has no order; each pack begins with its number
        expect(len(entries) == ledger.next - ledger.first)
        for number, entry in enumerate(entries, ledger.first):
            compare(entry[:_HEAD], self._head(key, ledger.seal, number, entry[_HEAD:]))
        return entries

    def _head(self, key: int, seal: Seal, number: int, pack: bytes) -> bytes:
        """Make what comes before a pack in the bag: its number, and a digest of that and of the pack's own digest."""
        own = pack[: self._seal.of(pack).size]
        return _NUMBER.pack(number) + seal.mark(_ENTRY, b"%d" % key, _NUMBER.pack(number), own)

    def _continued(self, history: bytes, pack: bytes) -> bytes:
        """The digest of a history and one more pack."""
        own = pack[: self._seal.of(pack).size]
        return hashlib.blake2b(own, digest_size=len(history), key=history).digest()

    def _turn(self, key: int, ledger: Ledger, token: Any) -> None:
        """Write a new token, so that a ledger that does not fit the state is noticed."""
        body = _TOKEN.pack(secrets.token_bytes(8), ledger.first, ledger.next, ledger.history)
        ledger.token = ledger.seal.close(_STATE, body, b"%d" % key)
        token.write(ledger.token)

    def _probe(self, key: int, ledger: Ledger) -> Iterator[Any]:
        """Send the next probe, unless it is on its way."""
        now = self._clock()
        if ledger.probed is None or now - ledger.probed > _PATIENCE:
            ledger.probed = now
            yield TaggedOutput(_PROBES, (self._uid, key, ledger.name, ledger.confirmed))

    def _next_look(self) -> Timestamp:
        return Timestamp(micros=int((self._clock() + self._period) * 1e6))
