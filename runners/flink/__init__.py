"""On Flink: a cluster that is there, or one of the run's own.

    crenel run ... --runner flink --flink-master HOST:8081     that cluster
    crenel run ... --runner flink                              a cluster on this machine, for this run

Workers are Python processes that the TaskManagers begin with `crenel-boot`, which must therefore be installed where
they run, and files reach them by their names: on more than one machine, inputs and outputs must lie on a file system
that all of them share. Files are worked on as a batch: grouped by shard, each shard by one worker, without state; what
is written is the same as on the local runner.
"""

from __future__ import annotations
