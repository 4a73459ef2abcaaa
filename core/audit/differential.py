"""What a policy can say of differential privacy, and how well founded that is."""

from __future__ import annotations

from dataclasses import dataclass

from crenel import differential
from crenel.parameters import CastleGuardParameters, Cover, SdgsParameters
from crenel.policy import OnSuppress, Policy

__all__ = ["Statement", "stated"]


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A pair of theorem 2 of the CASTLEGUARD paper. `docs/differential-privacy.md` says what it means."""

    epsilon: float
    delta: float
    #: Whether it is proven for the method. If not, it is the paper's claim.
    proven: bool
    #: Of what it is said.
    scope: str

    def __str__(self) -> str:
        how = "proven" if self.proven else "claimed by the paper, not proven"
        return f"differential privacy: epsilon {self.epsilon:.4g}, delta {self.delta:.3g}, {how}; for {self.scope}"


def stated(policy: Policy) -> Statement | None:
    """What can be said of the policy; None where there is nothing, not even a claim."""
    parameters = policy.parameters
    if not isinstance(parameters, CastleGuardParameters | SdgsParameters) or parameters.beta_sample == 1:
        return None
    if isinstance(parameters, SdgsParameters) and parameters.cover is not Cover.ALL and policy.l is not None:
        # Whether a cell has l values may hang on one person, of whom the cell's count then tells.
        return None
    beta = parameters.beta_sample
    epsilon = differential.least_epsilon(beta) if parameters.epsilon is None else parameters.epsilon
    delta = differential.delta(policy.k, beta, epsilon)
    if isinstance(parameters, SdgsParameters):
        what = "all that leaves" if parameters.cover is Cover.ALL else "the quasi-identifiers alone"
        return Statement(epsilon=epsilon, delta=delta, proven=True, scope=f"each person in each window, {what}")
    if policy.on_suppress is OnSuppress.STAR:
        # The claim begins with "generalisations are not published if they appear less than k times".
        return None
    return Statement(epsilon=epsilon, delta=delta, proven=False, scope="each row, the quasi-identifiers alone")
