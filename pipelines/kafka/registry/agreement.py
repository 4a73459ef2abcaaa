"""What a run and the schema registry agree on before anything is read: the input's columns, and the output's schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.kafka.registry.avro_schemas import published_avro
from crenel.pipelines.kafka.registry.column_kinds import Kind, RefusedSchema, check, named, taken
from crenel.pipelines.kafka.registry.framed_values import RowSchema, row_schemas
from crenel.pipelines.kafka.registry.json_schemas import published_json
from crenel.pipelines.kafka.registry.published_fields import PublishedField, fields_of, text_columns
from crenel.pipelines.kafka.registry.published_protobuf import published_protobuf
from crenel.pipelines.kafka.registry.registry_client import (
    Incompatible,
    RegistryClient,
    RegistryRefused,
    RegistrySilent,
    Schema,
    UnknownSchema,
)
from crenel.pipelines.kafka.topics import Topic
from crenel.policy import Policy
from crenel.transforms._publish.range_form import Ranges

__all__ = ["agreed", "registered"]

#: Makes the schema of published rows, given the latest one there is.
_PUBLISHED: dict[str, Callable[[list[PublishedField], Schema | None], Schema]] = {
    "avro": lambda fields, _: published_avro(fields),
    "json": lambda fields, _: published_json(fields),
    "protobuf": published_protobuf,
}


def agreed(policy: Policy, source: Topic) -> tuple[Topic, dict[str, Kind], str]:
    """Ask the registry what the columns of a policy hold, by the latest schema of the input.

    Returns:
        The topic with its columns, what they hold, and the format of the schema.

    Raises:
        CommandError: there is no answer, no schema, or a column is missing.
    """
    with _in_sentences(source):
        client = RegistryClient(source)
        try:
            latest = client.latest(source.values_subject)
        except UnknownSchema:
            msg = (
                f"{source!r}: the schema registry {source.registry} has no subject {source.values_subject}. Register "
                "the schema of the input there, or name the subject that has it with subject=NAME."
            )
            raise CommandError(msg) from None
    try:
        kinds = _kinds(policy, row_schemas(latest, source.envelopes))
    except RefusedSchema as why:
        said = f"schema {latest.id} (version {latest.version} of {source.values_subject}) {why}"
        msg = f"{source!r}: {said}. The policy needs {len(named(policy))} columns: {', '.join(named(policy))}."
        raise CommandError(msg) from None
    columns = tuple((name, tuple(one.value for one in taken(policy, name, kind))) for name, kind in kinds.items())
    return replace(source, columns=columns), kinds, latest.form.lower()


def _kinds(policy: Policy, schemas: list[RowSchema]) -> dict[str, Kind]:
    """What the policy's columns hold, by the first schema that has all of them."""
    wanted = tuple((name, ()) for name in named(policy))
    problem = RefusedSchema("has no message")
    for schema in schemas:
        try:
            check(wanted, schema.kind)
        except RefusedSchema as why:
            problem = why if schema is schemas[0] else problem
            continue
        return {name: kind for name, _ in wanted if (kind := schema.kind(name)) is not None}
    raise problem


def registered(
    policy: Policy, published: Topic, kinds: Mapping[str, Kind], form: str, ranges: Ranges = Ranges.STRUCT
) -> Topic:
    """Register the schema of published rows, if the subject of the output allows it.

    Args:
        policy: The policy.
        published: The topic of published rows.
        kinds: What the columns of the input hold.
        form: The format of the input, in which rows are published unless the topic names another.
        ranges: What ranges are published as.

    Raises:
        CommandError: there is no answer, or the schema is not compatible with what readers of the topic know.
    """
    subject, written = published.values_subject, published.format or form
    with _in_sentences(published):
        client = RegistryClient(published)
        before = _latest(client, subject)
        schema = _PUBLISHED[written](fields_of(policy, kinds, ranges), before)
        number = client.registered(subject, schema)
        if number is None:
            if not client.is_compatible(subject, schema):
                raise Incompatible
            number = client.register(subject, schema)
    return replace(
        published,
        format=written,
        schema_text=schema.text,
        schema_id=number,
        text_columns=text_columns(policy, kinds, ranges),
    )


def _latest(client: RegistryClient, subject: str) -> Schema | None:
    try:
        return client.latest(subject)
    except UnknownSchema:
        return None


@contextmanager
def _in_sentences(topic: Topic) -> Iterator[None]:
    """Say what a registry refuses, and what to do."""
    try:
        yield
    except RegistrySilent as why:
        msg = (
            f"{topic!r}: the schema registry {topic.registry} does not answer as one: {why}. Check that the address is "
            "right (some have a path, such as /apis/ccompat/v7) and the registry is up."
        )
        raise CommandError(msg) from None
    except RegistryRefused as why:
        msg = f"{topic!r}: {why}"
        raise CommandError(msg) from None
    except Incompatible as why:
        words = f" ({why})" if str(why) else ""
        msg = (
            f"{topic!r}: the schema of published rows is not compatible with the latest version of "
            f"{topic.values_subject}{words}. Publish to another topic, or change the compatibility of this subject. "
            "Nothing was registered."
        )
        raise CommandError(msg) from None
