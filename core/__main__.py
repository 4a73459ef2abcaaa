"""`python -m crenel`: the command line, where the script `crenel` is not on the path."""

from __future__ import annotations

import sys

from crenel.pipelines.cli import main

if __name__ == "__main__":
    sys.exit(main())
