"""The page is what Prometheus' own parser reads."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from crenel.pipelines.metrics.exposition import counter, gauge, histogram, text


def test_a_page() -> None:
    page = text(
        [
            counter("a_total", "Of a\nthing.", (3, {"x": 'say "y"\\', "z": "1\n2"}), (0, {"x": "", "z": ""})),
            gauge("b", "B."),
            histogram("c_seconds", "C.", (1, 2.5), (4, 0, 3), 17.25),
        ]
    )
    assert page.startswith(
        '# HELP a_total Of a\\nthing.\n# TYPE a_total counter\na_total{x="say \\"y\\"\\\\",z="1\\n2"} 3\n'
    )
    a, b, c = text_string_to_metric_families(page)
    assert (a.type, a.documentation) == ("counter", "Of a\nthing.")
    assert a.samples[0].labels == {"x": 'say "y"\\', "z": "1\n2"}
    assert b.samples == []
    assert [(one.name, one.labels.get("le"), one.value) for one in c.samples] == [
        ("c_seconds_bucket", "1", 4),
        ("c_seconds_bucket", "2.5", 4),
        ("c_seconds_bucket", "+Inf", 7),
        ("c_seconds_sum", None, 17.25),
        ("c_seconds_count", None, 7),
    ]


@given(value=st.floats() | st.integers(0, 10**12), label=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_any_figure_and_any_label_are_read_back(value: float, label: str) -> None:
    (family,) = text_string_to_metric_families(text([gauge("g", "G.", (value, {"x": label}))]))
    (sample,) = family.samples
    assert sample.labels == {"x": label}
    assert sample.value == value or (math.isnan(sample.value) and math.isnan(value))
