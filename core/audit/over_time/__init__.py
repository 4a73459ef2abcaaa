"""Promises about several rows of one person over time."""
