"""What a broker or its client says, in sentences for the user: what, where, and what to do.

The words of librdkafka are repeated: they name brokers, listeners and certificates, and never a value of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crenel.errors import Unrecoverable
from crenel.pipelines.kafka.topics import Topic
from crenel.runners import JobFailed

__all__ = ["InputLost", "is_unknown_topic", "refusal"]

_UNKNOWN = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")

#: What to do, by the name of the error.
_ADVICE: dict[str, str] = {
    **dict.fromkeys(_UNKNOWN, "The topic does not exist, or was deleted: create it, and run again."),
    **dict.fromkeys(
        ("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"),
        "The broker knows this client and does not let it use the topic: change the broker's ACLs, or log in as "
        "another user (sasl.username, in the file of ?config=).",
    ),
    **dict.fromkeys(
        ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED"),
        "The login failed: check sasl.mechanism, sasl.username and sasl.password in the file of ?config=.",
    ),
    **dict.fromkeys(
        ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE", "_SSL", "_MSG_TIMED_OUT"),
        "Check that the address is right and the broker is up. If its listener wants TLS or a login, "
        "security.protocol must be SSL, SASL_SSL or SASL_PLAINTEXT (in the URL, or in the file of ?config=); if it "
        "wants neither, PLAINTEXT.",
    ),
}


class InputLost(JobFailed, Unrecoverable):
    """The input is not there any more, or is not the one that the run began with."""


def is_unknown_topic(error: Any) -> bool:
    """Whether a broker says that there is no such topic or partition."""
    return error.name() in _UNKNOWN


def refusal(topic: Topic, error: Any, heard: Sequence[str] = ()) -> str:
    """Say what the broker of a topic refused.

    Args:
        topic: The topic.
        error: The error of the client.
        heard: What the client said before about its connections.
    """
    said = _plain(heard[-1] if heard else error.str())
    advice = _ADVICE.get(error.name(), "")
    return f"{topic!r}: {said}. {advice}".strip()


def _plain(said: str) -> str:
    return said.removeprefix("Local: ").removeprefix("Broker: ").rstrip(". ").strip()
