"""What a broker or its client says, in sentences for the user: what, where, and what to do.

The words of librdkafka are repeated: they name brokers, listeners and certificates, and never a value of a row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from crenel.errors import PermanentError
from crenel.pipelines.kafka.topics import Topic
from crenel.runners import JobFailed

__all__ = ["InputLost", "is_of_the_record", "is_unknown_topic", "refusal"]

_UNKNOWN = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")

#: Errors of a record, or of one beside it in its batch. All other errors are of the topic, the broker or the network.
_OF_THE_RECORD = (
    "INVALID_MSG",
    "INVALID_MSG_SIZE",
    "INVALID_RECORD",
    "INVALID_TIMESTAMP",
    "MSG_SIZE_TOO_LARGE",
    "RECORD_LIST_TOO_LARGE",
    "_INVALID_DIFFERENT_RECORD",
)

#: What to do, by the name of the error.
_ADVICE: dict[str, str] = {
    **dict.fromkeys(
        # A client that loses a partition with its topic says of the records in its queue that "the broker's handle is
        # destroyed".
        (*_UNKNOWN, "_DESTROY"),
        "The topic does not exist, or was deleted: create it. A run on Flink then goes on by itself; start any other "
        "again.",
    ),
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


class InputLost(PermanentError, JobFailed):
    """The input is not there any more, or is not the one that the run began with."""


def is_unknown_topic(error: Any) -> bool:
    """Whether a broker says that there is no such topic or partition."""
    return error.name() in _UNKNOWN


def is_of_the_record(error: Any) -> bool:
    """Whether a broker refuses a record for its content, so that sending it again cannot help."""
    return error.name() in _OF_THE_RECORD


def refusal(topic: Topic, error: Any, heard: Sequence[str] = ()) -> str:
    """Say what the broker of a topic refused.

    Args:
        topic: The topic.
        error: The error of the client.
        heard: What the client said before about its connections.
    """
    told = [_plain(one) for one in heard if not one.endswith("brokers are down")]
    # The client tries again and again, and not every message has the details: the longest one says most.
    said = f"{_plain(error.str())} ({max(told, key=len)})" if told else _plain(error.str())
    advice = _ADVICE.get(error.name(), "")
    return f"{topic!r}: {said}. {advice}".strip()


def _plain(said: str) -> str:
    without_state = re.sub(r" \(after \d+ms in state \w+.*\)$", "", said)
    words = without_state.removeprefix("Local: ").removeprefix("Broker: ").rstrip(". ")
    return "the broker cannot be reached" if words.endswith("Broker transport failure") else words
