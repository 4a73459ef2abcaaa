"""A real broker on the loopback address: one node of Kafka (KRaft), from the artifacts of Maven Central."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crenel.runners.flink.ports import free_ports
from crenel.runners.flink.processes import Process

VERSION = "3.9.2"
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>crenel</groupId><artifactId>broker</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{VERSION}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-reload4j</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""
_PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:{controller}
listeners=PLAINTEXT://localhost:{port},CONTROLLER://localhost:{controller}
advertised.listeners=PLAINTEXT://localhost:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/logs
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
auto.create.topics.enable=false
log.cleaner.backoff.ms=500
"""
#: An arbitrary id.
_CLUSTER = "Y3JlbmVsLWNyZW5lbC1jcg"


def missing() -> str | None:
    """The missing requirement, in a sentence; None if nothing is missing."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None and (tool == "java" or not _is_there()):
            return f"needs {tool}, to start a broker of Kafka."
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        return "needs confluent-kafka: pip install 'crenel[kafka]'."
    return None


def _libraries() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "crenel" / f"kafka-{VERSION}-with-tools"


def _is_there() -> bool:
    return (_libraries() / "complete").exists()


def libraries() -> Path:
    """The folder of the broker's jars, which are downloaded once. Maven verifies their checksums."""
    folder = _libraries()
    if not _is_there():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            (Path(scratch) / "pom.xml").write_text(_POM)
            command = ["mvn", "-q", "-B", "-C", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
            subprocess.run(command, cwd=scratch, check=True, timeout=600)
            (Path(scratch) / "jars" / "complete").touch()
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(Path(scratch) / "jars", folder)
    return folder


def _java() -> list[str]:
    return ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{libraries()}/*"]


@dataclass(frozen=True)
class Broker:
    """A running broker."""

    address: str
    #: The address for listeners with TLS, if settings define one.
    tls: str = ""

    def url(self, topic: str, **options: str) -> str:
        query = "&".join(f"{name.replace('__', '.')}={value}" for name, value in options.items())
        return f"kafka://{self.address}/{topic}" + (f"?{query}" if query else "")

    def create(self, *topics: str, partitions: int = 2, **config: str) -> None:
        """Create topics; settings such as `max__message__bytes` are those of Kafka."""
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

        admin = AdminClient({"bootstrap.servers": self.address})
        settings = {name.replace("__", "."): value for name, value in config.items()}
        made = admin.create_topics([NewTopic(topic, partitions, 1, config=settings) for topic in topics])
        for future in made.values():
            future.result(30)
        # On a busy machine, a partition may be without a leader for some time after it was made.
        asked = {TopicPartition(topic, number): OffsetSpec.latest() for topic in topics for number in range(partitions)}
        until = time.monotonic() + 60
        while True:
            try:
                for found in admin.list_offsets(asked).values():
                    found.result(30)
            except KafkaException:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
            else:
                return

    def delete(self, topic: str) -> None:
        from confluent_kafka import KafkaException, TopicCollection
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.address})
        admin.delete_topics([topic])[topic].result(30)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                admin.describe_topics(TopicCollection([topic]))[topic].result(30)
            except KafkaException:
                return
            time.sleep(0.2)
        raise RuntimeError(f"{topic} is still there")

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        from confluent_kafka.admin import AdminClient, NewPartitions

        admin = AdminClient({"bootstrap.servers": self.address})
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)

    def lag(self, group: str) -> dict[int, int]:
        """The lag of a group by partition, as the broker's own tool tells it; without partitions of no known lag."""
        command = [*_java(), "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--describe"]
        command += ["--bootstrap-server", self.address, "--group", group]
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).stdout
        # GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG ...
        found = [line.split() for line in said.splitlines() if line.startswith(group)]
        return {int(cells[2]): int(cells[5]) for cells in found if cells[5] != "-"}

    def produce(
        self,
        topic: str,
        values: Sequence[bytes | None],
        partition: int = -1,
        millis: int = 0,
        keys: Sequence[bytes] | None = None,
    ) -> None:
        from confluent_kafka import Producer

        settings = {"queue.buffering.max.messages": 1_000_000, "message.max.bytes": 10_000_000}
        producer = Producer({"bootstrap.servers": self.address, **settings})
        for place, value in enumerate(values):
            key = None if keys is None else keys[place]
            producer.produce(topic, value, key, partition=partition, timestamp=millis)
        assert producer.flush(60) == 0

    def read(self, topic: str, isolation: str = "read_uncommitted") -> list[Any]:
        """All messages of a topic, committed or not; or committed ones only (`read_committed`)."""
        from confluent_kafka import Consumer, TopicPartition

        settings = {"group.id": "reader", "isolation.level": isolation, "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": self.address, "enable.partition.eof": True, **settings})
        found: list[Any] = []
        try:
            partitions = consumer.list_topics(topic, 30).topics[topic].partitions
            consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
            at_end: set[int] = set()
            while len(at_end) < len(partitions):
                for message in consumer.consume(1000, 1.0):
                    if message.error() is None:
                        found.append(message)
                    else:
                        at_end.add(message.partition())
        finally:
            consumer.close()
        return found


class Server:
    """The process of a broker, which can be lost and started again. Its address stays.

    Args:
        folder: The folder of its files.
        overrides: Settings, which may say `{port}`, `{controller}`, `{tls}` and `{folder}`.
    """

    def __init__(self, folder: Path, overrides: Mapping[str, str] | None = None) -> None:
        port, controller, tls = free_ports(3)
        self.broker = Broker(f"localhost:{port}", f"localhost:{tls}")
        self._folder = folder
        self._process: Process | None = None
        self._java = [*_java(), "-Xmx384m"]
        folder.mkdir(parents=True, exist_ok=True)
        self._config = folder / "server.properties"
        lines = _PROPERTIES + "".join(f"{name}={value}\n" for name, value in (overrides or {}).items())
        self._config.write_text(lines.format(port=port, controller=controller, tls=tls, folder=folder))
        with open(folder / "out.log", "wb") as log:
            form = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(self._config)]
            subprocess.run([*self._java, *form], stdout=log, stderr=log, check=True, timeout=120)

    def start(self) -> None:
        """Start the broker, and wait until it answers."""
        self._process = Process([*self._java, "kafka.Kafka", str(self._config)], self._folder / "out.log")
        _await(self.broker, self._process, self._folder)

    def stop(self) -> None:
        """Kill the broker."""
        if self._process is not None:
            self._process.stop()
            self._process = None


@contextmanager
def running(folder: Path, overrides: Mapping[str, str] | None = None) -> Iterator[Broker]:
    """Run a broker."""
    server = Server(folder, overrides)
    try:
        server.start()
        yield server.broker
    finally:
        server.stop()


def _await(broker: Broker, server: Process, folder: Path) -> None:
    import logging

    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    quiet = logging.getLogger("broker not there yet")
    quiet.setLevel(logging.CRITICAL)
    admin = AdminClient({"bootstrap.servers": broker.address}, logger=quiet)
    until = time.monotonic() + 180
    while time.monotonic() < until and server.alive:
        try:
            if admin.list_topics(timeout=1).brokers:
                return
        except KafkaException:
            pass
    raise RuntimeError(f"the broker did not start; {folder / 'out.log'} says why")
