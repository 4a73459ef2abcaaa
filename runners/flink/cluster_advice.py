"""What a cluster of the user's own should set differently for a stream."""

from __future__ import annotations

from collections.abc import Mapping

from crenel.runners.flink.cluster import Rest

__all__ = ["advice"]

#: The fewest checkpoints that a cluster must keep; see `cluster.SETTINGS`.
_RETAINED = 2
#: Flink's names of settings, those of today first.
_BACKEND = ("state.backend.type", "state.backend")
_INCREMENTAL = ("execution.checkpointing.incremental", "state.backend.incremental")
_KEPT = ("execution.checkpointing.num-retained", "state.checkpoints.num-retained")


def advice(rest: Rest) -> str | None:
    """Say which setting of a cluster makes checkpoints hang under load; None if it has none, or does not answer."""
    try:
        settings = {str(one["key"]): str(one["value"]) for one in rest.get("/jobmanager/config")}
        retained = int(_first(settings, _KEPT, "1"))
    except (OSError, LookupError, TypeError, ValueError):
        return None
    is_incremental = _first(settings, _INCREMENTAL, "false").lower() == "true"
    if retained >= _RETAINED or not is_incremental or _first(settings, _BACKEND, "hashmap") != "rocksdb":
        return None
    return (
        "the cluster keeps one checkpoint only, and takes incremental ones: under load a checkpoint may hang until its "
        f"timeout, and rows wait for it. Set {_KEPT[0]}: 3 on the cluster."
    )


def _first(settings: Mapping[str, str], names: tuple[str, ...], default: str) -> str:
    """The value of the first of these names that is set."""
    return next((settings[name] for name in names if name in settings), default)
