"""Asks a schema registry: for the schema of an id or a subject, and to register one."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.kafka.registry.column_kinds import RefusedSchema
from crenel.pipelines.kafka.topics import Topic

__all__ = [
    "Incompatible",
    "RegistryClient",
    "RegistryRefused",
    "RegistrySilent",
    "Schema",
    "UnknownSchema",
    "shared_client",
]

#: Seconds that a registry has for an answer. The client would wait for ever.
_ANSWER = 10.0
#: Codes of Confluent's interface: no such subject, version, schema.
_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA = 40401, 40402, 40403
_UNAUTHORIZED, _CONFLICT = (401, 403), 409
#: The most schemas that one may refer to, directly or not.
_MOST_REFERENCES = 200


class RegistrySilent(Exception):
    """The registry does not answer, or not as a registry does. The message is the reason."""


class RegistryRefused(Exception):
    """The registry does not let this client in. The message is a sentence that says what to do."""


class UnknownSchema(Exception):
    """The registry has no such schema or subject."""


class Incompatible(Exception):
    """The rule of a subject does not let a schema follow those that it has. The message is the registry's."""


@dataclass(frozen=True)
class Schema:
    """A schema as the registry keeps it."""

    #: AVRO, JSON or PROTOBUF.
    form: str
    text: str
    #: The names and texts of the schemas that it refers to, directly or not; each comes after those it refers to.
    references: tuple[tuple[str, str], ...] = ()
    #: Its id, and its version under the subject that was asked for; 0 if not known.
    id: int = 0
    version: int = 0


class RegistryClient:
    """Asks the registry of a topic.

    Args:
        topic: Names the registry, and the options of its client.

    Raises:
        CommandError: the client is not installed, or does not take its options.
    """

    def __init__(self, topic: Topic) -> None:
        self._url = str(topic.registry)
        self._library = _library()
        #: No connection, or no JSON.
        self._unanswered: tuple[type[Exception], ...] = (*_transport_errors(), ValueError)
        # A reader that gets no answer asks again by itself, and must not keep checkpoints waiting meanwhile.
        own = {"url": self._url, "timeout": _ANSWER, "max.retries": 0}
        try:
            self._client = self._library.SchemaRegistryClient({**topic.registry_options(), **own})
        except (ValueError, TypeError, OSError) as error:  # an unknown option, or a file that is not there
            msg = f"{topic!r}: the client of the schema registry does not take its options (schema.registry.*): {error}"
            raise CommandError(msg.rstrip(".") + ".") from None

    def schema(self, number: int) -> Schema:
        """The schema of an id.

        Raises:
            UnknownSchema: there is none.
            RefusedSchema: it refers to too many others.
            RegistrySilent: there is no answer.
            RegistryRefused: the login failed.
        """
        return self._whole(self._ask(self._client.get_schema, number), number)

    def latest(self, subject: str) -> Schema:
        """The latest schema of a subject.

        Raises:
            UnknownSchema: there is none.
            RefusedSchema: it refers to too many others.
            RegistrySilent: there is no answer.
            RegistryRefused: the login failed.
        """
        found = self._ask(self._client.get_latest_version, subject)
        return self._whole(found.schema, found.schema_id, found.version)

    def registered(self, subject: str, schema: Schema) -> int | None:
        """The id of this very schema under a subject; None if the subject does not have it."""
        try:
            found = self._ask(self._client.lookup_schema, subject, self._plain(schema))
        except UnknownSchema:
            return None
        return int(found.schema_id)

    def is_compatible(self, subject: str, schema: Schema) -> bool:
        """Whether the subject's rule lets this schema follow the latest one."""
        try:
            return bool(self._ask(self._client.test_compatibility, subject, self._plain(schema)))
        except UnknownSchema:  # it would be the first
            return True

    def register(self, subject: str, schema: Schema) -> int:
        """Register a schema under a subject, and return its id.

        Raises:
            Incompatible: the subject's rule does not allow it.
            RegistrySilent: there is no answer, or the registry does not take it.
            RegistryRefused: the login failed, or does not allow it.
        """
        return int(self._ask(self._client.register_schema, subject, self._plain(schema)))

    def _plain(self, schema: Schema) -> Any:
        return self._library.Schema(schema.text, schema.form)

    def _whole(self, found: Any, number: int, version: int = 0) -> Schema:
        """A schema with all that it refers to."""
        texts: dict[str, str] = {}
        self._follow(found.references or [], texts)
        # The registry leaves out the type of Avro.
        form = found.schema_type or "AVRO"
        return Schema(form, found.schema_str, tuple(texts.items()), number, version)

    def _follow(self, references: Any, texts: dict[str, str], under: tuple[str, ...] = ()) -> None:
        for reference in references:
            if reference.name in texts or reference.name in under:
                continue
            if len(texts) + len(under) > _MOST_REFERENCES:
                msg = f"refers to more than {_MOST_REFERENCES} others"
                raise RefusedSchema(msg)
            found = self._ask(self._client.get_version, reference.subject, reference.version)
            self._follow(found.schema.references or [], texts, (*under, reference.name))
            texts[reference.name] = found.schema.schema_str

    def _ask(self, request: Any, *given: Any) -> Any:
        errors = self._library.error
        try:
            return request(*given)
        except errors.SchemaRegistryError as error:
            if error.error_code in (_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA):
                raise UnknownSchema from None
            if error.http_status_code in _UNAUTHORIZED:
                raise RegistryRefused(self._advice(error.http_status_code)) from None
            if error.http_status_code == _CONFLICT:
                raise Incompatible(_first_line(error.error_message)) from None
            msg = f"it answers {error.http_status_code}: {_first_line(error.error_message)}"
            raise RegistrySilent(msg) from None
        except errors.OAuthTokenError:
            raise RegistryRefused(self._advice(_UNAUTHORIZED[0])) from None
        except self._unanswered as error:
            raise RegistrySilent(type(error).__name__) from None

    def _advice(self, status: int) -> str:
        return (
            f"the schema registry {self._url} refuses the login ({status}). Check schema.registry.basic.auth.user.info "
            "(USER:PASSWORD, or where it is) in the file of ?config=, and what this user may do."
        )


def _first_line(said: Any) -> str:
    return str(said or "no reason").strip().splitlines()[0][:300].rstrip(".")


def _library() -> Any:
    try:
        from confluent_kafka import schema_registry
    except ImportError:
        msg = "registry= needs the client of a schema registry: pip install 'crenel[registry]'."
        raise CommandError(msg) from None
    return schema_registry


def _transport_errors() -> tuple[type[Exception], ...]:
    """The errors of the client's HTTP library, which has changed its name."""
    found = []
    for name in ("httpx2", "httpx"):
        try:
            found.append(__import__(name).TransportError)
        except ImportError:
            continue
    return tuple(found)


_LOCK = threading.Lock()
_CLIENTS: dict[Any, RegistryClient] = {}


def shared_client(topic: Topic) -> RegistryClient:
    """The process's client of a topic's registry. A process that was forked has its own."""
    key = (os.getpid(), topic.registry, topic.settings)
    with _LOCK:
        if key not in _CLIENTS:
            _CLIENTS[key] = RegistryClient(topic)
        return _CLIENTS[key]
