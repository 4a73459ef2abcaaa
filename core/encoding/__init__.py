"""Turns columns of values into the arrays of numbers that engine and audit work on.

Here belong the encoder, the encoded rows, the keyed hash of persons, and noise. How a single type of column becomes
numbers is declared in `crenel.policy`; what happens to the numbers is decided in `crenel.engine`.
"""

from __future__ import annotations
