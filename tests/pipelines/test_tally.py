"""What is told of a run at its end."""

from __future__ import annotations

import json

import numpy as np
import pytest

from crenel.pipelines.job import Outcome
from crenel.pipelines.summary import as_dict, as_text
from crenel.pipelines.tally import Spread, Tally
from crenel.policy import Policy
from crenel.quasi_identifiers import Numeric

POLICY = Policy(person="p", quasi_identifiers={"x": Numeric(domain=(0, 1))}, k=2, delay_rows=5)


def spread(*figures: float) -> Spread:
    made = Spread()
    made.add(np.array(figures))
    return made


def test_spreads_join():
    together = spread(3.0, 5.0)
    together.join(spread())
    together.join(spread(1.0))
    assert (together.count, together.mean, together.least, together.most) == (3, 3.0, 1.0, 5.0)
    nothing = spread()
    nothing.join(spread(7.0))
    assert (nothing.least, nothing.most) == (7.0, 7.0)
    assert spread().mean == 0.0


def test_tallies_add_up():
    one = Tally(kinds=[4, 1, 2, 0], releases=4, loss=1.5, groups=spread(2.0, 2.0), delay=spread(1e6), held=3)
    other = Tally(kinds=[3, 0, 0, 1], releases=2, loss=0.5, groups=spread(3.0), delay=spread(3e6), held=2)
    both = Tally.of(json.loads(json.dumps([one.as_dict(), other.as_dict()])))
    assert (both.kinds, both.releases, both.loss, both.held) == ([7, 1, 2, 1], 6, 2.0, 3)
    outcome = Outcome(rows=11)
    outcome.take(both, timed=True)
    assert outcome.accounted == 11
    assert outcome.loss == pytest.approx(2.0 / 10)
    told = as_dict(POLICY, outcome)
    assert told["group_rows"] == {"least": 2.0, "mean": 2.333, "most": 3.0}
    assert told["delay_seconds"] == {"least": 1.0, "mean": 2.0, "most": 3.0}
    assert told["held_rows"] == 3
    text = as_text(POLICY, outcome)
    assert "2.3  rows on average; 2 to 3\n" in text
    assert "2 s  on average; at most 3 s\n" in text


def test_what_is_not_known_is_not_told():
    outcome = Outcome(rows=0)
    outcome.take(Tally(), timed=False)
    told = as_dict(POLICY, outcome)
    assert (told["group_rows"], told["delay_seconds"], told["loss"]) == (None, None, None)
    assert "delay" not in as_text(POLICY, outcome)
    assert "group size" not in as_text(POLICY, outcome)
