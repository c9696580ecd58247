"""The meter gives, without data, the exact tally of a run."""

import re
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockbuster_fusion.cost.meter import meter
from blockbuster_fusion.errors import BadTile
from blockbuster_fusion.host.executors import register_executor
from blockbuster_fusion.interp.interpreter import interpret
from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, ANY, MAX, Reduced
from blockbuster_fusion.ir.expr import arg, call
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Iota,
    Join,
    Map,
    Misc,
    Pick,
    Reduce,
    Rename,
    Value,
)
from blockbuster_fusion.ir.types import DType, Type
from blockbuster_fusion.ir.verify import verify
from helpers.effort import part
from helpers.graphs import ONLINE, array, every_operator
from helpers.interp_graphs import Results, flash_attention

M, N, K = (Axis(name, Symbol(name * 2)) for name in "MNK")
P, H = Axis("P", Symbol("MM")), Axis("H", 3)
DIMS = [*(Dim(axis, index) for axis in (M, N, K, P) for index in (0, 1)), Dim(H, 0, packed=False)]


class RandomProgram:
    """Any program that can be run: nests of maps, with all operators in all places."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def graph(self) -> Graph:
        build = Builder()
        values = [build.input("all", array(*DIMS[0:6:2]))]  # so that all extents are known
        for number in range(self.random.randint(1, 4)):
            axes = self.random.sample([M, N, K, H], self.random.randint(0, 3))
            free = tuple(Dim(axis, None, packed=axis is not H) for axis in axes)
            dtype = self.random.choice([DType.float32, DType.bfloat16])
            listed = free[self.random.choice([0, 0, 0, 1]) :]
            items = tuple(dim for dim in free if dim.packed and (dim in listed or dim is not H))
            values.append(build.input(f"x{number}", Type(listed, items, dtype)))
        values = self.steps(build, values, (), 4)
        outputs = self.random.sample(values, min(len(values), 3)) + values[-1:]
        for number, value in enumerate(dict.fromkeys(outputs)):
            if not build.type(value).virtual:
                build.output(f"y{number}", value)
        return build.build()

    def steps(
        self, g: Builder, values: list[Value], loops: tuple[Dim, ...], count: int
    ) -> list[Value]:
        values = list(values)
        for _ in range(count):
            kinds = [*[self.map] * 6, *[self.item] * 5, *[self.reduce] * 2, self.pick]
            kinds += [self.iota, self.rename, self.join, self.misc]
            values += self.random.choice(kinds)(g, values, loops)
        return values

    def walkable(self, g: Builder, values: list[Value], dim: Dim) -> list[Value]:
        return [v for v in values if g.type(v).list_dim(dim)]

    def enters(self, kind: Type, dim: Dim) -> bool:
        """True if a value may be in a loop over the dim: not with another block of the axis."""
        return all(other.axis is not dim.axis for other in kind.items if other not in kind.lists)

    def map(self, g: Builder, values: list[Value], loops: tuple[Dim, ...]) -> list[Value]:
        free = [dim for dim in DIMS if all(dim.axis is not other.axis for other in loops)]
        if not free or len(loops) == 3:
            return []
        walked = [dim for dim in free if self.walkable(g, values[-3:], dim)]
        dim = self.random.choice(walked or free)
        candidates = self.walkable(g, values, dim)[-4:]
        iterated = self.random.sample(candidates, min(len(candidates), self.random.randint(1, 3)))
        rest = [v for v in values if v not in iterated and self.enters(g.type(v), dim)]
        whole = self.random.sample(rest, self.random.randint(0, min(3, len(rest))))

        def body(g: Builder, *ports: Value) -> Results:
            inner = self.steps(g, list(ports), (*loops, dim), self.random.randint(1, 4))
            results: Results = []
            inner = inner[-5:]
            for value in self.random.sample(inner, min(len(inner), self.random.randint(1, 4))):
                results += self.results(g, value, dim)
            return results

        return list(g.map(dim, iterated, whole, body))

    def results(self, g: Builder, value: Value, dim: Dim) -> Results:
        kind = g.type(value)
        if kind.virtual or any(other.axis is dim.axis for other in kind.lists):
            return []
        if kind.is_list or dim in kind.items or self.random.random() < 0.5:
            return [(value, None)]
        if any(other.axis is dim.axis for other in kind.items):
            return []
        if kind.dtype.is_float and self.random.random() < 0.3:
            return [(value, Reduced(ONLINE, 0)), (value, Reduced(ONLINE, 1))]
        return [(value, Reduced(self.random.choice([ADD, MAX, ANY])))]

    def item(self, g: Builder, values: list[Value], loops: tuple[Dim, ...]) -> list[Value]:
        items = [v for v in values if not g.type(v).is_list]
        if not items:
            return []
        chosen = self.random.choices(items, k=2)
        left, right = (g.type(v).items for v in chosen)
        common = [dim for dim in left if dim in right]
        if len({dim.axis for dim in (*left, *right)}) < len({*left, *right}):
            chosen = chosen[:1]  # two blocks of one axis
        elif common and self.random.random() < 0.5:
            return [g.one(Dot(self.random.choice(common)), *chosen)]
        if left and self.random.random() < 0.3:
            return [g.one(BlockReduce(self.random.choice(left), ADD), chosen[0])]
        expr = arg(0) * 2.0 if len(chosen) == 1 else call("maximum", arg(0), arg(1) + 1.0)
        return [g.one(Elementwise(expr), *chosen)]

    def reduce(self, g: Builder, values: list[Value], loops: tuple[Dim, ...]) -> list[Value]:
        dim = self.random.choice(DIMS)
        for value in self.walkable(g, values, dim):
            kind = g.type(value)
            walked = kind.list_dim(dim)
            counted = walked is dim or not dim.packed  # a free list has any number of blocks
            if len(kind.lists) == 1 and walked not in kind.items and counted:
                return [g.one(Reduce(dim, MAX), value)]
        return []

    def pick(self, g: Builder, values: list[Value], loops: tuple[Dim, ...]) -> list[Value]:
        dim = self.random.choice(DIMS)
        if any(dim.axis is other.axis for other in loops):
            return []
        candidates = [v for v in self.walkable(g, values, dim) if self.enters(g.type(v), dim)]
        return [g.one(Pick(dim, 0), v) for v in candidates[:1]]

    def iota(self, g: Builder, values: list[Value], loops: tuple[Dim, ...]) -> list[Value]:
        return [g.one(Iota(self.random.choice(DIMS)))] if self.random.random() < 0.5 else []

    def rename(self, g: Builder, values: list[Value], loops: tuple[Dim, ...]) -> list[Value]:
        for value in values:
            kind = g.type(value)
            listed = [dim.axis for dim in kind.lists]
            if (
                M in listed
                and P not in kind.axes
                and all(dim in kind.items or not dim.packed for dim in kind.lists)
            ):
                return [g.one(Rename(M, P), value)]
        return []

    def join(self, g: Builder, values: list[Value], loops: tuple[Dim, ...]) -> list[Value]:
        dim = self.random.choice(DIMS)
        if any(dim.axis is other.axis for other in loops):
            return []
        for value in self.walkable(g, values, dim):
            kind = g.type(value)
            if not self.enters(kind, dim) or kind.virtual or kind.list_dim(dim) not in kind.items:
                continue
            inner = Builder(g.ids)
            inner.output("", inner.input("", kind.iterate(dim)))
            rest = g.one(Map(dim, inner.build(), (True,), (None,), first=1), value)
            first = g.one(Pick(dim, 0), value)
            if g.type(rest).iterate(dim) is g.type(first):
                return [g.one(Join(dim), first, rest)]
        return []

    def misc(self, g: Builder, values: list[Value], loops: tuple[Dim, ...]) -> list[Value]:
        lists = [v for v in values if g.type(v).is_list and self.random.random() < 0.3]
        return [
            g.one(Misc("numpy", "flip", (), (Type(t.lists, t.items, t.dtype),)), v)
            for v in lists[:1]
            for t in [g.type(v)]
        ]


lengths = st.integers(0, 6)
extents = st.fixed_dictionaries({"MM": lengths, "NN": lengths, "KK": lengths})
tiles = st.fixed_dictionaries({dim.label: st.integers(1, 7) for dim in DIMS if dim.packed})


@settings(max_examples=part(200, of=2), deadline=None)
@given(st.randoms(use_true_random=False), extents, tiles)
def test_the_meter_agrees_with_a_run(
    random: Random, extents: dict[str, int], tiles: dict[str, int]
) -> None:
    graph = RandomProgram(random).graph()
    verify(graph)
    labels = {dim.label for _, inner in graph.walk() for dim in inner.dims}
    chosen = {label: tile for label, tile in tiles.items() if label in labels}
    arrays = []
    for port in range(len(graph.inputs)):
        axes = graph.type_of_input(port).axes
        arrays.append(np.ones([extents.get(str(a.extent), a.extent) for a in axes], np.float32))
    try:
        expected = interpret(graph, arrays, chosen).traffic
    except BadTile as refusal:  # a first block is picked where there is none
        with pytest.raises(BadTile, match=re.escape(str(refusal))):
            meter(graph, extents, chosen)
    else:
        assert meter(graph, extents, chosen) == expected


def test_the_meter_runs_no_loops() -> None:
    extents = dict.fromkeys(("MM", "NN", "DD", "LL"), 2**20)
    traffic = meter(flash_attention(), extents, {"M": 128, "N": 64, "D": 2**20})
    blocks_of_m, blocks_of_l = 2**20 // 128, 2**20 // 64
    block = 4 * 2**40
    assert traffic.by_buffer == {
        "Q": (block, 0),
        "KT": (blocks_of_m * blocks_of_l * block, 0),
        "VT": (blocks_of_m * block, 0),
        "O": (0, block),
    }


def test_every_operator_at_once() -> None:
    graph = every_operator()
    register_executor("aten", lambda name, attributes, arrays: [arrays[0], arrays[1].astype(int)])
    places = np.array([1, 0, 0, 1, 1])
    given = [np.ones((4, 5, 3), np.float32), np.ones((2, 3), np.float32), places]
    for sizes in ({}, {"M": 2, "N": 1, "K": 2}):
        found = interpret(graph, given, sizes)
        assert found.traffic == meter(graph, {"MM": 5, "NN": 2, "KK": 3}, sizes)
        assert found["sorted"].shape == (5, 4, 2)
        assert found["peeled"].shape == (4, 5)
        assert found["looked up"].shape == (5, 3)
