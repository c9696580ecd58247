"""Random programs, fused: each step is sound and keeps the meaning, and fusion ends."""

import json
import os
import random
from collections import Counter

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.fusion import driver
from blockbuster_fusion.rules.rule import Match
from helpers.effort import part
from helpers.growth import allowed, allowed_steps, largest, size
from helpers.programs import Case
from helpers.rewriting import matches

PAPER = bb.RULE_SETS["paper"]
PROGRAMS = part(300, of=10)
RUN_AT_EVERY_STEP = part(100)
"""For the programs after these, the steps are verified, and only the snapshots are run."""
CHUNK = 10
LONG = int(os.environ.get("BLOCKBUSTER_FUZZ", "5000"))
"""The number of programs in the long test: BLOCKBUSTER_FUZZ=20000 make fuzz."""


def fuse_and_check(seed: int, *, every_step: bool = True) -> Counter[str]:
    """Fuses the program of a seed and checks all that should hold; how often each rule fired.

    Rules 1, 2, 3 and 9 leave fewer nodes than there were: that is why they come to an end.
    """
    case = Case(seed)
    fusion = bb.fuse(case.program, "paper")
    trace = fusion.trace
    case.check(fusion.initial, "initial")
    nodes = size(fusion.initial)
    for step in trace:
        made = step.after
        bb.verify(made)
        if every_step or step.index in trace.snapshots:
            case.check(made, step)
        before, nodes = nodes, size(made)
        assert step.number not in (1, 2, 3, 9) or nodes < before, f"seed {seed}, {step}"
    assert_ends(fusion, seed)
    assert_replays(fusion, seed)
    return Counter(step.rule for step in trace)


def assert_ends(fusion: bb.Fusion, seed: int) -> None:
    """There is an end soon, and then nothing left to do; nor do programs grow on the way."""
    nodes, steps = size(fusion.initial), len(fusion.trace)
    assert steps <= allowed_steps(fusion), f"seed {seed}: {steps} steps, {nodes} nodes"
    assert largest(fusion) <= allowed(fusion), f"seed {seed}: {nodes} nodes"
    for number, snapshot in enumerate(fusion.fused):
        for rule in PAPER.local:
            left = [str(match) for match in matches(rule, snapshot)]
            assert left == [], f"seed {seed}, snapshot {number}"
    for rule in PAPER.extending:
        assert matches(rule, fusion.fused[-1]) == [], f"seed {seed}"


def assert_replays(fusion: bb.Fusion, seed: int) -> None:
    """The trace, written and read again, leads to the same snapshots."""
    trace = bb.Trace.from_json(json.loads(json.dumps(fusion.trace.to_json())))
    found = [trace.program_after(steps).digest for steps in trace.snapshots]
    assert found == [snapshot.digest for snapshot in fusion.fused], f"seed {seed}"


@pytest.mark.parametrize("first", range(0, PROGRAMS, CHUNK))
def test_every_step_keeps_the_meaning(first: int) -> None:
    for seed in range(first, first + CHUNK):
        fuse_and_check(seed, every_step=seed < RUN_AT_EVERY_STEP)


def test_every_rule_fires() -> None:
    """The programs are worth trying: each rule of the driver fires in many of them."""
    fired: Counter[str] = Counter()
    for seed in range(part(200)):
        fired.update(step.rule for step in bb.fuse(Case(seed).program, "paper").trace)
    for rule in (*PAPER.local, *PAPER.extending):
        assert fired[rule.name] >= part(50), rule.name


@pytest.mark.long
def test_thousands_of_programs() -> None:
    fired: Counter[str] = Counter()
    for number in range(LONG):
        fired.update(fuse_and_check(PROGRAMS + number))
        if (number + 1) % 250 == 0:
            print(f"{number + 1} of {LONG} programs, {fired.total()} steps", flush=True)
    print(", ".join(f"{rule.name}: {fired[rule.name]}" for rule in PAPER))


# ---------------------------------------------------------------- the order of equal matches


class Shuffled(driver._Search):
    """Looks at the nodes in an order that a seed gives."""

    rng = random.Random(0)

    def _next_pending(self) -> Match | None:
        for nodes in self.pending:
            order = self.rng.sample(list(nodes), len(nodes))
            nodes.clear()
            nodes.update(dict.fromkeys(order))
        return super()._next_pending()


@pytest.mark.parametrize(
    ("name", "steps"), [("attention", 17), ("layernorm-matmul", 22), ("rmsnorm-swiglu", 26)]
)
def test_the_order_of_nodes_does_not_matter(
    name: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All orders give one sequence of rules and one number of edges; only dims change places."""
    program = bb.examples.find(name)
    expected = bb.fuse(program, "paper")
    rules = [(step.rule, step.variant) for step in expected.trace]
    edges = [len(bb.buffered(snapshot)) for snapshot in expected.fused]
    assert (len(rules), edges[-1]) == (steps, 0)
    monkeypatch.setattr(driver, "_Search", Shuffled)
    orders = set()
    for seed in range(part(60, of=3)):
        monkeypatch.setattr(Shuffled, "rng", random.Random(seed))
        found = bb.fuse(program, "paper")
        assert [(step.rule, step.variant) for step in found.trace] == rules
        assert [len(bb.buffered(snapshot)) for snapshot in found.fused] == edges
        orders.add(tuple(step.firing.nodes for step in found.trace))
    assert len(orders) > 10  # it was shuffled indeed
