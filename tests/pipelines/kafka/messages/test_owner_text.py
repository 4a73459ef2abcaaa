"""Rejected rows as text: what is too long for a topic is cut, with a mark and a digest."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from crenel.pipelines.kafka.messages.owner_text import MOST, shortened, value_as_text
from crenel.pipelines.kafka.messages.values import JsonValues

#: What a client of Kafka sends at most, by default.
LARGEST = 1_000_000

texts = st.builds(lambda part, times: part * times, st.text(min_size=1, max_size=8), st.integers(0, 200_000))
binary = st.builds(lambda part, times: part * times, st.binary(min_size=1, max_size=8), st.integers(0, 200_000))


@given(st.one_of(binary, texts.map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_whatever_comes_its_record_fits_a_topic(value: bytes) -> None:
    text = value_as_text(value)
    assert len(text) <= MOST
    record = {"row": text, "field": "", "reason": "not JSON"}
    assert len(JsonValues().write(record)) < LARGEST - 10_000
    if "[shortened" in text[-MOST // 100 :]:
        assert text.endswith(f"... [shortened: {len(value):,} bytes, sha256 {hashlib.sha256(value).hexdigest()}]")
    assert shortened(text) == text, "what was shortened is not shortened again"


def test_short_values_stay_as_they_are() -> None:
    assert value_as_text(None) == ""
    assert value_as_text(b"{") == "{"
    assert value_as_text(b"\xff") == "base64:/w=="
    assert shortened("x" * MOST) == "x" * MOST


def test_a_row_that_is_too_long_keeps_its_start() -> None:
    row = '{"who": 1, "note": "' + "x" * 900_000 + '"}'
    text = shortened(row)
    assert text.startswith('{"who": 1, "note": "xxx')
    assert f"[shortened: {len(row):,} bytes, sha256 {hashlib.sha256(row.encode()).hexdigest()}]" in text
