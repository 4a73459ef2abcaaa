"""Anonymeter as a second witness: singling out, linkability and inference on what was published.

    python -m benchmarks.second_witness             the table of docs/audit.md
    python -m benchmarks.second_witness --quick     fewer rows and attacks, as a smoke test

Anonymeter (PyPI) is installed into an environment of its own, because it needs another numpy than crenel; the first
time takes a minute, and a package index. It compares attackers of two kinds: those of people in the data, and those of
people who are not (the control). The risk is what the first succeed more often. It expects published rows that look
like the original ones, so a range is given as its middle, and a category as its label.

The data are Adult: 1,500 rows are published, and 1,500 others are the control. They are published as they are, without
names (the weak stream, on which it must alarm), and by crenel with k = 10 and l = 2.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

import crenel
from benchmarks.datasets import NoDataError, data_folder
from benchmarks.tables import finish, rounded, table

VERSION = "1.1.0"
#: What the attacker knows, and what they want to learn.
KNOWN, SECRET = ["age", "education_num", "hours_per_week", "marital_status", "occupation", "sex"], "income"
ROWS, ATTACKS, ATTEMPTS = 1_500, 60, 20_000


class NoAnonymeterError(RuntimeError):
    """Anonymeter cannot be installed here."""


def python_of_anonymeter() -> Path:
    """Return the Python of the environment, which is made the first time."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(cache) / "crenel" / f"anonymeter-{VERSION}-{sys.version_info.major}.{sys.version_info.minor}"
    python, done = folder / "bin" / "python", folder / "complete"
    if not done.exists():
        venv.create(folder, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", f"anonymeter=={VERSION}"]
        if subprocess.run(command, check=False, capture_output=True, timeout=900).returncode:
            msg = (
                f"anonymeter {VERSION} cannot be installed: there is no package index, or it has none for this Python."
            )
            raise NoAnonymeterError(msg)
        done.touch()
    return python


def adult(rows: int) -> tuple[pa.Table, pa.Table]:
    """Return rows to publish, and as many of other people."""
    whole = pa.parquet.read_table(data_folder() / "adult_45222.parquet", columns=[*KNOWN, SECRET])
    return whole.slice(0, rows), whole.slice(rows, rows)


def as_it_is(rows: pa.Table) -> pa.Table:
    """The weak stream: names are gone, and nothing else."""
    return rows


def by_crenel(k: int) -> Callable[[pa.Table], pa.Table]:
    def publish(rows: pa.Table) -> pa.Table:
        found = crenel.anonymize(rows, policy(rows, k)).published
        return pa.table({name: _middle(found.column(name)) for name in rows.column_names})

    return publish


def policy(rows: pa.Table, k: int) -> crenel.Policy:
    kinds: dict[str, Any] = {}
    for name in KNOWN:
        if pa.types.is_integer(rows.schema.field(name).type):
            ends = pc.min_max(rows.column(name)).as_py()
            kinds[name] = {"type": "numeric", "domain": [ends["min"], ends["max"]]}
        else:
            kinds[name] = {"type": "categorical", "hierarchy": {"*": rows.column(name).unique().to_pylist()}}
    return crenel.Policy.from_dict(
        {
            "person": {"each": "row"},
            "quasi_identifiers": kinds,
            "sensitive": [SECRET],
            "k": k,
            "l": 2,
            "delay_rows": 2000,
        }
    )


def _middle(column: pa.ChunkedArray) -> Any:
    """A range as its middle: the tool takes numbers alone."""
    if not pa.types.is_struct(column.type):
        return column
    return pc.divide(pc.add(pc.struct_field(column, "lo"), pc.struct_field(column, "hi")), 2.0)


WAYS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "as it is, without names": as_it_is,
    "crenel, k = 10, l = 2": by_crenel(10),
}


def attacked(way: str, python: Path, rows: int, attacks: int, attempts: int) -> dict[str, Any]:
    """Publish in one way, and let Anonymeter attack it."""
    original, control = adult(rows)
    published = WAYS[way](original)
    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = {
            "attacks": attacks,
            "attempts": attempts,
            "columns": 3,
            "known": KNOWN,
            "secret": SECRET,
        }
        for name, content in (("original", original), ("control", control), ("published", published)):
            given[name] = str(Path(folder) / f"{name}.csv")
            pa.csv.write_csv(content, given[name])
        (Path(folder) / "given.json").write_text(json.dumps(given))
        command = [
            str(python),
            str(Path(__file__).with_name("anonymeter_attacks.py")),
            str(Path(folder) / "given.json"),
        ]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=3600)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rows and attacks")
    quick = parser.parse_args(argv).quick
    try:
        python = python_of_anonymeter()
        rows, attacks, attempts = (600, 30, 1_500) if quick else (ROWS, ATTACKS, ATTEMPTS)
        found = {way: attacked(way, python, rows, attacks, attempts) for way in WAYS}
    except (NoAnonymeterError, NoDataError) as error:
        print(error, file=sys.stderr)
        return 1
    lines = [
        [way, name, *(rounded(one[key], 3) for key in ("success", "control", "risk"))]
        for way, risks in found.items()
        for name, one in risks.items()
    ]
    print(table(["published", "risk", "attacks that succeed", "on the control", "risk"], lines))
    finish({"benchmark": "second_witness", "quick": quick, "rows": rows, "attacks": attacks, "found": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
