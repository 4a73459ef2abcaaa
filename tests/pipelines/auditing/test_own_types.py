"""Built-in types beyond numbers, dates, categories and codes, and one of a user: from a file to its audit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest

from crenel.pipelines.cli import main
from crenel.policy import Policy
from crenel.policy import quasi_identifiers as qi_types
from crenel.policy.geometry import Radix
from crenel.policy.quasi_identifiers import QuasiIdentifier, Rejected, register


@dataclass(frozen=True, kw_only=True)
class Floor(QuasiIdentifier):
    """A floor of a building, published as a list of the lowest and the highest."""

    @cached_property
    def geometry(self) -> Radix:
        return Radix(2, 5)

    def coordinate(self, value: Any) -> float:
        if not isinstance(value, str) or not value.isdigit() or int(value) > 31:
            reason = "not a floor"
            raise Rejected(reason)
        return float(value)

    def publish(self, lo: float, hi: float) -> list[int]:
        return [int(lo), int(hi)]


@dataclass(frozen=True, kw_only=True)
class ReadableFloor(Floor):
    """The same, but an audit can read it."""

    def read(self, published: Any) -> tuple[float, float]:
        return float(published[0]), float(published[1])


@pytest.fixture(autouse=True)
def floors() -> Iterator[None]:
    register("floor", ReadableFloor)
    register("dumb-floor", Floor)
    yield
    for name in ("floor", "dumb-floor"):
        qi_types._registered.pop(name, None)


def written(folder: Path, floor: str = "floor") -> list[str]:
    draw = random.Random(7)
    rows = [
        {
            "id": f"p{draw.randrange(80)}",
            "client": f"192.0.2.{draw.randrange(256)}",
            "home": f"{48 + draw.random():.4f},{16 + draw.random():.4f}",
            "floor": f"f{draw.randrange(32)}"[1:],
        }
        for _ in range(200)
    ]
    pa.csv.write_csv(
        pa.table({name: pa.array([row[name] for row in rows]) for name in rows[0]}),
        folder / "in.csv",
    )
    columns = {"client": {"type": "ip"}, "home": {"type": "coordinates"}, "floor": {"type": floor}}
    policy = Policy.from_dict({"person": "id", "quasi_identifiers": columns, "k": 3, "delay_rows": 60})
    (folder / "policy.yaml").write_text(policy.to_yaml())
    return [str(folder / "policy.yaml"), "--input", str(folder / "in.csv"), "--trace", str(folder / "trace.parquet")]


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_what_they_publish_is_audited(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every, output = written(tmp_path), str(tmp_path / f"out.{kind}")
    assert main(["run", *every, "--output", output]) == 0
    capsys.readouterr()
    assert main(["audit", *every, "--published", output]) == 0
    assert capsys.readouterr().out.startswith("KEPT: every promise was checked, and holds.")


def test_a_type_that_cannot_read_what_it_publishes_says_what_to_define(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every, output = written(tmp_path, "dumb-floor"), str(tmp_path / "out.csv")
    assert main(["run", *every, "--output", output]) == 0
    capsys.readouterr()
    assert main(["audit", *every, "--published", output]) == 2
    assert "type Floor cannot be read back: the class must define read()." in capsys.readouterr().err
