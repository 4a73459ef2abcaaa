"""Topics of Kafka, as URLs name them.

    kafka://HOST:PORT[,HOST:PORT...]/TOPIC[?OPTION=VALUE&...]

An option with a dot in its name is one of librdkafka's (`security.protocol=SASL_SSL`). Put passwords
into a file of such options, named by `config`: other users of the machine can see a command line.
Better still, say where a password is (`sasl.password=env:NAME`, `file:/PATH`): then it does not travel
with the job, and each worker reads it for itself.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from crenel.errors import INCURABLE, SecretError
from crenel.pipelines.command_errors import CommandError
from crenel.policy.checks import suggestion
from crenel.policy.durations import parse_duration
from crenel.policy.secret import read_reference

__all__ = ["SCHEME", "Topic", "is_topic"]

SCHEME = "kafka://"

#: The value of an option that says where the value is.
_REFERENCE = re.compile(r"(env|file|gcp):.+")

#: Options of librdkafka that a run sets itself.
_OWN = {
    "auto.offset.reset",
    "bootstrap.servers",
    "debug",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "enable.partition.eof",
    "group.id",
    "transactional.id",
}
_BOTH = ("config", "encoding", "format", "schema", "schema_id")
_READ = ("idle", "schemas", "start", "until")
_CHOICES = {
    "encoding": ("bare", "single", "confluent"),
    "format": ("json", "avro"),
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
    format: str = "json"
    #: The file of the Avro schema, and its text: workers may be on other machines.
    schema: str | None = None
    schema_text: str | None = None
    #: The start of an Avro value: nothing, a fingerprint (a single object), or the schema's id (Confluent).
    encoding: str = "bare"
    #: The id of the schema in the file; or a folder of the schemas of all values, and their texts by id.
    schema_id: int | None = None
    schemas: str | None = None
    schema_texts: tuple[tuple[int, str], ...] = ()
    #: Where reading begins, and where it ends: at the last record there is now, or never.
    start: str = "earliest"
    until: str | None = None
    #: Seconds of silence after which a partition no longer holds event time back.
    idle: float = 30.0
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
        return {name: self._value(name, value) for name, value in self.settings}

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
        known = _BOTH + (_READ if read else ())
        for option, value in options.items():
            if option not in known:
                guess = suggestion(option, known).capitalize()
                msg = f"{plain}: {option!r} must be one of {', '.join(known)}, or an option of librdkafka. {guess}"
                raise CommandError(msg.strip())
            if option in _CHOICES and value not in _CHOICES[option]:
                msg = f"{plain}: {option} must be {' or '.join(_CHOICES[option])}, not {value!r}."
                raise CommandError(msg)
        given: dict[str, Any] = {option: options[option] for option in options if option != "config"}
        if "idle" in given:
            given["idle"] = _seconds(plain, given["idle"])
        if "schema_id" in given:
            given["schema_id"] = _schema_id(plain, given["schema_id"])
        topic = cls(servers=parts.netloc, name=name, settings=settings, **given)
        topic._check_references()
        topic._check_avro()
        if topic.schema is not None:
            topic = replace(topic, schema_text=_text(plain, topic.schema, needed=read))
        if topic.schemas is not None:
            topic = replace(topic, schema_texts=_texts(plain, topic.schemas))
        topic._check_ids(read=read)
        return topic

    def _check_references(self) -> None:
        """Require what is referred to: the broker is asked from here, too, before a job begins."""
        try:
            self.client_options()
        except SecretError as error:
            raise CommandError(str(error).removesuffix(INCURABLE).rstrip()) from None

    def _check_avro(self) -> None:
        named = self.schema_id is not None or self.schemas is not None
        if self.format != "avro" and (self.schema or self.encoding != "bare" or named):
            msg = f"{self!r}: schema, encoding, schema_id and schemas are of format=avro."
            raise CommandError(msg)
        if self.format == "avro" and self.schema is None:
            msg = f"{self!r}: format=avro needs schema=FILE, the Avro schema of its values."
            raise CommandError(msg)
        if self.encoding != "confluent" and named:
            msg = f"{self!r}: schema_id and schemas are of encoding=confluent."
            raise CommandError(msg)
        if self.schema_id is not None and self.schemas is not None:
            msg = f"{self!r}: must have schema_id or schemas, not both; put the schema of that id into the folder, too."
            raise CommandError(msg)

    def _check_ids(self, *, read: bool) -> None:
        """Require ids: without them a value of another schema would be read as one of this, under wrong field names."""
        if self.encoding != "confluent" or self.schema_id is not None or self.schemas is not None:
            return
        needed = f"encoding=confluent needs schema_id=ID, the id that the schema registry has for {self.schema}"
        if read:
            msg = f"{self!r}: {needed}; or schemas=FOLDER, with a file ID.avsc for each schema that values have."
            raise CommandError(msg)
        if self.schema_text is not None:
            msg = f"{self!r}: {needed}."
            raise CommandError(msg)


def _settings(plain: str, options: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Take librdkafka's options from the URL, and from the file that it names."""
    settings = _properties(plain, options["config"]) if "config" in options else {}
    settings.update({name: options.pop(name) for name in list(options) if "." in name})
    for name in settings:
        if name in _OWN:
            msg = f"{plain}: {name} must not be set: crenel sets it."
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


def _texts(plain: str, folder: str) -> tuple[tuple[int, str], ...]:
    """The schemas of a folder, by id."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".avsc"))
    except OSError:
        msg = f"{plain}: {folder} cannot be read; it must be a folder of Avro schemas."
        raise CommandError(msg) from None
    found = []
    for name in names:
        number = name.removesuffix(".avsc")
        if not _is_id(number):
            msg = f"{plain}: {folder} must have files ID.avsc, named after the ids of a schema registry, not {name}."
            raise CommandError(msg)
        found.append((int(number), str(_text(plain, os.path.join(folder, name), needed=True))))
    if len(dict(found)) < max(len(found), 1):
        msg = f"{plain}: {folder} must have files ID.avsc, named after the ids of a schema registry, one for each id."
        raise CommandError(msg)
    return tuple(found)


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text) < 1 << 32


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


def _schema_id(plain: str, text: str) -> int:
    if not _is_id(text):
        msg = f"{plain}: schema_id must be a schema's number, not {text!r}."
        raise CommandError(msg)
    return int(text)
