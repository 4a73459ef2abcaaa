"""The parts of the benchmark of checkpoints that need neither a broker nor a cluster."""

from __future__ import annotations

import pytest

from benchmarks import checkpoints


def test_growth_is_that_of_a_line_since_a_minute() -> None:
    early = [(minute / 6, 10_000_000) for minute in range(60)]
    flat = [(10 + i / 6, 1_000_000 + (-1) ** i * 200_000) for i in range(300)]
    found = checkpoints.growth([*early, *flat], 10.0)
    assert abs(found["growth"]) < 0.01, "it goes up and down, but does not grow"
    growing = [(10 + i / 6, 1_000_000 + i * 1_000) for i in range(301)]
    found = checkpoints.growth([*early, *growing], 10.0)
    assert (found["bytes_first"], found["bytes_last"]) == (1_000_000, 1_300_000)
    assert found["bytes_a_minute"] == pytest.approx(6_000)
    assert found["growth"] == pytest.approx(0.3)


def test_sizes_by_minute_and_the_report() -> None:
    sizes = checkpoints.by_minute([(0.1, 10), (0.5, 30), (0.9, 20), (11.0, 40)])
    assert sizes == {0: 20, 11: 40}
    waits = {"records": 9, "p50": 1.0, "p99": 2.0, "most": 3.0}
    said = checkpoints.report({"growth": 0.01, "bytes_by_minute": sizes, "waits": waits})
    assert "| 0 to 10" in said
    assert "| 10 to 20" in said
    assert "| p99" in said
