"""The properties of targets that default tiles, unit axes and snapshots depend on."""

from dataclasses import dataclass

from blockbuster_fusion.errors import BadTarget
from blockbuster_fusion.ir.tiling import DEFAULT_TILE


@dataclass(frozen=True, slots=True)
class TargetModel:
    """The properties of a target that the choice depends on."""

    tile: int
    """The initial tile of every axis."""
    rows: int
    """The initial tile of the rows of outputs, each block of which reads the inputs again."""
    smallest: int
    """The smallest tile; narrower blocks waste vector registers or tensor cores."""
    short: int
    """The longest axis that may have one block."""
    row: int
    """The longest row of an input that may have one block, so that it is read once."""
    stream: int
    """The same in a program without products, which reads rows where they lie."""
    local: int
    """Bytes of local memory."""
    flops: float
    """Operations per second."""
    bandwidth: float
    """Bytes per second from the cache that holds blocks which are read repeatedly."""

    def seconds(self, flops: float, moved: float) -> float:
        """The estimated time for some number of operations and of bytes moved."""
        return flops / self.flops + moved / self.bandwidth


TARGET_MODELS = {
    # One core: 8-wide fused multiply-adds at 3 GHz; its L2 cache and a share of the L3; the rate
    # at which that gives blocks back.
    "cpu": TargetModel(128, 256, 16, 256, 2048, 16384, 4 << 20, 1e11, 2e10),
    # A large GPU: tensor cores in 16 bits; shared memory and registers of one processor; its L2.
    "cuda": TargetModel(64, 64, 16, 128, 128, 16384, 200 * 1024, 6e14, 1e13),
    "interpret": TargetModel(DEFAULT_TILE, DEFAULT_TILE, 16, 256, 2048, 2048, 4 << 20, 1e11, 2e10),
}


def model_for(target: str) -> TargetModel:
    """The model of a target, or BadTarget."""
    if target not in TARGET_MODELS:
        raise BadTarget(name=target, problem=f"unknown; known are {', '.join(TARGET_MODELS)}")
    return TARGET_MODELS[target]
