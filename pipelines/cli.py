"""The `crenel` command line.

Each command is a module, listed in `COMMANDS`, with `EXAMPLE` (text), `add_arguments(parser)` and
`run(arguments)`, which returns the exit code. Its docstring is the command's description. A module
is imported when its command is run: `crenel --help` loads neither Beam, nor Arrow, nor the compiler.
"""

from __future__ import annotations

import argparse
import errno
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from crenel.errors import PolicyError
from crenel.pipelines.command_errors import CommandError
from crenel.runners.runner_errors import RunnerError

__all__ = ["COMMANDS", "Command", "main", "program"]

#: Exit codes; see `docs/cli.md`.
FINE, FOUND_PROBLEMS, WRONG_USAGE, FAILED, BROKEN_PIPE, INTERRUPTED = 0, 1, 2, 70, 141, 130

#: Set this environment variable to see errors, and the rows in them.
_DEBUG = "CRENEL_DEBUG"


class Command(NamedTuple):
    """A command: its module, and a one-line summary."""

    module: str
    summary: str


#: The commands by name, in the order of the help.
COMMANDS: dict[str, Command] = {
    "check": Command("crenel.pipelines.commands.check", "explain a policy, and find what will go wrong"),
    "init": Command("crenel.pipelines.commands.init", "draft a policy from data"),
    "explore": Command("crenel.pipelines.commands.explore", "show what k and the deadline cost, over a grid"),
    "run": Command("crenel.pipelines.commands.run", "anonymize files"),
    "audit": Command("crenel.pipelines.commands.audit", "check what was published, and measure what it cost"),
    "watch": Command("crenel.pipelines.commands.watch", "judge a published topic as it goes, and raise alarms"),
    "plan": Command("crenel.pipelines.commands.plan", "say how many shards a rate needs, and what they cost"),
    "guarantee": Command("crenel.pipelines.commands.guarantee", "compute the differential privacy of sampling and k"),
    "schema": Command("crenel.pipelines.commands.schema", "print the JSON Schema of a policy, for an editor"),
    "compile": Command("crenel.pipelines.commands.compile", "compile the engines now, for a container image"),
    "demo": Command("crenel.pipelines.commands.demo", "anonymize an example stream, and audit what was published"),
}

_EXAMPLE = """\
  crenel init visits.csv --output policy.yaml
  crenel check policy.yaml --data visits.csv"""


def program() -> int:
    """Run the command of this process, as the installed script does, and return the exit code."""
    try:
        from crenel.pipelines import light_start

        light_start.begin()
        return main()
    except KeyboardInterrupt:  # it came before or after `main` could handle it
        return INTERRUPTED
    finally:
        # Before it exits, Python looks for garbage among all objects, which took a fifth of a small run.
        gc.freeze()


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code. `argv` excludes the program's name."""
    given = sys.argv[1:] if argv is None else list(argv)
    try:
        code = _run(given)
        sys.stdout.flush()
    except (PolicyError, CommandError, RunnerError) as error:
        for problem in error.problems:
            print(f"crenel: {problem}", file=sys.stderr)
        _drop_output()
        return WRONG_USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except OSError as error:
        place = "standard output" if error.filename is None else error.filename
        why = os.strerror(error.errno or errno.EIO).lower()
        print(f"crenel: {place} cannot be read or written: {why}.", file=sys.stderr)
        _drop_output()
        return WRONG_USAGE
    except Exception as error:
        _tell_of_bug(given, error)
        _drop_output()
        return FAILED
    return code


def _tell_of_bug(argv: list[str], error: Exception) -> None:
    """Report an error that no command expects. Its message and its traceback may quote rows: they are hidden."""
    if os.environ.get(_DEBUG):
        traceback.print_exception(error)
        return
    command = next((word for word in argv if word in COMMANDS), "the command")
    said = f"{command} failed ({type(error).__name__}). Set {_DEBUG}=1 to see the error, which may contain rows."
    print(f"crenel: {said}", file=sys.stderr)


def _drop_output() -> None:
    """Forget what standard output does not take. Python would flush again at exit, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: list[str]) -> int:
    _never_fail_to_print()
    top = _top_parser()
    if not argv:
        top.print_help(sys.stderr)
        return WRONG_USAGE
    asked = top.parse_args(argv)
    module: Any = importlib.import_module(COMMANDS[asked.command].module)
    parser = argparse.ArgumentParser(
        prog=f"crenel {asked.command}",
        description=(module.__doc__ or "").strip(),
        epilog=f"example:\n{module.EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    if not getattr(module, "PASSES_FLAGS", False):
        return int(module.run(parser.parse_args(asked.arguments)))
    arguments, flags = parser.parse_known_args(asked.arguments)
    arguments.flags = flags
    return int(module.run(arguments))


def _top_parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:11}{command.summary}" for name, command in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="crenel",
        description="Publish a stream of personal records so that nobody in it can be singled out.",
        epilog=f"commands (crenel COMMAND --help says more):\n{listed}\n\nexample:\n{_EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version, and exit")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


class _Version(argparse.Action):
    """Looks the version up only when it is needed."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        import crenel

        print(f"crenel {crenel.__version__}")
        parser.exit()


def _never_fail_to_print() -> None:
    # A column's name may have letters that the terminal cannot show.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(program())
