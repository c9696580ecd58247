"""Fusing a block program: the public face of the algorithm."""

from collections.abc import Sequence
from dataclasses import dataclass

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.fusion.driver import Driver
from blockbuster_fusion.fusion.trace import Trace
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.verify import verify
from blockbuster_fusion.rules.sets import RuleSet, rule_set


@dataclass(frozen=True, slots=True)
class Fusion:
    """What fusing gave: alternatives, from least to most fused, and how they came about."""

    initial: Graph
    snapshots: Sequence[Graph]
    trace: Trace


def fuse(program: Graph | ArrayProgram, rules: str | RuleSet = "paper") -> Fusion:
    """The program fused by a set of rules."""
    graph = lower(program) if isinstance(program, ArrayProgram) else program
    verify(graph)
    graph = graph.without_dead_nodes()
    chosen = rule_set(rules)
    driver = Driver(graph, chosen)
    found = driver.fuse()
    trace = Trace(graph, chosen, driver.firings, [steps for _, steps in found])
    return Fusion(graph, [snapshot for snapshot, _ in found], trace)
