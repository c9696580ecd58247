"""Finds out if this machine can run Triton's kernels."""

import torch
from triton import knobs

NO_GPU = "PyTorch finds no GPU here"


def has_gpu() -> bool:
    """True if PyTorch finds a GPU."""
    return torch.cuda.is_available()


def capability(device: torch.device | None = None) -> int | None:
    """The compute capability of a GPU, by default of the current one: 90 for sm_90.

    None where there is no GPU.
    """
    if not has_gpu():
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def can_launch() -> bool:
    """True if there is a GPU, or Triton's interpreter replaces it."""
    return has_gpu() or bool(knobs.runtime.interpret)
