"""Dataflow without Dataflow: options, a dry run, and the shape of the job that an update must keep.

These tests do not contact the service, so they do not show that it would accept the job.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import SetupOptions, StandardOptions
from apache_beam.testing.test_pipeline import TestPipeline as Pipeline
from apache_beam.testing.util import assert_that, equal_to

from crenel.pipelines import pubsub
from crenel.pipelines.cli import main
from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.dataflow_template import _parser, policy_at
from crenel.pipelines.dataflow_template import main as template
from crenel.runners import Job, RunnerError, dataflow
from tests.runners import shape
from tests.runners.shape import FLAGS, SHAPES

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "runners" / "dataflow"

POLICY = (
    "person: who\nquasi_identifiers: {sex: {type: categorical, hierarchy: sex.csv}}\nk: 2\ndelay_rows: 9\nversion: 1\n"
)


@pytest.fixture
def google() -> None:
    """Skip the test without Google's client libraries; fail if CRENEL_REQUIRE_DATAFLOW is set."""
    if importlib.util.find_spec("apitools") is None:
        reason = "the dry run needs Google's libraries: pip install 'crenel[dataflow]', as make dataflow-test does"
        if os.environ.get("CRENEL_REQUIRE_DATAFLOW"):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "sex.csv").write_text("f;*\nm;*\n")
    path = tmp_path / "policies" / "policy.yaml"
    path.write_text(POLICY)
    return path


# --- The shape of the job ---


@pytest.mark.parametrize("name", SHAPES)
def test_a_running_job_can_be_updated(name: str, request: pytest.FixtureRequest) -> None:
    if name.startswith("dataflow"):
        request.getfixturevalue("google")
    golden = json.loads((shape.GOLDEN / f"{name}.json").read_text())
    assert SHAPES[name]() == golden, (
        "A step, coder, state or timer is another now, so that running jobs can neither be updated (Dataflow) nor "
        "restored from a savepoint (Flink). Go back; or, if it must be, raise the version of the golden file in "
        "tests/runners/shape.py, write it with python -m tests.runners.shape, and tell under 'Privacy-relevant' in "
        "CHANGELOG.md that jobs have to be drained."
    )


def test_the_shape_has_what_an_update_goes_by() -> None:
    found = json.loads((shape.GOLDEN / "dataflow.1.json").read_text())
    hold = found["steps"]["Anonymize/Hold/ParDo"]
    assert set(hold["state"]) == {"log", "snapshot", "token"}
    assert {kind for kind, _, _ in hold["state"].values()} <= {"bag_spec", "read_modify_write_spec"}
    assert {coder for _, _, coder in hold["state"].values()} == {"bytes:v1"}
    assert set(hold["timers"]) == {"ts-crenel_deadline"}
    assert hold["timers"]["ts-crenel_deadline"][0] == "EVENT_TIME"
    assert not any("pickled" in coder for coder in hold["inputs"].values())
    assert "beam:requirement:pardo:stateful:v1" in found["requirements"]


def test_another_shape_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from apache_beam.coders import StrUtf8Coder
    from apache_beam.transforms.userstate import BagStateSpec

    from crenel.transforms._hold.hold_step import HoldRows

    before = shape.transform()
    monkeypatch.setattr(HoldRows.LOG, "coder", StrUtf8Coder())
    assert shape.transform() != before
    assert isinstance(HoldRows.LOG, BagStateSpec)


def test_no_step_is_named_by_a_class_or_a_place_in_the_code() -> None:
    names = json.loads((shape.GOLDEN / "dataflow.1.json").read_text())["steps"]
    parts = {part for name in names for part in name.split("/") if name.startswith(("Parse", "Anonymize"))}
    assert [part for part in parts if re.search(r"lambda|\.py|_[A-Z]|Do[Ff]n", part)] == []


# --- The dry run ---


def test_a_dry_run_is_a_streaming_job_with_our_image(google: None) -> None:
    runner = shape.dry_run()
    assert "JOB_TYPE_STREAMING" in runner.job.json()
    environments = runner.proto_pipeline.components.environments.values()
    assert all(environment.urn == "beam:env:docker:v1" for environment in environments)
    assert {b"example.com/crenel:1" in environment.payload for environment in environments} == {True}


def test_released_rows_are_committed_before_they_are_sent() -> None:
    steps = json.loads((shape.GOLDEN / "dataflow.1.json").read_text())["steps"]
    for name in ("published", "suppressed", "rejected"):
        assert f"Commit {name}" in steps


# --- Options ---


def test_options_of_a_stream() -> None:
    options = dataflow.options_of(FLAGS)
    assert options.view_as(StandardOptions).streaming
    assert options.view_as(StandardOptions).runner == "DataflowRunner"
    assert options.view_as(SetupOptions).sdk_location == "container"
    other = dataflow.options_of([*FLAGS, "--sdk_location=/some/sdk.tar.gz"])
    assert other.view_as(SetupOptions).sdk_location == "/some/sdk.tar.gz"


@pytest.mark.parametrize(
    ("without", "more", "words"),
    [
        ("--project", [], "needs --project, such as --project=my-project."),
        ("--region", [], "needs --region"),
        ("--temp_location", [], "needs --temp_location, such as --temp_location=gs://my-bucket/temp."),
        ("--temp_location", ["--temp_location=/tmp"], "--temp_location must be in Cloud Storage"),
        ("--staging_location", ["--staging_location=/tmp"], "--staging_location must be in Cloud Storage"),
        ("--sdk_container_image", [], "needs workers that have crenel: name an image"),
    ],
)
def test_a_missing_option_is_reported_in_a_sentence(without: str, more: list[str], words: str) -> None:
    flags = [flag for flag in FLAGS if not flag.startswith(without)] + more
    with pytest.raises(RunnerError) as raised:
        dataflow.check(flags)
    (problem,) = (said for said in raised.value.problems if "Google's libraries" not in said)
    assert words in problem


def test_all_missing_options_are_reported_at_once() -> None:
    with pytest.raises(RunnerError) as raised:
        dataflow.check([])
    assert len(raised.value.problems) >= 4


def test_without_googles_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataflow.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(RunnerError, match=r"needs Google's libraries: pip install 'crenel\[dataflow\]'\.$"):
        dataflow.check(FLAGS)


def test_files_are_not_for_dataflow(google: None) -> None:
    job = Job(build=lambda p: p | beam.Create([1]), shards=1, flags=FLAGS)
    with pytest.raises(RunnerError, match="is for streams"):
        dataflow.launch(job)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"source": "pubsub://projects/no-such-project/topics/published"},
            "--input must be pubsub://projects/PROJECT/subscriptions/NAME",
        ),
        ({"published": "pubsub://visits"}, "--output must be pubsub://projects/PROJECT/topics/NAME"),
        ({"rejected": "rejected.jsonl"}, "--rejected must be"),
        ({"rejected": "pubsub://projects/no-such-project/topics/published"}, "the outputs must be different topics"),
    ],
)
def test_addresses(changes: dict[str, str], words: str) -> None:
    fine = {
        "source": "pubsub://projects/no-such-project/subscriptions/visits",
        "published": "pubsub://projects/no-such-project/topics/published",
    }
    with pytest.raises(CommandError, match=words):
        pubsub.Topics(**(fine | changes))


def test_pubsub_is_for_dataflow(policy_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [
        "--input",
        "pubsub://projects/no-such-project/subscriptions/visits",
        "--output",
        "pubsub://projects/no-such-project/topics/published",
    ]
    assert main(["run", str(policy_file), *given]) == 2
    assert capsys.readouterr().err.startswith("crenel: pubsub:// needs --runner dataflow")


# --- Messages ---


def test_a_message_that_is_no_row_is_rejected_unchanged() -> None:
    with Pipeline(runner="FnApiRunner") as pipeline:
        given = pipeline | beam.Create([b'{"a": 1}', b"[1]", b"\xff{", b""])
        parsed = given | beam.ParDo(pubsub._Parse()).with_outputs("broken", main="rows")
        assert_that(parsed.rows, equal_to([{"a": 1}]), label="rows")
        broken = [{"row": text, "field": "", "reason": "not a JSON object"} for text in ("[1]", "\\xff{", "")]
        assert_that(parsed.broken, equal_to(broken), label="broken")


# --- The template ---


def test_the_template_has_the_parameters_of_its_entry_point() -> None:
    told = json.loads((TEMPLATE / "metadata.json").read_text())
    assert told["streaming"] is True
    # At-least-once mode could publish a row twice under different generalizations.
    assert (told["supportsExactlyOnce"], told["supportsAtLeastOnce"]) == (True, False)
    actions = {action.dest: action for action in _parser()._actions if action.dest not in ("help", "runner")}
    assert {parameter["name"]: parameter["isOptional"] for parameter in told["parameters"]} == {
        name: not action.required for name, action in actions.items()
    }
    for parameter in told["parameters"]:
        assert set(parameter) == {"name", "label", "helpText", "isOptional", "regexes"}
        examples = re.findall(r"Example: (\S+)", parameter["helpText"])
        assert all(re.search(regex, example) for regex in parameter["regexes"] for example in examples)


def test_the_image_is_of_the_beam_that_the_tests_run_on() -> None:
    text = (TEMPLATE / "Dockerfile").read_text()
    assert "FLEX_TEMPLATE_PYTHON_PY_FILE=/template/dataflow_template.py" in text
    copied = re.search(r"COPY (\S+) /template/dataflow_template\.py", text)
    assert copied is not None and (ROOT / copied[1]).is_file()


def test_the_entry_point_submits_and_exits(google: None, policy_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from apache_beam.options.pipeline_options import GoogleCloudOptions

    monkeypatch.setattr(GoogleCloudOptions, "_warn_if_soft_delete_policy_enabled", lambda *_: None)
    own = [
        "--input=projects/no-such-project/subscriptions/visits",
        "--output=projects/no-such-project/topics/published",
        "--runner=DataflowRunner",
    ]
    assert template([f"--policy={policy_file}", *own, *FLAGS]) == 0


def test_the_entry_point_reports_mistakes_in_sentences(policy_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--input=projects/no-such-project/topics/published", "--output=projects/no-such-project/topics/published"]
    assert template([f"--policy={policy_file}", *own, *FLAGS]) == 2
    assert capsys.readouterr().err.startswith("crenel: --input must be pubsub://projects/PROJECT/subscriptions/NAME")


def test_a_policy_is_fetched_with_its_hierarchies(policy_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder stands in for the bucket."""
    bucket, here = "gs://no-such-bucket", str(policy_file.parents[1])
    match, read = FileSystems.match, FileSystems.open

    def in_bucket(patterns: list[str]) -> Any:
        found = match([pattern.replace(bucket, here) for pattern in patterns])
        for file in found[0].metadata_list:
            file.path = file.path.replace(here, bucket)
        return found

    monkeypatch.setattr(FileSystems, "match", in_bucket)
    monkeypatch.setattr(FileSystems, "open", lambda path: read(path.replace(bucket, here)))
    assert policy_at(f"{bucket}/policies/policy.yaml") == policy_at(str(policy_file))


def test_a_policy_that_cannot_be_fetched() -> None:
    with pytest.raises(CommandError, match=r"^nowhere://policy\.yaml: cannot be read \(ValueError\)\.$"):
        policy_at("nowhere://policy.yaml")
