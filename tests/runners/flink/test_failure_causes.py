"""Why a job failed, in a sentence: from stack traces as Flink tells them, and never with a value of a row."""

from __future__ import annotations

import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.errors import INCURABLE, SnapshotError
from crenel.pipelines.kafka.broker_errors import InputLost
from crenel.runners import JobFailed
from crenel.runners.flink.failure_causes import cause


def told(error: BaseException) -> str:
    """Return what Flink tells of an error of a Python worker."""
    try:
        raise error
    except BaseException:
        trace = traceback.format_exc()
    received = f"java.lang.RuntimeException: Error received from SDK harness for instruction 16: {trace}"
    frames = "\n\tat java.base/java.util.concurrent.CompletableFuture.reportGet(CompletableFuture.java:396)\n"
    return (
        "org.apache.flink.runtime.taskmanager.AsynchronousException: Caught exception while processing timer.\n"
        f"Caused by: TimerException{{java.lang.RuntimeException: Failed to finish remote bundle}}\n\t... 15 more\n"
        f"Caused by: java.util.concurrent.ExecutionException: {received}{frames}Caused by: {received}{frames}"
    )


def test_sentences_of_crenel_are_repeated() -> None:
    found = cause(told(JobFailed("3 records could not be written. [while running 'Write/ParDo(WriteRecords)']")))
    assert found.sentence == "3 records could not be written."
    assert not found.is_permanent


@pytest.mark.parametrize("error", [SnapshotError("another method."), InputLost("kafka://a:1/b: deleted.")])
def test_what_a_restart_does_not_cure_is_recognized(error: Exception) -> None:
    found = cause(told(error))
    assert found.is_permanent
    assert found.sentence == str(error)
    assert found.sentence.endswith(INCURABLE)
    wrapped = cause(told(RuntimeError(f"crenel.errors.SnapshotError: {error} [while running 'Anonymize/Hold']")))
    assert wrapped == found


@given(st.text(min_size=5))
def test_no_other_message_is_repeated(value: str) -> None:
    """It may be a row."""
    for error in (ValueError(value), KeyError(value), type("Odd", (Exception,), {})(value)):
        found = cause(told(error))
        assert found.sentence in ("A step failed (ValueError).", "A step failed (KeyError).", "A step failed.")
        assert not found.is_permanent


@given(st.text())
def test_any_trace_has_a_cause(trace: str) -> None:
    assert cause(trace).sentence.endswith(".")


@pytest.mark.parametrize(
    ("trace", "sentence"),
    [
        ("java.lang.Exception: TaskManager with id 127.0.0.1:1 is no longer reachable.", "A TaskManager was lost."),
        (
            "o.a.f.AsynchronousException: x\nCaused by: java.lang.RuntimeException: SDK Harness connection lost.",
            "A worker process was lost.",
        ),
        (
            "org.apache.flink.runtime.rpc.exceptions.RecipientUnreachableException: Could not send message",
            "A TaskManager was lost.",
        ),
        ("java.io.IOException: No space left on device", "A disk is full."),
        ("java.lang.IllegalArgumentException: 53703, flu", "Flink reports IllegalArgumentException."),
        (
            "java.lang.Exception: Exception.\n\tat y\nCaused by: java.io.IOException: 53703\nCaused by: no.Name: z",
            "Flink reports IOException.",
        ),
        (
            "java.lang.Exception: Exception while creating StreamOperatorStateContext.\n"
            "Caused by: org.apache.flink.util.FlinkException: Could not restore keyed state backend for x from y.",
            "The state of a task could not be restored from its checkpoint.",
        ),
        ("", "Flink does not say why."),
    ],
)
def test_failures_of_flink_itself(trace: str, sentence: str) -> None:
    found = cause(trace)
    assert found.sentence == sentence
    assert not found.is_permanent


def test_a_savepoint_that_does_not_fit_is_permanent() -> None:
    found = cause(
        "java.lang.IllegalStateException: Failed to rollback to checkpoint/savepoint file:/s. Max parallelism"
    )
    assert found.is_permanent
    assert "--savepoint_path" in found.sentence


@pytest.mark.parametrize(
    ("trace", "is_a_mistake"),
    [
        (told(KeyError("x")), True),
        (told(ImportError("x")), True),
        (told(UnicodeDecodeError("utf-8", b"x", 0, 1, "x")), True),
        (told(OSError(28, "no space")), False),
        (told(MemoryError()), False),
        (told(RuntimeError("x")), False),
        (told(JobFailed("the broker does not answer.")), False),
        ('java.io.IOException: Cannot run program "/x/crenel-boot": error=2, No such file or directory', True),
        ("java.lang.IllegalStateException: Process died with exit code 1", True),
        ("java.io.IOException: No space left on device", False),
    ],
)
def test_mistakes_are_told_from_what_may_be_cured_elsewhere(trace: str, is_a_mistake: bool) -> None:
    assert cause(trace).is_a_mistake == is_a_mistake
