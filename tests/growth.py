"""How large fusing may make a program."""

import blockbuster_fusion as bb
from blockbuster_fusion.rules.recompute import LARGEST, Recompute


def size(program: bb.Graph) -> int:
    """How many nodes a program has, those in its maps included."""
    return sum(len(graph.nodes) for _, graph in program.walk())


def copies(fusion: bb.Fusion) -> int:
    """How many producers were cloned."""
    return sum(step.rule == Recompute.name for step in fusion.trace)


def largest(fusion: bb.Fusion) -> int:
    """The size of the largest snapshot."""
    return max(size(snapshot) for snapshot in fusion.fused)


def allowed(fusion: bb.Fusion) -> int:
    """What no snapshot may exceed: twice the initial size, and the largest producer per copy."""
    return 2 * size(fusion.initial) + LARGEST * copies(fusion)
