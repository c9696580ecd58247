"""Kernels after a fork: the threads of OpenMP's pool are gone, and nothing waits for them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FORKS = """
import os, signal, sys
import numpy as np
{make}

def in_child():
    signal.alarm(60)
    os._exit(0 if same() else 1)

failed = 0
for _ in range({times}):
    pid = os.fork()
    if pid == 0:
        in_child()
    failed += os.waitpid(pid, 0)[1] != 0
print(failed, same())
"""

NUMPY = """
import blockbuster_fusion as bb
kernel = bb.compile(lambda X: {"O": bb.ops.softmax(X)}, X="M N", threads=4)
x = np.random.default_rng(0).random((512, 512), np.float32)
wanted = kernel(x)[0]
same = lambda: np.array_equal(kernel(x)[0], wanted)
"""

TORCH = """
import torch
torch.set_num_threads(4)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.ReLU())
kernel = torch.no_grad()(torch.compile(model.eval(), backend="blockbuster"))
x = torch.randn(512, 64)
wanted = [kernel(x) for _ in range(5)][-1]
same = lambda: torch.allclose(kernel(x), wanted, atol=1e-6)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize(("make", "times"), [(NUMPY, 50), (TORCH, 3)], ids=["numpy", "torch"])
def test_a_kernel_that_has_run_runs_in_a_forked_child(make: str, times: int) -> None:
    """A child that was forked after a parallel call never returned."""
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", FORKS.format(make=make, times=times)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert done.stdout.split() == ["0", "True"], done.stderr
