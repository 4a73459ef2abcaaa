"""What can be said against a policy without looking at data."""

from __future__ import annotations

from collections.abc import Iterator

from crenel.audit.differential_privacy import stated
from crenel.pipelines.console.sections import Finding, Severity, listed
from crenel.pipelines.drafting import column_names as names
from crenel.policy import OnSuppress, Policy, PolicyError
from crenel.policy.geometry import Interval
from crenel.policy.parameters import Reuse
from crenel.policy.quasi_identifiers import Categorical
from crenel.policy.secret import secret_of

__all__ = ["MANY", "SEED", "advise", "reuses", "uncrowded"]

#: What is said of a policy with a seed, before a run too.
SEED = (
    "seed: a seed can be guessed; whoever does can undo the order and the draws. "
    "Leave it out, or name a secret: env:NAME."
)

#: More quasi-identifiers than this leave little of each.
MANY = 8

#: Fewer persons than this are seldom thought a crowd.
_FEW_PERSONS = 5


def advise(policy: Policy) -> list[Finding]:
    """Everything that can be said against the policy."""
    rules = (_quasi_identifiers, _as_they_are, _guarantees, _crowd, _deadlines, _sampling, _method, _secret)
    return [finding for rule in rules for finding in rule(policy)]


def _warn(text: str) -> Finding:
    return Finding(Severity.WARNING, text)


def _note(text: str) -> Finding:
    return Finding(Severity.NOTE, text)


def _quasi_identifiers(policy: Policy) -> Iterator[Finding]:
    kinds = policy.quasi_identifiers
    learned = [name for name, qi in kinds.items() if isinstance(qi.geometry, Interval) and qi.geometry.learned]
    if learned:
        star = policy.on_suppress is OnSuppress.STAR
        yield _warn(
            f"{listed(learned)}: no domain is declared, so that it is learned: a loss is relative "
            "to what the stream has shown so far, and one absurd value makes all others look alike"
            + ("; a suppressed row is published as [null, null]." if star else ".")
        )
    if len(kinds) > MANY:
        yield _warn(
            f"{len(kinds)} quasi-identifiers are many: persons alike in all of them are rare, so "
            "that each is generalized far. Keep those that an outsider may know."
        )
    flat = [
        name
        for name, qi in kinds.items()
        if isinstance(qi, Categorical) and qi.hierarchy.depth == 1 and len(qi.hierarchy) > 2
    ]
    if flat:
        yield _warn(
            f"{listed(flat)}: the hierarchy has a single level, so that values which differ are "
            "published as its root. Group them."
        )


def _as_they_are(policy: Policy) -> Iterator[Finding]:
    for name in (*policy.sensitive, *policy.publish):
        word = names.identifier(name)
        known = names.quasi_identifier(name)
        if word is not None:
            yield _warn(
                f"{name} leaves as it is, and by its name ({word}) it may identify a person: "
                "leave it out unless you know that it does not."
            )
        elif known is not None and name in policy.publish:
            yield _warn(
                f"{name} leaves as it is, and by its name ({known[0]}) an outsider may know it: "
                "then it belongs under quasi_identifiers."
            )


def _guarantees(policy: Policy) -> Iterator[Finding]:
    if policy.sensitive and policy.l is None and policy.t is None:
        yield _warn(
            f"{listed(policy.sensitive)}: neither l nor t is set, so that a group may all have the "
            "same value, which is then known of each."
        )
    if policy.l is not None and 2 * policy.l > policy.k:
        yield _warn(
            f"l ({policy.l}) is close to k ({policy.k}): nearly every person of a group needs a "
            "value of their own, which makes groups large or late."
        )
    if policy.t is not None and policy.t < 0.1:
        yield _note(f"t ({policy.t:g}) is small: groups must be large to be that close.")
    if policy.k < _FEW_PERSONS:
        yield _note(f"k ({policy.k}) is small: {_FEW_PERSONS} and more are usual.")


def uncrowded(policy: Policy) -> Iterator[tuple[str, str]]:
    """Yield why the policy does not promise the crowd at one moment, and what to set for each reason."""
    method = policy.declaration
    alone = "may publish a row alone, under an earlier generalization"
    if not method.crowd(method.parameters()):  # whatever its parameters are
        yield f"{policy.method} {alone if reuses(policy) else 'does not promise it'}", "method: bastion"
    elif reuses(policy):
        yield f"reuse: {policy.reuse.value} {alone}", "reuse: off"
    if policy.reorders:
        yield "reorder: true publishes the rows of a release one by one", "reorder: false"
    if policy.on_suppress is OnSuppress.STAR:
        yield "on_suppress: star publishes a row that no group takes alone, as *", "on_suppress: drop"


def reuses(policy: Policy) -> bool:
    """Whether a row may leave under a generalization that was published before."""
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
            f"delay_rows ({policy.delay_rows:,}) is less than twice k ({policy.k}): a row has "
            "hardly a choice of company, so that much is generalized away or suppressed."
        )
    if policy.delay_rows is None:
        yield _warn("Only delay is set: memory depends on the rate. delay_rows would bound it.")
    if policy.delay is not None and policy.event_time is None:
        yield _note(
            "event_time is not set: Beam's timestamps of the elements count, which many sources "
            "set to the time of reading."
        )
    if policy.delay is not None and policy.disorder >= policy.delay:
        yield _warn("disorder is not less than delay: rows are held at least twice as long.")
    if policy.delay is None and policy.disorder:
        yield _note("disorder is of no effect without delay.")


def _sampling(policy: Policy) -> Iterator[Finding]:
    if not policy.declaration.samples:
        return
    perturbs = policy.declaration.perturbs
    if policy.parameters.beta_sample == 1:
        yield _warn("beta_sample is 1: no row is left out, and without sampling there is no differential privacy.")
    elif stated(policy) is None and not perturbs:
        yield _warn("No differential privacy can be stated: l needs cover: all.")
    if not perturbs:
        return
    learned = [
        n for n, qi in policy.quasi_identifiers.items() if isinstance(qi.geometry, Interval) and qi.geometry.learned
    ]
    if learned:
        yield _warn(
            f"{listed(learned)}: noise is scaled to the range seen so far, so that the first rows have next to none. "
            "Declare the domain."
        )


def _method(policy: Policy) -> Iterator[Finding]:
    if policy.declaration.caution:
        yield _warn(policy.declaration.caution)
    if policy.reorders:
        yield _warn(
            "reorder: rows leave in the order of the input. Who knows in which order persons came "
            "finds each one's row by counting; and until a group's last row has left, fewer than "
            "k persons are published under its generalization."
        )
    if policy.parameter("fill_missing", False):
        yield _warn(
            "fill_missing: rows are published with ranges of quasi-identifiers that they lack, and such a range may be "
            "of fewer than k persons' values."
        )
    if policy.reuse is Reuse.BEST:
        yield _warn(
            "reuse is best: a row that leaves alone leaves under the narrowest generalization that contains it, and so "
            "tells that it is in no narrower one. uniform does not, and costs little."
        )
    default = policy.declaration.reuses[:1]
    if policy.reuse is Reuse.OFF and default not in ((), (Reuse.OFF,)):
        yield _note("reuse is off: more rows are merged into wide groups, or suppressed.")


def _secret(policy: Policy) -> Iterator[Finding]:
    if policy.seed is not None:
        yield _warn(SEED)
    elif policy.secret is None:
        yield _note("A secret is drawn for each pipeline.")
    else:
        try:
            secret_of(policy)
        except PolicyError as error:
            yield _warn(f"Here, a run would fail: {error}")
        else:
            yield _note(f"The secret is read from {policy.secret}. Give every pipeline one of its own.")
