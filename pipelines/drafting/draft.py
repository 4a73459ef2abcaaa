"""The text of a drafted policy: YAML, with the reason for each line as a comment."""

from __future__ import annotations

import datetime as dt
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import yaml

from crenel.pipelines.console.sections import count, percent, spoken
from crenel.pipelines.drafting import sample_measures as measures
from crenel.pipelines.drafting.profiles import Kind, Profile
from crenel.pipelines.drafting.roles import Choice, Roles
from crenel.policy.durations import format_duration

__all__ = ["draft"]

_WIDTH = 96
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*( [A-Za-z0-9_.-]+)*", re.ASCII)
_KS = (2, 3, 5, 10, 20, 50)
_DELAY_ROWS = (1000, 2000, 5000, 10_000, 20_000, 50_000)

#: Of so few values, how often each occurs tells nothing.
_FEW = 20

#: Where the middle 98% of the rows use less of the domain, the draft says so.
_STRETCHED = 0.2


def draft(roles: Roles, source: str, rows: int, columns: int) -> str:
    """The policy's text. It loads if there are a person and a quasi-identifier."""
    k = _k(roles, rows)
    parts = [
        _head(roles, source, rows, columns),
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


def _head(roles: Roles, source: str, rows: int, columns: int) -> Iterator[str]:
    yield from _comment(
        f"A draft by crenel init, from {count(rows, 'row')} and {count(columns, 'column')} of {_scalar(source)}."
    )
    yield from _comment(
        "It is a guess by names and values. Read every line: only you know what an outsider may "
        "know. Then run crenel check on it, with the data."
    )
    if roles.person is None:
        yield "#"
        yield from _comment(
            "IT DOES NOT LOAD YET: no column was found that tells persons apart. Name it under "
            "person. If each row is about a person of its own, add a column that numbers the rows."
        )
    if not any(choice.taken for choice in roles.quasi_identifiers):
        yield "#"
        yield from _comment(
            "IT DOES NOT LOAD YET: no column was found that could be generalized. Name one under quasi_identifiers."
        )
    yield "version: 1"


def _person(roles: Roles) -> Iterator[str]:
    yield from _comment("Tells persons apart. It is counted, and never leaves.")
    for choice in roles.persons:
        yield from _candidate(choice)
    if roles.person is None:
        yield "person:  # <- the column's name"
    else:
        yield f"person: {_scalar(roles.person.name)}"


def _event_time(roles: Roles) -> Iterator[str]:
    yield from _comment("When it happened: the deadline counts from here. It never leaves.")
    for choice in roles.times:
        yield from _candidate(choice)
    if roles.event_time is None:
        yield from _comment("No column of dates was found; Beam's timestamps count.")
        yield "# event_time:"
    else:
        yield f"event_time: {_scalar(roles.event_time.name)}"


def _quasi_identifiers(roles: Roles) -> Iterator[str]:
    yield from _comment(
        "What an outsider may know about a person. It leaves generalized. The domains are those of "
        "the data, rounded outward; a value outside is rejected, so widen them to what may come."
    )
    yield "quasi_identifiers:"
    taken = [choice for choice in roles.quasi_identifiers if choice.taken]
    if any(len(choice.column.values) > 2 for choice in taken):
        yield from _comment(
            "Hierarchies are flat here: values that differ leave as the root. Group those that "
            "belong together, as in {Group: [a, b], Other: [c, d]}.",
            "  ",
        )
    others = [choice for choice in roles.quasi_identifiers if not choice.taken]
    for choice in taken:
        yield from _comment(choice.reason, "  ")
        yield from _quasi_identifier(choice.column)
    if others:
        yield from _comment("Not taken:", "  ")
    for choice in others:
        yield from _comment(choice.reason, "  ")
        yield from (f"  # {line[2:]}" for line in _quasi_identifier(choice.column))


def _quasi_identifier(column: Profile) -> Iterator[str]:
    name = f"  {_scalar(column.name)}:"
    if column.kind is Kind.CODE:
        alphabet = "" if column.alphabet == "digits" else f", alphabet: {column.alphabet}"
        yield f"{name} {{type: prefix, length: {column.length}{alphabet}}}"
    elif column.kind is Kind.CATEGORY:
        yield from _category(name, column)
    elif column.kind in (Kind.NUMBER, Kind.MOMENT):
        kind = "numeric" if column.kind is Kind.NUMBER else "datetime"
        yield from _stretched(column)
        step = _step(column)
        if step:
            yield from _comment(
                f"{column.once:,} of its {count(column.distinct, 'value')} occur once. With the step, ranges end at "
                "its multiples, and not at somebody's value.",
                "  ",
            )
        yield f"{name} {{type: {kind}, domain: {_domain(column)}{step}}}"
    else:
        yield f"{name} {{type: categorical, hierarchy: {_scalar(column.name + '.csv')}}}"


def _category(name: str, column: Profile) -> Iterator[str]:
    labels = [_label(value) for value in column.values]
    root = _scalar("*" if "*" not in column.values else "(any)")
    yield name
    yield "    type: categorical"
    yield "    hierarchy:"
    yield from _wrapped(f"      {root}: [", labels, "]")


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
    share = measures.middle(column.present, hi - lo)
    if share < _STRETCHED and column.distinct > _FEW:
        yield from _comment(
            f"A few outliers stretch the domain: the middle 98% of the rows lie in "
            f"{percent(share)} of it. A narrower one rejects them, and tells the others apart.",
            "  ",
        )


def _step(column: Profile) -> str:
    """The step of a column whose values are mostly somebody's own, else nothing."""
    if 2 * column.once <= column.distinct or column.distinct <= _FEW:
        return ""
    lo, hi = _bounds(column)
    step = measures.round_step(column.present, hi - lo, moments=column.kind is Kind.MOMENT)
    return "" if step is None else f", step: {step}"


def _domain(column: Profile) -> str:
    lo, hi = _bounds(column)
    if column.kind is Kind.NUMBER:
        return f"[{_number(lo)}, {_number(hi)}]"
    return f"[{_date(lo)}, {_date(hi)}]"


def _bounds(column: Profile) -> tuple[float, float]:
    lo, hi = float(column.present.min()), float(column.present.max())
    return measures.outward(lo, hi) if column.kind is Kind.NUMBER else _calendar(lo, hi)


def _calendar(lo: float, hi: float) -> tuple[float, float]:
    """Moments rounded outward: to years, to months, or to days, by how far they are apart."""
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
    # YAML 1.1 reads 1e+20 as text; with a point it is a number.
    text = repr(value)
    return text if "." in text else text.replace("e", ".0e")


def _sensitive(roles: Roles) -> Iterator[str]:
    yield from _comment(
        "What an outsider must not learn for a person. It leaves as it is; l (and t) see to it "
        "that a group has several values."
    )
    yield "sensitive:"
    for choice in roles.sensitive:
        yield from _comment(choice.reason, "  ")
        if _sensitive_spec(choice.column):
            yield from _stretched(choice.column)
        said = f"{_scalar(choice.column.name)}:{_sensitive_spec(choice.column)}"
        yield f"  {said}" if choice.taken else f"  # {said}"
    if not any(choice.taken for choice in roles.sensitive):
        yield from _comment("No column was clearly one by its name.", "  ")


def _sensitive_spec(column: Profile) -> str:
    # A missing number would be rejected, where a domain is declared.
    if column.kind is not Kind.NUMBER or column.missing or column.distinct <= 10:
        return ""
    return f" {{domain: {_domain(column)}, bins: 10, ordered: true}}"


def _publish(roles: Roles) -> Iterator[str]:
    yield from _comment(
        "Other columns that leave as they are. A column not named never leaves: remove a # only if "
        "no outsider can know the column."
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
        "At least so many persons look the same; the greater, the safer and the coarser."
        + (f" The data have {count(roles.person.distinct, 'person')}." if roles.person else "")
    )
    yield f"k: {k}"
    sensitive = [choice.column for choice in roles.sensitive if choice.taken]
    if sensitive:
        yield from _comment("With at least so many different values of each sensitive column.")
        yield f"l: {min(k, 2)}"


def _deadline(roles: Roles, k: int) -> Iterator[str]:
    yield from _comment(
        "The deadline: the earlier of the two. Waiting longer finds better company for a row; "
        "delay_rows also bounds the memory."
    )
    when, who = roles.event_time, roles.person
    if when is not None:
        yield from _delay(when, who, k)
    yield f"delay_rows: {measures.friendly_above(100 * k, _DELAY_ROWS)}"


def _delay(when: Profile, who: Profile | None, k: int) -> Iterator[str]:
    time = np.nan_to_num(when.coordinates).astype(np.int64)
    persons = np.arange(len(time)) if who is None else who.codes
    there = ~np.isnan(when.coordinates)
    time, persons = time[there], persons[there]
    order = np.argsort(time, kind="stable")
    until = measures.rows_until(persons[order], k)
    start = np.flatnonzero(until >= 0)
    if len(start):
        waits = time[order][start + until[start]] - time[order][start]
        most = measures.round_duration(float(np.quantile(waits, 0.9)))
        yield from _comment(f"In nine of ten cases, {k} persons come within {spoken(most)}.")
        yield f"delay: {format_duration(measures.round_duration(most * 1.5))}"
    else:
        yield "delay: 1h"
    yield from _disorder(time)


def _disorder(time: Any) -> Iterator[str]:
    late = measures.lateness(time)
    most = measures.round_duration(float(np.quantile(late, 0.999)))
    if 2 * most > np.ptp(time):
        yield from _comment("The file is not in the order of event time; disorder is not known.")
    elif late.any():
        yield from _comment("By how much event times may be out of order; as in nearly all rows.")
        yield f"disorder: {format_duration(most)}"


def _rest(roles: Roles) -> Iterator[str]:
    if any(choice.taken and choice.column.missing for choice in roles.quasi_identifiers):
        yield from _comment("bastion rejects a row that lacks a quasi-identifier; partition takes it.")
    yield "method: bastion"
    yield from _comment("A row that no group takes in time is not published (drop); --suppressed hands it to you.")
    yield "on_suppress: drop"
    yield from _comment("A secret is drawn for each pipeline. If one is needed twice, name it: secret: env:NAME")


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
    """Text as YAML on one line, quoted where YAML would take it for something else."""
    if _PLAIN.fullmatch(text) and yaml.safe_load(text) == text:
        return text
    quoted: str = yaml.safe_dump(text, default_style='"', width=10**9, allow_unicode=True)
    return quoted.strip()
