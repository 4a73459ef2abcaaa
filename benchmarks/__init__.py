"""Speed against the limit, and the papers' experiments. `README.md` here says how to run them."""

from __future__ import annotations
