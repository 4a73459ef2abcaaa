"""Benchmarks of speed, memory and loss, and the experiments of the papers. `README.md` here says how to run them."""

from __future__ import annotations
