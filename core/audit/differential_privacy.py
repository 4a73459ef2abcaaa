"""What a policy can say of differential privacy."""

from __future__ import annotations

from dataclasses import dataclass

from crenel.policy import Policy
from crenel.policy import sampling_privacy as differential

__all__ = ["Statement", "stated"]


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A pair that is proven of the policy. `docs/differential-privacy.md` says what it means."""

    epsilon: float
    delta: float
    #: Of what it is proven.
    scope: str

    def __str__(self) -> str:
        return f"differential privacy: epsilon {self.epsilon:.4g}, delta {self.delta:.3g}, proven; for {self.scope}"


def stated(policy: Policy) -> Statement | None:
    """What is proven of the policy; None if nothing is. What the CASTLEGUARD paper claims of its method is refuted."""
    parameters = policy.parameters
    if policy.method != "sdgs" or parameters.beta_sample == 1:
        return None
    if parameters.cover.value != "all" and policy.l is not None:
        # Whether a cell has l values may hang on one person, of whom the cell's count then tells.
        return None
    beta = parameters.beta_sample
    epsilon = differential.least_epsilon(beta) if parameters.epsilon is None else parameters.epsilon
    what = "all that leaves" if parameters.cover.value == "all" else "the quasi-identifiers alone"
    return Statement(
        epsilon=epsilon,
        delta=differential.delta(policy.k, beta, epsilon),
        scope=f"each person in each window, {what}",
    )
