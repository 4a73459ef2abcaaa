"""`python -m simulation`: plays histories, and says how many broke a promise.

The last line is JSON. Ctrl-C ends it, and shows what was done so far. A history that breaks a promise is shrunk, and
printed as a test.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from simulation import campaign
from simulation.campaign import Tally
from simulation.defects import DEFECTS
from simulation.drawing import draw
from simulation.history import History
from simulation.shrink import shrink

#: Failures that are shrunk: the first are enough to begin with.
_SHOWN = 3
#: The exit code after Ctrl-C.
_INTERRUPTED = 130


def main(arguments: list[str]) -> int:
    """Play histories; return 1 if one broke a promise, or, with a planted defect, if none did; 130 after Ctrl-C."""
    asked = _parser().parse_args(arguments)
    if asked.defect and asked.defect not in DEFECTS:
        print(f"simulation: DEFECT must be one of {', '.join(DEFECTS)}, not {asked.defect}.", file=sys.stderr)
        return 2
    tally, began, is_interrupted = Tally(), time.monotonic(), False
    told: set[int] = set()
    try:
        for tally in campaign.play_all(asked.first, asked.seeds, asked.processes, asked.defect):
            _tell_failures(tally, told)
            _tell_progress(tally, asked.seeds)
            if asked.defect and tally.failures:
                break
    except KeyboardInterrupt:
        is_interrupted = True
    _report(tally)
    said = {
        "histories": tally.histories,
        "steps": tally.steps,
        "messages": tally.messages,
        "left": tally.left,
        "repeated": tally.repeated,
        "faults": dict(sorted(tally.faults.items())),
        "failures": len(tally.failures),
        "seeds": sorted(tally.failures),
        "first": asked.first,
        "defect": asked.defect,
        "interrupted": is_interrupted,
        "elapsed": round(time.monotonic() - began, 1),
        "seconds": round(tally.seconds, 1),
    }
    if not is_interrupted:
        for seed, what in sorted(tally.failures.items())[:_SHOWN]:
            _show(seed, what, asked.defect)
    print(json.dumps(said))
    if is_interrupted:
        return _INTERRUPTED
    return int(bool(tally.failures) != bool(asked.defect))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many histories to play (1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="processes (one for each core)")
    parser.add_argument("--defect", default=None, help=f"plant a defect: {', '.join(DEFECTS)}")
    return parser


def _tell_failures(tally: Tally, told: set[int]) -> None:
    """Tell which seeds have failed as soon as they have: a long campaign may be cut off."""
    for seed in sorted(set(tally.failures) - told):
        print(f"Seed {seed} failed: {tally.failures[seed]}", file=sys.stderr, flush=True)
    told.update(tally.failures)


def _tell_progress(tally: Tally, seeds: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{tally.histories:,} of {seeds:,} histories, {len(tally.failures)} failures", end="", file=sys.stderr)


def _show(seed: int, what: str, defect: str | None) -> None:
    """Print a failing history, as small as it can be made."""
    with campaign.simulated(defect):
        history = draw(seed)
        found = campaign.broken(history)
        if found is None:
            print(f"\nSeed {seed}: {what}. It does not happen again: something outside of the history plays a part.")
            return
        promise = found.promise

        def is_broken(candidate: History) -> bool:
            again = campaign.broken(candidate)
            return again is not None and again.promise == promise

        small = shrink(history, is_broken)
        print(f"\nSeed {seed}: {what}. As a test, for tests/simulation/test_found.py:\n")
        print(f"def test_seed_{seed}() -> None:\n    # {campaign.broken(small)}\n    check(")
        print("".join(f"        {line}\n" for line in small.source().splitlines()) + "    )\n")


def _report(tally: Tally) -> None:
    print(f"\n{tally.histories:,} histories, {tally.steps:,} steps, {len(tally.failures):,} failures")
    left = f"{tally.left:,} published, suppressed or rejected"
    print(f"{tally.messages:,} messages, {left}; {tally.repeated:,} records came twice, identical")
    print(f"{tally.faults.total():,} faults:")
    for kind, count in sorted(tally.faults.items()):
        print(f"  {count:>9,}  {kind}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
