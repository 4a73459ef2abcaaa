"""Compile the engines now, so that no run and no worker has to wait for it.

The first use of a method compiles its inner loops, which takes up to half a minute. This command does so for all
methods, or for those that you name, and keeps the result on disk: run it when you build a container image, as the
user that will run there. If everything is compiled already, it takes seconds.

Exits with 1 if there is no folder to keep compiled code in. NUMBA_CACHE_DIR names one.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from crenel.policy import methods

__all__ = ["EXAMPLE", "add_arguments", "run"]

EXAMPLE = "  crenel compile    # every method; NUMBA_CACHE_DIR says where to keep them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="methods to compile; all of them by default")


def run(arguments: argparse.Namespace) -> int:
    """Compile; 1 if nothing can be kept."""
    from crenel.engine import precompile

    wanted = arguments.methods or methods.names()
    for name in wanted:
        methods.find(name)  # says which methods there are
    if precompile.folder() is None:
        print(
            "crenel: compiled code cannot be kept: neither the installation nor the home folder can be written to. "
            "Set NUMBA_CACHE_DIR to a folder that can.",
            file=sys.stderr,
        )
        return 1
    # Spawned: a process that was forked while Beam or Arrow had threads may hang.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        began = time.monotonic()
        running = {pool.submit(precompile.compile_family, family): family for family in precompile.families(wanted)}
        for done in as_completed(running):
            done.result()
            print(f"{', '.join(running[done])}: compiled after {time.monotonic() - began:.0f} s", flush=True)
    print(f"kept in {precompile.folder()}")
    return 0
