"""Random programs with lookups, fused with the extended rules: each step keeps the meaning."""

import os

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.cost.meter import meter
from helpers.effort import part
from helpers.lookup_programs import SIZES, lookup_inputs, lookup_program
from helpers.programs import random_unit
from helpers.running import assert_computes

PROGRAMS = part(30, of=3)
LONG = int(os.environ.get("BLOCKBUSTER_FUZZ", "400"))


def fuse_and_check(seed: int) -> bb.Fusion:
    program, unit = lookup_program(seed), ()
    if seed % 2:
        unit = random_unit(program, seed)
    given = lookup_inputs(program, seed)
    expected = bb.evaluate(program, given)
    fusion = bb.fuse(program, "extended", unit=unit)
    assert_computes(fusion.initial, given, expected)
    for step in fusion.trace:
        assert_computes(step.after, given, expected)
    for snapshot in fusion.snapshots:
        assert_computes(snapshot, given, expected)
        text = bb.to_text(snapshot)
        assert bb.to_text(bb.from_text(text)) == text
        extents = {name: SIZES[name] for name in SIZES if name in {d.name for d in snapshot.dims}}
        assert bb.interpret(snapshot, given).traffic == meter(snapshot, extents)
    return fusion


def run_and_check(seed: int) -> None:
    """As compiled by default, and in blocks that do not fit evenly."""
    program = lookup_program(seed)
    given = lookup_inputs(program, seed)
    expected = bb.evaluate(program, given)["O"]
    narrow = {n: x.astype(np.float32) if x.dtype.kind == "f" else x for n, x in given.items()}
    dims = bb.lower(program).dims
    small = {d.name: 3 for d in dims if d.packed and not d.is_free}
    for options in ({}, {"tiles": small, "unit": ()}):
        found = bb.compile(program, threads=1, **options)(**narrow)["O"]
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("first", range(0, PROGRAMS, 10))
def test_random_programs(first: int) -> None:
    fused = [fuse_and_check(seed) for seed in range(first, first + 10)]
    assert any(len(fusion.trace) > 3 for fusion in fused)


@pytest.mark.sweep(2, reason="other seeds of one generator")
@pytest.mark.parametrize("seed", range(8))
def test_random_programs_as_kernels(seed: int) -> None:
    run_and_check(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(PROGRAMS, PROGRAMS + LONG))
def test_many_random_programs(seed: int) -> None:
    fuse_and_check(seed)
    run_and_check(seed)
