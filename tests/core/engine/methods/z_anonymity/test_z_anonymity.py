"""z-anonymity: worked examples, an oracle, the judge of its authors, and what it does not protect."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from crenel.audit import audit
from crenel.encoding.rows import Rows
from crenel.engine import Kind, Releases, create_engine
from crenel.pipelines.cli import main
from crenel.policy import Policy, PolicyError
from crenel.testing.engine_streams import Case, run
from tests.core.engine.cases import cases, z_anonymity_parameters
from tests.core.engine.methods.z_anonymity.z_anonymity_oracle import box_of

SECOND = 1_000_000
HIERARCHY = {"any": {"shop": {"food": ["bread", "milk"], "book": ["novel", "atlas"]}, "web": ["mail", "chat"]}}


def policy(**changes: Any) -> Policy:
    said: dict[str, Any] = {
        "person": "id",
        "quasi_identifiers": {"what": {"type": "categorical", "hierarchy": HIERARCHY}},
        "k": 2,
        "delay": "60s",
        "method": "z-anonymity",
        "seed": 1,
    }
    return Policy.from_dict(said | changes)


def rows(*given: tuple[int, int, str], of: Policy | None = None) -> Rows:
    """Make rows of persons, seconds and leaves of the hierarchy."""
    qi = (of or policy()).quasi_identifiers["what"]
    return Rows(
        np.array([[qi.coordinate(what)] for _, _, what in given], np.float64),
        np.array([person for person, _, _ in given], np.int64),
        np.zeros((len(given), 0), np.int64),
        np.array([second * SECOND for _, second, _ in given], np.int64),
    )


def labels(of: Policy, releases: Releases) -> list[Any]:
    """Return what each row is published as; None for suppressed rows."""
    qi = of.quasi_identifiers["what"]
    return [
        None if kind == Kind.SUPPRESSED else qi.publish(lo[0], hi[0])
        for kind, lo, hi in zip(releases.kind.tolist(), releases.lo.tolist(), releases.hi.tolist(), strict=True)
    ]


# -- worked examples -------------------------------------------------------------------------------


def test_a_row_leaves_at_once_as_exact_as_k_persons_had_its_value() -> None:
    engine = create_engine(policy())
    given = rows((1, 0, "bread"), (2, 1, "milk"), (3, 2, "bread"), (4, 3, "atlas"), (5, 4, "mail"))
    left = engine.push(given)
    assert labels(policy(), left) == [None, "food", "bread", "shop", "any"]
    assert left.rows.tolist() == [0, 1, 2, 3, 4]
    assert engine.held == 0
    assert engine.next_deadline() is None


def test_persons_count_once_and_for_a_window_only() -> None:
    given = rows((1, 0, "bread"), (1, 1, "bread"), (2, 60, "bread"), (3, 121, "bread"), (2, 121, "bread"))
    # 60 seconds later a value still counts, 61 seconds later it does not.
    assert labels(policy(), create_engine(policy()).push(given)) == [None, None, "bread", None, "bread"]
    short = policy(parameters={"window": "30s"})
    assert labels(short, create_engine(short).push(given)) == [None, None, None, None, "bread"]


def test_a_row_that_is_later_than_the_window_is_suppressed() -> None:
    given = rows((1, 100, "bread"), (2, 100, "bread"), (3, 39, "bread"), (3, 40, "bread"))
    assert labels(policy(), create_engine(policy()).push(given)) == [None, "bread", None, "bread"]


def test_numbers_are_published_in_ever_wider_parts() -> None:
    of = policy(quasi_identifiers={"age": {"type": "numeric", "domain": [0, 80]}}, parameters={"bins": 4})
    points = np.array([[11.0], [12.0], [12.0], [35.0], [79.0]])
    given = Rows(points, np.arange(5), np.zeros((5, 0), np.int64), np.arange(5) * SECOND)
    left = create_engine(of).push(given)
    boxes = list(zip(left.lo[:, 0].tolist(), left.hi[:, 0].tolist(), strict=True))
    assert left.kind.tolist() == [Kind.SUPPRESSED, *[Kind.CLUSTER] * 4]
    assert boxes[1:] == [(0.0, 20.0), (12.0, 12.0), (0.0, 40.0), (0.0, 80.0)]


def test_memory_is_that_of_the_window() -> None:
    of = policy(parameters={"window": "10s"})
    engine: Any = create_engine(of)
    for start in range(0, 3_000, 100):
        engine.push(rows(*((n, n, "bread") for n in range(start, start + 100))))
    assert len(engine._rows) == 11
    assert sum(map(len, engine._persons.values())) == 11 * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"delay": None, "delay_rows": 9}, r"parameters\.window must be given where policy\.delay is not"),
        ({"quasi_identifiers": {"age": {"type": "numeric"}}}, r"age\.domain must be declared with the method"),
        ({"sensitive": ["s"], "l": 2}, r"policy\.l is not kept by the method 'z-anonymity'"),
        ({"parameters": {"bins": 0}}, r"parameters\.bins must be an integer of at least 1"),
        ({"parameters": {"window": 5}}, r"parameters\.window must be a duration"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        policy(**changes)


# -- an oracle -------------------------------------------------------------------------------------


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(case=cases(method="z-anonymity", parameters=z_anonymity_parameters(), declared=True))
def test_boxes_are_those_of_the_page(case: Case) -> None:
    of, columns = case.policy, (case.rows.qi, case.rows.person, case.rows.sensitive, case.rows.time)
    listed = list(zip(*(column.tolist() for column in columns), strict=True))
    window = {"30us": 30, "1ms": 1000}[of.parameters.window]
    for release in run(case):
        expected = box_of(of, window, listed, int(release.rows[0]))
        assert (release.kind is Kind.SUPPRESSED) == (expected is None)
        if expected is not None:
            assert list(zip(release.lo.tolist(), release.hi.tolist(), strict=True)) == expected


# -- the judge of its authors ----------------------------------------------------------------------


def test_the_same_as_zanon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of the method's authors, on a stream in order: the same rows leave, each at the same level."""
    zanonymity = pytest.importorskip("zanonymity.zanon", reason="zanon is not installed")
    monkeypatch.chdir(tmp_path)  # it writes to the working folder
    paths = {leaf: path for path, leaf in _leaves(HIERARCHY["any"], ())}
    random, of = np.random.default_rng(3), policy(k=5, delay="300s")
    names = [*paths, "bread", "bread", "mail"]
    drawn = [
        (int(random.integers(1, 40)), 1_000 + 7 * n, names[int(random.integers(0, len(names)))]) for n in range(3_000)
    ]
    judge = zanonymity.zanon(300, 0.8, 2)
    judge.z, judge.rate = 5, float("inf")  # it would adapt z
    for person, second, what in drawn:
        judge.anonymize((float(second), str(person), "*".join([*paths[what], what])))
    judge.endFiles()
    with open("output.txt", newline="", encoding="utf-8") as file:
        theirs = [(float(t), u, a.split("*")[-1]) for t, u, a in csv.reader(file, delimiter="\t")]
    ours = labels(of, create_engine(of).push(rows(*drawn)))
    published = [
        (float(second), str(person), label)
        for (person, second, _), label in zip(drawn, ours, strict=True)
        if label not in (None, "any")  # the whole hierarchy tells nothing, and has no name there
    ]
    assert published == theirs
    assert len(Counter(label for _, _, label in theirs)) > 8
    assert 500 < len(theirs) < 3_000


def _leaves(tree: Any, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], str]]:
    if isinstance(tree, list):
        return [(path, leaf) for leaf in tree]
    return [found for name, below in tree.items() for found in _leaves(below, (*path, name))]


# -- end to end ------------------------------------------------------------------------------------


def test_run_and_audit_say_what_is_not_protected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(1)
    with open(tmp_path / "in.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "at", "what", "age"])
        for n in range(800):
            what = ["bread", "milk", "novel", "mail"][int(random.integers(0, 4))]
            writer.writerow([f"p{random.integers(0, 200)}", 1_700_000_000 + n, what, int(random.integers(0, 90))])
    of = policy(
        quasi_identifiers={
            "what": {"type": "categorical", "hierarchy": HIERARCHY},
            "age": {"type": "numeric", "domain": [0, 90]},
        },
        event_time="at",
        k=4,
        seed=None,
    )
    (tmp_path / "policy.yaml").write_text(of.to_yaml())
    given, output, trace = (str(tmp_path / name) for name in ("in.csv", "out.csv", "trace.csv"))
    files = [str(tmp_path / "policy.yaml"), "--input", given, "--trace", trace]
    main(["check", str(tmp_path / "policy.yaml")])
    said = " ".join(capsys.readouterr().out.split())
    assert "counted value by value: nothing is promised about combinations of values" in said
    assert "Combinations are not protected" in said
    assert main(["run", *files, "--output", output, "--most-suppressed", "10%"]) == 0
    assert main(["audit", *files, "--published", output, "--most-suppressed", "10%", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (k,) = [one for one in document["promises"] if one["name"] == "k"]
    assert (k["state"], k["value"]) == ("kept", 0)
    assert document["crowd"]["promised"] is False


# -- what it does not protect ----------------------------------------------------------------------


def pairs(n: int = 4_000) -> Rows:
    random = np.random.default_rng(8)
    return Rows(
        random.integers(0, 30, (n, 3)).astype(np.float64),
        random.integers(0, n // 2, n),
        np.zeros((n, 0), np.int64),
        np.arange(n) * SECOND,
    )


def three(**changes: Any) -> Policy:
    columns = {name: {"type": "numeric", "domain": [0, 30], "step": 1} for name in "abc"}
    return policy(quasi_identifiers=columns, k=10, delay="10m", on_suppress="drop", **changes)


def singled_out(releases: Releases) -> float:
    """Attack: the share of published rows that nobody else's published row equals."""
    left = np.repeat(np.hstack([releases.lo, releases.hi]), releases.sizes, axis=0)
    left = left[releases.per_row(releases.kind) != Kind.SUPPRESSED]
    _, counts = np.unique(left, axis=0, return_counts=True)
    return float(np.count_nonzero(counts == 1)) / len(left)


def test_combinations_single_out_most_rows() -> None:
    """Each value is common, and three of them together belong to one person. A crowd leaves the attack nothing."""
    given = pairs()
    weak, crowd = three(), three(method="bastion")
    assert singled_out(run(Case(policy=weak, rows=given))) > 0.7
    assert singled_out(run(Case(policy=crowd, rows=given))) == 0.0
    report = audit(weak, given, run(Case(policy=weak, rows=given)))
    assert report.problems() == []  # it promises no more than it keeps
    assert report.alone == report.published > 3_500


def test_the_audit_finds_values_that_too_few_persons_had() -> None:
    """A weak stream: exact values, however rare they are."""
    given = pairs()
    of = three(parameters={"window": "100s"})
    releases = run(Case(policy=of, rows=given))
    assert audit(of, given, releases).rare_values == 0
    weak = replace(releases, lo=given.qi.copy(), hi=given.qi.copy())
    report = audit(of, given, weak)
    assert report.rare_values > 5_000
    assert any("values that fewer than k persons had" in problem for problem in report.problems())
