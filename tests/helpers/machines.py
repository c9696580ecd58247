"""A machine whose figures are the same wherever tests run."""

from blockbuster_fusion.machine.machine import Machine, Memory

FOUR_CORES = Machine(
    "four cores",
    "cpu",
    4,
    (Memory("L1", 1 << 15, 1e11, 4e11, shared=False), Memory("main", 1 << 33, 1e10, 3e10)),
    {"vector.float32": 1e11, "matrix.bfloat16": 8e11},
    launch=1e-6,
    step=0.0,
)
