"""Blockbuster: operator fusion for AI inference, at the level of blocks.

import blockbuster_fusion as bb

program = bb.trace(lambda A, BT: bb.ops.relu(A @ BT.T), A="M K", BT="N K")
graph = bb.lower(program)
fusion = bb.fuse(graph)  # rules="paper" for the paper's own rules alone
print(bb.show(fusion.snapshots[-1]))
kernel = bb.compile(program)  # target="cuda" for a GPU
C = kernel(A, BT)["C"]
"""

from blockbuster_fusion import errors
from blockbuster_fusion.api import (
    compile,
    custom_operator,
    explain,
    explore,
    from_torch,
    plan,
    register_backend,
    tune,
)
from blockbuster_fusion.array import ops
from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.array.trace import array, trace
from blockbuster_fusion.cost.meter import meter
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.fusion.fuse import Fusion
from blockbuster_fusion.fusion.trace import Trace
from blockbuster_fusion.interp.evaluate import evaluate
from blockbuster_fusion.interp.interpreter import interpret
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.listing import show
from blockbuster_fusion.ir.text import from_text, to_text
from blockbuster_fusion.ir.verify import verify
from blockbuster_fusion.pictures.draw import draw
from blockbuster_fusion.plans.plan import Plan
from blockbuster_fusion.rules.rule import Match, Rule, apply
from blockbuster_fusion.rules.sets import RULE_SETS, RuleSet
from blockbuster_fusion.runtime.executable import Executable
from blockbuster_fusion.safety.fuse import fuse
from blockbuster_fusion.schedule.schedule import Schedule
from blockbuster_fusion.tools import examples
from blockbuster_fusion.tools.check.adversarial import adversarial
from blockbuster_fusion.tools.check.judge import check
from blockbuster_fusion.version import __version__

__all__ = [
    "RULE_SETS",
    "ArrayProgram",
    "BlockbusterError",
    "Executable",
    "Fusion",
    "Graph",
    "Match",
    "Plan",
    "Rule",
    "RuleSet",
    "Schedule",
    "Trace",
    "__version__",
    "adversarial",
    "apply",
    "array",
    "buffered",
    "check",
    "compile",
    "custom_operator",
    "draw",
    "errors",
    "evaluate",
    "examples",
    "explain",
    "explore",
    "from_text",
    "from_torch",
    "fuse",
    "interpret",
    "lower",
    "meter",
    "ops",
    "plan",
    "register_backend",
    "show",
    "to_text",
    "trace",
    "tune",
    "verify",
]
