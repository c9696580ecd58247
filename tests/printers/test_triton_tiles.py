"""Default tiles on a GPU: short axes, and the limit of shared memory."""

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.nest.analysis.shared_memory import SHARED, shared_limit
from blockbuster_fusion.printers.triton.tiles import Halving


def chosen(name: str, capability: int = 90, **options: object) -> Choice:
    program = bb.examples.find(name)
    return choose(Request(program, target="cuda", capability=capability, **options))[0]


def lengths(choice: Choice) -> dict[str, int]:
    _, tiles = choice.scheduled()
    return {dim.name: tile for dim, tile in tiles.items()}


def test_tiles_are_no_longer_than_short_axes() -> None:
    assert lengths(chosen("softmax", sizes={"M": 3, "N": 5})) == {"M": 4}  # a row is one block
    assert lengths(chosen("softmax", sizes={"M": 3, "N": 30_000}))["M"] == 4


def test_dots_keep_blocks_of_16() -> None:
    sizes = {"M": 3, "N": 5, "K": 2}
    assert lengths(chosen("matmul-relu", sizes=sizes)) == {"M": 16, "N": 16, "K": 16}


def test_what_is_given_stays() -> None:
    assert lengths(chosen("softmax", sizes={"M": 3}, tiles={"M": 32}))["M"] == 32


@pytest.mark.parametrize("capability", [75, 80, 86, 90])
@pytest.mark.parametrize("name", ["attention", "rmsnorm-swiglu-residual", "multi-head-attention"])
def test_kernels_fit_each_gpu(name: str, capability: int) -> None:
    nest, tiles = chosen(name, capability, sizes={"D": 128}).scheduled()
    sizes = {symbol.name: 512 for kernel in nest.kernels for symbol in kernel.symbols}
    for kernel in nest.kernels:
        halving = Halving(kernel, sizes, frozenset())
        assert halving.estimate(tiles) <= SHARED[capability]
        assert halving.takes(tiles)


def test_an_unknown_gpu_has_the_least() -> None:
    assert shared_limit(999) == min(SHARED.values())
    assert shared_limit(90) == 232448
