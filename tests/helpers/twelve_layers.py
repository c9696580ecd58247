"""A model of twelve layers, of which one differs, and an operator that PyTorch runs."""

import torch
from torch.nn import functional as F

X = torch.linspace(-1, 1, 35).reshape(5, 7)
KERNELS = {"library": "never", "materialise": ["add", "add_*"]}
"""Each layer ends with an array in memory."""


class Layer(torch.nn.Module):
    """A norm, two linear layers with an activation between them, and a residual."""

    def __init__(self, gates: bool) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(7, 13), torch.nn.Linear(13, 7)
        self.gates = gates

    def forward(self, x):
        y = self.up(F.layer_norm(x, (7,)))
        return x + self.down(y.sigmoid() if self.gates else y.relu())


class Twelve(torch.nn.Module):
    """The layers, then a sort."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(at == 5) for at in range(12))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.sort()[0]
