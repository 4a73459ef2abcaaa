"""Beam's flags for a job on Flink: sensible for one that streams and has state, and each can be set otherwise."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from crenel.runners.flink.boot import LOGS

__all__ = ["BATCH", "KNOWN", "STREAMING", "flags"]

#: Checkpoints every ten seconds bound what a failure does again. A bundle is what packs are made of, and no timer fires
#: and no checkpoint is taken inside one: so it is short in time and may be large. State is kept by the worker's live
#: engines, not by Beam's cache of it, which would measure every cell that is touched.
STREAMING: Mapping[str, str] = {
    "checkpointing_interval": "10000",
    "max_bundle_size": "20000",
    "max_bundle_time_mills": "500",
    "max_cache_memory_usage_mb": "0",
    # The number of key groups, which a savepoint can never change.
    "max_parallelism": "128",
}

#: Flags without a value. The second turns chaining off, for it is on by default: chained or not, the source has another
#: name in savepoints, and whether it is chained depends on the parallelism. Without the third, what a step lets go when
#: a checkpoint ends its bundle waits in the runner until that step gets something else to do: past its deadline, if the
#: stream is quiet, and after its end for ever.
_STREAMS = ("--streaming", "--operator_chaining", "--finish_bundle_before_checkpointing")

#: Once more if a worker is lost; a file that is broken is broken the second time too.
BATCH: Mapping[str, str] = {
    "max_cache_memory_usage_mb": "0",
    "number_of_execution_retries": "1",
    "execution_retry_delay": "1000",
}

#: What Beam's runner for Flink knows beside Beam in Python.
KNOWN = frozenset(
    {
        *("allow_non_restored_state", "attached_mode", "auto_balance_write_files_sharding_enabled"),
        *("auto_watermark_interval", "checkpointing_interval", "checkpointing_mode", "checkpoint_timeout_millis"),
        *("disable_metrics", "enable_stable_input_drain", "execution_mode_for_batch", "execution_retry_delay"),
        *("externalized_checkpoints_enabled", "fail_on_checkpointing_errors", "fasterCopy", "flink_conf_dir"),
        *("file_input_split_max_size_m_b", "finish_bundle_before_checkpointing", "force_slot_sharing_group"),
        *("force_unaligned_checkpoint_enabled", "jobCheckIntervalInSecs", "latency_tracking_interval"),
        *("max_bundle_size", "max_bundle_time_mills", "max_parallelism", "min_pause_between_checkpoints"),
        *("num_concurrent_checkpoints", "number_of_execution_retries", "object_reuse", "operator_chaining"),
        *("parallelism", "re_iterable_group_by_key_result", "report_checkpoint_duration"),
        *("retain_externalized_checkpoints_on_cancellation", "savepoint_path", "shutdown_sources_after_idle_ms"),
        *("state_backend", "state_backend_storage_path", "tolerable_checkpoint_failure_number"),
        *("unaligned_checkpoint_enabled", "use_data_stream_for_batch"),
    }
)


def flags(
    endpoint: str,
    *,
    parallelism: int,
    logs: Path | None,
    given: Sequence[str] = (),
    streaming: bool = False,
    variables: Mapping[str, str] | None = None,
) -> list[str]:
    """All flags of a job.

    Args:
        endpoint: Where the job server is.
        parallelism: How many tasks of a step work side by side.
        logs: Where the workers' logs go; None: among the temporary files of whatever machine they are on.
        given: The user's flags, which count.
        streaming: Whether the job is one for ever, with checkpoints; `--streaming` among the given says so, too.
        variables: What the workers' environment has beside.
    """
    streams = streaming or "--streaming" in given
    told = dict(variables or {})
    if logs is not None:
        told[LOGS] = str(logs)
    ours = {
        "runner": "PortableRunner",
        "job_endpoint": endpoint,
        "environment_type": "PROCESS",
        "environment_config": json.dumps({"command": boot(), "env": told}),
        "parallelism": str(parallelism),
        **(STREAMING if streams else BATCH),
    }
    named = {flag.split("=", 1)[0].lstrip("-") for flag in given if flag.startswith("--")}
    out = [f"--{name}={value}" for name, value in ours.items() if name not in named]
    return [*out, *(_STREAMS if streams else ()), *given]


def boot() -> str:
    """The program that begins a worker: the one beside this interpreter, or the one on the path."""
    beside = Path(sys.executable).parent / "crenel-boot"
    if os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which("crenel-boot") or "crenel-boot"
