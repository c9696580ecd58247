"""Pauses Python's collector of garbage while a model is planned.

The collector looks at all objects of the process again and again as new ones are made, and those of
a large model are many. Planning leaves few cycles behind, which are collected afterwards.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """The collector does not run; afterwards it is as the caller had it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
