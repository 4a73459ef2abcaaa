"""Watch a published topic, and raise an alarm when it breaks a promise of its policy.

It reads what everybody can read: each row's generalization, its sensitive values, and when it was sent. Rows under one
generalization that were sent close together are a group: it must have at least k rows, and l values. No column may be
there that the policy does not publish, and no value that the policy cannot have published. With --releases, the owner's
topic of releases, also the persons of each release, the number of rows, and how late they were sent are judged.

What readers see proves no promise: it is broken, or nothing against it was seen. crenel audit with the trace of a run
proves more. Ctrl-C ends it, and prints what was seen; so does ?until=end.

Exit codes: 0 if there was no alarm, 1 if a promise is broken, 3 if only --most-late or --most-loss were exceeded.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from crenel import runners
from crenel.errors import PolicyError
from crenel.pipelines import light_start
from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.commands._policy_argument import add_policy, policy_of
from crenel.pipelines.commands.run import FAILED, ending_signals, quiet
from crenel.pipelines.console import limits, status_line
from crenel.pipelines.metrics import endpoint
from crenel.policy.durations import parse_duration

__all__ = ["EXAMPLE", "add_arguments", "run"]

EXAMPLE = "  crenel watch policy.yaml --published kafka://broker:9092/visits-anonymous --metrics :9109"

#: Alarms of one kind that are told in a line each; the others are counted.
_MOST_TOLD = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_policy(parser)
    parser.add_argument(
        "--published",
        metavar="TOPIC",
        required=True,
        help="the published topic: kafka://HOST:PORT/TOPIC, with ?start=latest or ?until=end",
    )
    parser.add_argument("--releases", metavar="TOPIC", help="the owner's topic of releases (crenel run --releases)")
    parser.add_argument(
        "--settle",
        metavar="TIME",
        type=_duration,
        default="60s",
        help="a group is judged when nothing more came under its generalization for this time (60s)",
    )
    parser.add_argument(
        "--most-late",
        metavar="TIME",
        type=_duration,
        help="with --releases: an alarm if a release is sent later than this after its moment",
    )
    parser.add_argument(
        "--most-loss", metavar="X", type=_share, help="an alarm if the mean loss of a thousand rows is above this"
    )
    parser.add_argument("--fail-fast", action="store_true", help="end with the first alarm")
    endpoint.add_argument(parser)
    parser.add_argument("--json", action="store_true", help="print what was seen as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Watch; 1 if a promise is broken."""
    policy = policy_of(arguments)
    if arguments.most_late is not None and arguments.releases is None:
        msg = "--most-late needs --releases: published rows do not tell when they were released."
        raise CommandError(msg)
    with quiet():
        with light_start.loading():
            from crenel.pipelines.watching.topic_watch_run import Limits, TopicWatchRun
            from crenel.pipelines.watching.verdicts import LIMITS, as_dict, as_text, families
        published = _topic(arguments.published, "--published")
        releases = None if arguments.releases is None else _topic(arguments.releases, "--releases")
        try:
            watched = TopicWatchRun(
                policy,
                published,
                releases,
                settle=arguments.settle,
                limits=Limits(late=arguments.most_late, loss=arguments.most_loss),
                heard=_teller(),
            )
            with _served(arguments, lambda: families(watched)), _stoppable() as stop:
                watched.run(stop, fail_fast=arguments.fail_fast)
        except (CommandError, PolicyError):
            raise
        except Exception as error:
            return _failed(error)
    print(json.dumps(as_dict(policy, watched)) if arguments.json else as_text(policy, watched).rstrip("\n"))
    if any(promise not in LIMITS for promise in watched.alarms):
        return 1
    return limits.TOO_MANY if watched.alarms else 0


def _topic(url: str, option: str) -> Any:
    from crenel.pipelines.kafka.topics import Topic, is_topic

    if not is_topic(url):
        msg = f"{option} must be a topic (kafka://HOST:PORT/TOPIC); crenel audit judges files."
        raise CommandError(msg)
    topic = Topic.of(url, read=True)
    if topic.registry is not None or topic.envelope is not None:
        msg = f"{topic!r}: watch reads JSON, and Avro by schema=FILE; registry and envelope are for crenel run."
        raise CommandError(msg)
    return topic


def _teller() -> Any:
    """Return a function that reports alarms: the first ones of each kind, each in a line."""
    told: Counter[str] = Counter()

    def heard(alarm: Any) -> None:
        told[alarm.promise] += 1
        if told[alarm.promise] <= _MOST_TOLD:
            rest = " Further ones of this kind are only counted." if told[alarm.promise] == _MOST_TOLD else ""
            status_line.say(f"alarm ({alarm.promise}): {alarm.said}.{rest}")

    return heard


@contextmanager
def _served(arguments: argparse.Namespace, collect: Any) -> Iterator[None]:
    if arguments.metrics is None:
        yield
        return
    with endpoint.serving(arguments.metrics, collect, status_line.say):
        yield


@contextmanager
def _stoppable() -> Iterator[threading.Event]:
    """End by Ctrl-C, SIGTERM or SIGHUP; a second one ends at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def end(number: int, _: Any) -> None:
        if stop.is_set():
            raise SystemExit(128 + number)
        stop.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, *ending_signals())}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _failed(error: Exception) -> int:
    """Report a failure that is not the user's mistake. Messages of unknown errors may contain values."""
    if os.environ.get("CRENEL_DEBUG"):
        raise error
    said = str(error) if isinstance(error, runners.JobFailed) else f"watching failed ({type(error).__name__})."
    print(f"crenel: {said}", file=sys.stderr)
    return FAILED


def _duration(text: str) -> int:
    micros = parse_duration(text)
    if micros is None:
        msg = f"must be a duration such as 60s, not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return micros


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        msg = f"must be a number from 0 to 1, not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return share
