"""Checks of declarations: every message has the same form, and all problems are reported at once."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Iterable
from typing import Any, TypeVar

from crenel.errors import PolicyError, Problem

__all__ = ["REFERENCE", "Problems", "a_boolean", "a_number", "an_integer", "one_of", "short", "suggestion"]

_Choice = TypeVar("_Choice")

#: Where a secret may be: an environment variable, a file by its absolute path, or a version of a secret in Google's
#: Secret Manager. The version has a number: `latest` would change under a running pipeline.
REFERENCE = re.compile(
    r"env:[A-Za-z_][A-Za-z0-9_]*|file:/.+|gcp:projects/[^/]+/secrets/[^/]+/versions/[1-9][0-9]*", re.ASCII
)


class Problems:
    """Collects problems, so that the user reads all of them at once."""

    def __init__(self) -> None:
        self.found: list[str | Problem] = []

    def __bool__(self) -> bool:
        return bool(self.found)

    def add(self, path: str, sentence: str) -> None:
        """Add a problem; the sentence continues from the path."""
        self.found.append((path, sentence))

    def must(self, path: str, rule: str, value: object) -> None:
        """Add the problem that a field breaks a rule."""
        self.add(path, f"must be {rule}, not {short(value)}.")

    def include(self, path: str, error: PolicyError) -> None:
        """Add the problems of another error, under this path."""
        for inner, sentence in error.details:
            self.add(".".join(part for part in (path, inner) if part), _continued(inner, sentence))

    def unknown(self, path: str, key: object, known: Iterable[str]) -> None:
        """Add an unknown key, with a suggestion of what may have been meant."""
        names = list(known)
        where = f"{path}.{key}" if path else str(key)
        guess = suggestion(key, names)
        listed = ", ".join(names)
        self.add(where, f"is unknown; {guess}the fields are: {listed}." if names else "is unknown.")

    def raise_if_any(self, owner: str) -> None:
        """Raise an error with all problems, if there are any."""
        if self.found:
            raise PolicyError(self.found, owner)


def short(value: object, limit: int = 80) -> str:
    """Return the value as the user wrote it, shortened if it is long."""
    if hasattr(value, "isoformat"):  # a date as the user wrote it, not datetime.date(...)
        text = str(value)
    elif isinstance(value, (list, tuple)) and len(value) <= 4:
        text = "[" + ", ".join(short(item, 30) for item in value) + "]"
    else:
        text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def suggestion(given: object, known: Iterable[str]) -> str:
    """Return `did you mean 'x'? ` if a known name is similar, else an empty text."""
    folded = {name.casefold(): name for name in reversed(list(known))}
    near = difflib.get_close_matches(str(given).casefold(), folded, n=1, cutoff=0.6)
    return f"did you mean {folded[near[0]]!r}? " if near else ""


def an_integer(
    problems: Problems, path: str, value: Any, at_least: int, default: int = 0, *, at_most: int | None = None
) -> int:
    """Return the value if it is an integer (not a boolean) within the bounds; else the default."""
    rule = f"an integer of at least {at_least}"
    if not isinstance(value, (bool, str)):
        try:
            number = operator.index(value)
        except TypeError:
            pass
        else:
            if at_most is not None and number > at_most:
                rule = f"an integer from {at_least} to {at_most}"
            elif number >= at_least:
                return number
    problems.must(path, rule, value)
    return default


def a_number(problems: Problems, path: str, value: Any, rule: str, lo: float, hi: float) -> float | None:
    """Return the value if it is a number strictly between `lo` and `hi`; else None."""
    number = as_number(value)
    if number is None or not lo < number < hi:
        problems.must(path, rule, value)
        return None
    return number


def as_number(value: Any) -> float | None:
    """Return the value as a finite float if it is a number; else None."""
    if isinstance(value, (bool, str, bytes)) or type(value).__name__ == "bool_":
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def a_boolean(problems: Problems, path: str, value: Any) -> bool:
    """Return the value if it is a boolean; else False."""
    if not isinstance(value, bool):
        problems.must(path, "true or false", value)
        return False
    return value


def one_of(problems: Problems, path: str, value: Any, choices: type[_Choice]) -> _Choice | None:
    """Return the member of an enumeration that was given, as itself or by its value; else None."""
    try:
        return choices(value)  # type: ignore[call-arg]
    except ValueError:
        known = [str(choice.value) for choice in choices]  # type: ignore[attr-defined]
        rule = " or ".join(repr(name) for name in known)
        problems.must(path, rule, value)
        return None


def _continued(inner: str, sentence: str) -> str:
    # A whole sentence becomes a remark if a path precedes it.
    return sentence if inner or sentence.startswith((":", "must ")) else f": {sentence}"
