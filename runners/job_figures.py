"""What a runner knows of a job that goes on elsewhere, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["JobFigures"]


@dataclass(frozen=True, kw_only=True)
class JobFigures:
    """Figures of a job: those of its steps since their last restart, and those of the cluster."""

    #: Beam's counters of the namespace `crenel`, by name, added up over all workers.
    counters: Mapping[str, int] = field(default_factory=dict)
    #: Records that are not read yet, by partition.
    lags: Mapping[int, int] = field(default_factory=dict)
    restarts: int = 0
    #: When the last checkpoint was completed, in seconds since the epoch, and its bytes; None if there is none.
    checkpoint_at: float | None = None
    checkpoint_bytes: int = 0
