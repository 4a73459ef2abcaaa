"""The audit judges a published stream, and trusts nobody but the policy.

`audit(policy, rows, releases)` recomputes every promise from the rows that went in and the releases that came out. It
shares no code with the engine, so a bug in the engine cannot hide itself here. Engine and audit have only the user's
declarations in common: the policy and its geometry.

What the audit can prove depends on the evidence:

- The published rows alone show whether each group has at least `l` distinct sensitive values, whether every box is one
  that the policy can publish, and whether a column leaves that the policy does not name. They show how many rows a
  group has, but not how many persons.
- With the input, the audit also bounds the number of persons in each group, and finds lost rows, invented rows, and
  rows outside their box.
- With the trace of the run, it knows the person and the times of every row. Every promise can then be decided.

A promise that the evidence cannot decide counts as not checked, never as kept. The results hold counts and the
policy's own names, never a value of a row, so they can be logged.

Example: four rows leave in two releases of two persons each.

    >>> from crenel.audit import Published, audit
    >>> from crenel.encoding.encoder import Encoder
    >>> from crenel.policy import Policy
    >>> policy = Policy.from_dict(
    ...     {
    ...         "person": "id",
    ...         "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 100]}},
    ...         "k": 2,
    ...         "delay_rows": 4,
    ...     }
    ... )
    >>> rows = Encoder(policy).encode({"id": ["a", "b", "c", "d"], "age": [23, 27, 41, 48]}).rows
    >>> boxes = {"lo": [[23], [41]], "hi": [[27], [48]]}
    >>> kept = Published(rows=[0, 1, 2, 3], offsets=[0, 2, 4], kind=[0, 0], arrivals=[4, 4], **boxes)
    >>> audit(policy, rows, kept).problems()
    []

One row changes sides: a release of one person breaks the promise of `k`, and its box does not contain the row.

    >>> broken = Published(rows=[0, 1, 2, 3], offsets=[0, 3, 4], kind=[0, 0], arrivals=[4, 4], **boxes)
    >>> for problem in audit(policy, rows, broken).problems():
    ...     print(problem)
    1 rows that left with fewer than k persons at one moment.
    1 releases of fewer than k persons.
    1 rows outside their box.

Here belongs whatever judges a published stream: the promises (`guarantees`, `promises`), what anonymity costs
(`measures`, `utility`), attacks (`attacks`), and the document that `crenel audit` prints (`document`). Reading files
and drawing pages belongs to `crenel.pipelines`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crenel.audit.evidence import Published
    from crenel.audit.guarantees import audit
    from crenel.audit.report import Report

__all__ = ["Published", "Report", "audit"]

_HOME = {"Published": "crenel.audit.evidence", "Report": "crenel.audit.report", "audit": "crenel.audit.guarantees"}


def __getattr__(name: str) -> Any:
    # Imported on first use, so that a submodule can be imported without the others.
    import importlib

    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
