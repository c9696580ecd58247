"""Whether Triton's kernels can run here."""

import torch
from triton import knobs

NO_GPU = "PyTorch finds no GPU here"


def has_gpu() -> bool:
    """Whether PyTorch finds one."""
    return torch.cuda.is_available()


def can_launch() -> bool:
    """Whether there is a GPU, or Triton's interpreter stands in for it."""
    return has_gpu() or bool(knobs.runtime.interpret)
