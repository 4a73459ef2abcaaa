"""The figures of a run add up to its outcome, and name nothing that the policy does not."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from crenel.pipelines.metrics.exposition import text
from crenel.pipelines.metrics.live_figures import COUNTERS, LiveFigures
from crenel.policy import Policy
from crenel.runners.job_figures import JobFigures
from crenel.transforms import Counts
from crenel.transforms._publish.counts import WAITS

POLICY = Policy.from_dict(
    {
        "person": "who",
        "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 120]}},
        "k": 2,
        "delay_rows": 9,
    }
)


def read(figures: LiveFigures) -> dict[str, float]:
    """The page, as name and labels to value."""
    return {
        sample.name + str(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text(figures.families()))
        for sample in family.samples
    }


def counts(**changes: Any) -> Counts:
    made = Counts(rows=20, kinds=[6, 1, 2, 1, 0], releases=3, alone=1, loss=2.5, ignored=4)
    made.rejected.update({("age", "outside the domain"): 2, ("John Doe", "field given twice"): 1})
    made.waits[0], made.waits[4], made.waits[-1] = 3, 5, 1
    made.delay.count, made.delay.total = 9, 12e6
    return made


def test_what_steps_report_is_on_the_page() -> None:
    figures = LiveFigures(POLICY, "local", timed=True)
    with figures.tapped() as tap:
        tap.add(counts())
        tap.add(Counts(rows=5))
        tap.set_lag(3, 17)
        tap.note("sent", 7)
    tap.add(counts())  # the run is over
    page = read(figures)
    outcomes = {name: page[f"crenel_rows_total[('outcome', '{name}')]"] for name in ("published", "suppressed")}
    assert outcomes == {"published": 7, "suppressed": 2}
    assert page["crenel_rows_read_total[]"] == 25
    assert page["crenel_held_rows[]"] == 25 - 7 - 2 - 1 - 3
    assert page["crenel_rows_alone_total[]"] == 1
    assert page["crenel_messages_ignored_total[]"] == 4
    assert page["crenel_delay_seconds_bucket[('le', '1')]"] == 3
    assert page["crenel_delay_seconds_bucket[('le', '30')]"] == 8
    assert page["crenel_delay_seconds_bucket[('le', '+Inf')]"] == page["crenel_delay_seconds_count[]"] == 9
    assert page["crenel_delay_seconds_sum[]"] == 12
    assert page["crenel_row_loss_sum[]"] == 2.5
    assert page["crenel_row_loss_count[]"] == 9
    assert page["crenel_source_lag_records[('partition', '3')]"] == 17
    assert page["crenel_records_sent_total[]"] == 7


def test_no_label_is_from_the_data() -> None:
    figures = LiveFigures(POLICY, "local", timed=False)
    figures.add(counts())
    page = read(figures)
    assert page["crenel_rows_rejected_total[('column', 'age'), ('reason', 'outside the domain')]"] == 2
    assert page["crenel_rows_rejected_total[('column', ''), ('reason', 'field given twice')]"] == 1
    assert not any("John" in name for name in page)
    assert not any("delay" in name for name in page)


def test_a_job_on_a_cluster() -> None:
    figures = LiveFigures(POLICY, "flink", timed=True)
    counters = dict.fromkeys(COUNTERS, 0) | {"rows": 9, "published": 8, "waited up to 60 s": 8, "waited ms": 90_500}
    figures.set_job(JobFigures(counters=counters, lags={0: 4}, restarts=2, checkpoint_at=1.0, checkpoint_bytes=5))
    page = read(figures)
    assert page["crenel_rows_total[('outcome', 'published')]"] == 8
    assert page["crenel_delay_seconds_bucket[('le', '30')]"] == 0
    assert page["crenel_delay_seconds_bucket[('le', '60')]"] == 8
    assert page["crenel_delay_seconds_sum[]"] == 90.5
    assert page["crenel_restarts_total[]"] == 2
    assert page["crenel_checkpoint_bytes[]"] == 5
    assert page["crenel_source_lag_records[('partition', '0')]"] == 4
    # What is not known is not there.
    assert not {"crenel_held_rows[]", "crenel_misfits_total[]"} & set(page)
    assert sum(name.startswith("crenel_delay_seconds_bucket") for name in page) == len(WAITS) + 1
