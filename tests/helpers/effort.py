"""The share of a sweep that runs: all of it by command, a seeded part in every test run."""

import os

FULL = os.environ.get("BLOCKBUSTER_TESTS") == "full"
"""True in `make fuzz`, which sets the variable."""


def part(count: int, least: int = 1, of: int = 4) -> int:
    """The number of programs to try: `count` in a full run, else one in four of them."""
    return count if FULL else max(least, count // of)
