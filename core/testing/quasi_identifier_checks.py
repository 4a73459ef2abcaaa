"""Whether a type of quasi-identifier keeps its contract: the checks that the types of the library pass, too."""

from __future__ import annotations

import itertools
import json
import math
import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from crenel.errors import Rejected
from crenel.policy.geometry import Interval, Radix, Tree
from crenel.policy.quasi_identifiers import QuasiIdentifier

__all__ = ["check_quasi_identifier"]

#: Values that no type is likely to expect. A type may take one or reject it; any other error would stop a pipeline.
_STRANGE: tuple[Any, ...] = (
    object(),
    float("nan"),
    float("inf"),
    -1,
    10**400,
    True,
    "",
    "crenel's strange value",
    b"\xff\x00",
    [1, 2],
    {"a": 1},
    (),
)

#: The most samples that the checks of ranges use, which go through all pairs.
_MOST_ENDS = 12


def check_quasi_identifier(instance: QuasiIdentifier, samples: Sequence[Any], *, bad: Iterable[Any] = ()) -> None:
    """Check that a quasi-identifier keeps the contract that engines rely on.

    Args:
        instance: The quasi-identifier.
        samples: Values that it accepts, of at least two different coordinates.
        bad: Values that it must reject, besides None.

    Raises:
        AssertionError: it breaks the contract; the message says how, and for which sample.
    """
    _expect(isinstance(instance, QuasiIdentifier), "it must be a QuasiIdentifier")
    geometry = instance.geometry
    _expect(
        isinstance(geometry, (Interval, Radix, Tree)),
        "geometry must be an Interval, a Radix or a Tree",
    )
    bad = list(bad)
    places = _check_coordinates(instance, list(samples))
    _check_rejections(instance, bad)
    _check_columns(instance, list(samples), bad)
    _check_ranges(instance, places)
    _check_published(instance, places)
    _check_object(instance, list(samples))


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _check_coordinates(instance: QuasiIdentifier, samples: list[Any]) -> list[float]:
    lo, hi = instance.geometry.widest()
    whole = not isinstance(instance.geometry, Interval) or instance.geometry.cells
    places = []
    for sample in samples:
        try:
            place = instance.coordinate(sample)
        except Rejected as error:
            msg = f"coordinate({sample!r}) must take the sample, not reject it as {error.reason!r}"
            raise AssertionError(msg) from error
        _expect(type(place) is float, f"coordinate({sample!r}) must be a float, not {place!r}")
        _expect(math.isfinite(place), f"coordinate({sample!r}) must be finite, not {place!r}")
        _expect(lo <= place <= hi, f"coordinate({sample!r}) must be within {lo}..{hi}, not {place!r}")
        _expect(not whole or place.is_integer(), f"coordinate({sample!r}) must be whole, not {place!r}")
        _expect(
            instance.coordinate(sample) == place,
            f"coordinate({sample!r}) must be the same each time",
        )
        places.append(place)
    _expect(len(set(places)) >= 2, "samples must have at least two different coordinates")
    return places


def _check_columns(instance: QuasiIdentifier, samples: list[Any], bad: list[Any]) -> None:
    """Check that `coordinates` of a list, a tuple and an array of objects are the `coordinate` of each value."""
    mixed = [None, *samples, *bad, *reversed(samples)]
    for values in (samples, mixed, [], [None]):
        expected = [_outcome(instance, value) for value in values]
        objects = np.empty(len(values), dtype=object)
        objects[:] = values
        for column in (values, tuple(values), objects):
            found, reasons = instance.coordinates(column)
            where = f"coordinates of a {type(column).__name__}"
            _expect(
                isinstance(found, np.ndarray) and found.dtype == np.float64 and found.shape == (len(values),),
                f"{where} must be float64, one for each value",
            )
            _expect(
                reasons is None or (reasons.shape == found.shape and any(reasons)),
                f"{where}: the reasons must be None, or one for each value and some not None",
            )
            listed = [None] * len(values) if reasons is None else list(reasons)
            for place, (outcome, reason) in enumerate(zip(expected, listed, strict=True)):
                got = reason if reason is not None else float(found[place])
                _expect(got == outcome, f"{where} must be as coordinate's, not {got!r} for {outcome!r}")
        _expect(len(values) == len(expected), "coordinates must not change the column")


def _outcome(instance: QuasiIdentifier, value: Any) -> float | str:
    try:
        return instance.coordinate(value)
    except Rejected as error:
        return error.reason


def _check_rejections(instance: QuasiIdentifier, bad: list[Any]) -> None:
    for value in [None, *bad]:
        try:
            instance.coordinate(value)
        except Rejected as error:
            _check_reason(error, value)
        else:
            _expect(False, f"coordinate({value!r}) must raise Rejected")
    lo, hi = instance.geometry.widest()
    for value in _STRANGE:
        try:
            place = instance.coordinate(value)
        except Rejected as error:
            _check_reason(error, value)
        except Exception as error:
            msg = f"coordinate({value!r}) must raise Rejected, not {type(error).__name__}"
            raise AssertionError(msg) from error
        else:
            _expect(lo <= place <= hi, f"coordinate({value!r}) must be within {lo}..{hi}")


def _check_reason(error: Rejected, value: Any) -> None:
    _expect(isinstance(error.reason, str) and bool(error.reason), "a reason must be text")
    for text in (str(value), repr(value)):
        # Texts of one or two characters, such as "a", occur in any sentence.
        told = len(text) > 2 and text in f"{error.reason} {error}" and value is not None
        _expect(not told, f"a reason must not hold the value, as {error.reason!r} does")


def _check_ranges(instance: QuasiIdentifier, places: list[float]) -> None:
    geometry = instance.geometry
    ends = _ends(places)
    for lo, hi in itertools.combinations_with_replacement(ends, 2):
        first, last = geometry.span(lo, hi)
        what = f"the span of {lo}..{hi}"
        _expect(first <= lo and hi <= last, f"{what} must contain it")
        _expect(geometry.span(first, last) == (first, last), f"{what} must be its own span")
        loss = geometry.loss(lo, hi)
        learned = isinstance(geometry, Interval) and geometry.learned
        _expect(learned or 0 <= loss <= 1, f"the loss of {lo}..{hi} must be within 0..1")
        for wider in [end for end in ends if end > hi]:
            outer = geometry.span(lo, wider)
            _expect(outer[0] <= first and last <= outer[1], f"{what} must widen with the range")
            _expect(
                learned or loss <= geometry.loss(lo, wider),
                "the loss must not fall as ranges widen",
            )
    _expect(geometry.loss(*geometry.widest()) in (0.0, 1.0), "the loss of the whole domain must be 1")


def _ends(places: list[float]) -> list[float]:
    distinct = sorted(set(places))
    step = max(1, math.ceil(len(distinct) / _MOST_ENDS))
    return sorted({*distinct[::step], distinct[-1]})


def _check_published(instance: QuasiIdentifier, places: list[float]) -> None:
    spans = {instance.geometry.span(a, b) for a, b in itertools.combinations(_ends(places), 2)}
    spans |= {instance.geometry.span(a, a) for a in places[:_MOST_ENDS]}
    spans.add(instance.geometry.widest())
    texts: dict[str, tuple[float, float]] = {}
    for span in sorted(spans):
        published = instance.publish(*span)
        try:
            text = json.dumps(published, allow_nan=False)
        except (TypeError, ValueError) as error:
            msg = f"publish{span} must be something that JSON can hold, not {published!r}"
            raise AssertionError(msg) from error
        again = json.dumps(instance.publish(*span), allow_nan=False)
        _expect(text == again, f"publish{span} must be the same each time")
        # Readers tell groups apart by what is published: two that publish the same would look like one.
        _expect(
            texts.setdefault(text, span) == span,
            f"publish must tell {span} from {texts[text]}, not give {text} for both",
        )


def _check_object(instance: QuasiIdentifier, samples: list[Any]) -> None:
    copy = pickle.loads(pickle.dumps(instance))
    _expect(copy == instance, "it must be equal to itself after pickling")
    _expect(hash(copy) == hash(instance), "equal ones must have equal hashes")
    for sample in samples:
        _expect(
            copy.coordinate(sample) == instance.coordinate(sample),
            "it must give the same coordinates after pickling",
        )
    lo, hi = instance.geometry.widest()
    _expect(copy.publish(lo, hi) == instance.publish(lo, hi), "it must publish the same after pickling")
    weight = instance.weight
    _expect(isinstance(weight, float) and 0 < weight < math.inf, "weight must be a number above 0")
