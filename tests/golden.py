"""Golden files: state as a release wrote it, and the releases that followed.

A savepoint or an `--update` must survive an upgrade. For every schema in the tree (`castle.1.avsc`, ...) there is a
file `golden/castle.1.json` from the time when the schema was new: a snapshot, the rows that were pushed afterwards, and
their releases. The tests load it with the current code and expect the same releases.

    python -m tests.golden      writes the files of schemas that have none yet

Once a version is released, its golden files never change. If a test of one fails, the code has to change, not the file.
To store something else, add a schema (`castle.2.avsc`, first in the list of its module; the old one stays), and run
this to add its file.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from crenel.encoding.rows import Rows
from crenel.engine import Releases, create_engine
from crenel.policy import Policy

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent

#: The folders of schemas, each with the folder of its golden files.
FOLDERS = {
    ROOT / "core" / "engine": TESTS / "core" / "engine" / "golden",
    ROOT / "transforms": TESTS / "transforms" / "golden",
}


def files() -> dict[str, Path]:
    """Return the golden file of each schema in the tree, by the schema's name (`castle.1`)."""
    return {
        schema.stem: golden / f"{schema.stem}.json"
        for folder, golden in FOLDERS.items()
        for schema in sorted(folder.rglob("*.avsc"))
    }


def as_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def as_bytes(text: str) -> bytes:
    return base64.b64decode(text)


# --- Engines ---

ENGINE_POLICY: dict[str, Any] = {
    "version": 1,
    "person": "who",
    "quasi_identifiers": {
        "age": {"type": "numeric"},
        "zip": {"type": "prefix", "length": 3},
        "kind": {"type": "categorical", "hierarchy": {"any": {"ab": ["a", "b"], "cd": ["c", "d"]}}},
    },
    "sensitive": {"color": None, "size": {"values": ["s", "m", "l"], "ordered": True}},
    "k": 3,
    "l": 2,
    "t": 0.7,
    "delay": "100s",
    "delay_rows": 40,
    "method": "castle",
    "on_suppress": "star",
    "seed": 7,
}


def engine_rows(count: int) -> Rows:
    """Compute scattered rows without a random generator, which a release of numpy could change."""
    n = np.arange(count, dtype=np.int64)
    qi = np.stack([n * 37 % 101, n * 113 % 1000, n * 5 % 4], axis=1)
    sensitive = np.stack([(n * n + n // 3) % 5 + 10**6, n // 2 % 3], axis=1)
    return Rows(qi.astype(np.float64), n * 11 % 37, sensitive, n * 3 * 10**6 - n * 17 % 5 * 10**6)


def write_engine(**changes: Any) -> dict[str, Any]:
    said = {name: value for name, value in (ENGINE_POLICY | changes).items() if value is not None}
    policy, rows = Policy.from_dict(said), engine_rows(200)
    engine = create_engine(policy)
    engine.push(rows.slice(0, 150))
    data = engine.snapshot()
    return {"policy": said, "pushed": 150, "rows": 200, "snapshot": as_text(data), "releases": continued(engine, rows)}


def write_partition() -> dict[str, Any]:
    said: dict[str, Any] = {**ENGINE_POLICY, "method": "partition"}
    said |= {"k": 5, "delay": "150s", "delay_rows": 60, "parameters": {"reuse_for": 30}}
    del said["t"]
    policy, rows = Policy.from_dict(said), with_holes(engine_rows(200))
    engine = create_engine(policy)
    engine.push(rows.slice(0, 150))
    data = engine.snapshot()
    return {
        "policy": said,
        "pushed": 150,
        "rows": 200,
        "holes": True,
        "snapshot": as_text(data),
        "releases": continued(engine, rows),
    }


def with_holes(rows: Rows) -> Rows:
    """Return the same rows, some without an age, some without a zip."""
    n = np.arange(len(rows))
    qi = rows.qi.copy()
    qi[n % 3 == 1, 0] = np.nan
    qi[n % 7 == 3, 1] = np.nan
    return replace(rows, qi=qi)


def rows_of(record: dict[str, Any]) -> Rows:
    """Return all rows of an engine's golden file."""
    rows = engine_rows(record["rows"])
    return with_holes(rows) if record.get("holes") else rows


def continued(engine: Any, rows: Rows) -> list[dict[str, Any]]:
    """Push the remaining rows, and return their releases."""
    now = int(rows.time.max()) + 60 * 10**6
    return [listed(engine.push(rows.slice(150, 200))), listed(engine.advance(now)), listed(engine.flush())]


def listed(releases: Releases) -> dict[str, Any]:
    columns = {field.name: getattr(releases, field.name).tolist() for field in fields(Releases)}
    # JSON has no NaN.
    return {name: [_without_nan(value) for value in values] for name, values in columns.items()}


def _without_nan(value: Any) -> Any:
    return [None if np.isnan(x) else x for x in value] if isinstance(value, list) else value


# --- Transforms ---


def write_pack() -> dict[str, Any]:
    from crenel.transforms._pack.row_pack import Packer
    from tests.transforms import streams

    policy, given = streams.policy(), streams.rows(6)
    (pack,) = Packer(policy, b"secret").pack_dicts(given, None).packs
    return {"policy": policy.to_dict(), "given": given, "pack": as_text(pack.to_bytes())}


def write_shards() -> dict[str, Any]:
    import pyarrow as pa

    from crenel.transforms._pack.row_pack import Packer
    from tests.transforms import cells, streams

    policy, given = streams.policy(shards=3), streams.rows(160)
    packer = Packer(policy, b"secret")
    packs = []
    for start in range(0, 160, 20):
        part = given[start : start + 20]
        # Use both dicts and Arrow, so that the state contains both forms.
        packed = packer.pack_dicts(part, None) if start % 40 else packer.pack_arrow(pa.Table.from_pylist(part), None)
        packs += [as_text(pack.to_bytes()) for pack in packed.packs]
    state, cut = cells.State(), len(packs) * 5 // 8
    with cells.short_logs(1_000):
        worker = cells.Worker(policy)
        for pack in packs[:cut]:
            worker.push(state, as_bytes(pack))
    if not state.log.items or state.snapshot.value is None:
        raise AssertionError("there must be a snapshot and a log after it")
    record = {
        "policy": policy.to_dict(),
        "snapshot": as_text(state.snapshot.value),
        "log": [as_text(op) for op in state.log.items],
        "token": as_text(state.token.value or b""),
        "packs": packs[cut:],
    }
    cells.forget()
    return {**record, "published": gone_on(record)}


def write_held() -> dict[str, Any]:
    from crenel.policy.durations import LONGEST
    from crenel.transforms._hold.shard_holder import ShardHolder
    from crenel.transforms._pack.row_pack import Packer
    from tests.transforms import streams

    policy, given = replace(streams.policy(), disorder=LONGEST), streams.rows(160)
    (pack,) = Packer(policy, b"secret").pack_dicts(given, None).packs
    holder = ShardHolder(policy, b"secret", b"0")
    holder.push(pack.slice(0, 100))
    holder.advance(int(pack.rows.time[60]))  # the others wait for the watermark
    rest = [as_text(pack.slice(100, 160).to_bytes())]
    record = {"policy": policy.to_dict(), "held": as_text(holder.snapshot()), "packs": rest}
    return {**record, "published": held_on(record)}


def learned() -> Any:
    """Return what a follower knows that has learned a tree from computed rows."""
    from crenel.encoding.tree_following import TreeFollower, Watch, one_shard

    follower = TreeFollower(learning_policy(), one_shard(learning_policy()), Watch(), lambda: ())
    follower.deal(engine_rows(8_192 + 40))
    return follower


def learning_policy() -> Policy:
    said = {name: value for name, value in ENGINE_POLICY.items() if name not in ("t", "l", "delay_rows")}
    return Policy.from_dict(said | {"shards": 4, "shard_by": "locality", "delay": "1h"})


def write_trees() -> dict[str, Any]:
    from crenel.transforms._deal.stored_trees import written_trees

    schedule = learned().schedule
    return {"stored": as_text(written_trees(schedule)), "trees": schedule.to_list()}


def write_watch() -> dict[str, Any]:
    from crenel.transforms._deal.stored_trees import written_watch

    watch = learned().watch
    return {"stored": as_text(written_watch(watch)), "watch": asdict(watch)}


def write_sample() -> dict[str, Any]:
    from crenel.transforms._deal.stored_trees import written_sample

    rows = engine_rows(12)
    return {"stored": as_text(written_sample(rows)), "rows": 12}


def held_on(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Restore a stored shard, push the packs that follow, and return the published rows."""
    from crenel.transforms._hold.shard_holder import ShardHolder
    from crenel.transforms._pack.row_pack import RowPack
    from crenel.transforms._publish.publisher import Publisher

    policy = Policy.from_dict(record["policy"])
    holder = ShardHolder(policy, b"another secret", b"0")
    holder.restore(as_bytes(record["held"]))
    left = [departure for pack in record["packs"] for departure in holder.push(RowPack.from_bytes(as_bytes(pack)))]
    return [row for departure in [*left, *holder.flush()] for row in Publisher(policy).published(departure)]


def gone_on(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Restore the stored state of a step, push the packs that follow, and return the published rows."""
    from tests.transforms import cells

    state = cells.State()
    state.snapshot.value = as_bytes(record["snapshot"])
    state.log.items = [as_bytes(op) for op in record["log"]]
    state.token.value = as_bytes(record["token"])
    worker = cells.Worker(Policy.from_dict(record["policy"]))
    out: list[Any] = []
    for pack in record["packs"]:
        out += worker.push(state, as_bytes(pack))
    out += worker.fire(state, at=cells.END)
    rows: list[dict[str, Any]] = []
    for value in cells.published(out):
        rows += [value] if isinstance(value, dict) else value.to_pylist()
    return rows


#: The functions that write golden files, by the schema's name without its number.
WRITERS: dict[str, Callable[[], dict[str, Any]]] = {
    "bastion": lambda: write_engine(method="bastion", k=5, parameters={"reuse": "weighted", "max_reusable": 4}),
    "castle": write_engine,
    "castleguard": lambda: write_engine(
        method="castleguard", t=None, parameters={"beta_sample": 0.75, "perturb_sensitive": {"size": 2.0}}
    ),
    "once_per": lambda: write_engine(once_per="40s"),
    "together": lambda: write_engine(method="bastion", k=8, together="50s", on_suppress="drop"),
    "reordered": lambda: write_engine(delay_rows=None, parameters={"reorder": True}),
    "sdgs": lambda: write_engine(
        method="sdgs",
        t=None,
        l=None,
        delay_rows=60,
        on_suppress="drop",
        quasi_identifiers=ENGINE_POLICY["quasi_identifiers"] | {"age": {"type": "numeric", "domain": [0, 100]}},
        parameters={"beta_sample": 0.75, "grid": {"age": 4, "zip": 0, "kind": 1}, "cover": "quasi_identifiers"},
    ),
    "partition": write_partition,
    "z_anonymity": lambda: write_engine(
        method="z-anonymity",
        t=None,
        l=None,
        delay_rows=None,
        quasi_identifiers=ENGINE_POLICY["quasi_identifiers"] | {"age": {"type": "numeric", "domain": [0, 100]}},
    ),
    "buffered": lambda: write_engine(method="faanst-passive", t=None, parameters={"mu": 20}),
    "rtree": lambda: write_engine(
        k=12,
        t=None,
        method="rtree-full",
        parameters={"active_rows": 24, "alpha": 0.01, "sample": 20, "window_rows": 60, "instant": "2s"},
    ),
    "held": write_held,
    "trees": write_trees,
    "watch": write_watch,
    "sample": write_sample,
    "pack": write_pack,
    "shards": write_shards,
}


def main() -> None:
    """Write the files that are missing."""
    for name, path in files().items():
        if path.exists():
            print(f"{name}: exists, and stays as it is")
            continue
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(WRITERS[name.partition(".")[0]](), indent=1) + "\n", encoding="utf-8")
        print(f"{name}: written")


if __name__ == "__main__":
    main()
