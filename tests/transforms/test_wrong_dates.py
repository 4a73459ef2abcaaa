"""One row with a wrong date: it is rejected, and all others are published as if it had never come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from crenel.pipelines.cli import main
from crenel.transforms import Anonymize, AnonymizeBounded
from tests.pipelines.commands.test_audit import broken
from tests.pipelines.commands.test_run import POLICY, SECRET, make_rows, read, write_json
from tests.transforms.streams import Outcome, as_dicts, policy, rows, run, stream

#: The year 2191.
FAR = 7.0e9
REASON = "too far ahead of the clock (max_ahead)"
GIVEN = rows(300)


def wrong(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "number": -1, "patient": "wrong", "seen": FAR}


def streamed(at: int | None = None, **changes: Any) -> Outcome:
    """Run the rows in bundles of 20, with a watermark that follows them; a wrong one is in the bundle of row `at`."""
    parts: list[Any] = []
    for i in range(0, len(GIVEN), 20):
        bundle = GIVEN[i : i + 20]
        parts += [[row for j, row in enumerate(bundle, i) for row in ([wrong(row), row] if j == at else [row])]]
        parts += [bundle[0]["seen"]]
    return run(stream(parts), Anonymize(policy(**changes)), runner="BundleBasedDirectRunner")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["bastion", "castle"])
@pytest.mark.parametrize("at", [0, 101, 200])
def test_a_stream_goes_on_as_if_it_had_not_come(method: str, at: int) -> None:
    found, known = streamed(at, method=method), streamed(method=method)
    assert [(left.value["field"], left.value["reason"]) for left in found.rejected] == [("seen", REASON)]
    assert "wrong" not in found.rejected[0].value["row"]
    assert found.published == known.published
    assert found.suppressed == known.suppressed
    assert known.rejected == []


@pytest.mark.slow
def test_without_the_check_it_makes_all_others_late() -> None:
    """So the tests above can fail."""
    found, known = (streamed(at, method="bastion", max_ahead="300000d") for at in (101, None))
    assert found.rejected == []
    assert found.published[-1] != known.published[-1]
    assert found.counter("alone") + len(found.suppressed) > len(known.suppressed) + 50


def test_bounded_rows() -> None:
    given = [*GIVEN[:101], wrong(GIVEN[50]), *GIVEN[101:]]
    found, known = (run(these, AnonymizeBounded(policy())) for these in (given, GIVEN))
    assert [(left.value["field"], left.value["reason"]) for left in found.rejected] == [("seen", REASON)]
    assert as_dicts(found.published) == as_dicts(known.published)


def test_a_file_and_its_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CRENEL_TEST_SECRET", SECRET)
    Path("policy.yaml").write_text(POLICY)
    given = make_rows()
    write_json(Path("rows.jsonl"), [*given[:150], {**given[150], "at": "2191-01-01T00:00:00Z"}, *given[151:]])
    owners = [
        part for name in ("rejected", "suppressed", "trace", "releases") for part in (f"--{name}", f"{name}.jsonl")
    ]
    assert main(["run", "policy.yaml", "--input", "rows.jsonl", "--output", "out.jsonl", *owners]) == 0
    assert [(row["field"], row["reason"]) for row in read(Path("rejected.jsonl"))] == [("at", REASON)]
    assert [row["kind"] for row in read(Path("trace.jsonl"))].count("ahead") == 1
    assert "nothing lost" not in broken(judged(capsys))
    # A run that calls a row on time too far ahead has lost it.
    write_json(Path("rows.jsonl"), given)
    assert "nothing lost" in broken(judged(capsys))


def judged(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    evidence = [part for name in ("suppressed", "trace", "releases") for part in (f"--{name}", f"{name}.jsonl")]
    main(["audit", "policy.yaml", "--published", "out.jsonl", "--input", "rows.jsonl", *evidence, "--json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document
