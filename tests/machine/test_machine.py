"""Machines: files that come with the package, faults in files, and the choice of a memory."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from blockbuster_fusion.errors import BadMachine
from blockbuster_fusion.machine.machine import Machine, Memory, from_mapping, known, read

SMALL = Machine(
    "small",
    "cpu",
    4,
    (Memory("L1", 1 << 15, 1e11, 4e11, shared=False), Memory("main", 1 << 33, 1e10, 3e10)),
    {"vector.float32": 1e11, "matrix.bfloat16": 8e11},
    launch=1e-6,
    step=0.0,
)


@pytest.mark.parametrize("name", ["a100", "h100", "h200"])
def test_machines_that_come_with_the_package(name: str) -> None:
    machine = known()[name]
    assert machine.target == "cuda"
    assert machine.rate("bfloat16", matrix=True) > machine.rate("float32", matrix=True)
    totals = [memory.total for memory in machine.memories]
    assert totals == sorted(totals, reverse=True)
    sizes = [m.size if m.shared else m.size * machine.processors for m in machine.memories]
    assert sizes == sorted(sizes)


def test_a_machine_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "small.json"
    file.write_text(SMALL.to_json())
    assert read(file) == SMALL


def test_rates_and_memories() -> None:
    assert SMALL.rate("float32") == 4e11
    assert SMALL.rate("float32", processors=1) == 1e11
    assert SMALL.rate("float16") == 4e11  # unknown: that of float32
    assert SMALL.rate("bfloat16", matrix=True, processors=9) == 3.2e12
    assert SMALL.memory_for(1 << 16).name == "L1"
    assert SMALL.memory_for(1 << 18).name == "main"
    assert SMALL.memory_for(1 << 40).name == "main"
    assert SMALL.full == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target": "tpu"}, "its target is 'tpu'"),
        ({"memories": []}, "no memory"),
        ({"processors": 0}, "processors is 0"),
        ({"rates": {"float32": 1.0}}, "no unit and dtype"),
        ({"rates": {"vector.float64": 1.0}}, "no rate `vector.float32`"),
        ({"rates": {"vector.float32": float("nan")}}, "must be positive and finite"),
        ({"launch": -1.0}, "not negative"),
        ({"processors": True}, "must be a number"),
        ({"name": "\x1b[2J"}, "can be printed"),
        ({"memories": [{"name": "L1"}]}, "missing"),
        ({"colour": "red"}, "colour"),
        ({"rates": None}, "NoneType"),
    ],
)
def test_faults_get_a_sentence(change: dict[str, object], said: str) -> None:
    with pytest.raises(BadMachine, match="machine ") as found:
        from_mapping(json.loads(SMALL.to_json()) | change, "file.json")
    assert said in str(found.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("name = ")
    (tmp_path / "list.json").write_text("[]")
    for name in ("broken.toml", "list.json", "missing.toml"):
        with pytest.raises(BadMachine, match=name):
            read(tmp_path / name)


def test_the_origin_of_figures_is_not_compared() -> None:
    assert replace(SMALL, source="another") == SMALL


def test_figures_that_may_be_left_out_are_given_by_name() -> None:
    """The time to wake a CPU's cores was once taken for that of early launches."""
    needed = [getattr(SMALL, name) for name in ("name", "target", "processors", "memories")]
    with pytest.raises(TypeError):
        Machine(*needed, SMALL.rates, 0.0, 0.0, 1e-6)  # type: ignore[misc]
