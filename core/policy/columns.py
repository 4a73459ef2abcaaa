"""Converts columns of values to arrays of numbers, by the types of the values.

A column is a sequence, a numpy array or an Arrow array. No function for columns raises because of a value. A value that
does not fit gets a reason instead, and no reason ever holds the value.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import uuid
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from crenel.errors import Rejected
from crenel.policy.geometry import EXACT

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
#: For each value the reason of its rejection, or None; None instead of the array if no value was rejected.
Reasons: TypeAlias = NDArray[np.object_] | None

AHEAD = "too far ahead of the clock (max_ahead)"
MISSING = "missing"
MISSING_QUASI_IDENTIFIER = "missing (missing: category takes it)"
NO_COLUMN = "no such column"
NOT_A_DATE = "not a date"
NOT_A_NUMBER = "not a number"
OUTSIDE = "outside the domain"
TOO_FAR = "date too far"
TOO_LARGE = "too large"
TOO_SMALL = "too small"
UNKNOWN = "unknown value"
WRONG_LENGTH = "wrong length"
UNKNOWN_CHARACTER = "unknown character"
WRONG_TYPE = "wrong type"

#: Text that stands for a missing number or moment, beside empty text.
MISSING_TEXTS = frozenset(["NA", "N/A", "NaN", "nan", "NULL", "null"])

#: Stands for the person's column where a policy says that each row is about another person: the number of the row.
EACH_ROW = "(each row)"

#: The allowed size of numbers other than 0. Within it, the difference of any two numbers and its inverse are finite.
LARGEST, SMALLEST = 1e280, 1e-280

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - compared with moments already moved to UTC
_NUMBER_TYPES = (int, float, np.integer, np.floating, Decimal, Fraction)
_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)"
    r"(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?\s?(Z|z|[+-]\d\d:?\d\d)?)?",
    re.ASCII,
)
_ARROW_NUMBERS = frozenset(
    ["float", "double", "halffloat"] + [f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)]
)


def number(value: Any) -> float:
    """Return the value as a finite float64, never -0.0. Text and booleans are not numbers."""
    if value is None:
        raise Rejected(MISSING)
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, _NUMBER_TYPES):
        raise Rejected(NOT_A_NUMBER)
    try:
        result = float(value)
    except OverflowError:
        raise Rejected(TOO_LARGE) from None
    except ValueError:  # a signalling NaN of Decimal
        raise Rejected(NOT_A_NUMBER) from None
    size = abs(result)
    if SMALLEST <= size <= LARGEST or result == 0:
        return result + 0.0
    if size < SMALLEST:
        raise Rejected(TOO_SMALL)
    raise Rejected(TOO_LARGE if LARGEST < size < math.inf else NOT_A_NUMBER)


def numbers(values: Any) -> tuple[Floats, Reasons]:
    """Apply `number` to each value; NaN if there is a reason."""
    found = _plain_numbers(values)
    if found is None:
        return spread(*factorize(values), number)
    raw, missing = found
    if missing is None and _are_integers(values):
        return raw, None  # each is 0, or of a size that is allowed
    size = np.abs(raw)
    good = ((size >= SMALLEST) & (size <= LARGEST)) | (raw == 0)
    result = raw + 0.0
    if good.all():
        return result, None
    result[~good] = np.nan
    reasons = mark(None, ~np.isfinite(raw), NOT_A_NUMBER)
    if missing is not None and missing.any():
        reasons = mark(reasons, missing, MISSING, over=True)
    reasons = mark(reasons, ~good & (size > LARGEST), TOO_LARGE)
    return result, mark(reasons, ~good & (size < SMALLEST), TOO_SMALL)


def moment(value: Any) -> float:
    """Return the value as whole microseconds since the epoch.

    The value is a datetime (naive means UTC), a date (its midnight), ISO-8601 text, or a number of seconds since the
    epoch.
    """
    if value is None:
        raise Rejected(MISSING)
    if isinstance(value, dt.date):  # also a datetime
        micros = _of_date(value)
    elif isinstance(value, str):
        micros = _of_text(value)
    elif isinstance(value, np.datetime64):
        return _scalar(moments, np.array([value]))
    elif isinstance(value, _NUMBER_TYPES) and not isinstance(value, (bool, np.bool_)):
        micros = round(number(value) * 1e6)
    else:
        raise Rejected(NOT_A_DATE)
    # Beyond this, float64 does not resolve microseconds. It also catches milliseconds given as seconds.
    if abs(micros) > EXACT:
        raise Rejected(TOO_FAR)
    return float(micros)


def moments(values: Any) -> tuple[Floats, Reasons]:
    """Apply `moment` to each value; NaN if there is a reason."""
    dates = _plain_dates(values)
    if dates is not None:
        return _of_dates(dates)
    if _plain_numbers(values) is None:
        return spread(*factorize(values), moment)
    seconds, reasons = numbers(values)
    with np.errstate(over="ignore", invalid="ignore"):
        micros = np.rint(seconds * 1e6) + 0.0
        reasons = mark(reasons, np.abs(micros) > EXACT, TOO_FAR)
    return blank(micros, reasons), reasons


def text_of(value: Any) -> str:
    """Return the canonical text of a value.

    1, 1.0 and "1" have the same text, so that an identifier may be text in one row and a number in another. If they
    were meant as two, taking them for one errs on the side of privacy: fewer persons and fewer distinct values count.
    """
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    elif isinstance(value, np.generic):
        value = value.item()
    if value is None or _is_nan(value):
        raise Rejected(MISSING)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, Decimal):
        if not value.is_finite() or abs(value.adjusted()) > 400:  # do not write gigabytes of digits
            return str(value)
        return str(int(value)) if value == int(value) else str(value.normalize())
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.timezone.utc).isoformat()
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (bool, int, Fraction, uuid.UUID, dt.timedelta)):
        return str(value)
    raise Rejected(WRONG_TYPE)


def factorize(values: Any) -> tuple[Ints, list[Any]]:
    """Return each value's position in a list of the distinct values, and that list.

    The list holds plain Python objects, with None for a missing value. Values that cannot be hashed are listed one by
    one.
    """
    if is_arrow(values):
        values = _arrow_array(values)
        encoded = _arrow_dictionary(values)
        if encoded is not None:
            return encoded
        values = values.to_pylist() if _plain_dates(values) is None else _plain_dates(values)
    values = as_array(values)
    if isinstance(values, np.ndarray) and values.dtype.kind in "iufbM":
        if values.dtype.kind == "M":
            values = values.astype("datetime64[us]")
        distinct, codes = np.unique(values, return_inverse=True)
        return codes.reshape(-1).astype(np.int64), distinct.tolist()
    return _factorize_list(values.tolist() if isinstance(values, np.ndarray) else list(values))


def spread(
    codes: Ints, distinct: list[Any], function: Callable[[Any], float], dtype: Any = np.float64
) -> tuple[Any, Reasons]:
    """Apply a function to each distinct value, and copy its results and reasons to all values."""
    results = np.zeros(len(distinct), dtype=dtype)
    reasons = np.full(len(distinct), None, dtype=object)
    rejected = False
    for place, value in enumerate(distinct):
        try:
            results[place] = function(value)
        except Rejected as error:
            reasons[place] = error.reason
            rejected = True
    if not rejected:
        return results[codes], None
    if dtype is np.float64:
        results[reasons != None] = np.nan  # noqa: E711 - elementwise
    every = reasons[codes]
    return results[codes], every if any(every) else None


def mark(reasons: Reasons, where: NDArray[np.bool_], reason: str, *, over: bool = False) -> Reasons:
    """Set the reason of these values. A value that already has one keeps it, unless `over`."""
    if not where.any():
        return reasons
    if reasons is None:
        reasons = np.full(len(where), None, dtype=object)
    reasons[where if over else where & (reasons == None)] = reason  # noqa: E711 - elementwise
    return reasons


def blank(values: Floats, reasons: Reasons) -> Floats:
    """Replace values that have a reason by NaN."""
    if reasons is not None:
        values[reasons != None] = np.nan  # noqa: E711 - elementwise
    return values


def holes(values: Any, among: Ints) -> Ints:
    """Find the positions with a missing value: null, NaN, NaT or empty text, whatever the type of the column."""
    if is_arrow(values):
        picked = values.take(among).to_pylist()
    else:
        plain = as_array(values)
        picked = [plain[place] for place in among.tolist()]
    return among[[is_missing(value) for value in picked]]


def is_missing(value: Any) -> bool:
    """Whether the value counts as missing."""
    if value is None or (isinstance(value, (str, bytes)) and len(value) == 0):
        return True
    if isinstance(value, np.datetime64):
        return bool(np.isnat(value))
    if isinstance(value, np.floating):
        return bool(np.isnan(value))
    return _is_nan(value) or type(value).__name__ == "NAType"  # of pandas, which need not be imported for this


def is_arrow(values: Any) -> bool:
    """Whether it is an Arrow column. This does not import pyarrow."""
    return type(values).__module__.partition(".")[0] == "pyarrow"


def as_array(values: Any) -> Any:
    """Convert a pandas column, masked array or similar to numpy or a list; return anything else unchanged."""
    if isinstance(values, np.ma.MaskedArray):
        return values.tolist()
    if isinstance(values, np.ndarray) or is_arrow(values):
        return values
    if hasattr(values, "to_numpy"):
        return values.to_numpy()
    if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
        msg = f"a column must be a sequence or an array, not {type(values).__name__}."
        raise TypeError(msg)
    return values


def _is_nan(value: Any) -> bool:
    # This includes NaT of pandas, which is a datetime. Other types may not compare to a boolean.
    comparable = isinstance(value, (float, Decimal, dt.datetime))
    return comparable and bool(value != value)  # noqa: PLR0124


def _scalar(function: Callable[[Any], tuple[Floats, Reasons]], values: Any) -> float:
    found, reasons = function(values)
    if reasons is not None:
        raise Rejected(reasons[0])
    return float(found[0])


def _arrow_array(values: Any) -> Any:
    if hasattr(values, "combine_chunks"):
        if str(values.type).startswith("dictionary"):
            values = values.unify_dictionaries()
        values = values.combine_chunks()
    return values


def _arrow_dictionary(values: Any) -> tuple[Ints, list[Any]] | None:
    if not str(values.type).startswith("dictionary"):
        if _plain_dates(values) is not None:
            return None
        try:
            values = values.dictionary_encode()
        except NotImplementedError:  # nested values
            return None
    distinct = values.dictionary.to_pylist()
    indices = values.indices
    if indices.null_count:
        indices = indices.cast("int64").fill_null(len(distinct))
        distinct.append(None)
    return indices.to_numpy(zero_copy_only=False).astype(np.int64), distinct


def _plain_numbers(values: Any) -> tuple[Floats, NDArray[np.bool_] | None] | None:
    """Return the column as float64, and what is missing in it, if it holds nothing but numbers."""
    if is_arrow(values):
        values = _arrow_array(values)
        if str(values.type) not in _ARROW_NUMBERS:
            return None
        missing = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
        return values.to_numpy(zero_copy_only=False).astype(np.float64), missing
    values = as_array(values)
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "iuf":
            return None
        return values.astype(np.float64), None
    # Check the types of a list first, because numpy would take True for 1.
    kinds = set(map(type, values))
    if not kinds or not kinds <= {int, float, type(None)}:
        return None
    try:
        raw = np.array(values, dtype=np.float64)
    except OverflowError:
        return None
    if type(None) not in kinds:
        return raw, None
    missing = np.zeros(len(raw), dtype=bool)
    for place in np.flatnonzero(np.isnan(raw)).tolist():
        missing[place] = values[place] is None
    return raw, missing


def _are_integers(values: Any) -> bool:
    """Whether the column holds nothing but integers of at most 64 bits, by its type."""
    if is_arrow(values):
        return not values.null_count and str(values.type).lstrip("u").startswith("int")
    values = as_array(values)
    return isinstance(values, np.ndarray) and values.dtype.kind in "iu"


def _plain_dates(values: Any) -> NDArray[np.datetime64] | None:
    if is_arrow(values):
        values = _arrow_array(values)
        if not str(values.type).startswith(("timestamp", "date")):
            return None
        values = values.to_numpy(zero_copy_only=False)
    if isinstance(values, np.ndarray) and values.dtype.kind == "M":
        return values
    return None


def _of_dates(dates: NDArray[np.datetime64]) -> tuple[Floats, Reasons]:
    reasons = mark(None, np.isnat(dates), MISSING)
    # Check the days first: the microseconds of a distant year overflow 64 bits.
    days = dates.astype("datetime64[D]").astype(np.int64)
    reasons = mark(reasons, np.abs(days) > EXACT // 86_400_000_000 + 1, TOO_FAR)
    micros = dates.astype("datetime64[us]").astype(np.int64)
    reasons = mark(reasons, np.abs(micros) > EXACT, TOO_FAR)
    return blank(micros.astype(np.float64), reasons), reasons


def _of_date(value: dt.date) -> int:
    if not isinstance(value, dt.datetime):
        return (value.toordinal() - _EPOCH.toordinal()) * 86_400_000_000
    if _is_nan(value):
        raise Rejected(MISSING)
    offset = value.utcoffset()
    since = value.replace(tzinfo=None) - _EPOCH
    if offset is not None:
        since -= offset
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _of_text(value: str) -> int:
    match = _ISO.fullmatch(value)
    if match is None:
        raise Rejected(MISSING if not value or value in MISSING_TEXTS else NOT_A_DATE)
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        stamp = dt.datetime(  # noqa: DTZ001 - the zone is subtracted below
            int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0)
        )
    except ValueError:
        raise Rejected(NOT_A_DATE) from None
    micros = _of_date(stamp) + int((fraction or "0")[:6].ljust(6, "0"))
    if zone and zone not in "Zz":
        minutes = int(zone[1:3]) * 60 + int(zone[-2:])
        if int(zone[-2:]) >= 60 or minutes >= 24 * 60:
            raise Rejected(NOT_A_DATE)
        micros -= (minutes if zone[0] == "+" else -minutes) * 60_000_000
    return micros


def _factorize_list(values: list[Any]) -> tuple[Ints, list[Any]]:
    kinds = set(map(type, values)) - {type(None)}
    if any(issubclass(kind, dt.datetime) for kind in kinds):
        # When a clock is set back, both passes of the repeated hour compare equal, though they are an hour apart.
        return np.arange(len(values), dtype=np.int64), values
    try:
        # A dict takes 1, 1.0 and True for one key. With several types, the type becomes a part of the key.
        keys: list[Any] = values if len(kinds) <= 1 else list(zip(map(type, values), values, strict=True))
        places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    except TypeError:
        return np.arange(len(values), dtype=np.int64), values
    codes = np.fromiter(map(places.__getitem__, keys), dtype=np.int64, count=len(keys))
    return codes, list(places) if keys is values else [value for _, value in places]
