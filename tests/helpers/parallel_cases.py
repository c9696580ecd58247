"""Cases of test_parallel.py, which each rank runs: RANK RANKS STORE CASE… prints a line of JSON."""

import copy
import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

import blockbuster_fusion as bb
from helpers.parallel_layer import Layer, ThreeHeads, shard, shard_rows_too
from helpers.torch_running import Watched
from helpers.watched_collectives import Counting, Overwritten

functional = torch.ops._c10d_functional
PATIENCE = timedelta(seconds=120)
"""A collective that waits longer fails."""

Found = dict[str, Any]


def error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


def judged(
    model: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    truth: Tensor,
    own: float,
    options: Mapping[str, Any] | None = None,
) -> Found:
    """The errors of calls of a compiled model, beside that of the whole model in float32."""
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="blockbuster", options=dict(options or {}))
    with Counting() as first:
        errors = [error(compiled(*inputs), truth)]
    with Counting() as later:
        errors += [error(compiled(*inputs), truth) for _ in range(3)]
    return {
        "errors": errors,
        "own": own,
        "first": first.started,
        "later": later.started,
        "waits": [first.waited, later.waited],
    }


def layer_inputs(rows: int = 37) -> tuple[Tensor, ...]:
    angles = torch.randn(rows, 16)
    return torch.randn(2, rows, 64), angles.cos(), angles.sin()


def of_layer(
    mesh: DeviceMesh,
    sharded: Callable[[nn.Module, DeviceMesh], None],
    options: Mapping[str, Any] | None = None,
    **sizes: int,
) -> Found:
    layer = Layer(**sizes).eval().requires_grad_(False)
    inputs = layer_inputs()
    truth = copy.deepcopy(layer).double()(*(x.double() for x in inputs))
    own = error(layer(*inputs), truth)
    sharded(layer, mesh)
    return judged(layer, inputs, truth, own, options)


def layer(mesh: DeviceMesh) -> Found:
    return of_layer(mesh, shard)


def kernels_alone(mesh: DeviceMesh) -> Found:
    return of_layer(mesh, shard, {"library": "never"})


def unequal_choices(mesh: DeviceMesh) -> Found:
    """Ranks that choose otherwise, as measurements may have it."""
    return of_layer(mesh, shard, {"library": "never"} if distributed.get_rank() else {})


def tuned(mesh: DeviceMesh) -> Found:
    options = {"mode": "max-autotune-no-cudagraphs", "seconds": 1, "workers": 1}
    return of_layer(mesh, shard, options)


def any_rows(mesh: DeviceMesh) -> Found:
    """Sequences of other lengths, for which the layer is not compiled again."""
    layer = Layer().eval().requires_grad_(False)
    exact, whole = copy.deepcopy(layer).double(), copy.deepcopy(layer)
    shard(layer, mesh)
    compiled = Watched(layer, dynamic=True, library="never")
    several, own = [], []
    for rows in (37, 50, 12, 37, 129):
        inputs = layer_inputs(rows)
        truth = exact(*(x.double() for x in inputs))
        several.append(error(compiled(*inputs), truth))
        own.append(error(whole(*inputs), truth))
    told = [str(x) for x in compiled.explanation.collectives]
    return {"several": [several], "own": own, "graphs": len(compiled.graphs), "told": told}


def cached(mesh: DeviceMesh) -> Found:
    """Words one by one, with a static cache of the rank's own keys and values."""
    layer = Layer().eval().requires_grad_(False)
    exact, whole = copy.deepcopy(layer).double(), copy.deepcopy(layer)
    shard(layer, mesh)
    old = [torch.randn(2, 2, 24, 16) for _ in range(2)]
    wide, narrow = [x.double() for x in old], [x.clone() for x in old]
    mine = [x.chunk(mesh.size(), 1)[mesh.get_rank()].clone() for x in old]
    compiled = Watched(layer, dynamic=False, library="never")
    several, own = [], []
    for place in (11, 12, 13):
        x, cos, sin = layer_inputs(1)
        at = torch.tensor([place])
        truth = exact(*(y.double() for y in (x, cos, sin)), tuple(wide), at)
        own.append(error(whole(x, cos, sin, tuple(narrow), at), truth))
        several.append(error(compiled(x, cos, sin, tuple(mine), at), truth))
    for kept, right, usual in zip(mine, wide, narrow, strict=True):
        several.append(error(kept, right.chunk(mesh.size(), 1)[mesh.get_rank()]))
        own.append(error(usual, right))
    return {"several": [several], "own": own}


def uneven_width(mesh: DeviceMesh) -> Found:
    return of_layer(mesh, shard, inner=97)


def sharded_rows(mesh: DeviceMesh) -> Found:
    """The sequence is sharded between products; 38 rows are 19 on each of two ranks."""
    layer = Layer().eval().requires_grad_(False)
    inputs = layer_inputs(38)
    truth = copy.deepcopy(layer).double()(*(x.double() for x in inputs))
    own = error(layer(*inputs), truth)
    shard_rows_too(layer, mesh)
    rows = inputs[0].chunk(mesh.size(), 1)[mesh.get_rank()].contiguous()
    mine = truth.chunk(mesh.size(), 1)[mesh.get_rank()]
    return judged(layer, (rows, *inputs[1:]), mine, own)


def three_heads(mesh: DeviceMesh) -> Found:
    """Three heads on two ranks: two on the first one, one on the other."""
    model, x = ThreeHeads().eval().requires_grad_(False), torch.randn(2, 21, 48)
    truth = copy.deepcopy(model).double()(x.double())
    own = error(model(x), truth)
    for holder in (model, model.qkv):
        for name, weight in [*holder.named_parameters(recurse=False)]:
            local = distribute_tensor(weight.data, mesh, [Shard(0)]).to_local()
            setattr(holder, name, nn.Parameter(local, requires_grad=False))

    def summed(x: Tensor) -> Tensor:
        return DTensor.from_local(model(x), mesh, [Partial()]).full_tensor()

    return judged(summed, (x,), truth, own) | {"heads": model.o.shape[0]}


# ---------------------------------------------------------------- explained on one rank


def explained(mesh: DeviceMesh) -> Found:
    """Each rank explains the layer while the other one waits at a barrier."""
    found: Found = {}
    layer = Layer().eval().requires_grad_(False)
    inputs = layer_inputs()
    shard(layer, mesh)
    for number in range(mesh.size()):
        if number == mesh.get_rank():
            torch._dynamo.reset()
            with Counting() as counted:
                told = bb.explain(layer, *inputs, time=bool(number))
            found = {"text": str(told), "data": told.data(), "ran": counted.started}
            found["timed"] = [k.seconds for k in told.kernels]
        distributed.barrier()
    return found


def explained_in_pieces(mesh: DeviceMesh) -> Found:
    """A model with a graph break, whose eager piece has a collective of a DTensor."""
    weight = distribute_tensor(torch.randn(8, 8), mesh, [Shard(0)])

    def model(x: Tensor) -> Tensor:
        y = (x * 2 + weight).full_tensor()
        torch._dynamo.graph_break()
        return (y * 3).relu()

    found: Found = {}
    if mesh.get_rank() == 0:
        x = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)], src_data_rank=None)
        told = bb.explain(model, x)
        found = {"graphs": len(told.graphs), "collectives": len(told.collectives)}
        try:
            bb.explain(lambda x: eagerly_reduced(x * 2) + 1, torch.ones(4))
        except bb.BlockbusterError as problem:
            found["problem"] = str(problem)
    distributed.barrier()
    return found


@torch.compiler.disable
def eagerly_reduced(x: Tensor) -> Tensor:
    distributed.all_reduce(x)
    return x


# ---------------------------------------------------------------- arrays in flight


def in_flight(mesh: DeviceMesh) -> Found:
    """Kernels run between the start of collectives and the wait for them.

    The second rank comes late, so that the transfer cannot have ended before.
    """
    ranks, group = mesh.size(), mesh.get_group().group_name

    def model(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        a = (x * 2 + 1).relu()
        every = functional.all_gather_into_tensor(a, ranks, group)
        total = functional.all_reduce(a * 3, "sum", group)
        part = functional.reduce_scatter_tensor(a - 5, "sum", ranks, group)
        beside = x
        for _ in range(6):  # arrays of the same size, that an arena could place anywhere
            beside = ((beside @ w).tanh() * 2).sin() + 1
        waited = [functional.wait_tensor(y) for y in (every, total, part)]
        return (waited[0] * 2 + 1, (waited[1] * 2).exp2(), waited[2] - 1, beside)

    def by_hand(xs: list[Tensor], w: Tensor, rank: int) -> tuple[Tensor, ...]:
        every = [(x * 2 + 1).relu() for x in xs]
        part = sum(a - 5 for a in every).chunk(ranks)[rank]
        beside = xs[rank]
        for _ in range(6):
            beside = ((beside @ w).tanh() * 2).sin() + 1
        total = sum(a * 3 for a in every)
        return (torch.cat(every) * 2 + 1, (total * 2).exp2(), part - 1, beside)

    xs = [torch.rand(64, 64) for _ in range(ranks)]
    w, rank = torch.randn(64, 64) / 8, mesh.get_rank()
    truth = by_hand([x.double() for x in xs], w.double(), rank)
    own = [error(a, b) for a, b in zip(by_hand(xs, w, rank), truth, strict=True)]
    compiled = Watched(model, library="never")
    errors = []
    for _ in range(4):
        distributed.barrier()
        time.sleep(0.2 * rank)
        made = compiled(xs[rank], w)
        errors.append([error(a, b) for a, b in zip(made, truth, strict=True)])
    distributed.barrier()
    time.sleep(0.2 * rank)
    with Overwritten() as seen:
        compiled(xs[rank], w)
    tape = compiled.graphs[0].plan.usual[1]
    return {
        "several": errors,
        "own": own,
        "changed": seen.changed,
        "flown": seen.count - len(seen.flying),
        "arena": 0 if tape is None else tape.arena,
    }


def layouts(mesh: DeviceMesh) -> Found:
    """Operands of collectives that kernels could store otherwise: turned, joined, broadcast."""
    ranks, group = mesh.size(), mesh.get_group().group_name

    def gathered(x: Tensor) -> Tensor:
        return functional.wait_tensor(functional.all_gather_into_tensor(x, ranks, group))

    def model(x: Tensor, row: Tensor) -> tuple[Tensor, ...]:
        a, b = x.exp(), (x * 3).sin()
        joined = torch.cat((a, b[:, :5], b * 2, a + 1), 1)
        wide = (row * 2).expand(4, 6).contiguous()
        turned = functional.all_reduce((x + 1).t(), "sum", group)
        return (
            gathered((x * 2).t().contiguous()) + 1,
            gathered(a) * 2,
            joined,
            gathered(wide) - 1,
            functional.wait_tensor(turned) * 2,
        )

    def by_hand(xs: list[Tensor], row: Tensor, rank: int) -> tuple[Tensor, ...]:
        a, b = xs[rank].exp(), (xs[rank] * 3).sin()
        joined = torch.cat((a, b[:, :5], b * 2, a + 1), 1)
        return (
            torch.cat([(x * 2).t() for x in xs]) + 1,
            torch.cat([x.exp() for x in xs]) * 2,
            joined,
            (row * 2).expand(4 * ranks, 6) - 1,
            sum((x + 1).t() for x in xs) * 2,
        )

    xs = [torch.rand(7, 9) for _ in range(ranks)]
    row, rank = torch.rand(6), mesh.get_rank()
    truth = by_hand([x.double() for x in xs], row.double(), rank)
    own = [error(a, b) for a, b in zip(by_hand(xs, row, rank), truth, strict=True)]
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="blockbuster", options={"library": "never"})
    errors = []
    for _ in range(3):
        made = compiled(xs[rank], row)
        errors.append([error(a, b) for a, b in zip(made, truth, strict=True)])
    return {"several": errors, "own": own}


def made_inside(mesh: DeviceMesh) -> Found:
    """DTensors of which only one side of the call knows: results, and then inputs."""

    def distributed_result(x: Tensor) -> Tensor:
        return (DTensor.from_local(x, mesh, [Shard(0)]) * 2).relu().exp()

    def local_result(x: DTensor) -> Tensor:
        return (x.to_local() * 2).relu().exp()

    def local(x: Tensor) -> Tensor:
        return x.to_local() if isinstance(x, DTensor) else x

    x = torch.rand(7, 9)
    truth, own = (x.double() * 2).relu().exp(), error((x * 2).relu().exp(), (x.double() * 2).exp())
    found: Found = {"own": own, "kinds": [], "errors": []}
    for model, given in ((distributed_result, x), (local_result, distribute_tensor(x, mesh))):
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="blockbuster", options={"library": "never"})
        for _ in range(2):
            made = compiled(given)
            found["kinds"].append(type(made) is type(model(given)))
            found["errors"].append(error(local(made), truth))
    return found


CASES = (
    *(layer, kernels_alone, unequal_choices, tuned, uneven_width, sharded_rows, three_heads),
    *(any_rows, cached, explained, explained_in_pieces, in_flight, layouts, made_inside),
)


@contextmanager
def group(rank: int, ranks: int, store: str) -> Any:
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=PATIENCE
    )
    yield init_device_mesh("cpu", (ranks,))
    distributed.destroy_process_group()


def main(rank: int, ranks: int, store: str, *names: str) -> None:
    torch.set_num_threads(1)
    bb.register_backend()
    found: dict[str, Found] = {}
    with group(rank, ranks, store) as mesh, torch.no_grad():
        for case in CASES:
            if case.__name__ in names:
                torch.manual_seed(0)
                found[case.__name__] = case(mesh)
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
