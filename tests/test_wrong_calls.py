"""Every error of a wrong call, policy or command names what is wrong, what it was, and what to do instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from crenel import Anonymize, AnonymizeBounded, Coordinates, Datetime, Numeric, Policy, Prefix, anonymize, create_engine
from crenel.pipelines.cli import main
from crenel.transforms import bigquery_schema

POLICY: dict[str, Any] = {
    "person": "who",
    "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 100]}},
    "k": 3,
    "delay_rows": 20,
}
TABLE = pa.table({"who": [1, 2, 3], "age": [1, 2, 3]})
A_POLICY = "policy must be a Policy, the path of a YAML file, or a mapping of its fields, not"

CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "a list as a table": (lambda: anonymize([1], POLICY), "table must be a pyarrow Table or RecordBatch, or a pandas"),
    "no policy": (lambda: anonymize(TABLE, None), f"{A_POLICY} None."),
    "a number as a policy": (lambda: Anonymize(5), f"{A_POLICY} an int."),
    "a list as a policy": (lambda: AnonymizeBounded([POLICY]), f"{A_POLICY} a list."),
    "a file that is not there": (lambda: anonymize(TABLE, "none.yaml"), "there is no file 'none.yaml'"),
    "a misspelled column": (
        lambda: anonymize(TABLE.rename_columns(["who", "Age"]), POLICY),
        "has no column 'age', which the policy names. Did you mean 'Age'?",
    ),
    "ranges": (lambda: anonymize(TABLE, POLICY, ranges="colums"), "'columns', 'text' or 'struct', not 'colums'"),
    "parse_text": (lambda: anonymize(TABLE, POLICY, parse_text="de"), "parse_text must be true, false or a TextFormat"),
    "trace": (lambda: Anonymize(POLICY, trace="yes"), "trace must be true or false, not 'yes'"),
    "a trace without numbers": (lambda: Anonymize(POLICY, trace=True), "trace needs row_number, the column that"),
    "row_number": (lambda: Anonymize(POLICY, row_number=5), "row_number must be the name of a column, not 5"),
    "order_column": (lambda: Anonymize(POLICY, order_column=""), "order_column must be the name of a column, not ''"),
    "a column twice": (
        lambda: Anonymize(POLICY, row_number="age"),
        "row_number must be a column of its own, not 'age'",
    ),
    "overlapping_windows": (
        lambda: Anonymize(POLICY, overlapping_windows="no"),
        "overlapping_windows must be true or false, not 'no'",
    ),
    "sort_folder": (lambda: AnonymizeBounded(POLICY, sort_folder=5), "sort_folder must be the path of a folder, not 5"),
    "sort_memory": (
        lambda: AnonymizeBounded(POLICY, sort_memory="1GB"),
        "sort_memory must be a number of bytes, such as",
    ),
    "an engine's policy": (lambda: create_engine(5), f"{A_POLICY} an int."),
    "a domain": (lambda: Numeric(domain=(5, 1)), "Numeric.domain must be a list of two numbers, the first less than"),
    "a step": (lambda: Numeric(step="wide"), "Numeric.step must be a number from 1e-280 to 1e+280, not 'wide'"),
    "a length": (lambda: Prefix(length="5"), "Prefix.length must be an integer of at least 1, not '5'"),
    "dates": (lambda: Datetime(domain=("a", "b")), "Datetime.domain must be a list of two dates, not ['a', 'b']"),
    "bounds": (lambda: Coordinates(bounds=(1, 2)), "Coordinates.bounds must be [south, west, north, east] in degrees"),
    "a schema": (lambda: bigquery_schema(Policy.of({**POLICY, "publish": ["x"]}), TABLE.schema), "has no column 'x'"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_says_what_is_right(name: str) -> None:
    call, said = CALLS[name]
    with pytest.raises((TypeError, ValueError), match=re.escape(said)):
        call()


#: A field of the policy, what it is wrongly, and what the message says.
FIELDS: list[tuple[str, Any, str]] = [
    ("version", 2, "policy.version must be 1, not 2"),
    ("person", 5, "policy.person must be the column that tells persons apart, or {each: row} if each row is about"),
    ("event_time", 5, "policy.event_time must be the name of a column, not 5"),
    ("quasi_identifiers", {}, "policy.quasi_identifiers must be a mapping of at least one column to its type, such as"),
    ("quasi_identifiers", {"age": "numeric"}, "policy.quasi_identifiers.age must be a mapping with a type, such as"),
    ("quasi_identifiers", {"age": {"type": "numerc"}}, "(did you mean 'numeric'?), not 'numerc'"),
    ("quasi_identifiers", {"age": {"type": "numeric", "steps": 5}}, "age.steps is unknown; did you mean 'step'?"),
    ("quasi_identifiers", {"age": {"type": "prefix"}}, "policy.quasi_identifiers.age.length must be given"),
    ("sensitive", 5, "policy.sensitive must be a list of columns, or a mapping of them, not 5"),
    ("publish", "note", "policy.publish must be a list of columns, not 'note'"),
    ("treat", {"note": 5}, "policy.treat.note must be one of pseudonymize, redact, truncate, round, bin, such as"),
    ("k", "ten", "policy.k must be an integer of at least 2, not 'ten'"),
    ("k", 1, "policy.k must be an integer of at least 2, not 1"),
    ("l", 2, "policy.l needs a sensitive column; name one under sensitive"),
    ("t", 3, "policy.t must be a number above 0 and below 1, not 3"),
    ("delay", "soon", "policy.delay must be a duration such as '500ms', '30s', '10m', '2h' or '1d', not 'soon'"),
    ("delay", 5, "policy.delay must be a duration such as"),
    ("delay_rows", 2, "policy.delay_rows must be at least k (3): no group of k persons can gather in fewer"),
    ("disorder", -1, "policy.disorder must be a duration such as"),
    ("method", "bastoin", "(did you mean 'bastion'?), not 'bastoin'"),
    ("parameters", {"reus": "off"}, "policy.parameters.reus is unknown; did you mean 'reuse'?"),
    ("on_suppress", "keep", "policy.on_suppress must be 'star' or 'drop', not 'keep'"),
    ("shards", 0, "policy.shards must be an integer of at least 1, not 0"),
    ("shard_by", "people", "policy.shard_by must be 'person', 'locality', {tree: FILE}"),
    ("within", "tenant", "policy.within must be a list of columns, not 'tenant'"),
    ("seed", "x", "policy.seed must be an integer of at least 0, not 'x'"),
    ("secret", "hunter2", "policy.secret must be env:NAME, file:/PATH (an absolute path) or gcp:"),
    ("kk", 5, "policy.kk is unknown"),
]


@pytest.mark.parametrize(("field", "value", "said"), FIELDS, ids=lambda value: str(value)[:30])
def test_a_wrong_policy_says_what_is_right(field: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        Policy.from_dict({**POLICY, field: value})
    assert "hunter2" not in str(caught.value), "a secret is never shown"


RUN = ["run", "policy.yaml", "--input", "data.csv", "--output", "out.csv"]
COMMANDS: list[tuple[list[str], str]] = [
    (["chek", "policy.yaml"], "invalid choice: 'chek' (choose from"),
    (["init", "."], "must be a file, not a folder"),
    (["init", "none.csv"], "none.csv: there is no such file"),
    (["init", "data.csv", "--person", "wo"], "--person: the data have no column 'wo'. Did you mean 'who'?"),
    (["check", "none.yaml"], "there is no file 'none.yaml'"),
    (
        ["check", "policy.yaml", "--data", "data.csv", "--sample", "x"],
        "--sample: must be a number of rows, or 0 for all",
    ),
    (["explore", "policy.yaml", "--data", "data.csv", "--k", "x"], "--k: must be whole numbers of at least 2, not 'x'"),
    (["explore", "policy.yaml", "--data", "data.csv", "--target", "x"], "--target: must be a bound such as"),
    (["run", "policy.yaml", "--input", "data.csv"], "the following arguments are required: --output"),
    ([*RUN[:-1], "out.xls"], "out.xls: the extension must be one of .csv"),
    ([*RUN[:-1], "nowhere/out.csv"], "there is no folder nowhere to write it to"),
    ([*RUN, "--ranges", "col"], "--ranges: invalid choice: 'col' (choose from"),
    ([*RUN, "--workers", "0"], "--workers: must be a whole number of at least 1, not '0'"),
    ([*RUN, "--memory-limit", "x"], "--memory-limit: must be a size of at least 1MB, such as 512MB or 2GB, not 'x'"),
    ([*RUN, "--most-suppressed", "x"], "--most-suppressed: must be a share of the rows such as 5% or 0.05"),
    ([*RUN, "--runner", "spark"], "--runner must be one of local, prism, flink, dataflow, not 'spark'"),
    ([*RUN, "--delimiter", "ab"], "--delimiter: must be one character, such as ';', or tab, not 'ab'"),
    ([*RUN, "--encoding", "x"], "--encoding: must be an encoding that Python knows, such as latin-1"),
    ([*RUN, "--date-format", "x"], "--date-format: must name a day, a month and a year as strptime does, such as"),
    ([*RUN, "--tracee", "t.csv"], "--tracee is neither an option of crenel run (see --help) nor of Beam"),
    ([*RUN, "--suppressed", "-"], "must be files: only --output may be -"),
    (["audit", "policy.yaml", "--published", "none.csv"], "none.csv: there is no such file"),
    (
        ["audit", "policy.yaml", "--published", "data.csv", "--queries", "x"],
        "--queries: must be a whole number such as",
    ),
    (["audit", "policy.yaml", "--published", "data.csv", "--theta", "x"], "--theta: must be a number such as 0.1, not"),
    (["plan", "policy.yaml", "--rate", "x"], "--rate must be a number of rows per time above 0, such as 50000/s"),
    (["guarantee", "--k", "x", "--beta", "0.5"], "--k: must be a whole number such as 10, not 'x'"),
    (["compile", "bastoin"], "policy.method must be one of adaptive-window, bastion"),
]


@pytest.mark.parametrize(
    ("argv", "said"), COMMANDS, ids=lambda value: " ".join(value)[:60] if type(value) is list else ""
)
def test_a_wrong_command_says_what_is_right(
    argv: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(
        "person: who\nquasi_identifiers: {age: {type: numeric, domain: [0, 100]}}\nk: 3\ndelay_rows: 20\n"
    )
    Path("data.csv").write_text("who,age\nSECRET,1\nSECRET,2\n")
    try:
        code = main(argv)
    except SystemExit as stop:
        code = stop.code
    told = capsys.readouterr().err
    assert code == 2
    assert said in told
    assert "Traceback" not in told
    assert "SECRET" not in told
    assert not Path("out.csv").exists()
