"""The columns of releases must fit together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crenel.audit import Published
from crenel.audit.evidence import CLUSTER, REUSE, SAMPLED_OUT, SUPPRESSED
from crenel.engine import Kind

COLUMNS: dict[str, Any] = {
    "rows": range(10),
    "offsets": [0, 3, 4, 7, 8, 9, 10],
    "lo": np.zeros((6, 3)),
    "hi": np.ones((6, 3)),
    "kind": [CLUSTER] * 6,
    "group": range(6),
}
BAD_COLUMNS: dict[str, dict[str, Any]] = {
    "offsets do not begin at 0": {"offsets": [1, 3, 4, 7, 8, 9, 10]},
    "offsets end early": {"offsets": [0, 3, 4, 7, 8, 9, 9]},
    "offsets fall": {"offsets": [0, 4, 3, 7, 8, 9, 10]},
    "there are no offsets": {"offsets": []},
    "boxes are missing": {"lo": np.zeros((5, 3))},
    "boxes have two shapes": {"hi": np.zeros((6, 2))},
    "a kind is missing": {"kind": [CLUSTER] * 5},
    "there is one group too many": {"group": range(7)},
}


def test_columns_that_fit_are_taken():
    assert len(Published(**COLUMNS)) == 6


@pytest.mark.parametrize("changes", BAD_COLUMNS.values(), ids=BAD_COLUMNS)
def test_columns_that_do_not_fit_are_refused(changes: dict[str, Any]):
    with pytest.raises(ValueError, match=r"^published: .* must "):
        Published(**COLUMNS | changes)


def test_the_kinds_have_the_numbers_of_the_engine():
    assert (CLUSTER, REUSE, SUPPRESSED, SAMPLED_OUT) == (Kind.CLUSTER, Kind.REUSE, Kind.SUPPRESSED, Kind.SAMPLED_OUT)
