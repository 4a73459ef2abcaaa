"""What `crenel compile` compiles is all that engines need, whatever their policies declare."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Prints the kernels that policies with one quasi-identifier compile beyond those of `crenel compile`.
PROGRAM = """
import sys

import numpy as np

from crenel.encoding.rows import Rows
from crenel.engine import create_engine, precompile
from crenel.engine.kernels.compiler import Kernel
from crenel.policy import Policy, methods


def compiled():
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith("crenel.engine.")]
    kernels = {id(value): value for module in modules for value in vars(module).values() if isinstance(value, Kernel)}
    return {(kernel.__name__, str(kind)) for kernel in kernels.values() for kind in kernel._compiled.signatures}


def use_one_column(method, **said):
    columns = {"age": {"type": "numeric", "domain": [0, 100]}}
    try:
        policy = Policy.from_dict(
            {"version": 1, "person": "who", "quasi_identifiers": columns, "k": 2, "method": method, **said}
        )
    except ValueError:
        return 0  # not every method takes every policy
    n = np.arange(60)
    sensitive = (n % 5).reshape(60, 1)[:, : len(policy.sensitive)]
    engine = create_engine(policy)
    engine.push(Rows(n.reshape(60, 1) * 1.0, n, sensitive, n * 1_000_000))
    again = create_engine(policy)
    again.restore(engine.snapshot())
    again.flush()
    return 1


precompile.compile_family(methods.names())
before = compiled()
used = [
    sum(use_one_column(method, **delay, **promise) for method in methods.names())
    for delay in ({"delay_rows": 10}, {"delay": "1m", "event_time": "at"})
    for promise in ({}, {"sensitive": ["ill"], "l": 2}, {"sensitive": ["ill"], "t": 0.9})
]
print(len(before) > 20, all(used), *sorted({name for name, _ in compiled() - before}))
"""


@pytest.mark.slow
def test_policies_with_one_quasi_identifier_compile_nothing_more() -> None:
    """For numba, the transposed view of one column has another type than that of several."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True"]
