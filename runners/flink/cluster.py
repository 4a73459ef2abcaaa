"""A standalone Flink cluster on this machine: a JobManager and TaskManagers, on free ports of the loopback address."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from crenel.runners.flink import distribution, requirements
from crenel.runners.flink.ports import free_ports
from crenel.runners.flink.processes import Process
from crenel.runners.runner_errors import RunnerError

__all__ = ["SETTINGS", "Cluster", "Rest", "advice", "until"]

#: Flink's settings for jobs with state whose workers may die. Each can be overridden.
SETTINGS: Mapping[str, Any] = {
    "state.backend.type": "rocksdb",
    "execution.checkpointing.incremental": "true",
    # A busy task may begin a checkpoint before it hears that the last one is complete, and then refers to files of the
    # one before that. If they are deleted ("Attempt to reference unknown state"), the checkpoint hangs for ten minutes.
    "execution.checkpointing.num-retained": 3,
    # Each checkpoint uploads RocksDB's manifest whole, and adds to it; see java/crenel/ShortManifest.java.
    "state.backend.rocksdb.options-factory": "crenel.ShortManifest",
    # Forever: until a lost TaskManager is back, each attempt fails at once because a slot is missing.
    "restart-strategy.type": "exponential-delay",
    "restart-strategy.exponential-delay.initial-backoff": "1 s",
    "restart-strategy.exponential-delay.max-backoff": "5 s",
    # How soon Flink notices that a TaskManager is gone.
    "heartbeat.interval": 1000,
    "heartbeat.timeout": 8000,
    "heartbeat.rpc-failure-threshold": 2,
    # Flink's scripts would compute these; without the scripts each must be set.
    "taskmanager.cpu.cores": 1.0,
    "taskmanager.memory.framework.heap.size": "128m",
    "taskmanager.memory.framework.off-heap.size": "128m",
    "taskmanager.memory.task.heap.size": "384m",
    "taskmanager.memory.task.off-heap.size": "64m",
    "taskmanager.memory.network.min": "64m",
    "taskmanager.memory.network.max": "64m",
    "taskmanager.memory.managed.size": "128m",
    "taskmanager.memory.jvm-metaspace.size": "384m",
    "taskmanager.memory.jvm-overhead.min": "192m",
    "taskmanager.memory.jvm-overhead.max": "192m",
    # Spread subtasks over TaskManagers, each of which has a Python process of its own.
    "taskmanager.load-balance.mode": "SLOTS",
}

#: The fewest checkpoints that a cluster must keep; see `SETTINGS`.
_RETAINED = 2
#: Flink's names of settings, those of today first.
_BACKEND = ("state.backend.type", "state.backend")
_INCREMENTAL = ("execution.checkpointing.incremental", "state.backend.incremental")
_KEPT = ("execution.checkpointing.num-retained", "state.checkpoints.num-retained")

_JAVA = (
    *(f"--add-exports=java.base/{package}=ALL-UNNAMED" for package in ("sun.net.util",)),
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in (
            *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.net", "java.io", "java.nio", "sun.nio.ch"),
            *("java.text", "java.time", "java.util", "java.util.concurrent", "java.util.concurrent.atomic"),
            "java.util.concurrent.locks",
        )
    ),
)

_LOGGING = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = Console
appender.console.name = Console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss,SSS} %-5p %-60c %x - %m%n
logger.metrics.name = org.apache.beam.runners.flink.metrics
logger.metrics.level = ERROR
"""

#: The folder of Flink's extensions: Java sources, each with its class.
_CLASSES = Path(__file__).parent / "java"
#: Seconds that a cluster has to start.
_PATIENCE = 120.0


class Cluster:
    """A cluster that ends with the process that started it.

    Args:
        folder: The folder of its configuration, logs, checkpoints and savepoints.
        task_managers: The number of TaskManagers to start.
        slots: How many tasks a TaskManager runs in parallel.
        settings: Settings of Flink that override `SETTINGS`.
        available: Whether a job survives the loss of the JobManager: ZooKeeper, which is part of Flink, remembers where
            its last checkpoint is, and the next JobManager continues it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        task_managers: int = 1,
        slots: int = 1,
        settings: Mapping[str, Any] | None = None,
        available: bool = False,
    ) -> None:
        self.folder = folder
        self.logs = folder / "log"
        self._slots = slots
        self._wanted = task_managers
        self._given = dict(settings or {})
        self._available = available
        self._begun = 0
        #: ZooKeeper, if it is needed.
        self.keeper: Process | None = None
        #: The JobManager and the TaskManagers that were started and not stopped.
        self.job_manager: Process | None = None
        self.task_managers: list[Process] = []

    def start(self) -> str:
        """Start, and wait until all TaskManagers are there; return the master, `HOST:PORT`.

        Raises:
            RunnerError: it does not start.
        """
        rest, rpc, keeper = free_ports(3)
        self.rest = Rest(f"127.0.0.1:{rest}")
        for folder in (self.logs, self.folder / "tmp", self.folder / "conf"):
            folder.mkdir(parents=True, exist_ok=True)
        self._configure(rest, rpc, keeper)
        if self._available:
            self._start_keeper(keeper)
        self.start_job_manager()
        for _ in range(self._wanted):
            self.add_task_manager()
        try:
            until(lambda: self.rest.task_managers() >= self._wanted, _PATIENCE, self._check)
        except TimeoutError:
            self.stop()
            msg = f"Flink does not start; its logs are in {self.logs}."
            raise RunnerError(msg) from None
        return self.rest.master

    def _start_keeper(self, port: int) -> None:
        """Start ZooKeeper: one, which is enough for one machine."""
        lines = [f"clientPort={port}", "clientPortAddress=127.0.0.1", f"dataDir={self.folder / 'keeper'}"]
        lines += ["tickTime=2000", "server.1=127.0.0.1", "admin.enableServer=false"]
        config = self.folder / "conf" / "zoo.cfg"
        config.write_text("\n".join(lines) + "\n", "utf-8")
        main = "org.apache.flink.runtime.zookeeper.FlinkZooKeeperQuorumPeer"
        small = ("-Xmx128m", "-XX:TieredStopAtLevel=1")
        self.keeper = self._java(main, "keeper", *small, arguments=("--zkConfigFile", str(config), "--peerId", "1"))

    def start_job_manager(self) -> None:
        """Start a JobManager, also in place of one that is gone."""
        if self.job_manager is not None:
            self.job_manager.stop()
        main = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
        self.job_manager = self._java(main, "job-manager", "-Xmx512m", "-XX:TieredStopAtLevel=1")

    def add_task_manager(self) -> Process:
        """Start one more TaskManager."""
        main = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
        memory = ("-Xmx512m", "-XX:MaxDirectMemorySize=320m", "-XX:MaxMetaspaceSize=384m")
        self._begun += 1
        begun = self._java(main, f"task-manager-{self._begun}", *memory)
        self.task_managers.append(begun)
        return begun

    def replace(self, task_manager: Process) -> Process:
        """Kill a TaskManager, as if its machine were lost, and start another."""
        task_manager.kill()
        self.task_managers.remove(task_manager)
        task_manager.stop()
        return self.add_task_manager()

    def stop(self) -> None:
        """Stop all processes at once: what must be kept is in checkpoints."""
        for process in (*self.task_managers, self.job_manager, self.keeper):
            if process is not None:
                process.stop()
        self.task_managers, self.job_manager, self.keeper = [], None, None

    def __enter__(self) -> Cluster:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    def _check(self) -> None:
        """Stop waiting as soon as a process is gone."""
        processes = (self.keeper, self.job_manager, *self.task_managers)
        if not all(process.alive for process in processes if process is not None):
            raise TimeoutError

    def _java(self, main: str, name: str, *flags: str, arguments: Sequence[str] | None = None) -> Process:
        logging = self.folder / "conf" / "log4j.properties"
        command = [
            *(requirements.java(), *flags, "-XX:+UseSerialGC", *_JAVA, f"-Dlog4j.configurationFile=file:{logging}"),
            *str(self._given.get("env.java.opts.all", "")).split(),
            *(f"-Djava.io.tmpdir={self.folder / 'tmp'}", "-cp", f"{distribution.libraries()}/*:{_CLASSES}", main),
            *(("--configDir", str(self.folder / "conf")) if arguments is None else arguments),
        ]
        return Process(command, self.logs / f"{name}.log")

    def _configure(self, rest: int, rpc: int, keeper: int) -> None:
        own: dict[str, Any] = {
            "jobmanager.rpc.address": "127.0.0.1",
            "jobmanager.rpc.port": rpc,
            "jobmanager.bind-host": "127.0.0.1",
            "rest.address": "127.0.0.1",
            "rest.bind-address": "127.0.0.1",
            "rest.port": rest,
            "taskmanager.host": "127.0.0.1",
            "taskmanager.bind-host": "127.0.0.1",
            "taskmanager.numberOfTaskSlots": self._slots,
            "io.tmp.dirs": str(self.folder / "tmp"),
            "web.tmpdir": str(self.folder / "tmp"),
            "execution.checkpointing.dir": (self.folder / "checkpoints").as_uri(),
            "execution.checkpointing.savepoint-dir": (self.folder / "savepoints").as_uri(),
        }
        if self._available:
            own |= {
                "high-availability.type": "zookeeper",
                "high-availability.zookeeper.quorum": f"127.0.0.1:{keeper}",
                "high-availability.storageDir": (self.folder / "availability").as_uri(),
                # How long a JobManager that is gone stays the leader.
                "high-availability.zookeeper.client.session-timeout": 10_000,
                "high-availability.zookeeper.client.connection-timeout": 5_000,
            }
        lines = [f"{name}: {value}" for name, value in {**SETTINGS, **own, **self._given}.items()]
        (self.folder / "conf" / "config.yaml").write_text("\n".join(lines) + "\n", "utf-8")
        (self.folder / "conf" / "log4j.properties").write_text(_LOGGING, "utf-8")


class Rest:
    """A cluster's REST service.

    Args:
        master: Its address, `HOST:PORT`.
    """

    def __init__(self, master: str) -> None:
        self.master = master

    def get(self, path: str) -> Any:
        """Read a resource.

        Raises:
            OSError: the service does not answer, or has no such resource.
        """
        return self._ask("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a command."""
        return self._ask("POST", path, body)

    def cancel(self, job: str) -> None:
        """Cancel a job."""
        self._ask("PATCH", f"/jobs/{job}?mode=cancel", None)

    def task_managers(self) -> int:
        """The number of TaskManagers; 0 if the service does not answer."""
        try:
            return int(self.get("/overview")["taskmanagers"])
        except (OSError, KeyError):
            return 0

    def jobs(self, name: str) -> list[str]:
        """The ids of the jobs of this name, the newest first."""
        jobs = [job for job in self.get("/jobs/overview")["jobs"] if job["name"] == name]
        return [str(job["jid"]) for job in sorted(jobs, key=lambda job: -int(job["start-time"]))]

    def job(self, name: str) -> str | None:
        """The id of the newest job of this name."""
        return next(iter(self.jobs(name)), None)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.master}{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"{}")


def advice(rest: Rest) -> str | None:
    """Say which setting of a cluster may make checkpoints hang; None if there is none, or the cluster does not say."""
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


def until(met: Callable[[], bool], seconds: float, check: Callable[[], None] = lambda: None) -> None:
    """Wait until a condition is met.

    Args:
        met: The condition.
        seconds: How long to wait.
        check: Called before each pause; it may raise.

    Raises:
        TimeoutError: it is not met in time.
    """
    end = time.monotonic() + seconds
    while not met():
        check()
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.2)
