"""A topic of trips in, an anonymous topic out.

    python examples/kafka_to_kafka/kafka_to_kafka.py --broker localhost:9092

It sends made-up trips to the topic `trips`, lets `crenel run` publish them to `anonymous-trips`, and prints a few of
them. Without `until=end` the run goes on until Ctrl-C. With `--runner flink` the same line runs on a cluster.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

HERE = Path(__file__).parent
START = 1_772_000_000


def send_trips(broker: str, topic: str, trips: int = 3_000) -> None:
    """Make the topic, and send trips to it."""
    draw = random.Random(0)
    producer = Producer({"bootstrap.servers": broker})
    for i in range(trips):
        trip = {
            "rider": draw.randrange(1_000),
            "started": START + i,
            "lat": round(draw.gauss(41.88, 0.05), 5),
            "lon": round(draw.gauss(-87.65, 0.05), 5),
            "paid_by": draw.choice(["card", "cash", "app"]),
        }
        producer.produce(topic, json.dumps(trip).encode())
    producer.flush()


def make_topics(broker: str, *names: str) -> None:
    """Make the topics, unless they are there."""
    admin = AdminClient({"bootstrap.servers": broker})
    known = admin.list_topics(timeout=10).topics
    made = admin.create_topics([NewTopic(name, num_partitions=1) for name in names if name not in known])
    for done in made.values():
        done.result()


def published(broker: str, topic: str, count: int) -> list[dict[str, object]]:
    """The first rows of a topic."""
    consumer = Consumer({"bootstrap.servers": broker, "group.id": "example", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    rows = [json.loads(message.value()) for message in consumer.consume(count, timeout=20)]
    consumer.close()
    return rows


def main() -> int:
    """Send, publish, look."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="localhost:9092")
    parser.add_argument("--prefix", default="", help="what the topics' names begin with")
    arguments = parser.parse_args()
    trips, anonymous = f"{arguments.prefix}trips", f"{arguments.prefix}anonymous-trips"
    make_topics(arguments.broker, trips, anonymous)
    send_trips(arguments.broker, trips)
    address = f"kafka://{arguments.broker}"
    run = ["run", str(HERE / "policy.yaml"), "--input", f"{address}/{trips}?until=end"]
    done = subprocess.run(
        [sys.executable, "-m", "crenel.pipelines.cli", *run, "--output", f"{address}/{anonymous}"], check=False
    )
    for row in published(arguments.broker, anonymous, 5):
        print(row)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
