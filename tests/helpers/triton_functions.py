"""Functions that printed Triton kernels have their own forms of."""

from collections.abc import Callable, Iterator

import numpy as np

import blockbuster_fusion as bb

SIGNED: dict[str, tuple[int, Callable[..., object]]] = {
    "one plus erf": (1, lambda X: {"O": 1 + bb.ops.erf(X)}),
    "one minus erf": (-1, lambda X: {"O": 1 - bb.ops.erf(X)}),
}
"""Sums of 1 and erf(x) or -erf(x), with the sign."""


def logarithms() -> Iterator[dict[str, object]]:
    """The largest error of log(1 + exp(x)) as a share of the result, and that of PyTorch."""
    import torch

    from blockbuster_fusion.schedule.schedule import scheduled
    from helpers import triton_runner

    x = np.concatenate([np.linspace(-80.0, 80.0, 40_001), [0.0, -np.inf, np.inf, np.nan]])
    x = x.astype(np.float32)
    exact = torch.nn.functional.softplus(torch.from_numpy(x).double(), threshold=1e9).numpy()
    usual = torch.nn.functional.softplus(torch.from_numpy(x)).double().numpy()
    program = bb.trace(lambda X: {"O": bb.ops.softplus(X)}, X="M")
    nest = scheduled(bb.fuse(bb.lower(program)).snapshots[-1], "softplus")
    tiles = {dim: 4096 for kernel in nest.kernels for dim in kernel.dims}
    made = triton_runner.run(nest, {"X": x}, tiles)["O"]
    error, own = (np.max(np.abs(y[:40_001] / exact[:40_001] - 1)) for y in (made, usual))
    special = bool(np.array_equal(made[-3:], [0.0, np.inf, np.nan], equal_nan=True))
    yield {"error": float(error), "torch": float(own), "special": special}


def error_functions() -> Iterator[dict[str, object]]:
    """The largest errors of 1 + erf and 1 - erf, absolute and where nothing should cancel."""
    import torch

    from blockbuster_fusion.schedule.schedule import scheduled
    from helpers import triton_runner

    x = np.concatenate(
        [
            np.linspace(-12.0, 12.0, 40_001),
            np.geomspace(1e-40, 1e30, 71),
            -np.geomspace(1e-40, 1e30, 71),
            [0.0, -0.0, np.inf, -np.inf, np.nan],
        ]
    ).astype(np.float32)
    wide = torch.from_numpy(x.astype(np.float64))
    for name, (sign, function) in SIGNED.items():
        exact = torch.special.erfc(-sign * wide).numpy()
        usual = (1 + sign * torch.erf(torch.from_numpy(x))).double().numpy()
        nest = scheduled(bb.fuse(bb.lower(bb.trace(function, X="M"))).snapshots[-1], "erf")
        tiles = {dim: 4096 for kernel in nest.kernels for dim in kernel.dims}
        made = triton_runner.run(nest, {"X": x}, tiles)["O"]
        near = (sign * x >= -5) & (sign * x <= 0)
        yield {
            "case": name,
            "error": float(np.nanmax(np.abs(made - exact))),
            "torch": float(np.nanmax(np.abs(usual - exact))),
            "share": float(np.max(np.abs(made[near] / exact[near] - 1))),
            "nan": int(np.isnan(made).sum()),
        }
