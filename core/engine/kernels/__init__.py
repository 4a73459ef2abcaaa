"""The parts that compiled methods share; numba compiles them when they are first used, and keeps the result on disk."""

from __future__ import annotations
