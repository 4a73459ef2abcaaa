"""Runs pipelines on Flink: on an existing cluster, or on one that is started for the run.

    crenel run ... --runner flink --flink-master HOST:8081     the existing cluster
    crenel run ... --runner flink                              a cluster on this machine, for this run

Workers are Python processes that the TaskManagers start with `crenel-boot`, so crenel must be installed on their
machines. Workers open files by name: with several machines, inputs and outputs must lie on a file system that all of
them share. Files are processed as a batch: rows are grouped by shard, and one worker processes a shard, without state.
The outputs are the same as on the local runner.
"""

from __future__ import annotations
