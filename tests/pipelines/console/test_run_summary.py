"""The summary that a run prints at its end."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from crenel.pipelines.console.run_summary import as_dict, as_text
from crenel.pipelines.files.file_job import Outcome
from crenel.policy import Policy
from crenel.policy.quasi_identifiers import Numeric
from crenel.transforms._publish.counts import Counts, Spread

SAID = {"person": "p", "quasi_identifiers": {"x": Numeric(domain=(0, 1))}, "k": 2, "delay_rows": 5}
POLICY = Policy(**SAID, parameters={"reuse": "weighted"}, on_suppress="star")
CROWD = Policy(**SAID, parameters={"reuse": "off"}, on_suppress="drop")


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


def test_counts_add_up():
    alone = spread(2.0, 2.0, 1.0, 1.0, 1.0)
    rejected = Counter({("age", "not a number"): 2})
    one = Counts(rows=9, rejected=rejected, kinds=[4, 1, 2, 0, 0], releases=5, alone=3, loss=1.5, sizes=alone, held=3)
    one.delay = spread(1e6)
    other = Counts(rows=4, kinds=[3, 0, 0, 1, 0], releases=2, loss=0.5, sizes=spread(3.0), delay=spread(3e6), held=2)
    both = Counts.of(json.loads(json.dumps([one.as_dict(), other.as_dict()])))
    assert (both.kinds, both.releases, both.loss, both.held) == ([7, 1, 2, 1, 0], 7, 2.0, 3)
    assert both.alone == 3
    outcome = Outcome()
    outcome.take(both, timed=True)
    assert outcome.accounted == outcome.rows == 13
    assert outcome.loss == pytest.approx(2.0 / 10)
    told = as_dict(POLICY, outcome)
    assert next(iter(told.items())) == ("alone", 3)
    # The sizes include the rows that were published alone.
    assert told["release_rows"] == {"least": 1.0, "mean": 1.667, "most": 3.0}
    assert told["delay_seconds"] == {"least": 1.0, "mean": 2.0, "most": 3.0}
    assert told["held_rows"] == 3
    text = as_text(POLICY, outcome)
    assert "1.7  rows released together on average; 1 to 3\n" in text
    assert "2 s  on average; at most 3 s\n" in text


def test_unknown_figures_are_left_out():
    outcome = Outcome()
    outcome.take(Counts(), timed=False)
    told = as_dict(POLICY, outcome)
    assert (told["release_rows"], told["delay_seconds"], told["loss"]) == (None, None, None)
    assert "delay" not in as_text(POLICY, outcome)
    assert "release size" not in as_text(POLICY, outcome)
    assert first(POLICY, Counts(), 0) == "without crowd 0 no row was published"


def first(policy: Policy, counts: Counts, rows: int) -> str:
    """Return the text before the line of rows, on one line."""
    outcome = Outcome()
    outcome.take(counts, timed=False)
    outcome.rows = rows
    return " ".join(as_text(policy, outcome).partition("\nrows ")[0].split())


def test_the_first_figure_is_of_rows_that_left_without_a_crowd():
    grouped = Counts(kinds=[4, 0, 1, 0, 0], releases=3, sizes=spread(2.0, 2.0))
    said = first(CROWD, grouped, 5)
    assert said == "without crowd 0 every published row is among rows of at least 2 persons, each once, at one moment"
    weak = Counts(kinds=[4, 3, 1, 0, 0], releases=6, alone=4, sizes=spread(2.0, 2.0, 1.0, 1.0, 1.0, 1.0))
    said = first(POLICY, weak, 8)
    assert said.startswith("without crowd 4 50% of the published rows are not among rows of 2 persons")
    assert "An attacker who knows a person's quasi-identifiers and about when the row came can find the row" in said
    assert said.endswith("Method bastion with reuse: off and on_suppress: drop suppresses such rows instead.")


def test_a_policy_that_forbids_it_is_told_not_to_publish():
    broken = Counts(kinds=[4, 0, 0, 0, 0], releases=2, alone=2, sizes=spread(2.0, 2.0))
    assert first(CROWD, broken, 4).endswith("this is a bug of crenel: do not publish the output.")
