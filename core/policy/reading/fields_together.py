"""Checks of a policy's fields against each other, and against what its method does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from crenel.policy import methods
from crenel.policy.checks import Problems
from crenel.policy.columns import EACH_ROW
from crenel.policy.methods import Method
from crenel.policy.parameters import Reuse
from crenel.policy.quasi_identifiers import Missing, QuasiIdentifier
from crenel.policy.sharding.shard_rule import ShardBy
from crenel.policy.treatments.treatment import Pseudonymize, Treatment

__all__ = ["check_roles", "check_together"]


def check_together(clean: dict[str, Any], wrong: set[str], method: Method | None, problems: Problems) -> None:
    """Compare fields with each other; those in `wrong` are not valid by themselves. None: there is no such method."""
    _guarantees(clean, wrong, method, problems)
    if method is not None:
        _missing(clean["quasi_identifiers"], method, problems)
    _deadlines(clean, wrong, method, problems)
    for name in ("once_per", "together"):
        if clean[name] is not None:
            _one_shard_a_person(name, clean, wrong, problems)
    if clean["together"] is not None and method is not None and "parameters" not in wrong:
        _together(clean, method, problems)
    if clean["within"] and clean["shard_by"] is ShardBy.LOCALITY:
        problems.add("shard_by", "must not be 'locality' with within: a tree is learned from all rows together.")
    for name, treatment in clean["treat"].items():
        if name in clean["within"]:
            problems.add("within", f"must name columns that are published as they are, or not at all, unlike {name!r}.")
        if isinstance(treatment, Pseudonymize) and treatment.rotate is not None and clean["event_time"] is None:
            problems.add(f"treat.{name}.rotate", "needs event_time: pseudonyms change by the event time of their rows.")


def _one_shard_a_person(name: str, clean: dict[str, Any], wrong: set[str], problems: Problems) -> None:
    """Require that one shard sees all rows of a person, who may have several."""
    if clean["person"] == EACH_ROW:
        problems.add(name, "needs a person column: where each row is a person, nobody has two rows.")
    if clean["within"] and "within" not in wrong:
        rule = "must not be given with within: rows of one person in different groups of rows would not be compared."
        problems.add(name, rule)
    elif not wrong & {"shards", "shard_by"} and clean["shards"] != 1 and clean["shard_by"] is not ShardBy.PERSON:
        rule = "needs shard_by: person, or a single shard: by another rule, rows of one person reach different shards."
        problems.add(name, rule)


def _together(clean: dict[str, Any], method: Method, problems: Problems) -> None:
    """Require that a box belongs to the rows of one release, so that it may be widened for them."""
    if method.takes_holes or method.perturbs:
        why = "rows may lack quasi-identifiers" if method.takes_holes else "ranges are of changed values"
        problems.add("together", f"must not be given with {method.name!r}, where {why}: take the default method.")
    elif not method.crowd(clean["parameters"]):
        strict: dict[str, Any] = {"reuse": Reuse.OFF} if method.reuses else {}
        strict |= {"reorder": False} if method.reorders else {}
        could = method.crowd(replace(clean["parameters"], **strict))
        settings = [f"{name}: {'off' if value is Reuse.OFF else 'false'}" for name, value in strict.items()]
        fix = f"set {' and '.join(settings)}" if could else "take the default method"
        problems.add("together", f"needs releases of whole groups, each under a generalization of its own: {fix}.")


def _guarantees(clean: dict[str, Any], wrong: set[str], method: Method | None, problems: Problems) -> None:
    """Require that guarantees can be kept, and are kept by the method."""
    for name in ("l", "t"):
        if clean[name] is not None and not clean["sensitive"] and "sensitive" not in wrong:
            problems.add(name, "needs a sensitive column; name one under sensitive.")
        if clean[name] is not None and method is not None:
            _kept(name, method, problems)
    if clean["l"] is None or "l" in wrong:
        return
    if clean["l"] > clean["k"] and "k" not in wrong:
        rule = f"at most k ({clean['k']}): a group of k persons has no more values for certain"
        problems.must("l", rule, clean["l"])
    for name, column in clean["sensitive"].items():
        if column.size is not None and clean["l"] > column.size:
            rule = f"at most {column.size}, the number of values of sensitive.{name}"
            problems.must("l", rule, clean["l"])


def _kept(guarantee: str, method: Method, problems: Problems) -> None:
    """The one place that refuses a guarantee that the method does not keep."""
    if not {"l": method.keeps_l, "t": method.keeps_t}[guarantee]:
        others = ", ".join(methods.declaring(f"keeps_{guarantee}"))
        instead = f"leave it out, or choose a method that keeps it ({others})."
        problems.add(guarantee, f"is not kept by the method {method.name!r}: {instead}")


def _missing(quasi_identifiers: Mapping[str, QuasiIdentifier], method: Method, problems: Problems) -> None:
    """Refuse what the method does not do with missing values."""
    for name, qi in quasi_identifiers.items():
        path = f"quasi_identifiers.{name}.missing"
        if qi.missing is Missing.HOLE and not method.takes_holes:
            others = ", ".join(methods.declaring("takes_holes"))
            rule = f"must be 'category' or 'reject' with the method {method.name!r}: only {others} takes holes."
            problems.add(path, rule)
        if getattr(qi, "unknown_at", None) is not None and (method.takes_holes or method.perturbs):
            why = "takes rows with holes" if method.takes_holes else "adds noise"
            rule = f"must be 'reject' with the method {method.name!r}, which {why}."
            problems.add(f"quasi_identifiers.{name}.unknown", rule)
        if qi.missing is Missing.CATEGORY and method.perturbs:
            rule = f"must be 'reject' with the method {method.name!r}, which adds noise: a missing value has none."
            problems.add(path, rule)


def _deadlines(clean: dict[str, Any], wrong: set[str], method: Method | None, problems: Problems) -> None:
    """Require a deadline that a group can meet."""
    if clean["delay"] is None and clean["delay_rows"] is None:
        if not wrong & {"delay", "delay_rows"}:
            problems.add("delay", "or policy.delay_rows must be given, or both.")
        return
    rows = clean["delay_rows"]
    if rows is not None and not wrong & {"delay_rows", "k"} and rows < clean["k"]:
        rule = f"at least k ({clean['k']}): no group of k persons can gather in fewer arrivals"
        problems.must("delay_rows", rule, rows)
    both = clean["delay"] is not None and rows is not None
    reorders = method is not None and method.reorders and "parameters" not in wrong
    if both and reorders and clean["parameters"].reorder:
        rule = "must not be true with both delay and delay_rows; keep one."
        problems.add("parameters.reorder", rule)


def check_roles(given: Mapping[str, Any], problems: Problems) -> None:
    """Require one role for each column; only the event time may also be a quasi-identifier."""
    roles: dict[str, list[str]] = {}
    for role in ("person", "event_time"):
        if isinstance(given[role], str):
            roles.setdefault(given[role], []).append(role)
    treated = given["treat"] if isinstance(given["treat"], Mapping) else {}
    for role in ("quasi_identifiers", "sensitive", "publish", "treat"):
        for name in _columns_of(given[role]):
            if role != "publish" or name not in treated:
                roles.setdefault(name, []).append(role)
    for name in given["within"] if isinstance(given["within"], (list, tuple)) else ():
        held = [role for role in roles.get(name, []) if role != "publish"] if isinstance(name, str) else []
        if held:
            rule = f"must name columns that are published as they are, or not at all; {name!r} is under {held[0]}."
            problems.add("within", rule)
    for name, held in roles.items():
        if held == ["person", "treat"] and "pseudonymize" in _said(treated[name]):
            continue
        if len(held) > 1 and held != ["event_time", "quasi_identifiers"]:
            problems.add("", f": the column {name!r} must have one role, not {' and '.join(held)}.")


def _columns_of(named: Any) -> list[str]:
    """List the columns of a role, each once for each place where it is named."""
    if not isinstance(named, Iterable) or isinstance(named, str):
        return []
    names = dict.fromkeys(name for name in named if isinstance(name, str))
    return [one for name in names for one in dict.fromkeys((name, *_made_of(named, name)))]


def _made_of(named: Any, name: str) -> list[str]:
    """Name the columns that a quasi-identifier is made of, if they are others."""
    kind = named[name] if isinstance(named, Mapping) else None
    if isinstance(kind, QuasiIdentifier):
        return list(kind.inputs(name))
    parts = kind.get("columns") if isinstance(kind, Mapping) else None
    return [one for one in parts if isinstance(one, str)] if isinstance(parts, (list, tuple)) else []


def _said(treatment: Any) -> Any:
    """Return what a treatment is called, as the user gave it."""
    if isinstance(treatment, Treatment):
        return treatment.to_spec()
    return treatment if isinstance(treatment, Mapping) else ()
