"""CASTLEGUARD: CASTLE with sampling and perturbation."""

from __future__ import annotations
