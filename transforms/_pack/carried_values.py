"""Values that rows carry from PACK to PUBLISH unchanged, written as MessagePack.

Packs and state lie where others may write. Reading a pickle from there would run whatever code it names, so nothing
here does: each type that MessagePack lacks is an extension that one function below writes and another reads. A value is
read as the type that it was written as. A value of any other type cannot be carried, and its row is rejected.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import apache_beam as beam
import msgpack
import numpy as np
from apache_beam.utils.timestamp import Duration, Timestamp

from crenel.errors import Rejected

__all__ = ["NESTED", "PLAIN", "WRONG_TYPE", "pack", "refusal", "unpack"]

#: Why a value cannot be carried.
WRONG_TYPE = "type that cannot be stored"
NESTED = "nested too deeply"

#: Types that MessagePack itself has, and whose values hold no others.
PLAIN = frozenset({type(None), bool, int, float, str, bytes})

#: How deeply extensions may be nested in each other. MessagePack itself limits lists and dicts.
_DEEPEST = 16
#: Levels that a value must leave to what it is packed in.
_MARGIN = 32
#: Kinds of numpy's types that bytes describe completely, and those that are text.
_NUMBERS, _TEXTS = frozenset("biufcmM"), frozenset("US")
#: Families of types: all NamedTuples, and pandas' moments.
_NAMED_TUPLE, _PANDAS = "NamedTuple", "pandas"


def pack(value: Any) -> bytes:
    """Write a value.

    Raises:
        Rejected: it is, or holds, a value of a type that cannot be carried, or it is nested too deeply.
    """
    return _packed(value, 0)


def refusal(value: Any) -> str | None:
    """Return why a value cannot be carried; None if it can, also inside of a few lists."""
    for _ in range(_MARGIN):
        value = [value]
    try:
        pack(value)
    except Rejected as rejected:
        return rejected.reason
    return None


def unpack(data: bytes) -> Any:
    """Read what `pack` wrote. The caller must be sure that nobody has changed it."""
    return msgpack.unpackb(data, ext_hook=_extended, strict_map_key=False, unicode_errors="surrogatepass")


def _packed(value: Any, depth: int) -> bytes:
    extend = partial(_extension, depth=depth)
    try:
        data: bytes = msgpack.packb(value, default=extend, strict_types=True, unicode_errors="surrogatepass")
    except Rejected:
        raise
    except (ValueError, RecursionError):  # deeper than MessagePack goes; or it holds itself
        raise Rejected(NESTED) from None
    except (TypeError, OverflowError):
        raise Rejected(WRONG_TYPE) from None
    return data


def _extension(value: Any, depth: int) -> Any:
    """Write a value of a type that MessagePack lacks."""
    if depth >= _DEEPEST:
        raise Rejected(NESTED)
    code = _CODES.get(_kind(value))
    if code is None:
        raise Rejected(WRONG_TYPE)
    return msgpack.ExtType(code, _packed(_EXTENSIONS[code].write(value), depth + 1))


def _kind(value: Any) -> Any:
    """The type of a value, or what stands for a family of types."""
    kind = type(value)
    if isinstance(value, np.generic):
        return np.generic
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return _NAMED_TUPLE
    return _PANDAS if isinstance(value, dt.datetime) and kind.__module__.startswith("pandas.") else kind


def _extended(code: int, data: bytes) -> Any:
    """Read what `_extension` wrote."""
    return _EXTENSIONS[code].read(unpack(data))


# --- Times ---


def _zone(zone: dt.tzinfo | None) -> Any:
    """A time zone as plain values: its offset, or its name."""
    if zone is None:
        return None
    if type(zone) is dt.timezone:
        # A name is made of the offset, unless one was given.
        offset, name = zone.utcoffset(None), zone.tzname(None)
        return [offset] if name == dt.timezone(offset).tzname(None) else [offset, name]
    if type(zone) is ZoneInfo and zone.key is not None:
        return zone.key
    raise Rejected(WRONG_TYPE)


def _zone_of(said: Any) -> dt.tzinfo | None:
    if said is None:
        return None
    return ZoneInfo(said) if isinstance(said, str) else dt.timezone(*said)


def _moment(value: dt.datetime) -> list[Any]:
    return [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, _zone(value.tzinfo)]


def _moment_of(said: list[Any]) -> dt.datetime:
    return dt.datetime.fromisoformat(said[0]).replace(fold=said[1], tzinfo=_zone_of(said[2]))


def _time(value: dt.time) -> list[Any]:
    return [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, _zone(value.tzinfo)]


def _time_of(said: list[Any]) -> dt.time:
    return dt.time.fromisoformat(said[0]).replace(fold=said[1], tzinfo=_zone_of(said[2]))


def _pandas(value: Any) -> Any:
    """A moment of pandas: what numpy makes of it, and its zone; nothing if it is missing."""
    at = value.to_datetime64()
    return None if np.isnat(at) else [at, _zone(value.tzinfo)]


def _pandas_of(said: Any) -> Any:
    import pandas as pd

    if said is None:
        return pd.NaT
    at, zone = said
    return pd.Timestamp(at) if zone is None else pd.Timestamp(at, tz="UTC").tz_convert(_zone_of(zone))


# --- numpy ---


def _scalar(value: np.generic) -> list[Any]:
    if value.dtype.kind in _TEXTS:
        return [value.dtype.kind, value.item()]
    if value.dtype.kind not in _NUMBERS:
        raise Rejected(WRONG_TYPE)
    return [value.dtype.str, value.tobytes()]


def _scalar_of(said: list[Any]) -> Any:
    kind, data = said
    if kind in _TEXTS:
        return np.str_(data) if kind == "U" else np.bytes_(data)
    return np.frombuffer(data, kind)[0]


def _array(value: Any) -> list[Any]:
    if value.dtype.kind not in _NUMBERS | _TEXTS or value.dtype.itemsize == 0:
        raise Rejected(WRONG_TYPE)
    return [value.dtype.str, list(value.shape), value.tobytes()]


def _array_of(said: list[Any]) -> Any:
    kind, shape, data = said
    return np.frombuffer(data, kind).reshape(shape).copy()


# --- Rows in rows ---


def _named_tuple(value: Any) -> list[Any]:
    kind = type(value)
    return [kind.__module__, kind.__qualname__, list(value._fields), list(value)]


def _named_tuple_of(said: list[Any]) -> Any:
    """Make a NamedTuple of its class, if that is there: nothing is imported, and no code of a class runs."""
    module, name, fields, values = said
    kind: Any = sys.modules.get(module)
    for part in name.split("."):
        kind = getattr(kind, part, None)
    is_same = isinstance(kind, type) and issubclass(kind, tuple) and getattr(kind, "_fields", None) == tuple(fields)
    return tuple.__new__(kind if is_same else namedtuple(name.rpartition(".")[2], fields), values)


@dataclass(frozen=True)
class _Extension:
    """How values of a type are written as other values, and made of those again."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _big(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


#: The types that MessagePack lacks. The code of each is its place in this list, and is stored: new ones come last.
_TYPES: list[tuple[Any, _Extension]] = [
    (int, _Extension(_big, lambda said: int.from_bytes(said, "big", signed=True))),  # of more than 64 bits
    (Decimal, _Extension(str, Decimal)),
    (dt.datetime, _Extension(_moment, _moment_of)),
    (dt.date, _Extension(dt.date.toordinal, dt.date.fromordinal)),
    (dt.time, _Extension(_time, _time_of)),
    (dt.timedelta, _Extension(lambda it: [it.days, it.seconds, it.microseconds], lambda said: dt.timedelta(*said))),
    (UUID, _Extension(lambda it: it.bytes, lambda said: UUID(bytes=said))),
    (tuple, _Extension(list, tuple)),
    (set, _Extension(list, set)),
    (frozenset, _Extension(list, frozenset)),
    (OrderedDict, _Extension(lambda it: list(map(list, it.items())), OrderedDict)),
    (complex, _Extension(lambda it: [it.real, it.imag], lambda said: complex(*said))),
    (Fraction, _Extension(lambda it: [it.numerator, it.denominator], lambda said: Fraction(*said))),
    (np.generic, _Extension(_scalar, _scalar_of)),
    (np.ndarray, _Extension(_array, _array_of)),
    (beam.Row, _Extension(lambda it: list(map(list, it._asdict().items())), lambda said: beam.Row(**dict(said)))),
    (Timestamp, _Extension(lambda it: it.micros, lambda said: Timestamp(micros=said))),
    (Duration, _Extension(lambda it: it.micros, lambda said: Duration(micros=said))),
    (_NAMED_TUPLE, _Extension(_named_tuple, _named_tuple_of)),
    (_PANDAS, _Extension(_pandas, _pandas_of)),
]
_EXTENSIONS = [extension for _, extension in _TYPES]
_CODES = {kind: code for code, (kind, _) in enumerate(_TYPES)}
