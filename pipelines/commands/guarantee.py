"""Compute the (epsilon, delta) differential privacy that sampling and a fixed grid guarantee.

With --k and --beta, prints the delta that goes with an epsilon (theorem 2 of the CASTLEGUARD paper), or
a small table of both. This is proven for the method sdgs, per person and window. The paper claims it for
castleguard, too, which is refuted (docs/differential-privacy.md).

With --probability and --within, prints the phi with which a quasi-identifier moves by less than that part
of its range, with that probability (theorem 1).
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.commands._input_options import integer, number
from crenel.policy import sampling_privacy

__all__ = ["EXAMPLE", "add_arguments", "run"]

EXAMPLE = """\
  crenel guarantee --k 100 --beta 0.5 --epsilon 1.0
  crenel guarantee --probability 0.99 --within 0.01"""

#: The epsilons of the table, as multiples of the smallest possible one.
_MULTIPLES = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--k", type=integer, metavar="K", help="the smallest number of persons in a published group")
    parser.add_argument("--beta", type=number, metavar="BETA", help="the probability to sample a row (beta_sample)")
    parser.add_argument(
        "--epsilon", type=number, metavar="EPS", help="at least -ln(1 - beta); without it, prints a table"
    )
    parser.add_argument(
        "--probability", type=number, metavar="P", help="the probability that a value moves by less than --within"
    )
    parser.add_argument("--within", type=number, metavar="R", help="a part of the value's range, such as 0.01")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Print what was asked for."""
    if not _together(arguments, "k", "beta") and not _together(arguments, "probability", "within"):
        msg = "guarantee: give --k and --beta, or --probability and --within."
        raise CommandError(msg)
    if arguments.epsilon is not None and arguments.k is None:
        msg = "guarantee: --epsilon needs --k and --beta."
        raise CommandError(msg)
    try:
        found = _found(arguments)
    except ValueError as error:
        msg = f"guarantee: --{error}"
        raise CommandError(msg) from None
    print(json.dumps(found) if arguments.json else _text(found))
    return 0


def _together(arguments: argparse.Namespace, one: str, other: str) -> bool:
    given = [name for name in (one, other) if getattr(arguments, name) is not None]
    if len(given) == 1:
        lacking = other if given == [one] else one
        msg = f"guarantee: --{given[0]} needs --{lacking}."
        raise CommandError(msg)
    return bool(given)


def _found(arguments: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if arguments.k is not None:
        k, beta = arguments.k, arguments.beta
        epsilons = [arguments.epsilon]
        if arguments.epsilon is None:
            # If beta is out of bounds, any epsilon will do: `delta` then raises the error.
            least = sampling_privacy.least_epsilon(beta) if 0 < beta < 1 else 1.0
            epsilons = [least * multiple for multiple in _MULTIPLES]
        pairs = [{"epsilon": epsilon, "delta": sampling_privacy.delta(k, beta, epsilon)} for epsilon in epsilons]
        found |= {"k": k, "beta": beta, "pairs": pairs}
    if arguments.probability is not None:
        probability, within = arguments.probability, arguments.within
        try:
            phi = sampling_privacy.phi(probability, within)
        except ValueError as error:
            raise ValueError(str(error).replace("r must", "within must")) from None
        found |= {"probability": probability, "within": within, "phi": phi}
    return found


def _text(found: dict[str, Any]) -> str:
    lines = []
    if "pairs" in found:
        lines.append(
            f"With k = {found['k']} and beta = {found['beta']:g}, sdgs is (epsilon, delta)-differentially private:"
        )
        lines.append(f"  {'epsilon':>10}  delta")
        lines += [f"  {pair['epsilon']:>10.6g}  {pair['delta']:.3g}" for pair in found["pairs"]]
        lines.append("This is proven for the method sdgs, per person and window. It does not hold for castleguard.")
    if "phi" in found:
        lines.append(
            f"With phi = {found['phi']:.6g}, a value moves by less than {found['within']:g} of its range with "
            f"probability {found['probability']:g}."
        )
    return "\n".join(lines)
