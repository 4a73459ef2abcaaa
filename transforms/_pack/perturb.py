"""Noise on sensitive columns, added before rows are packed: no later step knows the true values.

The noise of a row follows from the pipeline's secret and from the row's contents: person, event time if it is a column,
quasi-identifiers, sensitive values. So a bundle that is retried, a source that delivers twice, and a row that lies in
several windows all give the same noisy value again. If it were drawn anew, the mean of the copies would tell the truth.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crenel.encoding import noise
from crenel.encoding.keyed_hash import siphash
from crenel.encoding.rows import Rows
from crenel.policy import Policy, columns
from crenel.policy.sensitive import Sensitive
from crenel.policy.treatments.treatment import Round
from crenel.transforms._pack.payloads import Batch, Objects, Payload

Ints = NDArray[np.int64]


class Perturber:
    """Perturbs the sensitive columns that a policy names for it.

    Args:
        policy: Which columns, and by how much.
        secret: The noise follows from it. It travels with the pipeline.
        by_time: Whether the rows' times are columns of their own, and not given to them on the way.
    """

    def __init__(self, policy: Policy, secret: bytes, *, by_time: bool) -> None:
        self._by_time = by_time
        self._secret = hashlib.blake2b(secret, digest_size=32).digest()
        self._places = {name: place for place, name in enumerate(policy.sensitive)}
        #: For each column its declaration, its budget, and the keys of its two draws.
        self._columns = {
            name: (policy.sensitive[name], budget, self._key(f"1 {name}"), self._key(f"2 {name}"))
            for name, budget in perturbed(policy).items()
        }
        self._row_key = self._key("row")

    def __bool__(self) -> bool:
        return bool(self._columns)

    def apply(self, rows: Rows, payload: Payload) -> tuple[Rows, Payload]:
        """Add noise to rows, in their codes and in their payload."""
        digest = self._digest(rows)
        sensitive = rows.sensitive.copy()
        for name, (column, budget, *keys) in self._columns.items():
            codes = sensitive[:, self._places[name]]
            if column.domain is not None:
                numbers, _ = columns.numbers(payload.column(name))
                bits, _ = _drawn(digest, (numbers + 0.0).view(np.int64), keys)
                noisy = _numeric(numbers, bits, column.domain, budget)
                payload = payload.with_column(name, _like_numbers(payload, noisy))
                codes[:], _ = column.codes(noisy)
            else:
                bits, more = _drawn(digest, codes.copy(), keys)
                codes[:] = noise.randomized(codes, bits, more, column.size or 0, budget)
                payload = payload.with_column(name, _like_values(payload, name, column, codes))
        return replace(rows, sensitive=sensitive), payload

    def _key(self, purpose: str) -> NDArray[np.uint64]:
        named = hashlib.blake2b(purpose.encode(), key=self._secret, digest_size=16, person=b"crenel.perturb").digest()
        return np.frombuffer(named, dtype="<u8").astype(np.uint64)

    def _digest(self, rows: Rows) -> Ints:
        """Hash the contents of each row, keyed: a chain over the words of the row."""
        digest = siphash(rows.person, self._row_key)
        time = [rows.time] if self._by_time else []
        # With 0.0 added, -0.0 is 0.0.
        for word in (*time, *(rows.qi.T + 0.0).copy().view(np.int64), *rows.sensitive.T):
            digest = siphash(digest ^ word, self._row_key)
        return digest


def perturbed(policy: Policy) -> dict[str, float]:
    """Return the sensitive columns that are published with noise, and their budgets."""
    return dict(policy.parameter("perturb_sensitive", {}))


def published_as_floats(policy: Policy) -> list[str]:
    """List the columns whose numbers become floats: with noise, or rounded."""
    noisy = [name for name in perturbed(policy) if policy.sensitive[name].domain is not None]
    return noisy + [name for name, treatment in policy.treat.items() if isinstance(treatment, Round)]


def published_as_text(policy: Policy) -> list[str]:
    """List the columns whose values become text, because they are treated."""
    return [name for name, treatment in policy.treat.items() if not isinstance(treatment, Round)]


def _drawn(digest: Ints, value: Ints, keys: list[NDArray[np.uint64]]) -> list[NDArray[np.uint64]]:
    # With the value in it: the noise of two rows that differ only in the value must differ, too, or their difference
    # would be the true one.
    return [siphash(siphash(digest ^ value, key) ^ digest, key).view(np.uint64) for key in keys]


def _numeric(
    numbers: NDArray[np.float64], bits: NDArray[np.uint64], domain: tuple[float, float], budget: float
) -> NDArray[np.float64]:
    lo, hi = domain
    scale = (hi - lo) / budget
    return np.clip(noise.on_grid(numbers + noise.laplace(bits, scale), scale), lo, hi)


def _like_numbers(payload: Payload, numbers: NDArray[np.float64]) -> Any:
    return pa.array(numbers) if isinstance(payload, Batch) else numbers.tolist()


def _like_values(payload: Payload, name: str, column: Sensitive, codes: Ints) -> Any:
    """Give the values of codes the type of the original ones: nothing tells changed values from the others."""
    values = column.values or ()
    if isinstance(payload, Objects):
        return [_like(old, values[code]) for old, code in zip(payload.column(name), codes.tolist(), strict=True)]
    kind = payload.column(name).type
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_null(plain):
        chosen = pa.array(values)
    elif pa.types.is_string(plain) or pa.types.is_large_string(plain):
        chosen = pa.array([None if value is None else columns.text_of(value) for value in values], plain)
    else:
        chosen = pa.array(values).cast(plain)
    array = chosen.take(pa.array(codes))
    return array.cast(kind) if plain is not kind and not pa.types.is_null(plain) else array


def _like(old: Any, value: Any) -> Any:
    if value is None or old is None or isinstance(value, type(old)):
        return value
    return columns.text_of(value) if isinstance(old, str) else type(old)(value)
