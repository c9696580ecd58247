"""Random programs of exponentials and norms: the same in float64, and finite where float64 is."""

import os

import numpy as np
import pytest
import torch

import blockbuster_fusion as bb
from helpers.effort import part
from helpers.hard_programs import hard_inputs, hard_program
from helpers.programs import random_inputs, random_tiles, random_unit
from helpers.torch_reference import Reference

PROGRAMS, CHUNK = part(1000, of=14), 25
LONG = int(os.environ.get("BLOCKBUSTER_FUZZ", "5000"))
LARGEST = 1e18
"""Float32 holds the square of this. Programs that come to more are given other inputs."""

RANGE = 1e37
"""The range of float32."""

SAME = 1e-7
"""Float64 on ordinary inputs: norms of nearly constant rows lose some digits either way."""

torch.set_num_threads(1)


def secure(seed: int) -> int:
    """Checks all snapshots of the program of a seed; how many there were."""
    program, tame = hard_program(seed)
    inputs, expected = hard_case(program, tame, seed)
    unit = random_unit(program, seed) if seed % 3 == 0 else ()
    snapshots = bb.fuse(program, unit=unit).snapshots
    tame_inputs = random_inputs(program, seed)
    exact = bb.evaluate(program, tame_inputs)
    for number, graph in enumerate(snapshots):
        same = bb.interpret(graph, tame_inputs, random_tiles(graph, seed))
        for name, wanted in exact.items():
            bound = SAME * np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)
            close = np.isclose(same[name], wanted, rtol=0, atol=bound, equal_nan=True)
            close |= np.isnan(wanted)  # a softmax of numbers far below 0 is 0 / 0 as it is defined
            assert close.all(), f"seed {seed}, snapshot {number}: {name} is another"
        found = bb.interpret(graph, inputs, random_tiles(graph, seed))
        for name, wanted in expected.items():
            with np.errstate(invalid="ignore"):
                counts = np.isfinite(wanted) & (np.abs(wanted) < RANGE)
            lost = counts & ~np.isfinite(found[name])
            assert not lost.any(), f"seed {seed}, snapshot {number}: {name}, {lost.sum()} lost"
    return len(snapshots)


def hard_case(
    program: bb.ArrayProgram, tame: set[int], seed: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs whose squares fit float32 throughout the program, and their results."""
    for attempt in range(20):
        inputs = hard_inputs(program, seed + 10_000_000 * attempt)
        reference = Reference(program, torch.float64)
        reference.watched = tame
        with torch.no_grad():
            expected = reference.run(inputs)
        if reference.largest < LARGEST:
            return inputs, expected
    return inputs, {}


@pytest.mark.parametrize("first", range(0, PROGRAMS, CHUNK))
def test_finite_where_float64_is(first: int) -> None:
    checked = sum(secure(seed) for seed in range(first, first + CHUNK))
    print(f"{checked} snapshots")


@pytest.mark.long
def test_finite_where_float64_is_in_thousands() -> None:
    for number in range(LONG):
        secure(PROGRAMS + number)
        if (number + 1) % 500 == 0:
            print(f"{number + 1} of {LONG} programs", flush=True)
