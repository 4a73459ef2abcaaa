"""A first pass over files, for `shard_by: locality`: a sample of rows, from which the tree of shards is learned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from crenel.encoding.encoder import Encoder
from crenel.encoding.row_sample import RowSample
from crenel.pipelines.files.readers import Source
from crenel.policy import Policy
from crenel.policy.columns import EACH_ROW
from crenel.transforms._pack.nested_fields import flat
from crenel.transforms._pack.text_columns import TextColumns, named_columns

__all__ = ["sample_of"]


def sample_of(policy: Policy, sources: Sequence[Source]) -> RowSample:
    """Sample the rows of files that fit the policy. The sample depends on the rows alone, not on files or order.

    Raises:
        TableError: a file cannot be read.
    """
    encoder, named = Encoder(policy), named_columns(policy)
    sample, count = RowSample(), 0
    for source in sources:
        text = TextColumns(policy, source.dialect.values)
        for batch in source.batches():
            time = np.zeros(batch.num_rows, dtype=np.int64) if policy.event_time is None else None
            rows, wrong = flat(batch, named)
            table = text.arrays(rows, named)
            if policy.each_row:
                table[EACH_ROW] = pa.array(np.arange(count, count + batch.num_rows))
            count += batch.num_rows
            sample.add(encoder.encode(table, time).without(wrong).rows)
    return sample
