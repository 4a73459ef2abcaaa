"""Ready jobs: sources, sinks and the ``crenel`` command line around the transforms.

A job reads rows, anonymizes them under a policy, and writes what is published. It adds no way for a
row to leave but through the policy: what a policy does not name, no job writes.
"""

from __future__ import annotations
