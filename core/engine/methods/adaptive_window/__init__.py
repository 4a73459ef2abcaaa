"""Adaptive window: how long rows are gathered depends on how likely it is that more company comes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crenel.policy.checks import Problems
from crenel.policy.durations import format_duration, tick_of
from crenel.policy.methods import Method
from crenel.policy.parameters import (
    Parameters,
    Reuse,
    duration,
    max_reusable,
    number,
    optional,
    parameter,
    reuse,
)

__all__ = ["METHOD", "AdaptiveWindowParameters"]


@dataclass(frozen=True, kw_only=True)
class AdaptiveWindowParameters(Parameters):
    """The parameters of `adaptive-window`; durations are kept in microseconds."""

    min_delay: int | None = parameter(
        None,
        optional(duration(at_least=1)),
        "The shortest life of a window (t_l in the paper).",
        unit="microseconds",
        unset="two fifths of delay",
    )

    max_delay: int | None = parameter(
        None,
        optional(duration(at_least=1)),
        "The longest life of a window (t_u in the paper).",
        unit="microseconds",
        unset="delay",
    )

    threshold: float = parameter(
        0.4,
        number(above=0, below=1),
        "The probability of enough company from which on a row waits for it (delta in the paper).",
    )

    spare: float = parameter(
        0.25,
        number(at_least=0, below=1),
        "The largest share of a window's rows that may be left over, so that the others lose less.",
    )

    processing: int = parameter(
        0,
        duration(at_least=0),
        "The event time that anonymizing takes, by which a row's remaining life is shorter (T_A in the paper).",
        unit="microseconds",
    )

    reuse: Reuse = reuse(Reuse.UNIFORM, Reuse.BEST, Reuse.OFF)

    max_reusable: int = max_reusable(1000)

    def lives(self, delay: int) -> tuple[int, int]:
        """Return the shortest and the longest life of a window, in microseconds."""
        least = max(2 * delay // 5, 1) if self.min_delay is None else self.min_delay
        return least, delay if self.max_delay is None else self.max_delay


def _check(policy: Mapping[str, Any], problems: Problems) -> None:
    parameters: AdaptiveWindowParameters = policy["parameters"]
    delay = policy["delay"]
    if delay is None:
        problems.add("delay", "must be given with method 'adaptive-window': its windows are spans of time.")
        return
    least, most = parameters.lives(delay)
    tick = tick_of(delay)
    if most > delay:
        rule = f"at most delay ({format_duration(delay)}): a row must leave by then"
        problems.must("parameters.max_delay", rule, format_duration(most))
    if not tick <= least <= most:
        rule = f"from a sixteenth of delay to max_delay ({format_duration(tick)} to {format_duration(most)})"
        problems.must("parameters.min_delay", rule, format_duration(least))
    if parameters.processing >= delay:
        rule = f"less than delay ({format_duration(delay)})"
        problems.must("parameters.processing", rule, format_duration(parameters.processing))


METHOD = Method(
    name="adaptive-window",
    summary="Gathers rows in windows whose length follows the rate of the stream.",
    parameters=AdaptiveWindowParameters,
    engine="crenel.engine.methods.adaptive_window.adaptive_window_engine:AdaptiveWindow",
    snapshot="crenel.engine:buffered.1.avsc",
    check=_check,
)
