"""Functions that printed Triton kernels have their own forms of."""

from collections.abc import Callable, Iterator

import numpy as np

import blockbuster_fusion as bb

SIGNED: dict[str, tuple[int, Callable[..., object]]] = {
    "one plus erf": (1, lambda X: {"O": 1 + bb.ops.erf(X)}),
    "one minus erf": (-1, lambda X: {"O": 1 - bb.ops.erf(X)}),
}
"""Sums of 1 and erf(x) or -erf(x), with the sign."""


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
