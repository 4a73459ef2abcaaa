"""Runs one benchmark (`python -m benchmarks scale [options]`), or all of them."""

from __future__ import annotations

import sys

from benchmarks import (
    adaptive_paper,
    attacks,
    audit,
    bastion,
    bursts,
    castle_paper,
    castleguard_paper,
    continuous_paper,
    engine,
    first_use,
    flink,
    formats,
    held,
    kafka,
    linked_rows,
    memory,
    methods,
    partition_paper,
    scale,
    static,
    tables_call,
    transform,
)

ALL = {
    "engine": engine.main,
    "methods": methods.main,
    "attacks": attacks.main,
    "linked_rows": linked_rows.main,
    "bastion": bastion.main,
    "bursts": bursts.main,
    "castle_paper": castle_paper.main,
    "castleguard_paper": castleguard_paper.main,
    "partition_paper": partition_paper.main,
    "continuous_paper": continuous_paper.main,
    "adaptive_paper": adaptive_paper.main,
    "static": static.main,
    "transform": transform.main,
    "tables_call": tables_call.main,
    "memory": memory.main,
    "held": held.main,
    "formats": formats.main,
    "first_use": first_use.main,
    "audit": audit.main,
    "scale": scale.main,
    "flink": flink.main,
    "kafka": kafka.main,
}


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] in ALL:
        return ALL[arguments[0]](arguments[1:])
    if any(not argument.startswith("-") for argument in arguments[:1]):
        print(f"benchmarks: the first word must be one of {', '.join(ALL)}.", file=sys.stderr)
        return 2
    # Options of a single benchmark are passed only if it is named.
    return max(run(arguments) for run in ALL.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
