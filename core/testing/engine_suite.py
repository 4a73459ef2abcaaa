"""The suite of promises: whether the method of a policy keeps them, on streams drawn at random."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from crenel.engine.contract import Kind
from crenel.policy import Policy
from crenel.testing.engine_checks import PROMISES, Check, expect, reason_to_skip
from crenel.testing.engine_streams import Case, draw_case

__all__ = ["check_engine"]


def check_engine(policy: Policy, *, streams: int | Iterable[int] = 25, seed: int = 0) -> None:
    """Check that the method of a policy keeps the seven promises of `docs/design.md`.

    Draws awkward streams that fit the policy: values tie, columns are constant, persons return, times stand still or go
    back, pushes are empty, and watermarks are behind and ahead of the rows. Each stream is run many times: cut in other
    ways, restored from snapshots, replayed. `crenel.audit` judges what was released; it shares no code with engines.
    What the method does not promise is read from its declaration (`crenel.policy.Method`).

    Use a small `k`, and deadlines of a few times `k` rows, or few rows are published before the end of a stream. Check
    several policies: with `l`, with `t`, with each kind of deadline, with every value of a parameter that matters.

    Args:
        policy: The policy, whose method may be anybody's. A `seed` or a `secret` of its own is ignored, so that engines
            of different shards can be compared.
        streams: How many streams to draw; or the numbers of streams, to run a failure again.
        seed: Another seed draws other streams.

    Raises:
        AssertionError: a promise is broken. The message names it, says what was expected, and how to run the stream
            again.

    Example:
        >>> check_engine(
        ...     Policy.from_dict(
        ...         {
        ...             "person": "customer",
        ...             "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 120]}},
        ...             "k": 3,
        ...             "delay_rows": 12,
        ...             "method": "mondrian",
        ...         }
        ...     ),
        ...     streams=2,
        ... )
    """
    policy = replace(policy, seed=None, secret=None)
    numbers = range(streams) if isinstance(streams, int) else list(streams)
    published = 0
    for number in numbers:
        case = draw_case(policy, np.random.default_rng([seed, number]))
        for promise, checks in PROMISES.items():
            for check in checks:
                if reason_to_skip(check, policy) is None:
                    _checked(promise, check, case, number, seed)
        published += int(np.count_nonzero(case.releases.kind == Kind.CLUSTER))
    # An engine that suppresses everything keeps every other promise.
    if isinstance(streams, int) and streams >= 10:
        what = (
            f"check_engine: none of {streams} streams had a group to publish. Choose a smaller k or a longer deadline"
        )
        expect(published, f"{what}, or let the method {policy.method!r} publish.")


def _checked(promise: str, check: Check, case: Case, number: int, seed: int) -> None:
    try:
        check(case)
    except Exception as error:
        broken = str(error) if isinstance(error, AssertionError) else f"It raised {type(error).__name__}: {error}"
        message = (
            f"check_engine: the method {case.policy.method!r} breaks the promise {promise!r} on stream {number}.\n"
            f"{broken}\n"
            f"The promise, by {check.__name__}: {check.__doc__}\n"
            f"Run it again by: check_engine(policy, streams=[{number}], seed={seed})"
        )
        raise AssertionError(message) from error
