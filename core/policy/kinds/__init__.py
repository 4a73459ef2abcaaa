"""Parts of the built-in types of quasi-identifiers.

Here belongs what several types share: values on a line, and what becomes of values that are missing or unknown.
"""

from __future__ import annotations
