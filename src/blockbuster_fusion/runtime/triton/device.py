"""Whether Triton's kernels can run here."""

import torch
from triton import knobs

NO_GPU = "PyTorch finds no GPU here"


def has_gpu() -> bool:
    """Whether PyTorch finds one."""
    return torch.cuda.is_available()


def capability() -> int | None:
    """The compute capability of the current GPU, 90 for sm_90; None where there is no GPU."""
    if not has_gpu():
        return None
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def can_launch() -> bool:
    """Whether there is a GPU, or Triton's interpreter stands in for it."""
    return has_gpu() or bool(knobs.runtime.interpret)
