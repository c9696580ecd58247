"""Programs for a GPU, as a user calls them; in Triton's interpreter where there is none."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import blockbuster_fusion as bb
from blockbuster_fusion.errors import BadInput

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux alone")

SCRIPT = """
import torch
import blockbuster_fusion as bb
device = "cuda" if torch.cuda.is_available() else "cpu"
program = bb.examples.causal_attention()
kernel = bb.compile(program, target="cuda", sizes={"D": 16, "L": 16})
for rows, columns in ((1, 1), (70, 33), (40, 90)):
    torch.manual_seed(0)
    Q, K, V = torch.randn(rows, 16), torch.randn(columns, 16), torch.randn(columns, 16)
    wanted = bb.evaluate(program, [x.double().numpy() for x in (Q, K, V)])["O"]
    found = kernel(Q.to(device), K.to(device).T.contiguous().T, V=V.to(device))["O"]
    assert found.device.type == device
    assert abs(found.cpu().double().numpy() - wanted).max() < 1e-4, (rows, columns)
empty = kernel(*(torch.zeros(n, 16, device=device) for n in (0, 5, 5)))["O"]
assert empty.shape == (0, 16)
two = bb.compile(bb.examples.rmsnorm_swiglu(), target="cuda", snapshot=0)
x = [torch.randn(*s, device=device) for s in ((20, 24), (18, 24), (18, 24), (17, 18))]
wanted = bb.evaluate(bb.examples.rmsnorm_swiglu(), [a.cpu().double().numpy() for a in x])["O"]
assert abs(two(*x)["O"].cpu().double().numpy() - wanted).max() < 1e-4
print("right")
"""


def test_tensors_in_tensors_out() -> None:
    environment = dict(os.environ)
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "right\n", done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_arrays_on_the_wrong_device() -> None:
    kernel = bb.compile(lambda x: x + 1, "M N", target="cuda")
    with pytest.raises(BadInput, match="is on cpu"):
        kernel(torch.zeros(3, 4))
    with pytest.raises(BadInput, match="is a NumPy array"):
        kernel(np.zeros((3, 4), np.float32))
