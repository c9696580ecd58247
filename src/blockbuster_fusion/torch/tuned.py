"""What tuning has found for the parts of models: keys, configurations and records."""

import hashlib
from collections.abc import Mapping

import torch

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.runtime.executable import Sizes
from blockbuster_fusion.runtime.tuning_database import Key
from blockbuster_fusion.schedule.space import Config
from blockbuster_fusion.version import __version__


def tuning_key(
    program: ArrayProgram, storage: Mapping[str, DType], sizes: Sizes, machine: Machine
) -> Key:
    """The key of a program's measurements on a machine."""
    stored = ",".join(f"{name}:{dtype}" for name, dtype in storage.items())
    text = f"{lower(program).digest} {stored} {machine.target}"
    return Key(
        hashlib.sha256(text.encode()).hexdigest(),
        tuple((str(axis), length) for axis, length in sizes),
        machine.name,
        machine.processors if machine.target == "cpu" else 1,
        versions(),
    )


def versions() -> tuple[tuple[str, str], ...]:
    """The versions of the software that measurements depend on."""
    return (("blockbuster-fusion", __version__), ("torch", str(torch.__version__)))


def config_of(choice: Choice) -> Config:
    """The configuration of a choice."""
    return choice.config
