"""Findings about a policy that need no data."""

from __future__ import annotations

from collections.abc import Iterator

from crenel.audit.differential_privacy import stated
from crenel.errors import SecretError
from crenel.pipelines.console.sections import Finding, Severity, listed
from crenel.pipelines.drafting import column_names
from crenel.policy import OnSuppress, Policy, PolicyError
from crenel.policy.geometry import Interval
from crenel.policy.parameters import Reuse
from crenel.policy.quasi_identifiers import Categorical
from crenel.policy.secret import pseudonym_keys, secret_of
from crenel.policy.treatments.treatment import Pseudonymize, Redact

__all__ = ["MANY", "SEED", "advise", "reuses", "uncrowded"]

#: The warning about a policy with a seed. A run gives it, too.
SEED = (
    "seed: an attacker who guesses the seed can undo the order of the rows and every random draw. "
    "Leave it out, or name a secret: env:NAME."
)

#: With more quasi-identifiers than this, little is left of each.
MANY = 8

#: Fewer persons than this are seldom considered a crowd.
_FEW_PERSONS = 5


def advise(policy: Policy) -> list[Finding]:
    """Find everything that speaks against the policy."""
    rules = (_quasi_identifiers, _as_they_are, _treated, _guarantees, _crowd, _deadlines, _sampling, _method, _secret)
    return [finding for rule in rules for finding in rule(policy)]


def _warn(text: str) -> Finding:
    return Finding(Severity.WARNING, text)


def _note(text: str) -> Finding:
    return Finding(Severity.NOTE, text)


def _quasi_identifiers(policy: Policy) -> Iterator[Finding]:
    kinds = policy.quasi_identifiers
    learned = _learned(policy)
    if learned:
        star = policy.on_suppress is OnSuppress.STAR
        yield _warn(
            f"{listed(learned)}: no domain is declared, so the engine learns it from the stream. A single absurd "
            "value then makes all other values look alike."
            + (" A suppressed row is published as [null, null]." if star else "")
            + " Declare the domain."
        )
    if len(kinds) > MANY:
        yield _warn(
            f"{len(kinds)} quasi-identifiers are many: few persons are alike in all of them, so each is generalized "
            "far. Keep only those that an attacker may know."
        )
    flat = [
        name
        for name, qi in kinds.items()
        if isinstance(qi, Categorical) and qi.hierarchy.depth == 1 and len(qi.hierarchy) > 2
    ]
    if flat:
        yield _warn(
            f"{listed(flat)}: the hierarchy has a single level, so different values are published as its root. "
            "Group the values."
        )


def _learned(policy: Policy) -> list[str]:
    """List the quasi-identifiers whose domain is not declared."""
    kinds = policy.quasi_identifiers.items()
    return [name for name, qi in kinds if isinstance(qi.geometry, Interval) and qi.geometry.learned]


def _as_they_are(policy: Policy) -> Iterator[Finding]:
    for name in (name for name in (*policy.sensitive, *policy.publish) if name not in policy.treat):
        word = column_names.identifier(name)
        known = column_names.quasi_identifier(name)
        if word is not None:
            yield _warn(
                f"{name} is published as it is, but its name ({word}) suggests that it identifies a person. "
                "Leave it out unless you know that it does not."
            )
        elif known is not None and name in policy.publish:
            yield _warn(
                f"{name} is published as it is, but its name ({known[0]}) suggests that an attacker may know it. "
                "If so, move it to quasi_identifiers."
            )


def _treated(policy: Policy) -> Iterator[Finding]:
    pseudonyms = {name: one for name, one in policy.treat.items() if isinstance(one, Pseudonymize)}
    for name, one in pseudonyms.items():
        if one.rotate is None:
            yield _warn(
                f"{name}: its pseudonyms never change, so they link all rows with the same value. The promise about "
                "one row does not cover what several tell together. Set rotate, such as rotate: 30d, or leave it out; "
                "once_per and together leave an attacker less."
            )
    others = [name for name in policy.treat if name not in pseudonyms and not isinstance(policy.treat[name], Redact)]
    if others:
        yield _note(
            f"{listed(others)}: treated value by value, without regard to k. An attacker who knows the value narrows "
            "the crowd by it. If so, move it to quasi_identifiers."
        )
    if pseudonyms:
        try:
            pseudonym_keys(policy)
        except SecretError as error:
            yield _warn(f"On this machine, a run would fail: {error}")


def _guarantees(policy: Policy) -> Iterator[Finding]:
    if policy.sensitive and policy.l is None and policy.t is None:
        yield _warn(
            f"{listed(policy.sensitive)}: neither l nor t is set, so all rows of a group may have the same value. "
            "An attacker then knows the value of each person in it."
        )
    if policy.l is not None and 2 * policy.l > policy.k:
        yield _warn(
            f"l ({policy.l}) is close to k ({policy.k}): nearly every person of a group needs a different value, "
            "which makes groups large or late."
        )
    if policy.t is not None and policy.t < 0.1:
        yield _note(f"t ({policy.t:g}) is small: only large groups come that close to the stream.")
    if policy.k < _FEW_PERSONS:
        yield _note(f"k ({policy.k}) is small: {_FEW_PERSONS} or more is usual.")


def uncrowded(policy: Policy) -> Iterator[tuple[str, str]]:
    """Yield each reason why the policy does not promise a crowd at one moment, and the setting that removes it."""
    method = policy.declaration
    alone = "may publish a row alone, under an earlier generalization"
    if not method.crowd(method.parameters()):  # whatever its parameters are
        yield f"{policy.method} {alone if reuses(policy) else 'does not promise it'}", "method: bastion"
    elif reuses(policy):
        yield f"reuse: {policy.reuse.value} {alone}", "reuse: off"
    if policy.reorders:
        yield "reorder: true publishes the rows of a release one by one", "reorder: false"
    if policy.on_suppress is OnSuppress.STAR:
        yield "on_suppress: star publishes a row that finds no group alone, as *", "on_suppress: drop"


def reuses(policy: Policy) -> bool:
    """Whether a row may be released under a generalization that was published before."""
    return policy.reuse is not Reuse.OFF


def _crowd(policy: Policy) -> Iterator[Finding]:
    if policy.crowd:
        return
    reasons = list(uncrowded(policy))
    yield _warn(
        f"A crowd at one moment is not promised: {'; '.join(why for why, _ in reasons)}. An attacker who knows a "
        "person's quasi-identifiers and the time of their row may find the row. "
        f"Set {listed(setting for _, setting in reasons)}."
    )


def _deadlines(policy: Policy) -> Iterator[Finding]:
    if policy.delay_rows is not None and policy.delay_rows < 2 * policy.k:
        yield _warn(
            f"delay_rows ({policy.delay_rows:,}) is less than twice k ({policy.k}): a row has hardly any choice of a "
            "group, so much is generalized away or suppressed. Set a larger delay_rows."
        )
    if policy.delay_rows is None:
        yield _warn("Only delay is set, so memory grows with the rate of the stream. Set delay_rows to bound it.")
    lasting = policy.remembers_persons
    if lasting and policy.secret is None and policy.seed is None:
        yield _warn(
            f"{lasting[0]} needs the same secret for as long as a stream runs: a pipeline that is built again with "
            "another one cannot take up a savepoint. Name a secret. A bounded input needs none."
        )
    if policy.timed and policy.event_time is None:
        yield _note(
            "event_time is not set, so Beam's timestamps of the elements count. Many sources set these to the time of "
            "reading."
        )
    if policy.delay is not None and policy.disorder >= policy.delay:
        yield _warn("disorder is not less than delay, so rows are held at least twice as long as delay.")
    if not policy.timed and policy.disorder:
        yield _note("disorder has no effect without a setting that is a time, such as delay.")
    if policy.most_ahead is None and policy.max_ahead is not None:
        yield _note("max_ahead has no effect without a setting that is a time, such as delay.")


def _sampling(policy: Policy) -> Iterator[Finding]:
    if not policy.declaration.samples:
        return
    perturbs = policy.declaration.perturbs
    if policy.parameters.beta_sample == 1:
        yield _warn("beta_sample is 1: every row is kept, and without sampling there is no differential privacy.")
    elif stated(policy) is None and not perturbs:
        yield _warn("No differential privacy can be stated. With l, set cover: all.")
    if not perturbs:
        return
    learned = _learned(policy)
    if learned:
        yield _warn(
            f"{listed(learned)}: noise is scaled to the range seen so far, so the first rows get almost none. "
            "Declare the domain."
        )


def _method(policy: Policy) -> Iterator[Finding]:
    if policy.declaration.caution:
        yield _warn(policy.declaration.caution)
    if policy.reorders:
        yield _warn(
            "reorder: rows are released in the order of the input. An attacker who knows the order in which persons "
            "came finds each row by counting. And until the last row of a group is released, fewer than k persons are "
            "published under its generalization."
        )
    if policy.parameter("fill_missing", False):
        yield _warn(
            "fill_missing: a row that lacks a quasi-identifier is published with a range for it, and that range may "
            "cover the values of fewer than k persons."
        )
    if policy.reuse is Reuse.BEST:
        yield _warn(
            "reuse is best: a row released alone gets the narrowest generalization that contains it, which reveals "
            "that no narrower one does. Set reuse: uniform, which does not reveal it and costs little."
        )
    default = policy.declaration.reuses[:1]
    if policy.reuse is Reuse.OFF and default not in ((), (Reuse.OFF,)):
        yield _note("reuse is off: more rows are merged into wide groups, or are suppressed.")


def _secret(policy: Policy) -> Iterator[Finding]:
    if policy.seed is not None:
        yield _warn(SEED)
    elif policy.secret is None:
        yield _note("Each pipeline draws a secret of its own.")
    else:
        try:
            secret_of(policy)
        except PolicyError as error:
            yield _warn(f"On this machine, a run would fail: {error}")
        else:
            yield _note(f"The secret is read from {policy.secret}. Give each pipeline a secret of its own.")
