"""The differential privacy that a policy provides."""

from __future__ import annotations

from dataclasses import dataclass

from crenel.policy import Policy, sampling_privacy

__all__ = ["Statement", "stated"]


@dataclass(frozen=True, kw_only=True)
class Statement:
    """An epsilon and a delta that are proven for the policy. `docs/differential-privacy.md` explains them."""

    epsilon: float
    delta: float
    #: What the proof covers.
    scope: str

    def __str__(self) -> str:
        return f"differential privacy: epsilon {self.epsilon:.4g}, delta {self.delta:.3g}, proven; for {self.scope}"


def stated(policy: Policy) -> Statement | None:
    """Return what is proven for the policy; None if nothing is. The CASTLEGUARD paper's own claim is refuted."""
    parameters = policy.parameters
    if policy.method != "sdgs" or parameters.beta_sample == 1:
        return None
    if parameters.cover.value != "all" and policy.l is not None:
        # Whether a cell has l values may depend on one person, and the cell's count then reveals that person.
        return None
    beta = parameters.beta_sample
    epsilon = sampling_privacy.least_epsilon(beta) if parameters.epsilon is None else parameters.epsilon
    what = "all that leaves" if parameters.cover.value == "all" else "the quasi-identifiers alone"
    return Statement(
        epsilon=epsilon,
        delta=sampling_privacy.delta(policy.k, beta, epsilon),
        scope=f"each person in each window, {what}",
    )
