"""`crenel guarantee`, and what `check` and `run` say about differential privacy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from crenel.pipelines.cli import main
from crenel.policy.sampling_privacy import delta, phi


def said(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> str:
    assert main(["guarantee", *argv]) == code
    streams = capsys.readouterr()
    return streams.err if code else streams.out


def test_a_pair(capsys: pytest.CaptureFixture[str]):
    out = said(capsys, "--k", "100", "--beta", "0.5", "--epsilon", "1.0")
    assert f"{delta(100, 0.5, 1.0):.3g}" in out
    found = json.loads(said(capsys, "--k", "100", "--beta", "0.5", "--epsilon", "1.0", "--json"))
    assert found == {"k": 100, "beta": 0.5, "pairs": [{"epsilon": 1.0, "delta": delta(100, 0.5, 1.0)}]}


def test_a_table(capsys: pytest.CaptureFixture[str]):
    out = said(capsys, "--k", "100", "--beta", "0.5")
    assert len(out.splitlines()) == 9
    assert "0.693147  2.48e-09" in out
    assert "It does not hold for castleguard." in out
    pairs = json.loads(said(capsys, "--k", "1000", "--beta", "0.5", "--json"))["pairs"]
    assert [pair["delta"] for pair in pairs] == sorted((pair["delta"] for pair in pairs), reverse=True)


def test_phi(capsys: pytest.CaptureFixture[str]):
    text = said(capsys, "--probability", "0.99", "--within", "0.01")
    assert text == "With phi = 460.517, a value moves by less than 0.01 of its range with probability 0.99.\n"
    found = json.loads(said(capsys, "--probability", "0.99", "--within", "0.01", "--json"))
    assert found["phi"] == phi(0.99, 0.01)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--k", "5", "--beta", "0"], "--beta must be a number above 0 and below 1, not 0.0."),
        (["--k", "5", "--beta", "1"], "--beta must be a number above 0 and below 1, not 1.0."),
        (["--k", "0", "--beta", "0.5"], "--k must be an integer of at least 1, not 0."),
        (["--k", "5", "--beta", "0.5", "--epsilon", "0.5"], "--epsilon must be a number of at least 0.693147"),
        (["--k", "5", "--beta", "0.5", "--epsilon", "nan"], "--epsilon must be"),
        (["--k", "5"], "--k needs --beta."),
        (["--within", "0.5"], "--within needs --probability."),
        (["--epsilon", "1", "--within", "0.5", "--probability", "0.5"], "--epsilon needs --k and --beta."),
        (["--within", "0", "--probability", "0.5"], "--within must be a number above 0, not 0.0."),
        (["--within", "1", "--probability", "1"], "--probability must be a number above 0 and below 1, not 1.0."),
        ([], "give --k and --beta, or --probability and --within."),
    ],
)
def test_numbers_out_of_range_exit_with_2_and_name_the_range(
    argv: list[str], expected: str, capsys: pytest.CaptureFixture[str]
):
    err = said(capsys, *argv, code=2)
    assert expected in err
    assert err.count("\n") == 1


# -- what other commands say -----------------------------------------------------------------------------------------


def written(tmp_path: Path, **changes: Any) -> str:
    policy = {
        "person": "who",
        "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 100]}},
        "sensitive": {"job": {"values": ["a", "b"]}},
        "k": 5,
        "l": 2,
        "delay_rows": 200,
        "seed": 3,
    }
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(policy | changes))
    return str(path)


def checked(path: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["check", path]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_check_states_what_is_proven(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = checked(written(tmp_path, method="sdgs", on_suppress="drop", parameters={"grid": {"age": 4}}), capsys)
    assert "Differential privacy: epsilon 0.6931, delta" in out
    assert "proven; for each person in each window, all that leaves." in out
    assert "beta_sample 0.5: the probability that a person is kept in a window" in out
    assert "not proven" not in out


@pytest.mark.parametrize("on_suppress", ["star", "drop"])
def test_check_states_nothing_that_is_refuted(on_suppress: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    noisy = {"perturb_sensitive": {"job": 1.0}}
    out = checked(written(tmp_path, method="castleguard", on_suppress=on_suppress, parameters=noisy), capsys)
    assert "Differential privacy:" not in out
    assert "castleguard is not differentially private: its paper's claim is refuted" in out
    assert "they need not contain the row's own" in out
    assert "job sensitive: with noise, one of 2 values" in out


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"parameters": {"beta_sample": 1.0}}, "beta_sample is 1: every row is kept"),
        ({"quasi_identifiers": {"age": {"type": "numeric"}}}, "the first rows get almost none. Declare the domain."),
    ],
)
def test_check_warns(changes: dict[str, Any], warning: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert warning in checked(written(tmp_path, **{"method": "castleguard", "on_suppress": "drop"} | changes), capsys)


@pytest.mark.parametrize("method", ["castleguard", "sdgs"])
def test_run_states_what_is_proven(method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = written(tmp_path, method=method, on_suppress="drop", l=None, parameters={"beta_sample": 0.8})
    data = tmp_path / "rows.csv"
    data.write_text("who,age,job\n" + "".join(f"{i},{i % 100},{'ab'[i % 2]}\n" for i in range(600)))
    args = ["run", path, "--input", str(data), "--output", str(tmp_path / "out.csv")]
    assert main([*args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sampled_out"] > 50
    assert found["published"] > 100
    assert found["published"] + found["suppressed"] + found["sampled_out"] == 600
    assert ("differential" in found) is (method == "sdgs")
    published = (tmp_path / "out.csv").read_text().splitlines()
    assert len(published) == found["published"] + 1
    assert main(args) == 0
    streams = capsys.readouterr()
    assert ("epsilon" in streams.out + streams.err) is (method == "sdgs")
