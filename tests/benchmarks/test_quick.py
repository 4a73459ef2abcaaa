"""The benchmarks run, and end with one line of JSON. The measured speed is not checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import (
    adaptive_paper,
    attacks,
    audit,
    bastion,
    bursts,
    castle_paper,
    castleguard_paper,
    continuous_paper,
    engine,
    first_use,
    formats,
    held,
    linked_rows,
    methods,
    partition_paper,
    scale,
    static,
    tables_call,
)
from benchmarks.children import copies
from benchmarks.tables import table
from crenel.encoding.rows import Rows
from crenel.policy.methods import names


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return figures


def test_a_figure_of_generated_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra `benchmarks`")
    page = tmp_path / "castle.md"
    page.write_text("before\n<!-- begin figure 6 -->\nold\n<!-- end figure 6 -->\nafter\n")
    assert castle_paper.main(["--quick", "--figures", "6", "--out", str(tmp_path)]) == 0
    figures = last_line(capsys)
    assert [len(panel["x"]) for panel in figures["figure 6"]] == [2, 2, 2, 2]
    text = page.read_text()
    assert text.startswith("before\n<!-- begin figure 6 -->\n(a) k = ")
    assert text.endswith("<!-- end figure 6 -->\nafter\n")
    assert "old" not in text
    assert (tmp_path / "castle-figure-6.png").stat().st_size < 100_000


@pytest.mark.parametrize("number", [0, 4, 5, 7, 8, 9, 10])
def test_figures_of_adult(number: int, data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data_dir
    assert castle_paper.main(["--quick", "--figures", str(number)]) == 0
    figures = last_line(capsys)
    assert figures["quick"] is True
    assert figures["references" if number == 0 else f"figure {number}"]


def test_the_castleguard_paper(data_dir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="classifiers need the extra `benchmarks`")
    assert data_dir
    assert castleguard_paper.main(["--quick", "--only", "loss", "--out", str(tmp_path)]) == 0
    figures = last_line(capsys)
    assert len(figures["loss"]["b_mu"]) == len(figures["loss"]["beta_phi"]) == 4
    assert "over b and mu" in (tmp_path / "castleguard.md").read_text()


def test_how_the_authors_judged_k_nn(data_dir: Path) -> None:
    """The paper's 54.87% for the original data comes from comparing predictions with the labels of other rows."""
    pytest.importorskip("sklearn", reason="classifiers need the extra `benchmarks`")
    assert data_dir
    data = castleguard_paper.pima()
    theirs = castleguard_paper.knn_theirs(castleguard_paper.as_published(data.qi), data.label)
    assert abs(theirs - 0.5487) < 0.0005


def test_the_adaptive_buffer_paper(capsys: pytest.CaptureFixture[str]) -> None:
    assert adaptive_paper.main(["--quick"]) == 0
    figures = last_line(capsys)
    for stream in adaptive_paper.STREAMS:
        assert set(figures["expired"][stream]) == set(adaptive_paper.METHODS)
    assert set(figures["ablation"]) == set(adaptive_paper.ABLATION)
    assert len(figures["threshold"]) == 14
    assert len(figures["window"]) == 4


def test_samarati_generalizes_whole_columns() -> None:
    """Three murders of three ages: their ages go by fives, and the arson, alone with its crime, is suppressed."""
    leaves = [str(leaf) for leaf in adaptive_paper.CRIMES.leaves]
    crimes = [leaves.index(name) for name in ("Murder", "Murder", "Murder", "Arson")]
    qi = np.stack([crimes, [20.0, 21.0, 24.0, 20.0]], axis=1)
    rows = Rows(qi, np.arange(4), np.zeros((4, 0), np.int64), np.zeros(4, np.int64))
    loss, alone = adaptive_paper.samarati(rows, 3, 1)
    assert alone == 1
    assert loss == pytest.approx((1 + 3 * (4 / 65) / 2) / 4)
    assert adaptive_paper.samarati(rows, 3, 0)[1] == 0


def test_reports_have_gaps_of_their_phases() -> None:
    rows = adaptive_paper.reports([(3, 1, 5), (1, 1_000, 2_000)], 50, seed=2)
    gaps = np.diff(rows.time) // adaptive_paper.MS
    assert ((gaps[2::4] >= 1_000) & (gaps[2::4] <= 2_000)).all()
    assert (np.delete(gaps, np.s_[2::4]) <= 5).all()
    assert np.array_equal(rows.qi, adaptive_paper.reports([(3, 1, 5), (1, 1_000, 2_000)], 50, seed=2).qi)


def test_bastion(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data_dir
    assert bastion.main(["--quick", "--only", "4-50,taxi,persons,l"]) == 0
    figures = last_line(capsys)
    for case in ("4-50", "taxi", "persons", "l"):
        assert 0 < figures[case]["bastion loss"] < 1
        assert figures[case]["bastion memory"] > 1


def test_bursts(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data_dir
    assert bursts.main(["--quick", "--only", "l = 3, categories"]) == 0
    figures = last_line(capsys)
    for case in ("l = 3, categories, alone", "l = 3, categories, five"):
        assert 0 < figures[case]["bastion loss"] < 1


def test_the_static_bound(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data_dir
    assert static.main(["--quick"]) == 0
    assert len(last_line(capsys)["static"]) == 5


def test_continuous_publishing_of_drawn_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert continuous_paper.main(["--quick", "--only", "uniform,memory"]) == 0
    figures = last_line(capsys)
    assert "ordered" in figures["uniform"]
    assert set(figures["memory"]) == set(continuous_paper.METHODS)


@pytest.mark.parametrize("part", ["alpha", "scale", "mondrian"])
def test_continuous_publishing_of_the_census(part: str, data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data_dir
    assert continuous_paper.main(["--quick", "--only", part]) == 0
    assert part in last_line(capsys)


def test_a_table_finds_its_place_on_the_page() -> None:
    page = "before\n<!-- begin k -->\nold\n<!-- end k -->\nafter\n"
    assert continuous_paper.written(page, "k", "new") == page.replace("old", "new")
    for part in continuous_paper.PARTS:
        assert f"<!-- begin {part} -->" in continuous_paper.PAGE.read_text(encoding="utf-8")


def test_the_engine(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data_dir
    assert engine.main(["--quick"]) == 0
    figures = last_line(capsys)
    assert set(engine.PARTS) <= set(figures)
    assert figures["oracle"]["ratio"] > 0


def test_shards(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data_dir
    assert scale.main(["--quick"]) == 0
    figures = last_line(capsys)
    for found in figures["sharding"].values():
        assert all(len(found[way]["loss"]) == len(found["asked"]) for way in scale.WAYS)
        assert max(found["tree"]["fullest"]) < 1.6
        assert found["tree"]["loss"][1] < found["person"]["loss"][1]
    assert figures["cost"]["packs"]["10"]["row"] > figures["cost"]["packs"]["1000"]["row"]
    assert all(found["several"]["running"] <= found["alone"]["running"] for found in figures["thin"].values())
    assert all(one["held"] > 0 for by_rows in figures["held"].values() for one in by_rows.values())
    assert figures["throughput"]["1"]["rate"] > 0


def test_the_partitioning_paper(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data_dir
    assert partition_paper.main(["--quick", "--only", "paper,cost"]) == 0
    figures = last_line(capsys)
    assert {len(losses) for losses in figures["paper"]["loss"].values()} == {4}
    assert figures["cost"]


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        engine.main(["--only", "everything"])
    with pytest.raises(SystemExit):
        castle_paper.main(["--figures", "11"])
    with pytest.raises(SystemExit):
        scale.main(["--only", "everything"])
    with pytest.raises(SystemExit):
        partition_paper.main(["--only", "everything"])
    with pytest.raises(SystemExit):
        bastion.main(["--only", "everything"])
    for benchmark in (first_use, formats, held):
        with pytest.raises(SystemExit):
            benchmark.main(["--only", "everything"])
    assert "must be some of" in capsys.readouterr().err


def test_tables_are_markdown() -> None:
    assert table(["case", "us"], [["a", 1.5], ["longer", 12345.678]]).splitlines() == [
        "| case   |       us |",
        "|--------|---------:|",
        "| a      |    1.500 |",
        "| longer | 12,345.7 |",
    ]


def test_attacks(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data_dir
    assert attacks.main(["--quick", "--methods", "bastion (default)"]) == 0
    found = last_line(capsys)["figures"]
    ours, weak = found["bastion (default)"], found["weak"]
    assert ours["linkage: highest chance"] <= 0.1 < weak["linkage: highest chance"]
    assert (
        ours["posterior: rows with a best guess above 1/k"] == 0 < weak["posterior: rows with a best guess above 1/k"]
    )
    assert ours["rows that left with fewer than k persons at one moment"] == 0
    assert weak["outermost: times chance, values as they are"] > 3
    assert weak["order: right of pairs"] == 1.0
    taxi = {name: told for name, told in found["taxi"].items() if name.startswith("`bastion (default)`")}
    assert taxi
    assert all(told["highest chance"] <= 0.1 and told["posterior above 1/k"] == 0 for told in taxi.values())
    assert attacks.main(["--quick", "--reuse"]) == 0
    assert last_line(capsys)["k"] == 10


def test_linked_rows(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data_dir
    assert linked_rows.main(["--quick"]) == 0
    found = last_line(capsys)["figures"]
    assert found["random, 2, bastion"]["persons"] > 250
    assert found["random, 2, once_per: 1d"] | {"persons": 0.0, "chance": 0.0} == found["random, 2, once_per: 1d"]
    assert found["random, 2, once_per: 1d"]["left out"] == 0.5
    assert found["random, 2, bastion"]["above 1/k"] > 0.1
    assert found["random, 2, together"]["above 1/k"] == 0.0
    assert found["random, 2, k = 15"]["chance"] < found["random, 2, bastion"]["chance"]


def test_all_methods_and_what_attackers_get(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data_dir
    chosen = ["castle", "bastion", "fads, reuse: off", "faanst-passive"]
    assert methods.main(["--quick", "--only", "field", "--methods", *chosen]) == 0
    for found in last_line(capsys)["field"].values():
        assert list(found) == chosen
        assert found["bastion"]["loss"] < found["castle"]["loss"]
        # The two that promise a crowd keep it against the attacker who knows everything.
        assert found["bastion"]["posterior"] == found["fads, reuse: off"]["posterior"] == 0
        assert found["castle"]["posterior"] > 0
        assert found["faanst-passive"]["posterior"] > found["castle"]["posterior"]


def test_every_method_is_in_the_table() -> None:
    # A method of single values, whose releases are of one row each, has no crowd that the table could compare.
    assert {said["method"] for said in methods.METHODS.values()} == set(names()) - {"z-anonymity"}


def test_the_audit(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(["--quick"]) == 0
    figures = last_line(capsys)
    assert {"published", "input"} <= set(figures)
    assert figures["trace"]["verdict"] == "no crowd"


@pytest.mark.slow
def test_what_held_rows_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert held.main(["--quick", "--most-held", "100"]) == 0
    figures = last_line(capsys)
    for case in ("k = 2, castle", "k = 2, bastion"):
        measured = figures["by_k"][case]["this"]
        assert measured["whole"]
        assert 0 < measured["held"] <= 100
        assert measured["worst_ms"] > 0
    assert figures["by_held"]["100 held, bastion"]["this"]["to castle"] > 0
    assert figures["event_time"]["100 held, k = 10, bastion, delay"]["this"]["to rows"] > 0


def test_a_case_that_takes_too_long_stops_and_says_so() -> None:
    stopped = held.measure(held.Case("castle", k=2, delta=100, rows=2_000, limit=0.0))
    assert not stopped["whole"]
    assert stopped["flush_ms"] is None


def test_tables_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert tables_call.main(["--quick"]) == 0
    found = last_line(capsys)["bastion"]
    assert found["engine"] > 0
    assert all(found[f"{kind} to engine"] > 0 for kind in tables_call.KINDS)


@pytest.mark.slow
def test_formats(capsys: pytest.CaptureFixture[str]) -> None:
    assert formats.main(["--quick", "--only", "inputs"]) == 0
    found = last_line(capsys)["inputs"]
    assert set(found) == {f"{source}, int" for source in formats.FORMATS}
    assert all(one["this"]["peak MB"] > 0 for one in found.values())


@pytest.mark.parametrize("kind", formats.FORMATS)
def test_files_of_every_format_hold_the_same_rows(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{kind}"
    formats.FORMATS[kind](path, formats.chunks(3, "text"))
    assert path.stat().st_size > 0
    if kind in ("csv", "jsonl"):
        written = path.read_text(encoding="utf-8")
        assert all(person in written for table in formats.chunks(3, "text") for person in table["person"].to_pylist())


@pytest.mark.slow
def test_the_first_use(capsys: pytest.CaptureFixture[str]) -> None:
    """Kernels may already be compiled, so this does not measure compilation."""
    assert first_use.main(["--quick", "--only", "methods"]) == 0
    figures = last_line(capsys)
    assert figures["methods"]["mondrian"]["this"]["modules"] > 100


@pytest.mark.slow
def test_another_copy_is_measured_in_turns(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        copies(tmp_path)
    assert [copy.name for copy in copies(_site(tmp_path))] == ["this", "other"]
    assert held.main(["--quick", "--only", "by_held", "--most-held", "100", "--against", str(tmp_path)]) == 0
    assert set(last_line(capsys)["by_held"]["100 held, castle"]) == {"this", "other"}


def _site(folder: Path) -> Path:
    """Make a folder with a copy of the package."""
    first_use.install(copies(None)[0], folder, cold=False)
    return folder
