"""What is said while a job is followed. The JobManager's answers are scripted; other tests follow jobs on a cluster."""

from __future__ import annotations

import urllib.error
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from crenel.errors import SnapshotError
from crenel.runners import JobFailed
from crenel.runners.flink.job_follower import JobFollower, newest
from tests.runners.flink.test_failure_causes import told

JOB = "abc"


class Manager:
    """A JobManager that answers what it is told to. Each pause of the follower takes a step of the story."""

    master = "h:8081"

    def __init__(self) -> None:
        self.now = 1000.0
        self.is_alive = True
        self.answers = True
        self.knows = True
        self.state = "RUNNING"
        self.running = 2
        self.checkpoint: int | None = None
        self.completed = 0.0
        self.savepoint: str | None = None
        self.failures: list[dict[str, Any]] = []
        self.available = "NONE"
        self.metrics: dict[str, int] = {}
        self.cancelled = False

    def get(self, path: str) -> Any:
        if not self.answers:
            raise urllib.error.URLError("refused")
        resource = path.split("?", maxsplit=1)[0]
        if not self.knows and resource.startswith("/jobs"):
            raise urllib.error.HTTPError(path, 404, "no such job", Message(), None)
        return {
            f"/jobs/{JOB}": self._job,
            f"/jobs/{JOB}/checkpoints": self._checkpoints,
            f"/jobs/{JOB}/checkpoints/config": lambda: {"interval": 10_000},
            f"/jobs/{JOB}/exceptions": lambda: {"exceptionHistory": {"entries": self.failures[::-1]}},
            "/jobmanager/config": lambda: [
                {"key": "high-availability.type", "value": self.available},
                {"key": "execution.checkpointing.dir", "value": "s3://b/"},
            ],
            f"/jobs/{JOB}/vertices/v/subtasks/metrics": lambda: [
                {"id": name, "sum": value} for name, value in self.metrics.items()
            ],
        }[resource]()

    def cancel(self, job: str) -> None:
        assert job == JOB
        self.cancelled = True

    def _job(self) -> dict[str, Any]:
        tasks = {"RUNNING": self.running}
        return {"state": self.state, "vertices": [{"id": "v", "tasks": tasks, "parallelism": 2}]}

    def _checkpoints(self) -> dict[str, Any]:
        found: dict[str, Any] = {"completed": None, "savepoint": None}
        if self.checkpoint is not None:
            found["completed"] = {
                "id": self.checkpoint,
                "external_path": f"s3://b/chk-{self.checkpoint}",
                "latest_ack_timestamp": self.completed * 1000,
                "state_size": 2_100_000,
            }
        if self.savepoint is not None:
            found["savepoint"] = {"external_path": self.savepoint}
        return {"latest": found}

    def fail(self, trace: str) -> None:
        self.failures.append({"timestamp": len(self.failures) + 1, "stacktrace": trace, "concurrentExceptions": []})
        self.state, self.running = "RESTARTING", 0

    def complete(self, number: int) -> None:
        self.checkpoint, self.completed = number, self.now

    def run(self) -> None:
        self.state, self.running = "RUNNING", 2


class Story:
    """Steps of a story, each some seconds after the last; and what was said."""

    def __init__(self, manager: Manager, *steps: tuple[float, Any]) -> None:
        self.manager = manager
        self.said: list[str] = []
        self.shown: list[str] = []
        self._steps = list(steps)
        self._due = manager.now
        self.follower = JobFollower(
            manager,  # type: ignore[arg-type]
            JOB,
            say=self.said.append,
            show=self.shown.append,
            is_alive=lambda: manager.is_alive,
            clock=lambda: manager.now,
            pause=self._pause,
        )

    def _pause(self, seconds: float) -> None:
        self.manager.now += seconds
        while self._steps and self.manager.now >= self._due + self._steps[0][0]:
            wait, step = self._steps.pop(0)
            self._due += wait
            step()
        assert self.manager.now < self._due + 2000, "the story never ends"

    def play(self) -> list[str]:
        self.follower.follow()
        return self.said

    def ends_with(self) -> str:
        with pytest.raises(JobFailed) as raised:
            self.follower.follow()
        return str(raised.value)


@pytest.fixture
def manager() -> Manager:
    return Manager()


def finish(manager: Manager) -> None:
    manager.state = "FINISHED"


def lost(manager: Manager) -> None:
    manager.fail("java.lang.Exception: TaskManager with id x is no longer reachable.")


def no_slots(manager: Manager) -> None:
    manager.fail("o.a.f.NoResourceAvailableException: Could not acquire the minimum required resources.")


def test_a_quiet_job_says_nothing_and_shows_its_progress(manager: Manager) -> None:
    story = Story(manager, (10, lambda: manager.complete(1)), (10, lambda: finish(manager)))
    manager.metrics = {"[8]{Read}.crenel_lag_0": 1200, "[8]{Read}.crenel_lag_11": 34}
    assert story.play() == []
    assert story.shown[-1] == "running for 18 s, checkpoint 1 8 s ago (2.1 MB), 1,234 rows behind"


def test_a_restart_is_told_once_with_its_causes(manager: Manager) -> None:
    """Until a lost TaskManager is back, each attempt fails: that is told once, too."""
    story = Story(
        manager,
        (10, lambda: manager.complete(7)),
        (6, lambda: lost(manager)),
        (4, lambda: no_slots(manager)),
        (4, lambda: no_slots(manager)),
        (4, lambda: no_slots(manager)),
        (8, manager.run),
        (4, lambda: finish(manager)),
    )
    assert story.play() == [
        "the job failed: a TaskManager was lost. Flink restarts it from checkpoint 7, which is 6 s old.",
        "the job failed: there are too few task slots: a TaskManager is missing. Flink restarts it from checkpoint 7, "
        "which is 10 s old.",
        "the job runs again, after 20 s.",
    ]
    assert story.follower.restarts == 1
    assert "1 restarts" in story.shown[-1]


def test_a_failure_before_the_first_checkpoint(manager: Manager) -> None:
    story = Story(manager, (4, lambda: lost(manager)), (4, manager.run), (4, lambda: finish(manager)))
    assert story.play()[0].endswith("Flink restarts it from the start; nothing was published yet.")


def test_a_job_runs_again_only_when_all_its_tasks_do(manager: Manager) -> None:
    def half() -> None:
        manager.state, manager.running = "RUNNING", 1

    story = Story(manager, (4, lambda: lost(manager)), (4, half), (20, manager.run), (4, lambda: finish(manager)))
    assert story.play()[-1] == "the job runs again, after 24 s."


def test_what_a_restart_does_not_cure_ends_the_job(manager: Manager) -> None:
    manager.complete(3)
    story = Story(manager, (4, lambda: manager.fail(told(SnapshotError("the state is of another method.")))))
    assert story.ends_with() == (
        "the state is of another method. A restart does not cure this. The job was cancelled. "
        "Its last checkpoint is s3://b/chk-3"
    )
    assert manager.cancelled
    assert story.said == []


def test_a_cause_among_those_of_other_tasks_counts(manager: Manager) -> None:
    def fail() -> None:
        lost(manager)
        manager.failures[-1]["concurrentExceptions"] = [{"stacktrace": told(SnapshotError("damaged."))}]

    assert Story(manager, (4, fail)).ends_with().startswith("damaged. A restart does not cure this.")


def again_and_again(manager: Manager, trace: str, times: int) -> list[tuple[float, Any]]:
    """A job that fails, is restarted, and fails again."""
    return [step for _ in range(times) for step in ((4, lambda: manager.fail(trace)), (4, manager.run))]


def test_a_mistake_that_comes_again_and_again_ends_the_job(manager: Manager) -> None:
    """A row that a step cannot work on comes again after each restart."""
    manager.complete(3)
    said = Story(manager, *again_and_again(manager, told(KeyError("flu")), 20)).ends_with()
    assert said == (
        "A step failed (KeyError). This came 10 times, and no checkpoint was completed in between. The job was "
        "cancelled. Its last checkpoint is s3://b/chk-3"
    )
    assert manager.cancelled


def test_a_mistake_between_checkpoints_does_not(manager: Manager) -> None:
    steps: list[tuple[float, Any]] = []
    for number in range(3):
        steps += [*again_and_again(manager, told(KeyError("flu")), 6), (4, lambda n=number: manager.complete(4 + n))]
    story = Story(manager, *steps, (4, lambda: finish(manager)))
    assert len([line for line in story.play() if "a step failed (KeyError)" in line]) == 18
    assert not manager.cancelled


def test_what_can_be_cured_elsewhere_is_waited_for(manager: Manager) -> None:
    full = again_and_again(manager, "java.io.IOException: No space left on device", 30)
    Story(manager, *full, (4, lambda: finish(manager))).play()
    assert not manager.cancelled


def test_a_job_that_flink_gives_up(manager: Manager) -> None:
    def give_up() -> None:
        lost(manager)
        manager.state = "FAILED"

    manager.complete(3)
    said = Story(manager, (4, give_up)).ends_with()
    assert said.startswith("the job failed on Flink: a TaskManager was lost. Nothing is lost if you go on from")
    assert "--savepoint_path s3://b/chk-3 " in said
    assert "published again, under other generalizations" in said


def test_a_job_that_somebody_cancels(manager: Manager) -> None:
    def cancel() -> None:
        manager.state = "CANCELED"

    said = Story(manager, (4, cancel)).ends_with()
    assert said == (
        "the job was cancelled on the cluster. No checkpoint was completed, so nothing was published: start again as "
        "you did."
    )


def test_a_job_that_is_stopped_with_a_savepoint_says_how_to_go_on(manager: Manager) -> None:
    def stop() -> None:
        manager.savepoint = "s3://b/savepoint-1"
        finish(manager)

    assert Story(manager, (4, stop)).play() == [
        "the job was stopped. Go on from its savepoint, once: run the same command with --savepoint_path "
        "s3://b/savepoint-1"
    ]


def test_a_lost_job_manager_ends_the_run_and_says_what_to_do(manager: Manager) -> None:
    def die() -> None:
        manager.answers = False

    story = Story(manager, (10, lambda: manager.complete(9)), (10, die))
    said = story.ends_with()
    assert story.said == ["the JobManager at h:8081 does not answer."]
    assert said.startswith("the JobManager at h:8081 does not answer, and the job is lost with it.")
    assert "With high availability it would have gone on by itself." in said
    assert "--savepoint_path s3://b/chk-9 " in said


def test_a_job_manager_of_this_machine_that_has_ended_is_not_waited_for(manager: Manager) -> None:
    def die() -> None:
        manager.answers = manager.is_alive = False

    manager.complete(9)
    story = Story(manager, (4, die))
    assert story.ends_with().startswith("the JobManager at h:8081 has ended, and the job is lost with it.")
    assert story.said == []
    assert manager.now < 1010


def test_a_job_manager_that_comes_back_without_the_job(manager: Manager) -> None:
    def forget() -> None:
        manager.knows = False

    manager.complete(9)
    said = Story(manager, (4, forget)).ends_with()
    assert said.startswith("the JobManager at h:8081 does not know the job any more, and the job is lost with it.")
    assert manager.now < 1020, "it will never know it again"


def test_a_job_manager_that_cannot_tell_of_checkpoints_yet_is_waited_for(manager: Manager) -> None:
    """Flink answers 404 of the checkpoints of a job that has just begun."""

    def untold(path: str) -> Any:
        if path.endswith("/checkpoints"):
            raise urllib.error.HTTPError(path, 404, "not yet", Message(), None)
        return Manager.get(manager, path)

    def forget() -> None:
        manager.get = untold  # type: ignore[method-assign]

    def remember() -> None:
        del manager.get

    story = Story(manager, (4, forget), (30, remember), (10, lambda: finish(manager)))
    assert story.play()[:2] == ["the JobManager at h:8081 cannot tell about the job.", "the JobManager answers again."]


def test_with_high_availability_another_job_manager_is_waited_for(manager: Manager) -> None:
    def die() -> None:
        manager.answers = manager.is_alive = False

    def back() -> None:
        manager.answers = manager.is_alive = True

    manager.available = "zookeeper"
    story = Story(manager, (4, die), (120, back), (10, lambda: finish(manager)))
    assert story.play() == [
        "the JobManager at h:8081 has ended. Another one may take over.",
        "the JobManager answers again.",
        "the job runs again, after 2 min.",
    ]


def test_missing_checkpoints_are_told_once(manager: Manager) -> None:
    story = Story(
        manager,
        (10, lambda: manager.complete(1)),
        (150, lambda: manager.complete(2)),
        (10, lambda: finish(manager)),
    )
    assert story.play() == [
        "no checkpoint was completed for 60 s. Rows are sent only when checkpoints have them.",
        "checkpoints are completed again.",
    ]


def test_dead_letters_are_told(manager: Manager) -> None:
    def refuse() -> None:
        manager.metrics = {"[4]{Durable__Write}.crenel_dead_letters": 3}

    story = Story(manager, (15, refuse), (30, lambda: finish(manager)))
    assert story.play() == ["3 records were refused by their topics, and are dead letters on the workers' machines."]


def test_the_newest_checkpoint_is_named(tmp_path: Path) -> None:
    """Between the last look and the end, a new one may have replaced the one that is known."""
    for number in (9, 11, 10):
        (tmp_path / f"chk-{number}").mkdir()
    for number in (9, 10):
        (tmp_path / f"chk-{number}" / "_metadata").touch()
    assert newest(f"file:{tmp_path}") == f"file:{tmp_path}/chk-10"
    assert newest(f"file:{tmp_path}/gone") is None
    assert newest("s3://bucket") is None


def test_an_unknown_checkpoint_is_not_taken_for_none(manager: Manager) -> None:
    """If the JobManager is lost, a checkpoint may have been completed that it had no time to tell about."""

    def die() -> None:
        manager.answers = False

    said = Story(manager, (4, die)).ends_with()
    assert "If there is a checkpoint in s3://b/abc (chk-...), run the same command with --savepoint_path" in said
