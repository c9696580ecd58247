"""Models of several dtypes: products on a GPU are as exact as eager's."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.effort import part

SCRIPT = Path(__file__).parents[1] / "helpers" / "mixed_dtypes.py"
SEEDS = range(part(64, of=8))
COARSE = (10, 31)
"""Seeds of models whose products were rounded to what another operand was stored as."""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux alone")


@functools.cache
def rows(*words: str) -> list[dict[str, Any]]:
    """The errors of models, in one process."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-W", "ignore", str(SCRIPT), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_products_are_as_exact_as_eager(seed: int) -> None:
    row = rows(*map(str, SEEDS))[seed]
    assert row["error"] <= row["allowed"], row


@pytest.mark.parametrize("at", range(len(COARSE)))
def test_products_that_ignore_the_dtypes_of_the_model_are_found(at: int) -> None:
    row = rows("coarse", *map(str, COARSE))[at]
    assert row["error"] > row["allowed"], row
