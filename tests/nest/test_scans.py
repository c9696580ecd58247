"""Scans in loop nests: carries, shares of programs, and what passes leave alone."""

from collections.abc import Callable

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.errors import NoKernel
from blockbuster_fusion.nest.listing import show_nest
from blockbuster_fusion.nest.nest import For, Nest
from blockbuster_fusion.nest.passes.split_scan import split_scan
from blockbuster_fusion.nest.passes.untie_kernels import untie_kernels
from blockbuster_fusion.nest.text import nest_from_text, nest_to_text
from blockbuster_fusion.nest.verify import verify_nest
from blockbuster_fusion.schedule.schedule import Schedule, scheduled

Function = Callable[..., Array]
RUNNING: dict[str, tuple[Function, str, Callable[[np.ndarray], np.ndarray]]] = {
    "rows": (lambda X: ops.cumsum(X, axis=1), "K", lambda x: np.cumsum(x, 1)),
    "columns": (lambda X: ops.cumsum(X, axis=0), "M", lambda x: np.cumsum(x, 0)),
    "maxima": (lambda X: ops.cummax(X, axis=1), "K", lambda x: np.maximum.accumulate(x, 1)),
    "logarithms": (
        lambda X: ops.logcumsumexp(X, axis=1),
        "K",
        lambda x: np.logaddexp.accumulate(x, 1),
    ),
    "probabilities": (
        lambda X: ops.cumsum(ops.softmax(X), axis=1),
        "K",
        lambda x: np.cumsum(np.exp(x) / np.exp(x).sum(1, keepdims=True), 1),
    ),
}


def nest_of(program: Function, schedule: Schedule | None = None, **specs: str) -> Nest:
    fused = bb.fuse(bb.lower(bb.trace(program, **(specs or {"X": "M K"}))))
    return scheduled(fused.snapshots[-1], "scan", schedule)


@pytest.mark.parametrize("parts", [0, 4])
def test_listing(parts: int, golden: Callable[[str], None]) -> None:
    """A loop with a carry; and shares, of which each begins with the totals before it."""
    schedule = Schedule(split={"K": parts}) if parts else Schedule()
    nest = nest_of(lambda X, Y: ops.cumsum(X * Y, axis=1) + Y, schedule, X="M K", Y="M K")
    golden(show_nest(nest))


@pytest.mark.parametrize("name", RUNNING)
def test_text_round_trip(name: str) -> None:
    program, axis, _ = RUNNING[name]
    for schedule in (Schedule(), Schedule(split={axis: 4})):
        nest = nest_of(program, schedule)
        verify_nest(nest)
        text = nest_to_text(nest)
        assert nest_to_text(nest_from_text(text)) == text
        assert any(isinstance(s, For) and s.carried for k in nest.kernels for s in k.statements)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", RUNNING)
@pytest.mark.parametrize("parts", [0, 3, 16])
@pytest.mark.parametrize("tiles", [{"M.0": 4, "K.0": 7}, {"M.0": 3, "K.0": 64}])
def test_kernels_in_c_by_any_tiles_and_shares(name: str, parts: int, tiles: dict[str, int]) -> None:
    program, axis, reference = RUNNING[name]
    config = {"tiles": tiles, "split": {axis: parts} if parts else {}}
    kernel = bb.compile(program, "M K", config=config)
    rng = np.random.default_rng(0)
    for shape in ((10, 100), (5, 7), (1, 1), (33, 65)):
        x = np.float32(rng.normal(size=shape))
        wanted = reference(np.float64(x))
        np.testing.assert_allclose(
            kernel(x)[0], wanted, rtol=0, atol=2.0**-22 * max(8, np.abs(wanted).max())
        )


def test_both_kernels_of_a_split_scan_share_one_tile() -> None:
    """A share is a number of blocks: with other blocks it would be other elements."""
    nest = untie_kernels(nest_of(RUNNING["rows"][0], Schedule(split={"K": 4})))
    loops = [
        s.index.dim
        for kernel in nest.kernels
        for s in kernel.statements
        if isinstance(s, For) and s.share is not None
    ]
    assert len(loops) == 2
    assert len(set(loops)) == 1


def test_what_is_not_split() -> None:
    """Scans of scans need the first one whole; sums of scans, and other results, go elsewhere."""
    for program in (
        lambda X: ops.cumsum(ops.cummax(X, axis=1), axis=1),
        lambda X: ops.cumsum(X, axis=1).sum(axis=1),
        lambda X: {"O": ops.cumsum(X, axis=1), "T": X.sum(axis=1)},
        lambda X: ops.cummax(X > 0, axis=1),
        lambda X: X * 2.0,
    ):
        with pytest.raises(NoKernel, match="no kernel scans along K"):
            split_scan(nest_of(program), "K", 4)
