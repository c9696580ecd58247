"""Applies rules in tests: their matches, their refusals, and a check that they keep the meaning."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion.fusion.trace import Firing
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.ops import Input
from blockbuster_fusion.ir.types import Type
from blockbuster_fusion.rules.rule import Match, Rule

EXTENTS = {"M": 5, "N": 7, "K": 8, "D": 3, "L": 4, "H": 2, "E": 6, "R": 9}
"""No two alike: a square block cannot show that its axes were swapped."""

TILES: tuple[dict[str, int], ...] = (
    {"M": 2, "N": 3, "K": 3, "D": 2, "L": 3, "E": 4, "R": 2},  # ragged
    {"M": 3, "N": 2, "K": 5, "D": 1, "L": 4, "E": 5, "R": 4},  # ragged, one block over L
    {},  # one block for everything
)


def lowered(function: Callable[..., object], **specs: object) -> bb.Graph:
    """The initial block program of a Python function."""
    return bb.lower(bb.trace(function, **specs))


# ---------------------------------------------------------------- where, and why not


def sites(rule: Rule, program: bb.Graph) -> list[Match]:
    """Every place of the rule's shape in the program and its maps, each once."""
    found: dict[tuple[object, ...], Match] = {}
    for path, graph in program.walk():
        for node in graph.nodes:
            for site in rule.sites_at(graph, node):
                placed = replace(site, path=path, fresh=program.max_id + 1)
                found.setdefault((path, site.nodes), placed)
    return list(found.values())


def matches(rule: Rule, program: bb.Graph) -> list[Match]:
    """Every place in the program and its maps where the rule may fire."""
    return [site for site in sites(rule, program) if rule.refusal(site) is None]


def refusals(rule: Rule, program: bb.Graph) -> list[str]:
    """The guard that refuses, for each place of the rule's shape where it may not fire."""
    refused = (rule.refusal(site) for site in sites(rule, program))
    return [guard.name for guard in refused if guard is not None]


# ---------------------------------------------------------------- firing


def fired(match: Match, program: bb.Graph) -> bb.Graph:
    """The whole program after a match in it, or in one of its maps, was applied."""
    return Firing.of(match).replay(program)


def fire(rule: Rule, program: bb.Graph, *, dim: str | None = None, at: int = 0) -> bb.Graph:
    """The program after the rule has fired at one of its matches; its meaning is checked."""
    found = [m for m in matches(rule, program) if dim is None or (m.dim and m.dim.name == dim)]
    assert len(found) > at, f"{rule.name} has {len(found)} matches in\n{bb.show(program)}"
    made = fired(found[at], program)
    check(program, made)
    return made


def exhaust(program: bb.Graph, *rules: Rule) -> bb.Graph:
    """The program after the rules have fired until none matches; earlier ones have priority."""
    for step in count():
        found = next((m for rule in rules for m in matches(rule, program)), None)
        if found is None:
            break
        program = fired(found, program)
        assert step < 1000, "the rules do not come to an end"
    bb.verify(program)
    return program


def before_and_after(rule: Rule, program: bb.Graph, **options: object) -> str:
    """The listings of a program before and after the rule has fired once."""
    made = fire(rule, program, **options)
    return f"before:\n{bb.show(program)}\nafter {rule.name}:\n{bb.show(made)}"


# ---------------------------------------------------------------- meaning


def check(before: bb.Graph, after: bb.Graph, extents: Mapping[str, int] | None = None) -> None:
    """Both programs are sound and compute the same."""
    bb.verify(before)
    bb.verify(after)
    given = inputs(before, extents or {})
    for tiles in TILES:
        expected, found = run(before, given, tiles), run(after, given, tiles)
        assert found.keys() == expected.keys()
        for name, wanted in expected.items():
            assert found[name].dtype == wanted.dtype, name
            np.testing.assert_allclose(found[name], wanted, 1e-11, 1e-11, err_msg=f"{name} {tiles}")


def run(
    program: bb.Graph, given: Mapping[str, np.ndarray], tiles: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """The program's outputs, at tiles for those of its dims that are mentioned."""
    known = {name for dim in program.dims if dim.packed for name in (dim.name, dim.label)}
    return dict(
        bb.interpret(program, given, {d: t for d, t in tiles.items() if d in known}).items()
    )


def inputs(program: bb.Graph, extents: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Random arrays for a program, the same in every run; floats are float64."""
    rng = np.random.default_rng(5)
    made = {}
    for i in program.inputs:
        op = program.op(i)
        assert isinstance(op, Input)
        made[op.name] = _array(op.type, extents, rng)
    return made


def _array(kind: Type, extents: Mapping[str, int], rng: np.random.Generator) -> np.ndarray:
    shape = [_extent(axis, extents) for axis in kind.axes]
    if kind.dtype.is_float:
        return rng.standard_normal(shape) + 0.25
    return rng.integers(0, 2 if kind.dtype.value == "bool" else 9, shape).astype(kind.dtype.value)


def _extent(axis: Axis, extents: Mapping[str, int]) -> int:
    if isinstance(axis.extent, int):
        return axis.extent
    return {**EXTENTS, **extents}[axis.name]
