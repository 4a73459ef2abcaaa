"""The role of each column: a guess from names and values, with the reason for it.

The guess fails closed: a column that is in doubt is not taken, and so is never published.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from crenel.pipelines.checking.advice import MANY
from crenel.pipelines.console.sections import count, listed, percent, spoken
from crenel.pipelines.drafting import column_names, sample_measures
from crenel.pipelines.drafting.profiles import FEW, Kind, Profile

__all__ = ["Choice", "Roles", "choose"]

#: A quasi-identifier that is missing in at least this share of the rows is not taken, because it would tell little.
_MISSING = 0.5

#: A plain id with more rows for each value may stand for a place; and fewer persons show nothing about themselves.
_TOO_MANY_ROWS, _FEWEST_PERSONS = 100, 20

#: Sensitive columns are published as they are, so few are taken.
_MOST_SENSITIVE = 2

_UNCLEAR = "dates, but which number is the day? Give --date-format, such as '%d/%m/%Y' or '%m/%d/%Y'"

_TYPED = (Kind.NUMBER, Kind.MOMENT, Kind.CODE, Kind.CATEGORY)


@dataclass(frozen=True)
class Choice:
    """A column in a role, and the reason."""

    column: Profile
    reason: str

    #: False for a candidate that is left to the user.
    taken: bool = True

    #: Of a place: the column is its latitude, this one its longitude, and it is published under this name.
    longitude: Profile | None = None
    called: str = ""

    @property
    def columns(self) -> list[Profile]:
        """The columns: of a place, there are two."""
        return [self.column] if self.longitude is None else [self.column, self.longitude]


@dataclass
class Roles:
    """The roles of all columns."""

    persons: list[Choice] = field(default_factory=list)
    times: list[Choice] = field(default_factory=list)
    quasi_identifiers: list[Choice] = field(default_factory=list)
    sensitive: list[Choice] = field(default_factory=list)
    rest: list[Choice] = field(default_factory=list)
    #: Whether the user says that each row is about another person.
    each_row: bool = False

    @property
    def person(self) -> Profile | None:
        """The column that tells persons apart, if one does."""
        return next((choice.column for choice in self.persons if choice.taken), None)

    @property
    def lacking(self) -> list[str]:
        """What keeps the draft from being a policy yet, and what to do about it: sentences."""
        said = []
        if self.person is None and not self.each_row:
            said.append(
                "No column seems to tell persons apart. Name the one that does under person. If each row is about "
                "another person, draft it again with --each-row."
            )
        if not any(choice.taken for choice in self.quasi_identifiers):
            said.append("No column can be generalized. Name one under quasi_identifiers.")
        return said

    @property
    def event_time(self) -> Profile | None:
        """The column of the event time, if there is one."""
        return next((choice.column for choice in self.times if choice.taken), None)


def choose(
    profiles: Iterable[Profile],
    *,
    can_write: bool = False,
    ambiguous: Sequence[str] = (),
    person: str | None = None,
    each_row: bool = False,
) -> Roles:
    """Give each column a role; those of `rest` have none.

    Args:
        profiles: The columns.
        can_write: Whether a hierarchy of many values can be written to a file of its own.
        ambiguous: Columns of dates in which day and month cannot be told apart.
        person: The column that tells persons apart, if the user names it.
        each_row: Whether the user says that each row is about another person.
    """
    every = list(profiles)
    # A policy cannot name a column without a name: mostly, it numbers the rows.
    left = [column for column in every if column.name and column.name not in ambiguous]
    roles = Roles(each_row=each_row)
    roles.persons = _named(left, person) if person is not None else _persons(left)
    if roles.person is None and not each_row:
        roles.persons += _persons_by_values(_without(left, roles.persons), left)
    if each_row:
        roles.persons = [Choice(one.column, one.reason, taken=False) for one in roles.persons]
    left = _without(left, roles.persons)
    roles.times = _times(left)
    left = _without(left, [choice for choice in roles.times if choice.taken])
    roles.sensitive = _sensitive(left)
    left = _without(left, roles.sensitive)
    places = _places(left, {column.name for column in every})
    others = _quasi_identifiers(_without(left, places), can_write=can_write, most=MANY - len(places))
    roles.quasi_identifiers = others + places
    left = _without(left, roles.quasi_identifiers)
    if not any(choice.taken for choice in roles.quasi_identifiers):
        roles.quasi_identifiers += _any_quasi_identifier(left)
        left = _without(left, roles.quasi_identifiers)
    if not any(choice.taken for choice in roles.quasi_identifiers) and roles.event_time is not None:
        reason = f"taken only because a policy needs one; {_values(roles.event_time)}"
        roles.quasi_identifiers.append(Choice(roles.event_time, reason))
    moments = [column for column in left if column.kind is Kind.MOMENT]
    reason = "dates: an attacker may know when something happened"
    roles.quasi_identifiers += [Choice(column, reason, taken=False) for column in moments]
    left = _without(left, roles.quasi_identifiers)
    roles.rest = [Choice(column, _why_not(column), taken=False) for column in left]
    roles.rest += [Choice(column, "it has no name", taken=False) for column in every if not column.name]
    roles.rest += [Choice(column, _UNCLEAR, taken=False) for column in every if column.name in ambiguous]
    return roles


def _without(columns: list[Profile], chosen: Iterable[Choice]) -> list[Profile]:
    gone = {column.name for choice in chosen for column in choice.columns}
    return [column for column in columns if column.name not in gone]


def _named(columns: list[Profile], name: str) -> list[Choice]:
    """Take the column that the user names."""
    return [
        Choice(one, f"named by --person; {count(one.distinct, 'person')}{_missing(one)}")
        for one in columns
        if one.name == name
    ]


def _persons(columns: list[Profile]) -> list[Choice]:
    found = []
    for column in columns:
        word = column_names.person(column.name)
        fit = column.kind in (Kind.TEXT, Kind.CATEGORY, Kind.CODE, Kind.NUMBER)
        if word is None or not fit or not _whole(column) or column.distinct < 3:
            continue
        each = "one row each" if column.repeats == 1 else f"{column.repeats:.1f} rows each"
        doubt = ", which may also number the rows" if column_names.only_an_id(column.name) else ""
        reason = f"suggested by its name ({word}){doubt}; {count(column.distinct, 'person')}, {each}"
        crowded = column_names.only_an_id(column.name) and column.repeats > _TOO_MANY_ROWS
        if crowded:
            reason += "; so many rows are seldom one person's, it may be a place or a group"
        found.append(Choice(column, reason + _missing(column), taken=not crowded))
    found.sort(key=_doubts)
    return found[:1] + [Choice(one.column, one.reason, taken=False) for one in found[1:]]


def _persons_by_values(columns: list[Profile], every: list[Profile]) -> list[Choice]:
    """Find a column that its values show to tell persons apart: they repeat, and each has one sex, or one birthday."""
    found = []
    fixed = [column for column in every if column_names.is_fixed(column.name) and column.distinct > 1]
    if not any(np.bincount(column.codes).max() < 0.9 * column.rows for column in fixed):
        return []  # what nearly all have in common shows nothing
    for column in columns:
        fit = column.kind in (Kind.TEXT, Kind.CODE, Kind.NUMBER) and _whole(column) and not column.missing
        if not fit or column.distinct < _FEWEST_PERSONS or not 1.1 <= column.repeats <= _TOO_MANY_ROWS:
            continue
        if column_names.quasi_identifier(column.name) or column_names.sensitive(column.name):
            continue
        if all(_determines(column, other) for other in fixed):
            each = f"{count(column.distinct, 'value')}, {column.repeats:.1f} rows each"
            reason = f"each of its values has one {listed(one.name for one in fixed)}; {each}"
            # Survey weights have one sex and one race too, and repeat by chance.
            found.append(Choice(column, reason, taken=column.repeats >= 2))
    found.sort(key=lambda choice: (not choice.taken, -choice.column.distinct))
    return found[:1] + [Choice(one.column, one.reason, taken=False) for one in found[1:]]


def _determines(one: Profile, other: Profile) -> bool:
    """Whether rows with the same value of one column nearly always have the same value of another."""
    if other.missing or one.distinct <= other.distinct:
        return False
    pairs = len(np.unique(one.codes * (int(other.codes.max(initial=0)) + 1) + other.codes))
    return pairs <= 1.02 * one.distinct


def _doubts(choice: Choice) -> tuple[bool, bool, bool, int, int]:
    """Sort candidates: a plain id often numbers the rows, while values that repeat are more likely persons."""
    column = choice.column
    return (
        not choice.taken,
        column_names.only_an_id(column.name),
        column.repeats == 1,
        column.missing,
        -column.distinct,
    )


def _whole(column: Profile) -> bool:
    return bool(np.all(column.present % 1 == 0)) if len(column.coordinates) else True


def _times(columns: list[Profile]) -> list[Choice]:
    found = []
    for column in columns:
        quasi = column_names.quasi_identifier(column.name)
        if column.kind is not Kind.MOMENT or (quasi is not None and quasi[1]):
            continue
        found.append((column, _out_of_order(column)))
    found.sort(key=lambda one: (one[0].missing > 0, one[1], column_names.event_time(one[0].name) is None))
    return [
        Choice(column, f"dates, {_order(share)}" + _missing(column), taken=place == 0)
        for place, (column, share) in enumerate(found)
    ]


def _out_of_order(column: Profile) -> float:
    return float((sample_measures.lateness(column.present.astype(np.int64)) > 0).mean())


def _order(share: float) -> str:
    return f"{percent(share)} of the rows out of order" if share else "in order"


def _sensitive(columns: list[Profile]) -> list[Choice]:
    found: list[Choice] = []
    for column in columns:
        known = column_names.sensitive(column.name)
        if known is None or column.kind not in (Kind.NUMBER, Kind.CATEGORY, Kind.CODE, Kind.TEXT):
            continue
        taken = known[1] and sum(one.taken for one in found) < _MOST_SENSITIVE
        reason = f"suggested by its name ({known[0]}); {_values(column)}{_missing(column)}"
        found.append(Choice(column, reason, taken))
    return found


def _places(columns: list[Profile], known: set[str]) -> list[Choice]:
    """Pair the latitudes and the longitudes of the same places."""
    pairs: dict[str, dict[str, Profile]] = {}
    for column in columns:
        found = column_names.coordinate(column.name)
        if found is None or column.kind is not Kind.NUMBER or column.numbers_rows:
            continue
        if np.abs(column.present).max() <= (90 if found[0] == "latitude" else 180):
            pairs.setdefault(found[1], {}).setdefault(found[0], column)
    chosen = []
    for of, pair in pairs.items():
        if len(pair) == 2:
            called = _unused(f"{of}_place" if of and not of.endswith(".") else f"{of}place", known)
            north, east = pair["latitude"], pair["longitude"]
            missing = max((north, east), key=lambda one: one.missing)
            number = len(np.unique(north.codes * (int(east.codes.max(initial=0)) + 1) + east.codes))
            reason = f"a place: the latitude {north.name}, and the longitude {east.name}; {count(number, 'place')}"
            taken = missing.missing < _MISSING * missing.rows
            against = "" if taken else "; missing too often"
            chosen.append(Choice(north, reason + _missing(missing) + against, taken, east, called))
    return chosen


def _unused(name: str, known: set[str]) -> str:
    while name in known:
        name += "_"
    return name


def _quasi_identifiers(columns: list[Profile], *, can_write: bool, most: int = MANY) -> list[Choice]:
    graded = []
    for column in columns:
        known = column_names.quasi_identifier(column.name)
        if known is None or column.kind not in (*_TYPED, Kind.TEXT) or column.numbers_rows:
            continue
        if column_names.direct_identifier(column.name) is None:
            graded.append((not known[1], known[0], column))
    chosen: list[Choice] = []
    for _, word, column in sorted(graded, key=lambda one: one[0]):
        against = _against(column, [one.column for one in chosen if one.taken], can_write=can_write, most=most)
        reason = f"suggested by its name ({word}); {_values(column)}{_missing(column)}"
        chosen.append(Choice(column, f"{reason}; {against}" if against else reason, not against))
    return chosen


def _against(column: Profile, taken: list[Profile], *, can_write: bool = False, most: int = MANY) -> str:
    """Say why a quasi-identifier is not taken; empty if it is."""
    if column.kind is Kind.TEXT and not column.can_be_grouped:
        return "its values hardly repeat, or are too many, so it needs a hierarchy of your own"
    if column.kind is Kind.TEXT and not can_write:
        return f"more than {FEW} values: with --output, a hierarchy is drafted in a file beside the policy"
    if column.missing >= _MISSING * column.rows:
        return "missing too often"
    same = next((other for other in taken if _one_to_one(column, other)), None)
    if same is not None:
        return f"tells the same as {same.name}"
    if len(taken) >= most:
        return f"more than {MANY} quasi-identifiers would generalize each one far"
    return ""


def _any_quasi_identifier(columns: list[Profile]) -> list[Choice]:
    """Choose the first column that could be one, since a policy needs at least one."""
    for column in columns:
        fits = column.kind in _TYPED and not column.numbers_rows and not column_names.identifier(column.name)
        if fits and not _against(column, []):
            reason = f"taken only because a policy needs one; {_values(column)}{_missing(column)}"
            return [Choice(column, reason)]
    return []


def _one_to_one(one: Profile, other: Profile) -> bool:
    if one.distinct != other.distinct or one.distinct > 10_000:
        return False
    pairs = one.codes * (int(other.codes.max(initial=0)) + 1) + other.codes
    return len(np.unique(pairs)) == len(np.unique(one.codes)) == len(np.unique(other.codes))


def _values(column: Profile) -> str:
    if column.kind is Kind.MOMENT:
        reach = int(np.ptp(column.present))
        return f"dates over {spoken(sample_measures.round_duration(reach))}"
    if column.kind is Kind.NUMBER:
        return f"{column.distinct:,} different numbers"
    return count(column.distinct, "value")


def _missing(column: Profile) -> str:
    if not column.missing:
        return ""
    return f"; missing in {percent(column.missing / column.rows)} of the rows"


def _why_not(column: Profile) -> str:
    direct = column_names.direct_identifier(column.name)
    if direct is not None:
        return f"its name ({direct}) suggests that it names a person"
    if column.kind in (Kind.CONSTANT, Kind.EMPTY, Kind.OTHER):
        return str(column.kind.value)
    if column.numbers_rows:
        return "it only numbers the rows"
    if column.kind is Kind.NUMBER and column_names.event_time(column.name) and _is_milliseconds(column):
        return "looks like milliseconds since the epoch, but crenel takes seconds"
    if column.distinct > 0.5 * column.rows and column.kind is not Kind.NUMBER:
        return "nearly every row has a value of its own: it may identify a person"
    return _values(column) + _missing(column)


def _is_milliseconds(column: Profile) -> bool:
    return bool(column.present.min() > 5e11 and column.present.max() < 4.1e12)
