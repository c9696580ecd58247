"""A random model as data: its given tensors, lines and results, and its source text."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from fuzz.models.values import tensor


class Role(Enum):
    """The role of a tensor that a model does not compute."""

    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"


class Kind(Enum):
    """The effect of a line on memory."""

    COMPUTE = "compute"
    VIEW = "view"
    WRITE = "write"


@dataclass(frozen=True)
class Given:
    """A tensor that a model is given; of a length "n" in its shape there are several."""

    name: str
    role: Role
    seed: int
    shape: tuple[int | str, ...]
    dtype: torch.dtype
    layout: str = "plain"
    odd: bool = False
    most: int = 4
    scale: float = 1.0
    offset: float = 0.0

    def make(self, n: int, floats: torch.dtype | None = None) -> Tensor:
        """The tensor, for a length; with `floats`, its floats as that dtype."""
        shape = [n if isinstance(s, str) else s for s in self.shape]
        options: dict[str, Any] = {"odd": self.odd, "most": self.most}
        options |= {"scale": self.scale, "offset": self.offset, "floats": floats}
        return tensor(self.seed, shape, self.dtype, self.layout, **options)

    @property
    def text(self) -> str:
        """The expression that makes it."""
        shape = "".join(f"{s}, " for s in self.shape)
        words = [str(self.seed), f"({shape.rstrip()})", str(self.dtype), repr(self.layout)]
        plain = Given("", Role.INPUT, 0, (), torch.float32)
        for name in ("odd", "most", "scale", "offset"):
            if getattr(self, name) != getattr(plain, name):
                words.append(f"{name}={getattr(self, name)!r}")
        return f"tensor({', '.join(words)})"


@dataclass(frozen=True)
class Line:
    """A statement of a model."""

    text: str
    makes: tuple[str, ...]
    kind: Kind
    row: str
    """The row of the operator table that it is for, or a word if there is none."""

    @property
    def reads(self) -> set[str]:
        return set(NAME.findall(self.text)) - set(self.makes)


NAME = re.compile(r"\b[vgn]\d+\b")
_FLOATS = re.compile(r"torch\.(float16|bfloat16|float32)\b")
_VAR_MEAN = re.compile(r"torch\.(ops\.aten\.)?var_mean\b(\.\w+)?")


@dataclass(frozen=True)
class Program:
    """A random model."""

    given: tuple[Given, ...]
    lines: tuple[Line, ...]
    results: tuple[str, ...]
    lengths: tuple[int, ...] = ()
    """The lengths that it is called with, where it has a length that varies."""

    @property
    def inputs(self) -> tuple[Given, ...]:
        return tuple(g for g in self.given if g.role is Role.INPUT)

    @property
    def calls(self) -> tuple[int, ...]:
        """The lengths of its calls; one that does not matter where it has none."""
        return self.lengths or (0,)

    def needed(self) -> "Program":
        """The program without lines that nobody reads; lines that write stay."""
        wanted = set(self.results)
        lines: list[Line] = []
        for line in reversed(self.lines):
            if line.kind is Kind.WRITE or wanted & set(line.makes):
                wanted |= line.reads
                lines.append(line)
        given = tuple(g for g in self.given if g.name in wanted or g is self.inputs[0])
        return replace(self, given=given, lines=tuple(lines[::-1]))

    def run(self, values: dict[str, Any], floats: torch.dtype | None = None) -> Iterator[Line]:
        """Each line, before it is executed on the values."""
        for line in self.lines:
            yield line
            execute(line, values, floats)

    @property
    def source(self) -> str:
        """The model as a Python class."""
        made = ["class Model(torch.nn.Module):", "    def __init__(self, n=0):"]
        made.append("        super().__init__()")
        held = [g for g in self.given if g.role is not Role.INPUT]
        for g in held:
            if g.role is Role.PARAMETER:
                made.append(f"        self.{g.name} = torch.nn.Parameter({g.text}, False)")
            else:
                made.append(f"        self.register_buffer({g.name!r}, {g.text})")
        made += ["", f"    def forward(self, {', '.join(g.name for g in self.inputs)}):"]
        made += [f"        {g.name} = self.{g.name}" for g in held]
        made += [f"        {line.text}" for line in self.lines]
        made.append(f"        return {', '.join(self.results)},")
        inputs = ", ".join(g.text for g in self.inputs)
        return "\n".join([*made, "", "", "def inputs(n=0):", f"    return [{inputs}]", ""])

    def script(self, *, strict: bool, dynamic: bool | None) -> str:
        """A file that compiles the model and compares it with eager; run it in the folder tests."""
        return (
            "import torch\nfrom torch.nn import functional as F\n\n"
            "from fuzz.models.replay import replay\nfrom fuzz.models.values import tensor\n\n\n"
            f"{self.source}\n\n"
            f"replay(Model, inputs, {self.calls}, strict={strict}, dynamic={dynamic})\n"
        )


def execute(line: Line, values: dict[str, Any], floats: torch.dtype | None = None) -> None:
    """Run a line on values; with `floats`, floats that it names are of that dtype."""
    if floats is None:
        exec(line.text, NAMES, values)
        return
    usual = torch.get_default_dtype()
    torch.set_default_dtype(floats)  # of whole numbers and Python's floats
    try:
        text = _VAR_MEAN.sub("exact_var_mean", _FLOATS.sub(str(floats), line.text))
        exec(text, NAMES, values)
    finally:
        torch.set_default_dtype(usual)


def exact_var_mean(x: Tensor, dim: Any = None, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """`var_mean` with the mean of a sum: eager's running mean is NaN once it was infinite."""
    variance, mean = torch.var_mean(x, dim, *rest, **options)
    where = None if isinstance(dim, bool) else dim
    return variance, x.mean(where, keepdim=mean.dim() == x.dim())


NAMES: dict[str, Any] = {
    "torch": torch,
    "F": torch.nn.functional,
    "tensor": tensor,
    "exact_var_mean": exact_var_mean,
}


def without(program: Program, dropped: Sequence[int]) -> Program:
    """The program without some of its lines."""
    kept = tuple(line for i, line in enumerate(program.lines) if i not in dropped)
    return replace(program, lines=kept)
