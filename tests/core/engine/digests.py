"""Digests of everything that each method releases, to detect unintended changes of releases.

    python -m tests.core.engine.digests      adds the digests of streams that have none yet

The digests in `digests.json` stay the same as long as a method releases the same rows in the same way. To change what
a method releases on purpose, delete its lines and run the command.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from crenel.encoding.rows import Rows
from crenel.engine import Releases, create_engine
from crenel.policy import Policy

FILE = Path(__file__).parent / "digests.json"
ROWS = 3_000

_BASE: dict[str, Any] = {
    "version": 1,
    "person": "who",
    "event_time": "at",
    "quasi_identifiers": {
        "age": {"type": "numeric", "domain": [0, 101]},
        "height": {"type": "numeric", "step": 3},
        "zip": {"type": "prefix", "length": 3},
        "kind": {"type": "categorical", "hierarchy": {"any": {"ab": ["a", "b"], "cd": ["c", "d"]}}},
    },
    "sensitive": {"color": None, "size": {"values": ["s", "m", "l"], "ordered": True}},
    "k": 5,
    "delay_rows": 200,
    "seed": 7,
}
_BY_TIME = {"delay": "300s", "delay_rows": None}
_BOTH = {"delay": "300s", "disorder": "20s"}
_LEARNED = {"quasi_identifiers": {**_BASE["quasi_identifiers"], "age": {"type": "numeric"}}}
_DECLARED = {"quasi_identifiers": {**_BASE["quasi_identifiers"], "height": {"type": "numeric", "domain": [0, 60]}}}

#: The changes to the base policy, for each stream.
STREAMS: dict[str, dict[str, Any]] = {
    "bastion": {"method": "bastion"},
    "bastion, by time": {"method": "bastion", **_BY_TIME},
    "bastion, both, learned": {"method": "bastion", **_BOTH, **_LEARNED},
    "bastion, l": {"method": "bastion", "l": 2},
    "bastion, t": {"method": "bastion", "t": 0.5, "on_suppress": "star"},
    "bastion, reuse": {"method": "bastion", "parameters": {"reuse": "weighted", "max_reusable": 40}},
    "bastion, uniform reuse": {"method": "bastion", "parameters": {"reuse": "uniform"}},
    "bastion, reorder": {"method": "bastion", "parameters": {"reorder": True}},
    "castle": {"method": "castle"},
    "castle, by time": {"method": "castle", **_BY_TIME},
    "castle, both, learned": {"method": "castle", **_BOTH, **_LEARNED},
    "castle, l": {"method": "castle", "l": 2},
    "castle, t": {"method": "castle", "t": 0.5},
    "castle, off": {"method": "castle", "parameters": {"reuse": "off", "beta": 20}},
    "castle, reorder": {"method": "castle", "parameters": {"reorder": True}},
    "castleguard": {"method": "castleguard", **_DECLARED},
    "castleguard, l": {"method": "castleguard", **_DECLARED, "l": 2, "parameters": {"beta_sample": 0.8, "phi": 20.0}},
    "partition": {"method": "partition", "holes": True},
    "partition, best": {"method": "partition", "holes": True, **_BOTH, "parameters": {"reuse": "best"}},
    "partition, weighted": {"method": "partition", "holes": True, "l": 2, "parameters": {"reuse": "weighted"}},
    "partition, off": {"method": "partition", "holes": True, "parameters": {"reuse": "off"}},
    "sdgs": {"method": "sdgs", **_DECLARED, "k": 2, "parameters": {"cover": "quasi_identifiers", "grid": {"zip": 0}}},
    "mondrian": {"method": "mondrian"},
    "mondrian, by time, l": {"method": "mondrian", **_BY_TIME, "l": 2},
    "adaptive-window": {"method": "adaptive-window", **_BY_TIME},
    "adaptive-window, best": {
        "method": "adaptive-window",
        **_BY_TIME,
        "parameters": {"reuse": "best", "min_delay": "20s", "max_delay": "30s"},
    },
    "faanst-passive": {"method": "faanst-passive"},
    "faanst-proactive": {"method": "faanst-proactive", "parameters": {"mu": 100, "reuse": "best"}},
    "fads": {"method": "fads"},
    "fads, best, a buffer": {"method": "fads", **_BY_TIME, "parameters": {"reuse": "best", "buffer": 60}},
    "min-delay": {"method": "min-delay"},
    "z-anonymity": {"method": "z-anonymity", **_DECLARED, "parameters": {"window": "300s"}},
    "rtree": {"method": "rtree", **_BOTH},
    "rtree-density": {"method": "rtree-density", "parameters": {"sample": 200, "window_rows": 800}},
    "rtree-full": {"method": "rtree-full", **_BOTH, "parameters": {"instant": "2s", "sample": 100}},
    "rtree-full, l": {"method": "rtree-full", "l": 2},
}


def rows(*, holes: bool) -> Rows:
    """Make scattered rows by arithmetic alone: a new version of numpy could change what its generators draw."""
    n = np.arange(ROWS, dtype=np.int64)
    qi = np.stack([n * 37 % 101, n * n % 59 // 3, (n * 113 + n // 7 * 31) % 1000, n * 5 % 4], axis=1).astype(np.float64)
    if holes:
        qi[n % 3 == 1, 0] = np.nan
        qi[n % 7 == 3, 2] = np.nan
    sensitive = np.stack([(n * n + n // 3) % 5 + 10**6, n // 2 % 3], axis=1)
    time = n * 3 * 10**6 - n * 17 % 5 * 10**6
    return Rows(qi, n * 11 % 1_009, sensitive, time)


def digest(name: str) -> str:
    """Return the digest of all releases of a stream, in their order."""
    said = {**_BASE, **STREAMS[name]}
    given = rows(holes=bool(said.pop("holes", False)))
    engine = create_engine(Policy.from_dict({field: value for field, value in said.items() if value is not None}))
    parts = [engine.push(given.slice(start, start + 500)) for start in range(0, 2_500, 500)]
    parts.append(engine.advance(int(given.time[2_499]) + 60 * 10**6))
    parts += [engine.push(given.slice(2_500, ROWS)), engine.flush()]
    releases = Releases.concat(parts)
    found = hashlib.sha256()
    for field in fields(Releases):
        found.update(np.ascontiguousarray(getattr(releases, field.name)).tobytes())
    return found.hexdigest()


def main() -> None:
    """Write the digests that are missing."""
    known: dict[str, str] = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    known = {name: known.get(name) or digest(name) for name in STREAMS}
    FILE.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
