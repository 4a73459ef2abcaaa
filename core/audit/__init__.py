"""Measures of a published stream: whether the guarantees hold, and what they cost.

The audit is an independent witness. It reads a policy, the rows that went in and the releases that
came out, and shares no code with the engine that made them: an error in the engine cannot excuse
itself here. Only what the user declares (the policy and its geometry) is common to both.
"""

from __future__ import annotations
