"""Streams to attack, and what an attacker observes of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from crenel.audit.attacks import Observation
from crenel.encoding.rows import Rows
from crenel.engine import Releases, create_engine
from crenel.policy import Policy, Sensitive
from crenel.policy.quasi_identifiers import Numeric

N = 400
PARAMETERS: dict[str, dict[str, Any]] = {
    "bastion": {"reuse": "weighted"},
    "castle": {"beta": 10},
    "castleguard": {"beta": 10, "beta_sample": 0.6, "phi": 100.0},
}
#: Settings with which bastion promises a crowd at one moment.
CROWD: dict[str, Any] = {"parameters": {"reuse": "off"}, "on_suppress": "drop"}
WIDEST = np.array([[0.0, 100.0], [0.0, 100.0]])


def policy(method: str, seed: int = 1, **changes: Any) -> Policy:
    said: dict[str, Any] = {
        "person": "who",
        "quasi_identifiers": {"x": Numeric(domain=(0, 100)), "y": Numeric(domain=(0, 100))},
        "sensitive": {"s": Sensitive(values=tuple("abcd"))},
        "k": 5,
        "delay_rows": 60,
        "method": method,
        "parameters": PARAMETERS.get(method, {}),
        "on_suppress": "star",
        "seed": seed,
    }
    return Policy(**said | changes)


def stream(n: int = N, seed: int = 5) -> Rows:
    """Draw one row per person. The sensitive value depends on where the row lies."""
    random = np.random.default_rng(seed)
    qi = random.uniform(1, 99, (n, 2))
    return Rows(qi, np.arange(n), (qi[:, :1] // 25).astype(np.int64), np.zeros(n, np.int64))


def published(of: Policy, rows: Rows) -> Releases:
    engine = create_engine(of)
    return Releases.concat([engine.push(rows), engine.flush()])


def observed(of: Policy, rows: Rows) -> Observation:
    return Observation.of(of, rows, published(of, rows))


def clouds() -> Rows:
    """Draw rows around four distant places, each with its own sensitive value."""
    rows = stream()
    qi = np.stack([rows.qi[:, 0] // 25 * 30 + rows.qi[:, 0] % 25 / 5, rows.qi[:, 1]], axis=1)
    return Rows(qi, rows.person, rows.sensitive, rows.time)


def observation(
    lo: list[list[float]], hi: list[list[float]], values: list[int], star: list[bool] | None = None
) -> Observation:
    return Observation(
        lo=np.array(lo),
        hi=np.array(hi),
        sensitive=np.array(values)[:, None],
        star=np.zeros(len(lo), bool) if star is None else np.array(star),
        left=np.full(len(lo), 9),
        rows=np.arange(len(lo)),
        release=np.zeros(len(lo), np.int64),
    )
