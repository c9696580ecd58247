"""Random programs, fused with the extended rules: each step keeps the meaning, and fusion ends.

Half of the programs have unit dims.
"""

import json
import os
from collections import Counter

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.fusion.pareto import unit_sets
from blockbuster_fusion.rules.cautions import caution
from blockbuster_fusion.rules.recompute import Recompute
from helpers.effort import part
from helpers.growth import allowed, allowed_steps, copies, largest, size
from helpers.programs import Case, random_unit
from helpers.rewriting import matches

EXTENDED = bb.RULE_SETS["extended"]
PROGRAMS = part(120, of=8)
CHUNK = 5
LONG = int(os.environ.get("BLOCKBUSTER_FUZZ", "5000"))
"""The number of programs in the long test: BLOCKBUSTER_FUZZ=20000 make fuzz."""


def fuse_and_check(seed: int) -> Counter[str]:
    """Fuses the program of a seed and checks all that should hold; how often each rule fired."""
    case = Case(seed, extended=seed % 4 != 0)
    unit = random_unit(case.program, seed) if seed % 2 else ()
    fusion = bb.fuse(case.program, "extended", unit=unit)
    place = f"seed {seed}, unit {','.join(unit)}"
    case.check(fusion.initial, f"{place}, initial")
    for step in fusion.trace:
        case.check(step.after, f"{place}, {step}")
    assert_ends(fusion, place)
    assert_replays(fusion, place)
    return Counter(step.rule for step in fusion.trace)


def assert_ends(fusion: bb.Fusion, place: str) -> None:
    """There is an end soon, and then nothing left to do; nor do programs grow on the way.

    See "It ends" in docs/architecture.md.
    """
    nodes, steps = size(fusion.initial), len(fusion.trace)
    assert steps <= allowed_steps(fusion), f"{place}: {steps} steps, {nodes} nodes"
    assert copies(fusion) <= len(bb.buffered(fusion.initial)), f"{place}: {copies(fusion)} copies"
    assert largest(fusion) <= allowed(fusion), f"{place}: {nodes} nodes, then {largest(fusion)}"
    assert_copies_once(fusion, place)
    for number, snapshot in enumerate(fusion.fused):
        for rule in EXTENDED.local:
            found = matches(rule, snapshot)
            left = [str(match) for match in found if caution(EXTENDED.cautions, match) is None]
            assert left == [], f"{place}, snapshot {number}"
    for rule in EXTENDED.extending:
        assert matches(rule, fusion.fused[-1]) == [], place


def assert_copies_once(fusion: bb.Fusion, place: str) -> None:
    """A producer is cloned once for a map, which then walks none of the producer's lists."""
    seen = set()
    for step in fusion.trace:
        if step.rule == Recompute.name:
            u, v = step.firing.nodes
            assert (u, v) not in seen, f"{place}, {step}"
            seen.add((u, v))
            graph = step.after.at(step.firing.path)
            operands = zip(graph[v].inputs, graph.map(v).iterated, strict=True)
            walked = [x for x, iterated in operands if iterated and x.node == u]
            assert walked == [], f"{place}, {step}"


def assert_replays(fusion: bb.Fusion, place: str) -> None:
    """The trace, written and read again, leads to the same snapshots."""
    trace = bb.Trace.from_json(json.loads(json.dumps(fusion.trace.to_json())))
    found = [trace.program_after(steps).digest for steps in trace.snapshots]
    assert found == [snapshot.digest for snapshot in fusion.fused], place


@pytest.mark.parametrize("first", range(0, PROGRAMS, CHUNK))
def test_every_step_keeps_the_meaning(first: int) -> None:
    for seed in range(first, first + CHUNK):
        fuse_and_check(seed)


@pytest.mark.sweep(2, reason="other examples by the same passes")
@pytest.mark.parametrize("name", bb.examples.EXAMPLES)
def test_every_example_ends(name: str) -> None:
    graph = bb.lower(bb.examples.find(name))
    for unit in unit_sets(graph):
        assert_ends(bb.fuse(graph, "extended", unit=unit), f"{name}, unit {','.join(unit)}")


def test_without_safety_no_rule_fires_that_needs_it() -> None:
    needing = {rule.name for rule in EXTENDED if rule.needs_safety}
    assert needing == {"drop_softmax_shift", "expand_square_of_shift"}
    fired: Counter[str] = Counter()
    for seed in range(part(20, of=2)):
        case = Case(seed, extended=True)
        fused = bb.fuse(case.program, "extended")
        fired.update(step.rule for step in fused.trace)
        unsafe = bb.fuse(case.program, "extended", safe=False)
        assert needing.isdisjoint(step.rule for step in unsafe.trace)
        for snapshot in unsafe.fused:
            case.check(snapshot, "safe=False")
    assert all(fired[name] > 0 for name in needing)


@pytest.mark.long
def test_thousands_of_programs() -> None:
    fired: Counter[str] = Counter()
    for number in range(LONG):
        fired.update(fuse_and_check(PROGRAMS + number))
        if (number + 1) % 250 == 0:
            print(f"{number + 1} of {LONG} programs, {fired.total()} steps", flush=True)
    print(", ".join(f"{rule.name}: {fired[rule.name]}" for rule in EXTENDED))
