"""Bastion: the default method. Every release is a crowd of at least k persons."""

from __future__ import annotations
