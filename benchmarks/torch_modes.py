"""mode="reduce-overhead" on a CUDA device: the same results, and times.

python benchmarks/torch_modes.py [--no-inductor] [--rounds 50] [--save FILE]
"""

import argparse
import json
import logging
import statistics
import time
import traceback
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import blockbuster_fusion as bb

logging.basicConfig(level=logging.WARNING)
bb.register_backend()
DEVICE, DTYPE = "cuda", torch.bfloat16


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)


def rotated(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Layer(nn.Module):
    def __init__(self, width, heads, groups, inner):
        super().__init__()
        self.heads, self.groups, self.head = heads, groups, width // heads
        self.norm1, self.norm2 = Norm(width), Norm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, groups * self.head, bias=False)
        self.v = nn.Linear(width, groups * self.head, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = (
            nn.Linear(width, inner, bias=False),
            nn.Linear(width, inner, bias=False),
        )
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x, cos, sin, cache=None, at=None):
        h = self.norm1(x)
        batch, length = x.shape[:2]
        q = self.q(h).view(batch, length, self.heads, self.head).transpose(1, 2)
        k = self.k(h).view(batch, length, self.groups, self.head).transpose(1, 2)
        v = self.v(h).view(batch, length, self.groups, self.head).transpose(1, 2)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        mask = None
        if cache is not None:
            keys, values = cache
            keys.index_copy_(2, at, k)
            values.index_copy_(2, at, v)
            k, v = keys, values
            mask = torch.arange(keys.shape[2], device=x.device)[None] <= at[:, None]
        share = self.heads // self.groups
        k, v = (y.repeat_interleave(share, 1) if share > 1 else y for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=cache is None)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, -1))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, layers=2, width=2048, heads=16, groups=8, inner=5632, vocab=32000):
        super().__init__()
        self.embed, self.norm = nn.Embedding(vocab, width), Norm(width)
        self.layers = nn.ModuleList(Layer(width, heads, groups, inner) for _ in range(layers))
        self.head = nn.Linear(width, vocab, bias=False)
        self.register_buffer(
            "freq", 10000.0 ** -(torch.arange(0, width // heads, 2) / (width // heads))
        )

    def forward(self, ids, at, caches=None):
        angles = torch.outer(at.float(), self.freq.float())
        angles = torch.cat((angles, angles), -1)
        x = self.embed(ids)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for number, layer in enumerate(self.layers):
            x = layer(x, cos, sin, None if caches is None else caches[number], at)
        return self.head(self.norm(x))


def new_caches(model, room):
    layer = model.layers[0]
    shape = (1, layer.groups, room, layer.head)
    return [
        tuple(torch.zeros(shape, device=DEVICE, dtype=DTYPE) for _ in range(2))
        for _ in model.layers
    ]


def error(found, wanted):
    return ((found.float() - wanted.float()).abs().max() / wanted.float().abs().max()).item()


def compiled(model, name):
    torch._dynamo.reset()
    backend, _, mode = name.partition(" ")
    options = {} if mode in ("", "default") else {"mode": mode}
    return torch.compile(model, backend=backend, dynamic=False, **options)


def prefill_args(length, seed=0):
    g = torch.Generator(device=DEVICE).manual_seed(seed)
    ids = torch.randint(0, 32000, (1, length), device=DEVICE, generator=g)
    return ids, torch.arange(length, device=DEVICE)


# ---------------------------------------------------------------- results


def same_results(model):
    """Several calls with different inputs and two lengths; results of earlier calls must stay."""
    lengths, calls = (16, 40), 6
    plain, fast = compiled(model, "blockbuster"), None
    wanted = {(n, c): plain(*prefill_args(n, c)).clone() for n in lengths for c in range(calls)}
    fast = compiled(model, "blockbuster reduce-overhead")
    found = {(n, c): fast(*prefill_args(n, c)) for c in range(calls) for n in lengths}
    torch.cuda.synchronize()
    return {
        "equal": all(torch.equal(found[k], wanted[k]) for k in wanted),
        "largest difference": max(error(found[k], wanted[k]) for k in wanted),
        "against eager": max(error(found[n, c], model(*prefill_args(n, c))) for n, c in wanted),
    }


def static_cache(model):
    """A cache that is written in place, its addresses the same in every call, and then another."""
    made = {}
    for name in ("eager", "blockbuster", "blockbuster reduce-overhead"):
        call = model if name == "eager" else compiled(model, name)
        logits = []
        for seed in (0, 1):
            caches = new_caches(model, 64)
            for step in range(8):
                ids, _ = prefill_args(1, 100 * seed + step)
                logits.append(call(ids, torch.tensor([step], device=DEVICE), caches).clone())
        made[name] = (torch.cat(logits), torch.stack([y for pair in caches for y in pair]))
    plain, fast = made["blockbuster"], made["blockbuster reduce-overhead"]
    return {
        "equal": all(torch.equal(x, y) for x, y in zip(plain, fast, strict=True)),
        "largest difference": max(error(x, y) for x, y in zip(fast, plain, strict=True)),
        "against eager": max(error(x, y) for x, y in zip(fast, made["eager"], strict=True)),
    }


def graphs_kept(model):
    """True if graphs are really captured: what is kept in the plans' replays."""
    from blockbuster_fusion.torch.plan import cuda_graph as torch_replay

    seen = []
    before = torch_replay.ReplayedPlan.__init__

    def init(self, *arguments):
        before(self, *arguments)
        seen.append(self)

    torch_replay.ReplayedPlan.__init__ = init
    try:
        call = compiled(model, "blockbuster reduce-overhead")
        for number in range(5):
            call(*prefill_args(16, number))
    finally:
        torch_replay.ReplayedPlan.__init__ = before
    replays = [r for plan in seen for r in plan.known.values()]
    return {
        "plans": len(seen),
        "captured": sum(r is not None and r.replay is not None for r in replays),
        "failed": sum(r is None or r.has_failed for r in replays),
        "unreplayed": bb.explain(model, *prefill_args(16)).unreplayed,
    }


# ---------------------------------------------------------------- times


def median(call, rounds):
    """Milliseconds, by CUDA events and by the clock of the host."""
    for _ in range(10):
        torch.compiler.cudagraph_mark_step_begin()
        call()
    torch.cuda.synchronize()
    device, host = [], []
    for _ in range(rounds):
        torch.compiler.cudagraph_mark_step_begin()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start = time.perf_counter()
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        host.append(1e3 * (time.perf_counter() - start))
        device.append(begin.elapsed_time(end))
    return {"events_ms": statistics.median(device), "host_ms": statistics.median(host)}


def timed(model, name, what, rounds):
    call = model if name == "eager" else compiled(model, name)
    if what == "one token":
        caches, ids = new_caches(model, 1024), prefill_args(1)[0]
        for group in caches:
            for x in group:
                torch._dynamo.mark_static_address(x)
        at = torch.tensor([700], device=DEVICE)
        return median(lambda: call(ids, at, caches), rounds)
    arguments = prefill_args(2048)
    return median(lambda: call(*arguments), rounds)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the results as JSON")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = Llama().to(DEVICE, DTYPE).eval().requires_grad_(False)
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}

    def attempt(name, function, *arguments):
        try:
            found[name] = function(*arguments)
        except Exception:
            found[name] = {"error": traceback.format_exc()[-1500:]}
        print(name, found[name], flush=True)

    names = ["eager", "blockbuster", "blockbuster reduce-overhead"]
    if not options.no_inductor:
        names += ["inductor", "inductor reduce-overhead"]
    with torch.no_grad():
        attempt("same results", same_results, model)
        attempt("static cache", static_cache, model)
        attempt("graphs", graphs_kept, model)
        for what in ("one token", "2048 tokens"):
            for name in names:
                attempt(f"{what}, {name}", timed, model, name, what, options.rounds)
    if options.save:
        options.save.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
