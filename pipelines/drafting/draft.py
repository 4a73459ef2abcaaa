"""Writes a drafted policy: YAML, with the reason for each line as a comment."""

from __future__ import annotations

import csv
import datetime as dt
import io
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from crenel.pipelines.console.sections import count, percent, spoken
from crenel.pipelines.drafting import sample_measures
from crenel.pipelines.drafting.grouping import Group, grouped, paths
from crenel.pipelines.drafting.profiles import Kind, Profile
from crenel.pipelines.drafting.roles import Choice, Roles
from crenel.policy.columns import text_of
from crenel.policy.durations import format_duration

__all__ = ["draft", "hierarchies"]

_WIDTH = 96
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*( [A-Za-z0-9_.-]+)*", re.ASCII)
#: A draft asks for no more than 10: larger ones cost much, and crenel explore shows how much.
_KS = (2, 3, 5, 10)
#: How many times k persons come before the drafted deadline.
_CROWD = 16
#: A place is one of so many cells along each axis: about a hundred, as for steps.
_LEVELS = 7
_CELLS = 2**_LEVELS
_DELAY_ROWS = (1000, 2000, 5000, 10_000, 20_000, 50_000)


def draft(roles: Roles, source: str, rows: int, total: int, options: Sequence[str] = ()) -> str:
    """Write the policy. It loads if there are a person and a quasi-identifier.

    Args:
        roles: The columns in their roles.
        source: The name of the file.
        rows: The rows that were looked at.
        total: The rows of the file.
        options: What other commands must be told about the file.
    """
    k = _k(roles, rows)
    parts = [
        _head(roles, source, rows, total, options),
        _person(roles),
        _event_time(roles),
        _quasi_identifiers(roles),
        _sensitive(roles),
        _publish(roles),
        _guarantees(roles, k),
        _deadline(roles, k),
        _rest(roles),
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def hierarchies(roles: Roles) -> dict[str, str]:
    """Write the hierarchies of taken columns that have too many values for the policy itself, by the file's name."""
    taken = [one.column for one in roles.quasi_identifiers if one.taken and one.column.kind is Kind.TEXT]
    return {hierarchy_file(column): _hierarchy(column) for column in taken}


def hierarchy_file(column: Profile) -> str:
    """Name the file of a column's hierarchy."""
    return re.sub(r"[^\w.-]+", "_", column.name) + ".csv"


def _hierarchy(column: Profile) -> str:
    file = io.StringIO()
    csv.writer(file, delimiter=";", lineterminator="\n").writerows(paths(grouped(column.counts, _root(column))))
    return file.getvalue()


def _head(roles: Roles, source: str, rows: int, total: int, options: Sequence[str]) -> Iterator[str]:
    looked_at = count(rows, "row")
    if rows < total:
        looked_at = f"a sample ({rows:,} of {count(total, 'row')}, in stretches)"
    yield from _comment(f"Drafted by crenel init from {looked_at} of {_scalar(source)}.")
    yield from _comment(
        "It is a guess from names and values. Read every line: only you know what an attacker may know. Then run "
        "crenel check on it, with the data."
    )
    if options:
        yield from _comment(f"Give check, explore, run and audit how this file is written: {' '.join(options)}")
    for sentence in roles.lacking:
        yield "#"
        yield from _comment(f"IT DOES NOT LOAD YET. {sentence}")
    yield "version: 1"


def _person(roles: Roles) -> Iterator[str]:
    yield from _comment("Tells persons apart. It is only counted, never published.")
    for choice in roles.persons:
        yield from _candidate(choice)
    if roles.each_row:
        yield from _comment("You said that each row is about another person. If a person has several, name a column.")
        yield "person: {each: row}"
    elif roles.person is None:
        yield "person:  # <- the column's name"
    else:
        yield f"person: {_scalar(roles.person.name)}"


def _event_time(roles: Roles) -> Iterator[str]:
    yield from _comment("When it happened. The deadline counts from here. It is never published.")
    for choice in roles.times:
        yield from _candidate(choice)
    if roles.event_time is None:
        yield from _comment("No column holds only dates. Without one, Beam's timestamps count.")
        yield "# event_time:"
    else:
        yield f"event_time: {_scalar(roles.event_time.name)}"


def _quasi_identifiers(roles: Roles) -> Iterator[str]:
    yield from _comment(
        "What an attacker may know about a person. It is published generalized. The domains are those of the data, "
        "rounded outward. A value outside is rejected, so widen them to all values that may come. A category that is "
        "not listed is published as the root; a missing value, where some are missing, is a value of its own."
    )
    yield "quasi_identifiers:"
    taken = [choice for choice in roles.quasi_identifiers if choice.taken]
    if any(len(choice.column.values) > 2 for choice in taken):
        yield from _comment(
            "Hierarchies group values by the alphabet, and by how often they occur: crenel does not know what they "
            "mean. Group what belongs together, as in {Group: [a, b], Other: [c, d]}.",
            "  ",
        )
    others = [choice for choice in roles.quasi_identifiers if not choice.taken]
    for choice in taken:
        yield from _comment(choice.reason, "  ")
        yield from _quasi_identifier(choice)
    if others:
        yield from _comment("Candidates that were not taken:", "  ")
    for choice in others:
        yield from _comment(choice.reason, "  ")
        yield from (f"  # {line[2:]}" for line in _quasi_identifier(choice))


def _quasi_identifier(choice: Choice) -> Iterator[str]:
    column = choice.column
    if choice.longitude is not None:
        yield from _place(choice.called, column, choice.longitude)
        return
    name = f"  {_scalar(column.name)}:"
    if column.kind is Kind.CODE:
        alphabet = "" if column.alphabet == "digits" else f", alphabet: {column.alphabet}"
        yield f"{name} {{type: prefix, length: {column.length}{alphabet}{_gaps(column)}}}"
    elif column.kind is Kind.CATEGORY:
        yield from _category(name, column)
    elif column.kind in (Kind.NUMBER, Kind.MOMENT):
        kind = "numeric" if column.kind is Kind.NUMBER else "datetime"
        yield from _stretched(column)
        step = _step(column)
        if step and 2 * column.once > column.distinct:
            yield from _comment(
                f"{column.once:,} of its {count(column.distinct, 'value')} occur only once. With the step, a range "
                "ends at multiples of it, and not at a value that belongs to one person.",
                "  ",
            )
        yield f"{name} {{type: {kind}, domain: {_domain(column)}{step}{_gaps(column)}}}"
    else:
        if column.can_be_grouped:
            yield from _comment(
                f"Its {count(column.distinct, 'value')} are in a file, grouped by the alphabet and by how often they "
                "occur. A value that is not in it is published as the root: add those that may come.",
                "  ",
            )
        file = _scalar(hierarchy_file(column))
        yield f"{name} {{type: categorical, hierarchy: {file}, unknown: root{_gaps(column)}}}"


def _place(called: str, north: Profile, east: Profile) -> Iterator[str]:
    """Write a place: a grid over the part of the world that the data show, in cells of round sizes."""
    for column in (north, east):
        yield from _stretched(column)
    south, north_end = sample_measures.grid(north.present, 90.0, _CELLS)
    west, east_end = sample_measures.grid(east.present, 180.0, _CELLS)
    bounds = ", ".join(_number(bound) for bound in (south, west, north_end, east_end))
    named = ", ".join(_scalar(column.name) for column in (north, east))
    gaps = _gaps(north) or _gaps(east)
    yield f"  {_scalar(called)}:"
    yield f"    {{type: coordinates, columns: [{named}], bounds: [{bounds}], levels: {_LEVELS}{gaps}}}"


def _category(name: str, column: Profile) -> Iterator[str]:
    yield name
    yield "    type: categorical"
    if column.missing:
        yield "    missing: category"
    yield "    unknown: root"
    yield "    hierarchy:"
    labels = {text_of(value): _label(value) for value in column.values}
    yield from _nested(grouped(column.counts, _root(column)), labels, " " * 6)


def _gaps(column: Profile) -> str:
    return ", missing: category" if column.missing else ""


def _root(column: Profile) -> str:
    return "*" if "*" not in column.counts else "(any)"


def _nested(group: Group, labels: Mapping[str, str], indent: str) -> Iterator[str]:
    """Write a group and what is under it. A value may stand beside groups."""
    values = [child for child in group.under if isinstance(child, str)]
    if len(values) == len(group.under):
        yield from _wrapped(f"{indent}{_scalar(group.label)}: [", [labels[value] for value in values], "]")
        return
    yield f"{indent}{_scalar(group.label)}:"
    for child in group.under:
        if isinstance(child, str):
            yield f"{indent}  {labels[child]}:"
        else:
            yield from _nested(child, labels, indent + "  ")


def _label(value: Any) -> str:
    if isinstance(value, bool):
        return _scalar(str(value))
    return str(value) if isinstance(value, int) else _scalar(str(value))


def _wrapped(start: str, items: list[str], end: str) -> Iterator[str]:
    line, indent = start, " " * len(start)
    for place, item in enumerate(items):
        last = place == len(items) - 1
        piece = item + (end if last else ",")
        if line.strip() and line != start and len(line) + 1 + len(piece) > _WIDTH:
            yield line
            line = indent + piece
        else:
            line += piece if line in (start, indent) else f" {piece}"
    yield line


def _stretched(column: Profile) -> Iterator[str]:
    lo, hi = _bounds(column)
    share = sample_measures.middle(column.present, hi - lo)
    if sample_measures.is_stretched(share, column.distinct):
        yield from _comment(
            f"A few outliers stretch the domain: the middle 98% of the rows lie in {percent(share)} of it. A narrower "
            "domain rejects the outliers, and keeps more precision for the other rows.",
            "  ",
        )


def _step(column: Profile) -> str:
    """Write the step of dates, and of a column whose values mostly occur once; nothing for other columns."""
    lo, hi = _bounds(column)
    if column.distinct <= sample_measures.FEW_VALUES:
        return ""
    if 2 * column.once <= column.distinct:
        return f", step: {_step_of_dates(hi - lo)}" if column.kind is Kind.MOMENT else ""
    step = sample_measures.round_step(column.present, hi - lo, moments=column.kind is Kind.MOMENT)
    return "" if step is None else f", step: {step}"


def _step_of_dates(width: float) -> str:
    """A day, or about a hundredth of the domain if that is more: a birthday to the month is seldom needed."""
    return format_duration(max(sample_measures.round_duration(width / 100), 86_400_000_000))


def _domain(column: Profile) -> str:
    lo, hi = _bounds(column)
    if column.kind is Kind.NUMBER:
        return f"[{_number(lo)}, {_number(hi)}]"
    return f"[{_date(lo)}, {_date(hi)}]"


def _bounds(column: Profile) -> tuple[float, float]:
    lo, hi = float(column.present.min()), float(column.present.max())
    return sample_measures.outward(lo, hi) if column.kind is Kind.NUMBER else _calendar(lo, hi)


def _calendar(lo: float, hi: float) -> tuple[float, float]:
    """Round moments outward to years, months or days, by how far they are apart."""
    first, last = _day(lo), _day(hi) + dt.timedelta(days=1)
    if last - first > dt.timedelta(days=730):
        first, last = first.replace(month=1, day=1), dt.date(last.year + 1, 1, 1)
    elif last - first > dt.timedelta(days=60):
        next_month = last.replace(day=28) + dt.timedelta(days=4)
        first, last = first.replace(day=1), next_month.replace(day=1)
    return _micros(first), _micros(last)


def _day(micros: float) -> dt.date:
    return dt.date(1970, 1, 1) + dt.timedelta(days=int(micros // 86_400_000_000))


def _micros(day: dt.date) -> float:
    return (day - dt.date(1970, 1, 1)).days * 86_400_000_000.0


def _date(micros: float) -> str:
    return _day(micros).isoformat()


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else _exact(value)


def _exact(value: float) -> str:
    # YAML 1.1 takes 1e+20 for text; with a point, it is a number.
    text = repr(value)
    return text if "." in text else text.replace("e", ".0e")


def _sensitive(roles: Roles) -> Iterator[str]:
    yield from _comment(
        "What an attacker must not learn about a person. It is published as it is. l (and t) make sure that a group "
        "has several values."
    )
    yield "sensitive:"
    for choice in roles.sensitive:
        yield from _comment(choice.reason, "  ")
        if _sensitive_spec(choice.column):
            yield from _stretched(choice.column)
        said = f"{_scalar(choice.column.name)}:{_sensitive_spec(choice.column)}"
        yield f"  {said}" if choice.taken else f"  # {said}"
    if not any(choice.taken for choice in roles.sensitive):
        yield from _comment("No column's name clearly suggests one.", "  ")


def _sensitive_spec(column: Profile) -> str:
    # Where a domain is declared, a row without the number would be rejected.
    if column.kind is not Kind.NUMBER or column.missing or column.distinct <= 10:
        return ""
    return f" {{domain: {_domain(column)}, bins: 10, ordered: true}}"


def _publish(roles: Roles) -> Iterator[str]:
    yield from _comment(
        "Other columns, which are published as they are. A column that is not named is never published. Remove a # "
        "only if no attacker can know the column."
    )
    yield "publish:"
    width = max((len(_scalar(choice.column.name)) for choice in roles.rest), default=0)
    for choice in roles.rest:
        yield f"  # - {_scalar(choice.column.name).ljust(width)}  # {choice.reason}"


def _k(roles: Roles, rows: int) -> int:
    persons = rows if roles.person is None else roles.person.distinct
    return max(k for k in _KS if k <= max(persons / 20, 2))


def _guarantees(roles: Roles, k: int) -> Iterator[str]:
    yield from _comment(
        "At least this many persons look the same. A greater k is safer, and coarser."
        + (f" The data have {count(roles.person.distinct, 'person')}." if roles.person else "")
    )
    yield f"k: {k}"
    sensitive = [choice.column for choice in roles.sensitive if choice.taken]
    if sensitive:
        yield from _comment("Each group has at least this many different values of each sensitive column.")
        yield f"l: {min(k, 2)}"


def _deadline(roles: Roles, k: int) -> Iterator[str]:
    yield from _comment(
        "The deadline of a row, as event time (delay) and as later rows (delay_rows); the earlier one counts. The "
        "longer a row may wait, the better the group it finds. delay_rows also bounds the memory."
    )
    when, who = roles.event_time, roles.person
    if when is not None:
        yield from _delay(when, who, k)
    yield f"delay_rows: {sample_measures.friendly_above(100 * k, _DELAY_ROWS)}"


def _delay(when: Profile, who: Profile | None, k: int) -> Iterator[str]:
    time = np.nan_to_num(when.coordinates).astype(np.int64)
    persons = np.arange(len(time)) if who is None else who.codes
    there = ~np.isnan(when.coordinates)
    time, persons = time[there], persons[there]
    order = np.argsort(time, kind="stable")
    # With k persons alone, every group would be all that is held; among several times k, near ones are found.
    crowd = max(min(_CROWD * k, len(np.unique(persons)) // 2), k)
    _, waits = sample_measures.waits(persons[order], time[order], crowd)
    if len(waits):
        most = sample_measures.round_duration(float(np.quantile(waits, 0.9)))
        yield from _comment(f"In nine of ten cases, {crowd} persons come within {spoken(most)}.")
        yield f"delay: {format_duration(sample_measures.round_duration(most * 1.5))}"
    else:
        yield "delay: 1h"
    yield from _disorder(time)


def _disorder(time: Any) -> Iterator[str]:
    most, is_stream = sample_measures.usual_disorder(time)
    if not is_stream:
        yield from _comment("The file is not in the order of event time, so the disorder is not known.")
    elif sample_measures.lateness(time).any():
        yield from _comment("How far event times may be out of order. In the data, nearly all are within this.")
        yield f"disorder: {format_duration(most)}"


def _rest(roles: Roles) -> Iterator[str]:
    yield "method: bastion"
    yield from _comment("A row that finds no group in time is not published (drop); crenel run --suppressed keeps it.")
    yield "on_suppress: drop"
    yield from _comment("Each pipeline draws a secret of its own. To use one again, name it: secret: env:NAME")


def _candidate(choice: Choice) -> Iterator[str]:
    other = "" if choice.taken else "; another candidate"
    yield from _comment(f"{_scalar(choice.column.name)}: {choice.reason}{other}.")


def _comment(text: str, indent: str = "") -> Iterable[str]:
    return textwrap.wrap(
        text,
        width=_WIDTH,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}# ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _scalar(text: str) -> str:
    """Write text as YAML on one line, quoted where YAML would take it for something else."""
    if _PLAIN.fullmatch(text) and yaml.safe_load(text) == text:
        return text
    quoted: str = yaml.safe_dump(text, default_style='"', width=10**9, allow_unicode=True)
    return quoted.strip()
