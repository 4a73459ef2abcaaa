"""Anonymize files, or a topic of Kafka: rows in, published rows out.

CSV with a header, JSON lines or an array (all may be .gz or .zst), Parquet or Avro, by the extension. Rows are
ordered by event time, so the result depends on the rows, the policy and the secret alone, not on how
the files were split. The outputs appear when the run is done; if anything goes wrong, none does. All
other flags go to Beam (--runner flink --parallelism=4).

A topic is kafka://HOST:PORT/TOPIC, read as rows arrive until Ctrl-C, or with ?until=end up to the rows
that are there now. Values are JSON; with ?format=avro&schema=FILE Avro; with ?registry=URL whatever the
schema registry says of each: JSON, Avro or Protobuf. See docs/kafka.md.

Exit codes: 0 if all is well, 1 if there were rows but no group to publish them in, 2 if the policy or a
file is broken, 3 if the outputs are written but more rows were suppressed or rejected than
--most-suppressed or --most-rejected allow, or records did not fit their topics (--dead-letters).
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from crenel import runners
from crenel.errors import PolicyError
from crenel.pipelines import light_start
from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.commands._input_options import add_dialect, check_no_envelope, dialect_of
from crenel.pipelines.commands._policy_argument import add_policy, policy_of
from crenel.pipelines.console import limits, status_line
from crenel.pipelines.files import private_folder
from crenel.pipelines.metrics import endpoint
from crenel.policy import Policy

if TYPE_CHECKING:
    from crenel.pipelines.files.file_job import Outcome
    from crenel.pipelines.metrics.live_figures import LiveFigures, Tap

__all__ = ["EXAMPLE", "add_arguments", "ending_signals", "launcher", "quiet", "run"]

EXAMPLE = "  crenel run policy.yaml --input 'visits/*.csv.gz' --output published.parquet --rejected rejected.jsonl"

#: Flags that are not the command's own are Beam's.
PASSES_FLAGS = True

#: The exit code of a failure that is not the user's: a job failed on its runner, or crenel has a bug.
FAILED = 70

#: Set this environment variable to see errors, and the rows in them.
_DEBUG = "CRENEL_DEBUG"

_FORMATS = ("csv", "tsv", "jsonl", "parquet", "avro")

_RANGES = ("columns", "text", "struct")

#: The start of Pub/Sub addresses.
_PUBSUB = "pubsub://"
_STREAMS = ("kafka://", _PUBSUB)

#: Bytes, and the least memory for sorting.
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_LEAST_MEMORY = 10**6

#: Seconds that the steps have to notice that a run was abandoned, and that further signals are ignored.
_GRACE = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_policy(parser)
    parser.add_argument(
        "--input",
        metavar="IN",
        nargs="+",
        required=True,
        help="files, patterns of names, - for standard input, or kafka://HOST:PORT/TOPIC",
    )
    parser.add_argument(
        "--output", metavar="OUT", required=True, help="the published rows; - for standard output, or kafka://..."
    )
    parser.add_argument(
        "--suppressed",
        metavar="F",
        help="for the owner: rows that no group was found for or that once_per left out, with their exact values",
    )
    parser.add_argument("--rejected", metavar="F", help="for the owner: rows that do not fit the policy, and why")
    parser.add_argument("--releases", metavar="F", help="for the owner: a record for each release, without values")
    parser.add_argument("--trace", metavar="F", help="for the owner: which input row became which output row")
    parser.add_argument(
        "--dead-letters",
        metavar="DIR",
        help="for the owner: the folder, on the workers' machines, for records that a topic does not take; "
        "~/.local/state/crenel/dead-letters by default",
    )
    parser.add_argument(
        "--input-format", choices=_FORMATS, help="the format, if the extension is wrong; csv for - by default"
    )
    add_dialect(parser)
    parser.add_argument(
        "--output-format", choices=_FORMATS, help="the format, if the extension is wrong; csv for - by default"
    )
    parser.add_argument(
        "--csv-escape-formulas",
        action="store_true",
        help="put ' before text cells of CSV that a spreadsheet would run as formulas",
    )
    parser.add_argument(
        "--ranges",
        choices=_RANGES,
        default="struct",
        help="what a published range is: struct (the default), lo and hi under one name, in CSV the text [30, 39]; "
        "columns, two columns age_lo and age_hi; or text, [30, 39] in every format",
    )
    parser.add_argument(
        "--workers", metavar="N", type=_positive, help="with --runner flink: how many workers; by default one per core"
    )
    parser.add_argument(
        "--memory-limit",
        metavar="SIZE",
        type=_size,
        help="memory for sorting rows, as 2GB (512MB by default); more rows are sorted on disk, beside the output",
    )
    parser.add_argument(
        "--runner", metavar="NAME", default="local", help="where to run: local (the default), prism, flink, dataflow"
    )
    parser.add_argument(
        "--flink-master", metavar="HOST:PORT", help="a Flink cluster; without it the run starts its own"
    )
    endpoint.add_argument(parser)
    parser.add_argument(
        "--json", action="store_true", help="print the summary as JSON, on standard output if no rows go there"
    )
    limits.add_arguments(parser, f"if there are more, the exit code is {limits.TOO_MANY}")


def run(arguments: argparse.Namespace) -> int:
    """Anonymize; return the exit code."""
    policy = policy_of(arguments)
    _warn(arguments, policy)
    if arguments.dead_letters and not any(place.startswith("kafka://") for place in _places(arguments)):
        msg = "--dead-letters is for topics: files take every record."
        raise CommandError(msg)
    if arguments.trace and any(place.startswith(_STREAMS) for place in (*arguments.input, arguments.output)):
        msg = "--trace is for files: the rows of a stream have no numbers."
        raise CommandError(msg)
    _check_metrics(arguments)
    if arguments.runner != "local":
        light_start.find_everything()
    if any(place.startswith("kafka://") for place in _places(arguments)):
        return _run_kafka(arguments, policy)
    with _terminable(), quiet():
        with light_start.loading():
            from crenel.pipelines.console import run_summary
            from crenel.pipelines.files import file_job
            from crenel.pipelines.files.remote import object_files
            from crenel.transforms._publish.range_form import Ranges
        launch = launcher(arguments.runner, workers=arguments.workers, flags=_flags(arguments))
        if arguments.input[0].startswith(_PUBSUB):
            return _stream(arguments, policy, launch)
        object_files.configure(_flags(arguments))
        _warn_of_elsewhere(arguments)
        request = file_job.Request(
            policy=policy,
            inputs=arguments.input,
            published=file_job.Output.of(
                arguments.output, arguments.output_format, escape_formulas=arguments.csv_escape_formulas
            ),
            suppressed=_owners(arguments, "suppressed"),
            rejected=_owners(arguments, "rejected"),
            releases=_owners(arguments, "releases"),
            trace=_owners(arguments, "trace"),
            input_format=arguments.input_format,
            dialect=dialect_of(arguments),
            memory_limit=arguments.memory_limit or file_job.SORT_MEMORY,
            ranges=Ranges(arguments.ranges),
        )
        watch = run_summary.watching if sys.stderr.isatty() else None
        try:
            with _measured(arguments, policy) as figures, _tapped(figures) as tap:
                outcome = file_job.run(request, launch, watch, tap)
        except (CommandError, PolicyError, runners.RunnerError, BrokenPipeError):
            raise
        except Exception as error:
            return _failed(error)
    return _told(arguments, policy, outcome)


def _told(arguments: argparse.Namespace, policy: Policy, outcome: Outcome) -> int:
    """Print the summary; return the exit code."""
    from crenel.pipelines.console import compile_notes, run_summary

    passed = list(
        limits.Limits.of(arguments).passed(
            outcome.rows, suppressed=outcome.suppressed, rejected=outcome.rejected.total()
        )
    )
    free = sys.stdout if arguments.output != "-" else sys.stderr
    if arguments.json:
        told = run_summary.as_dict(policy, outcome) | {"too_many": [one.as_dict() for one in passed]}
        print(json.dumps(told), file=free)
    else:
        sys.stderr.write(run_summary.as_text(policy, outcome))
        if later := compile_notes.advice():
            print(f"crenel: {later}", file=sys.stderr)
    if not (arguments.json and free is sys.stderr):  # where JSON is, nothing else may be
        for one in passed:
            print(f"crenel: {one.text}{_advice(policy, outcome, one)}", file=sys.stderr)
    if outcome.rows > 0 and outcome.published == 0:
        return 1
    return limits.TOO_MANY if passed or outcome.misfits or outcome.dead_letters else 0


def _advice(policy: Policy, outcome: Outcome, passed: limits.Passed) -> str:
    """Say what to change so that fewer rows are rejected."""
    from crenel.pipelines.checking.rejection_advice import rejection_advice

    found = [column for column, _ in outcome.rejected.most_common()]
    return f" {rejection_advice(policy, found)}" if passed.what == "rejected" else ""


def _check_metrics(arguments: argparse.Namespace) -> None:
    """Refuse --metrics where a run cannot report figures."""
    topics = all(place.startswith("kafka://") for place in arguments.input)
    if arguments.metrics is not None and arguments.runner != "local" and not (topics and arguments.runner == "flink"):
        msg = "--metrics is for the local runner, and for topics with --runner flink."
        raise CommandError(msg)


@contextlib.contextmanager
def _measured(arguments: argparse.Namespace, policy: Policy) -> Iterator[LiveFigures | None]:
    """Serve the figures of a run while it goes on, if that is asked for."""
    if arguments.metrics is None:
        yield None
        return
    from crenel.pipelines.metrics.live_figures import LiveFigures

    timed = policy.event_time is not None or arguments.input[0].startswith("kafka://")
    figures = LiveFigures(policy, arguments.runner, timed=timed)
    with endpoint.serving(arguments.metrics, figures.families, status_line.say):
        yield figures


@contextlib.contextmanager
def _tapped(figures: LiveFigures | None) -> Iterator[Tap | None]:
    """Provide what steps report to."""
    if figures is None:
        yield None
        return
    with figures.tapped() as tap:
        yield tap


def _warn(arguments: argparse.Namespace, policy: Policy) -> None:
    """Warn about the policy before anything is published; with --json, only if JSON has its own stream."""
    from crenel.pipelines.checking.advice import SEED

    if policy.seed is not None and not (arguments.json and arguments.output == "-"):
        print(f"crenel: warning: {SEED}", file=sys.stderr)


def _stream(arguments: argparse.Namespace, policy: Policy, launch: Callable[..., int]) -> int:
    """Anonymize messages of Pub/Sub."""
    from crenel.pipelines import pubsub

    check_no_envelope(arguments)
    if arguments.ranges != "struct":
        msg = f"--ranges {arguments.ranges} is for files and topics of Kafka, not for pubsub://."
        raise CommandError(msg)
    if arguments.runner != "dataflow" or arguments.releases or len(arguments.input) > 1:
        msg = "pubsub:// needs --runner dataflow, one --input, and no --releases."
        raise CommandError(msg)
    topics = pubsub.Topics(
        source=arguments.input[0],
        published=arguments.output,
        suppressed=arguments.suppressed,
        rejected=arguments.rejected,
    )
    launch(lambda pipeline: pubsub.build(pipeline, policy, topics), policy.most_shards)
    return 0


def _places(arguments: argparse.Namespace) -> list[str]:
    outputs = [arguments.output, arguments.suppressed, arguments.rejected, arguments.releases]
    return [*arguments.input, *(place for place in outputs if place is not None)]


def _run_kafka(arguments: argparse.Namespace, policy: Policy) -> int:
    """Anonymize a topic: rows as they arrive, until Ctrl-C or the end."""
    local = arguments.runner == "local"
    _check_kafka(arguments, local=local)
    with quiet():
        with light_start.loading():
            from crenel.pipelines.console import run_summary
            from crenel.pipelines.kafka import topic_job
            from crenel.transforms._publish.range_form import Ranges
        names = ("published", "suppressed", "rejected", "releases")
        places = (arguments.output, arguments.suppressed, arguments.rejected, arguments.releases)
        outputs = dict(zip(names, places, strict=True))
        request = topic_job.Request.of(
            policy,
            arguments.input,
            outputs,
            local=local,
            dead_letters=arguments.dead_letters,
            ranges=Ranges(arguments.ranges),
        )
        watch = run_summary.watching if sys.stderr.isatty() else None
        try:
            with _measured(arguments, policy) as figures, _tapped(figures) as tap:
                launch = launcher(
                    arguments.runner,
                    workers=arguments.workers,
                    flags=[*_flags(arguments), *([] if local else ["--streaming"])],
                    endless=True,
                    method=policy.method,
                    figures=figures,
                )
                outcome = topic_job.run(request, launch, watch, tap, local=local)
        except (CommandError, PolicyError, runners.RunnerError):
            raise
        except Exception as error:
            return _failed(error)
    return 0 if outcome is None else _told(arguments, policy, outcome)


def _check_kafka(arguments: argparse.Namespace, *, local: bool) -> None:
    """Refuse flags that do not go with topics."""
    if arguments.runner not in ("local", "flink"):
        msg = f"kafka:// needs --runner local or flink, not {arguments.runner}."
        raise CommandError(msg)
    check_no_envelope(arguments)
    if arguments.memory_limit is not None:
        msg = "--memory-limit is for files: the rows of a stream are not sorted."
        raise CommandError(msg)
    if arguments.input_format or arguments.output_format:
        msg = "--input-format and --output-format are for files; a topic's format is ?format=json or avro."
        raise CommandError(msg)
    if arguments.csv_escape_formulas:
        msg = "--csv-escape-formulas is for CSV files, and rows of topics are JSON or Avro."
        raise CommandError(msg)


def _failed(error: Exception) -> int:
    """Report a failure that is not the user's mistake. Messages of unknown errors may contain rows: they are hidden."""
    if isinstance(error, runners.JobFailed) and not os.environ.get(_DEBUG):
        print(f"crenel: {error}", file=sys.stderr)
        return FAILED
    if os.environ.get(_DEBUG):
        raise error
    name = type(error).__name__
    print(f"crenel: the run failed ({name}). Set {_DEBUG}=1 to see the error, which may contain rows.", file=sys.stderr)
    return FAILED


def _flags(arguments: argparse.Namespace) -> list[str]:
    """Collect Beam's flags, also those that the command calls by other names."""
    for name in ("flink_master", "workers"):
        if getattr(arguments, name) is not None and arguments.runner != "flink":
            msg = f"--{name.replace('_', '-')} needs --runner flink, not {arguments.runner}."
            raise CommandError(msg)
    if arguments.flink_master is None:
        return list(arguments.flags)
    return [*arguments.flags, f"--flink_master={arguments.flink_master}"]


def _warn_of_elsewhere(arguments: argparse.Namespace) -> None:
    """Warn that others can read the owner's files if these are written elsewhere than on this machine."""
    from crenel.pipelines.files.remote import object_files

    for name in ("suppressed", "rejected", "releases", "trace"):
        path = getattr(arguments, name)
        if path is not None and object_files.is_remote(path):
            print(
                f"crenel: warning: --{name} {path} is for the owner alone, but all who may read there can read it: "
                "only on this machine crenel keeps files private.",
                file=sys.stderr,
            )


def _owners(arguments: argparse.Namespace, name: str) -> Any:
    from crenel.pipelines.files.file_job import Output

    path = getattr(arguments, name)
    if path == "-":
        msg = "--suppressed, --rejected, --releases and --trace must be files: only --output may be -."
        raise CommandError(msg)
    return None if path is None else Output.of(path, escape_formulas=arguments.csv_escape_formulas)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        msg = f"must be a whole number of at least 1, not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _size(text: str) -> int:
    """Read a number of bytes: `512MB` or `2GB`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]B)", text.strip(), re.ASCII | re.IGNORECASE)
    size = round(float(found[1]) * _UNITS[found[2].upper()]) if found else 0
    if size < _LEAST_MEMORY:
        msg = f"must be a size of at least {_LEAST_MEMORY // _UNITS['MB']}MB, such as 512MB or 2GB, not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return size


def launcher(
    name: str,
    *,
    workers: int | None = None,
    flags: Sequence[str] = (),
    endless: bool = False,
    method: str | None = None,
    figures: LiveFigures | None = None,
) -> Callable[[Callable[[Any], None], int], int]:
    """A function that launches a pipeline on the runner of this name, and leaves this thread free for Ctrl-C.

    Args:
        name: The runner's name.
        workers: How many workers the user asked for.
        flags: Beam's flags.
        endless: Whether the input has no end. On this machine the first Ctrl-C then stops the input, and the pipeline
            releases the rows it holds.
        method: The method of the policy.
        figures: Takes the figures of a job on a cluster.

    Raises:
        CommandError: Beam does not know a flag.
        RunnerError: there is no such runner, or it lacks something.
    """
    runner = runners.find(name, endless=endless)
    _check_flags(flags, getattr(runner, "KNOWN", frozenset()))
    if hasattr(runner, "check"):
        runner.check(flags)
    stop = threading.Event() if endless and name == "local" else None

    def launch(build: Callable[[Any], None], shards: int) -> int:
        job = runners.Job(
            build=build,
            shards=shards,
            workers=workers,
            flags=flags,
            method=method,
            say=status_line.say,
            show=status_line.show if sys.stderr.isatty() else None,
            stop=stop,
            **_reported(figures),
        )
        return _interruptible(lambda: runner.launch(job), stop)

    return launch


def _reported(figures: LiveFigures | None) -> dict[str, Any]:
    if figures is None:
        return {}
    from crenel.pipelines.metrics.live_figures import COUNTERS

    return {"report": figures.set_job, "counters": COUNTERS}


def _check_flags(flags: Sequence[str], known: Collection[str] = ()) -> None:
    from apache_beam.options.pipeline_options import PipelineOptions

    if not flags:
        return
    options = PipelineOptions(list(flags))
    given = options.get_all_options(retain_unknown_options=True)
    unknown = [f"--{name}" for name in given if name not in options.get_all_options() and name not in known]
    unknown += [flag for flag in flags[:1] if not flag.startswith("--")]
    if unknown:
        msg = f"{unknown[0]} is neither an option of crenel run (see --help) nor of Beam."
        raise CommandError(msg)


def _interruptible(work: Callable[[], int], stop: threading.Event | None = None) -> int:
    """Do the work in another thread, so that Ctrl-C can interrupt this one."""
    done: list[int] = []
    failed: list[BaseException] = []
    over = threading.Event()  # an interrupted `join` may take a living thread for dead (Python 3.11)

    def target() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)
        finally:
            over.set()

    thread = threading.Thread(target=target, name="crenel run", daemon=True)
    # The last thing at exit, since what the work itself does there may end it: a job on Flink is cancelled. A thread
    # that needs the interpreter after its end would abort the process.
    atexit.register(over.wait, 2 * _GRACE)
    with _terminable():
        thread.start()
        try:
            if stop is not None:
                _stoppable(over, stop)
            _await(over)
        except (KeyboardInterrupt, SystemExit) as interruption:
            # The steps soon notice that the run was abandoned, unless they are compiling.
            code = interruption.code if isinstance(interruption, SystemExit) else 130
            _insist(int(code or 0), over)
            raise
    atexit.unregister(over.wait)
    if failed:
        raise failed[0]
    return done[0]


def _await(over: threading.Event) -> None:
    while not over.wait(0.2):
        pass


def _stoppable(over: threading.Event, stop: threading.Event) -> None:
    """Wait; the first interruption asks the pipeline to end."""
    try:
        _await(over)
    except (KeyboardInterrupt, SystemExit):
        stop.set()
        with contextlib.suppress(OSError):  # the terminal was closed
            print("crenel: releasing held rows. Press Ctrl-C again to discard them.", file=sys.stderr)


def _insist(code: int, over: threading.Event) -> None:
    """Exit the process after some seconds, although its threads cannot be told to end."""

    def insist() -> None:
        if not over.wait(_GRACE):
            private_folder.remove_open()
            with contextlib.suppress(OSError):  # the terminal was closed
                sys.stderr.flush()
            os._exit(code)

    threading.Thread(target=insist, daemon=True).start()


def ending_signals() -> list[signal.Signals]:
    """List the signals that end a command as Ctrl-C does: SIGTERM, and SIGHUP, which a closed terminal sends.

    Windows has no SIGHUP, and under nohup it is ignored.
    """
    hangup: Any = getattr(signal, "SIGHUP", None)
    is_heard = hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN
    return [signal.SIGTERM, hangup] if is_heard else [signal.SIGTERM]


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C: nothing half-written stays.

    An interrupted run is about to end, so that it ignores further signals for a while: they could only keep it from
    clearing up. A closed terminal often sends SIGHUP twice.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    ending = ending_signals()
    handlers: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, *ending)}
    for number in ending:
        signal.signal(number, terminate)
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        handlers = {number: _deaf_for_now(handler) for number, handler in handlers.items()}
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _deaf_for_now(handler: Any) -> Callable[[int, Any], None]:
    """A handler that ignores its signal while an interrupted run clears up, and then leaves it to the given one."""
    until = time.monotonic() + _GRACE

    def ignore(number: int, _: Any) -> None:
        if time.monotonic() >= until:
            signal.signal(number, handler)
            signal.raise_signal(number)

    return ignore


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence Beam's log: its messages about a failure may contain rows.

    After an interruption it stays silent: steps that go on for a moment fail, as the files of the run are gone.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        before = logging.CRITICAL
        raise
    finally:
        logging.disable(before)
