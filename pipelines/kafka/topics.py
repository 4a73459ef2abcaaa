"""Topics of Kafka, as URLs name them.

    kafka://HOST:PORT[,HOST:PORT...]/TOPIC[?OPTION=VALUE&...]

An option with a dot in its name is one of librdkafka's (`security.protocol=SASL_SSL`). Put passwords
into a file of such options, named by `config`: other users of the machine can see a command line.
Better still, say where a password is (`sasl.password=env:NAME`, `file:/PATH`): then it does not travel
with the job, and each worker reads it for itself. Options of the client of a schema registry begin with
`schema.registry.`, in the same places.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from crenel.errors import INCURABLE, SecretError
from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.console.sections import sentence
from crenel.pipelines.debezium import DEBEZIUM, Deletes, Envelopes
from crenel.policy.checks import suggestion
from crenel.policy.durations import parse_duration
from crenel.policy.secret import read_reference

__all__ = ["HEADER_COLUMN", "SCHEME", "Topic", "is_topic"]

SCHEME = "kafka://"

#: The value of an option that says where the value is.
_REFERENCE = re.compile(r"(env|file|gcp):.+")

#: Options of librdkafka that a run sets itself.
_OWN = {
    "auto.offset.reset",
    "bootstrap.servers",
    "debug",
    "delivery.report.only.error",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "enable.partition.eof",
    "group.id",
    "transactional.id",
}
#: Options of the client of a schema registry begin with this, as in Confluent's own tools.
_OF_REGISTRY = "schema.registry."
#: A policy names the header `region` of records as the column `header:region`.
HEADER_COLUMN = "header:"
_BOTH = ("config", "encoding", "format", "registry", "schema", "subject")
_WRITTEN = ("transactions",)
_READ = ("deletes", "envelope", "group", "idle", "start", "until")
_CHOICES = {
    "deletes": tuple(one.value for one in Deletes),
    "envelope": (DEBEZIUM,),
    "encoding": ("bare", "single"),
    "format": ("json", "avro", "protobuf"),
    "start": ("earliest", "latest"),
    "until": ("end",),
}


def is_topic(text: str | None) -> bool:
    """Whether a text names a topic rather than a file."""
    return text is not None and text.startswith(SCHEME)


@dataclass(frozen=True, kw_only=True, repr=False)
class Topic:
    """A topic, and the format of its values."""

    servers: str
    name: str
    #: The format of values; empty for an output with a registry that is written in the format of its input.
    format: str = "json"
    #: The file of the Avro schema, and its text: workers may be on other machines.
    schema: str | None = None
    schema_text: str | None = None
    #: The start of an Avro value: nothing, or a fingerprint (a single object).
    encoding: str = "bare"
    #: The address of the schema registry, and the subject there; by default the topic's own.
    registry: str | None = None
    subject: str | None = None
    #: What a run and the registry agreed on when it began. Of an input: the columns, and the kinds that each may hold.
    #: Of an output: the id of its schema, and the columns whose values become text.
    columns: tuple[tuple[str, tuple[str, ...]], ...] = ()
    schema_id: int | None = None
    text_columns: tuple[str, ...] = ()
    #: What is around the row of each value, and what becomes of changes that have none.
    envelope: str | None = None
    deletes: str | None = None
    #: Where reading begins, and where it ends: at the last record there is now, or never.
    start: str = "earliest"
    until: str | None = None
    #: Seconds of silence after which a partition no longer holds event time back.
    idle: float = 30.0
    #: The consumer group that offsets are committed to, for lag only; none if it is empty or None.
    group: str | None = None
    #: How the names of transactions begin, if the topic is written in transactions.
    transactions: str | None = None
    #: Options of librdkafka.
    settings: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        """Name the topic, without options: they may contain passwords."""
        return f"{SCHEME}{self.servers}/{self.name}"

    def client_options(self) -> dict[str, str]:
        """Return librdkafka's options for a client that is made here, with the values that are only referred to.

        Raises:
            SecretError: one of these is not here.
        """
        return {name: self._value(name, value) for name, value in self.settings if not name.startswith(_OF_REGISTRY)}

    def registry_options(self) -> dict[str, str]:
        """Return the options of a client of the schema registry, with the values that are only referred to.

        Raises:
            SecretError: one of these is not here.
        """
        return {
            name.removeprefix(_OF_REGISTRY): self._value(name, value)
            for name, value in self.settings
            if name.startswith(_OF_REGISTRY)
        }

    @property
    def envelopes(self) -> Envelopes | None:
        """What opens the values; None if they are rows themselves."""
        return None if self.envelope is None else Envelopes(Deletes(self.deletes or Deletes.IGNORE))

    @property
    def values_subject(self) -> str:
        """The subject of the topic's values in the schema registry."""
        return self.subject or f"{self.name}-value"

    def _value(self, name: str, value: str) -> str:
        if not _REFERENCE.fullmatch(value):
            return value
        try:
            return read_reference(value, "on this machine").decode().rstrip("\r\n")
        except LookupError as error:
            msg = f"{self!r}: {name} {error}"
            raise SecretError(msg) from None
        except UnicodeDecodeError:
            msg = f"{self!r}: {name} names {value}, which is no text."
            raise SecretError(msg) from None

    @classmethod
    def of(cls, url: str, *, read: bool = False) -> Topic:
        """The topic that a URL names.

        Args:
            url: The URL.
            read: Whether the topic is to be read; otherwise it is to be written.

        Raises:
            CommandError: it is no such URL.
        """
        parts = urlsplit(url)
        name = unquote(parts.path.lstrip("/"))
        plain = f"{SCHEME}{parts.netloc.rpartition('@')[2]}/{name}"
        if not parts.netloc or not name or "/" in name or "@" in parts.netloc:
            msg = f"{plain}: must be kafka://HOST:PORT/TOPIC, with passwords in a file that ?config= names."
            raise CommandError(msg)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        settings = _settings(plain, options)
        known = _BOTH + (_READ if read else _WRITTEN)
        for option, value in options.items():
            if option not in known:
                guess = sentence(suggestion(option, known))
                msg = f"{plain}: {option!r} must be one of {', '.join(known)}, or an option of librdkafka. {guess}"
                raise CommandError(msg.strip())
            if option in _CHOICES and value not in _CHOICES[option]:
                msg = f"{plain}: {option} must be {' or '.join(_CHOICES[option])}, not {value!r}."
                raise CommandError(msg)
        given: dict[str, Any] = {option: options[option] for option in options if option != "config"}
        if "idle" in given:
            given["idle"] = _seconds(plain, given["idle"])
        if "registry" in given:
            _check_registry(plain, given, read=read)
            given.setdefault("format", "")
        topic = cls(servers=parts.netloc, name=name, settings=settings, **given)
        topic._check_references()
        topic._check_formats()
        if topic.deletes and not topic.envelope:
            msg = f"{plain}: deletes needs envelope={DEBEZIUM}."
            raise CommandError(msg)
        if topic.schema is not None:
            topic = replace(topic, schema_text=_text(plain, topic.schema, needed=read))
        return topic

    def _check_references(self) -> None:
        """Require what is referred to: the broker is asked from here, too, before a job begins."""
        try:
            self.client_options()
            self.registry_options()
        except SecretError as error:
            raise CommandError(str(error).removesuffix(INCURABLE).rstrip()) from None

    def _check_formats(self) -> None:
        if self.registry is not None:
            return
        if self.subject is not None or self.format == "protobuf":
            msg = f"{self!r}: subject and format=protobuf need registry=URL."
            raise CommandError(msg)
        if self.format != "avro" and (self.schema or self.encoding != "bare"):
            msg = f"{self!r}: schema and encoding are of format=avro."
            raise CommandError(msg)
        if self.format == "avro" and self.schema is None:
            msg = f"{self!r}: format=avro needs schema=FILE, the Avro schema of its values; or registry=URL."
            raise CommandError(msg)


def _check_registry(plain: str, given: Mapping[str, str], *, read: bool) -> None:
    """Check the address of a registry, and that nothing else says what the registry does."""
    parts = urlsplit(given["registry"])
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        msg = (
            f"{plain}: registry must be http://HOST:PORT or https://HOST:PORT, with "
            "schema.registry.basic.auth.user.info in a file that config= names."
        )
        raise CommandError(msg)
    for option in ("schema", "encoding", *(("format",) if read else ())):
        if option in given:
            msg = f"{plain}: {option} must not be given beside registry, which has the schema of each record."
            raise CommandError(msg)


def _settings(plain: str, options: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Take librdkafka's options from the URL, and from the file that it names."""
    settings = _properties(plain, options["config"]) if "config" in options else {}
    settings.update({name: options.pop(name) for name in list(options) if "." in name})
    for name in settings:
        if name in _OWN or name == f"{_OF_REGISTRY}url":
            instead = " by registry=" if name.startswith(_OF_REGISTRY) else ""
            msg = f"{plain}: {name} must not be set: crenel sets it{instead}."
            raise CommandError(msg)
    return tuple(settings.items())


def _text(plain: str, path: str, *, needed: bool) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        if not needed and not os.path.exists(path):
            return None
        msg = f"{plain}: {path} cannot be read; it must be the file of an Avro schema."
        raise CommandError(msg) from None


def _properties(plain: str, path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except OSError as error:
        msg = f"{plain}: {path} cannot be read: {os.strerror(error.errno or 5).lower()}."
        raise CommandError(msg) from None
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    if not all(separator for _, separator, _ in pairs):
        msg = f"{plain}: {path} must have one NAME=VALUE a line."
        raise CommandError(msg)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _seconds(plain: str, text: str) -> float:
    micros = parse_duration(text)
    if micros is None:
        msg = f"{plain}: idle must be a duration such as 30s, not {text!r}."
        raise CommandError(msg)
    return micros / 1e6
