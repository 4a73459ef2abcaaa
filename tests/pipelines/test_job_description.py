"""What a job's description tells whoever can read it: no secret, no seed, no password; and no coder that unpickles."""

from __future__ import annotations

import base64
import binascii
import bz2
import pickletools
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import coders
from apache_beam.internal import pickler
from apache_beam.portability.api import beam_runner_api_pb2 as api
from google.protobuf.message import Message

from crenel.pipelines import pubsub
from crenel.pipelines.files import file_job
from crenel.pipelines.files.finished_outputs import Output
from crenel.pipelines.kafka import topic_job
from crenel.pipelines.kafka.topics import Topic
from crenel.policy import Policy
from crenel.policy.secret import Secret, secret_of
from crenel.transforms import Anonymize, AnonymizeBounded, Durable, durable
from tests.transforms.streams import policy, rows

SECRET = bytes(range(100, 132))
SEED = 987_654_321_987
PASSWORD = "correct-horse-battery"


# --- Looking into a proto ---


def blobs(message: Message) -> Iterator[bytes]:
    """Yield the bytes of a message, and all bytes that are packed into them, again and again."""
    waiting, known = [message.SerializeToString(), *_fields(message)], set[bytes]()
    while waiting:
        data = waiting.pop()
        if data in known:
            continue
        known.add(data)
        yield data
        for unpack in (base64.b64decode, bz2.decompress, zlib.decompress, _parts):
            try:
                found = unpack(data)
            except (ValueError, OSError, EOFError, binascii.Error, zlib.error):
                continue
            waiting += found if isinstance(found, list) else [found]


def _fields(message: Message) -> list[bytes]:
    """Return every field of bytes or text, of all messages in a message, and of the payloads among them."""
    found = []
    for field, value in message.ListFields():
        values = value if field.is_repeated else [value]
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            values = [value[key] for key in value]
        for one in values:
            if isinstance(one, Message):
                found += _fields(one)
            elif isinstance(one, (bytes, str)):
                found.append(one if isinstance(one, bytes) else one.encode())
    if isinstance(message, api.FunctionSpec) and message.urn == "beam:transform:pardo:v1":
        found += _fields(api.ParDoPayload.FromString(message.payload))
    return found


def _parts(data: bytes) -> list[bytes]:
    """Return what a pickle holds, and the pickle of a coder that begins with the name of its class."""
    if b"$" in data[:200]:
        return [data.partition(b"$")[2]]
    found = []
    for _, argument, _ in pickletools.genops(data):
        if isinstance(argument, (str, bytes)):
            found.append(argument if isinstance(argument, bytes) else argument.encode("utf-8", "surrogatepass"))
        elif isinstance(argument, int):
            found.append(b"%d" % argument)
    return found


def functions(proto: api.Pipeline) -> list[Any]:
    """Return all functions of a pipeline, unpickled."""
    found = []
    for step in proto.components.transforms.values():
        if step.spec.urn == "beam:transform:pardo:v1":
            payload = api.ParDoPayload.FromString(step.spec.payload)
            found.append(pickler.loads(payload.do_fn.payload)[0])
    return found


def everything_in(thing: Any) -> Iterator[Any]:
    """Yield an object and everything that it refers to."""
    waiting, known = [thing], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in known or isinstance(one, type) or callable(one):
            continue
        known.add(id(one))
        yield one
        if isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, (list, tuple, set, frozenset)):
            waiting += list(one)
        elif hasattr(one, "__dict__"):
            waiting.append(vars(one))


def told(proto: api.Pipeline, *hidden: Any) -> list[Any]:
    """Return what of the hidden things the pipeline tells."""
    data = list(blobs(proto))
    inside = [thing for function in functions(proto) for thing in everything_in(function)]
    found = []
    for one in hidden:
        forms = [one] if isinstance(one, bytes) else [str(one).encode()]
        if isinstance(one, bytes):
            forms += [one.hex().encode(), one.hex().upper().encode(), base64.b64encode(one), repr(one).encode()]
        if isinstance(one, int):
            forms += [one.to_bytes(8, order) for order in ("little", "big")]  # type: ignore[arg-type]
        in_bytes = any(form in blob for form in forms for blob in data)
        if in_bytes or any(type(thing) is type(one) and thing == one for thing in inside):
            found.append(one)
    return found


# --- The jobs ---


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build jobs as for a cluster: the local runner needs no outbox."""
    monkeypatch.setattr(durable, "is_local", lambda _: False)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Policy:
    monkeypatch.setenv("CRENEL_TEST_SECRET", SECRET.hex())
    return policy(seed=None, secret="env:CRENEL_TEST_SECRET", shards=2)


def topics_of(of: Policy) -> beam.Pipeline:
    pipeline = beam.Pipeline()
    url = "kafka://broker:9092/{}?sasl.password=env:CRENEL_TEST_PASSWORD&security.protocol=SASL_SSL"
    outputs: dict[str, Any] = {name: Topic.of(url.format(name)) for name in ("published", "suppressed", "rejected")}
    outputs["releases"] = Topic.of(url.format("releases"))
    source = Topic.of(url.format("visits"), read=True)
    topic_job.build(pipeline, topic_job.Request(policy=of, source=source, outputs=outputs), [(0, 0, -1, 0, "id")])
    return pipeline


def files_of(of: Policy, folder: Path) -> beam.Pipeline:
    (folder / "rows.csv").write_text("patient,seen,age,zipcode,education,disease,number\n1,1,1,53706,none,flu,1\n")
    built: list[beam.Pipeline] = []

    def launch(build: Callable[[Any], None], shards: int) -> int:
        built.append(beam.Pipeline())
        build(built[0])
        raise KeyboardInterrupt

    outputs = {name: Output(str(folder / f"{name}.csv"), ".csv") for name in ("published", "rejected", "releases")}
    request = file_job.Request(
        policy=of, inputs=[str(folder / "*.csv")], trace=Output(str(folder / "t.csv"), ".csv"), **outputs
    )
    with pytest.raises(KeyboardInterrupt):
        file_job.run(request, launch)
    return built[0]


def messages_of(of: Policy) -> beam.Pipeline:
    pipeline = beam.Pipeline()
    topics = {name: f"pubsub://projects/my-project/topics/{name}" for name in ("published", "suppressed", "rejected")}
    pubsub.build(pipeline, of, pubsub.Topics(source="pubsub://projects/my-project/subscriptions/visits", **topics))
    return pipeline


def transform_of(of: Policy, transform: Any = Anonymize) -> beam.Pipeline:
    pipeline = beam.Pipeline()
    result = pipeline | beam.Create(rows(5)) | transform(of)
    _ = result.published | beam.Map(str) | Durable(policy=of)
    return pipeline


JOBS: dict[str, Callable[[Policy, Path], beam.Pipeline]] = {
    "topics": lambda of, folder: topics_of(of),
    "files": files_of,
    "Pub/Sub": lambda of, folder: messages_of(of),
    "Anonymize": lambda of, folder: transform_of(of),
    "AnonymizeBounded": lambda of, folder: transform_of(of, AnonymizeBounded),
}
each_job = pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRENEL_TEST_PASSWORD", PASSWORD)


def test_what_is_hidden_is_looked_for_in_the_right_places() -> None:
    """This shows that `told` finds what is there, however it is packed."""
    secret = Secret.of(policy(seed=None))

    class Tells(beam.DoFn):
        def __init__(self) -> None:
            self.inside = {"a": [secret, (PASSWORD, SEED)]}

        def process(self, element: Any) -> None:
            pass

    pipeline = beam.Pipeline()
    _ = pipeline | beam.Create([1]) | beam.ParDo(Tells())
    proto = pipeline.to_runner_api()
    assert told(proto, secret.root, PASSWORD, SEED, SECRET, "nowhere") == [secret.root, PASSWORD, SEED]
    packed = base64.b64encode(zlib.compress(SECRET.hex().encode()))
    proto.components.transforms["x"].annotations["note"] = packed
    assert told(proto, SECRET) == [SECRET]


@each_job
def test_a_named_secret_is_in_no_job(job: Any, named: Policy, tmp_path: Path) -> None:
    proto = job(named, tmp_path).to_runner_api()
    assert told(proto, SECRET, Secret.given(SECRET).root, PASSWORD) == []
    assert told(proto, "CRENEL_TEST_SECRET") != []  # the reference is there


@each_job
def test_a_seed_is_in_no_job(job: Any, tmp_path: Path) -> None:
    of = policy(seed=SEED)
    assert told(job(of, tmp_path).to_runner_api(), SEED, secret_of(of)) == []


def test_a_password_by_reference_is_read_where_a_client_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic.of("kafka://b:1/t?sasl.password=env:CRENEL_TEST_PASSWORD&sasl.username=me")
    assert topic.client_options() == {"sasl.password": PASSWORD, "sasl.username": "me"}
    assert PASSWORD not in str(topic.settings)


# --- Coders ---


def coder_names(proto: api.Pipeline, coder: str) -> set[str]:
    """Return the names of the coders that a coder is made of."""
    spec = proto.components.coders[coder]
    if spec.spec.urn == "beam:coder:pickled_python:v1":
        found = coders.deserialize_coder(spec.spec.payload)
        names, waiting = set(), [found]
        while waiting:
            one = waiting.pop()
            names.add(type(one).__name__)
            waiting += [inner for inner in vars(one).values() if isinstance(inner, coders.Coder)]
            waiting += [inner for many in vars(one).values() if isinstance(many, (list, tuple)) for inner in many]
        return names
    return {spec.spec.urn}.union(*(coder_names(proto, inner) for inner in spec.component_coder_ids))


#: The steps of the user in the jobs that are the user's own.
USERS = ("Create", "Map(str)")


@each_job
def test_no_element_between_our_steps_can_be_unpickled(job: Any, named: Policy, tmp_path: Path) -> None:
    proto = job(named, tmp_path).to_runner_api()
    steps = [step for step in proto.components.transforms.values() if not step.subtransforms]
    # Runners have a Reshuffle of their own, and do not use the steps that Beam makes one of.
    others = [
        step.unique_name for step in steps if step.unique_name.startswith(USERS) or "/Reshuffle" in step.unique_name
    ]
    ours = [step for step in steps if step.unique_name not in others]
    taken = {place for step in ours for place in step.inputs.values()}
    between = [(step.unique_name, place) for step in ours for place in step.outputs.values() if place in taken]
    assert len(between) >= 4
    for maker, place in between:
        found = coder_names(proto, proto.components.pcollections[place].coder_id)
        assert not any("Pickle" in coder or coder == "FastPrimitivesCoder" for coder in found), (maker, found)
