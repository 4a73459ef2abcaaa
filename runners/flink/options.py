"""Beam's flags for a job on Flink. Each default can be overridden."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from crenel.runners.flink.boot import COMPILED, LOGS

__all__ = ["BATCH", "KNOWN", "STREAMING", "flags"]

#: Flags of a stream. Checkpoints every ten seconds bound the work that is repeated after a failure. Rows are packed
#: within a bundle, and neither timers nor checkpoints happen inside one: so bundles are short, and may be large.
#: The worker keeps engines in memory itself; Beam's cache of state would measure every cell that is touched.
STREAMING: Mapping[str, str] = {
    "checkpointing_interval": "10000",
    "max_bundle_size": "20000",
    "max_bundle_time_mills": "500",
    "max_cache_memory_usage_mb": "0",
    # The number of key groups, which is fixed in savepoints.
    "max_parallelism": "128",
}

#: Flags of a stream without a value. The second turns chaining off: by default it depends on the parallelism, and a
#: chained source has another name in savepoints. Without the third, the output of a bundle that a checkpoint ends waits
#: in the runner until the step gets more input: past the deadline if the stream is quiet, forever if it has ended.
_STREAMS = (
    "--streaming",
    "--operator_chaining",
    "--finish_bundle_before_checkpointing",
    # A job that was cancelled, or failed, can be taken up where it was.
    "--externalized_checkpoints_enabled",
    "--retain_externalized_checkpoints_on_cancellation",
)

#: Flags of a batch. It is retried once, in case a worker was lost; a broken file fails again.
BATCH: Mapping[str, str] = {
    "max_cache_memory_usage_mb": "0",
    "number_of_execution_retries": "1",
    "execution_retry_delay": "1000",
}

#: The flags that Beam's runner for Flink knows and Beam in Python does not.
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
    method: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> list[str]:
    """All flags of a job.

    Args:
        endpoint: The address of the job server.
        parallelism: How many tasks of a step run in parallel.
        logs: The folder of the workers' logs; None for the temporary files of their machines.
        given: The user's flags, which take precedence.
        streaming: Whether the job is a stream, with checkpoints; `--streaming` among the given flags says so, too.
        method: The method whose kernels the workers of a stream compile before they take work.
        variables: Further environment variables of the workers.
    """
    streams = streaming or "--streaming" in given
    told = dict(variables or {})
    if logs is not None:
        told[LOGS] = str(logs)
    if streams and method is not None:
        told[COMPILED] = method
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
    """The program that starts a worker: the one beside this interpreter, or the one on the path."""
    beside = Path(sys.executable).parent / "crenel-boot"
    if os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which("crenel-boot") or "crenel-boot"
