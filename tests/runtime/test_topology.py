"""Cores and caches, from trees as systems of many kinds have them."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from blockbuster_fusion.runtime.c.topology import Cache, numbers, topology

KIB, MIB = 1 << 10, 1 << 20


def listed(cpus: Iterable[int]) -> str:
    return ",".join(map(str, cpus)) + "\n"


class Tree:
    """A made-up /sys/devices/system/cpu."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def core(self, *cpus: int, file: str = "core_cpus_list") -> None:
        for cpu in cpus:
            self.write(f"cpu{cpu}/topology/{file}", listed(cpus))

    def cache(self, index: int, level: int, size: str, *cpus: int, kind: str = "Unified") -> None:
        texts = {"type": kind, "level": str(level), "size": size, "shared_cpu_list": listed(cpus)}
        for cpu in cpus:
            for name, text in texts.items():
                self.write(f"cpu{cpu}/cache/index{index}/{name}", text)

    def write(self, name: str, text: str) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def two_sockets(tree: Tree) -> None:
    """Two sockets of four cores, each core with two threads: CPU n and CPU n + 8."""
    for core in range(8):
        both = (core, core + 8)
        tree.core(*both)
        tree.cache(0, 1, "48K", *both, kind="Data")
        tree.cache(1, 1, "32K", *both, kind="Instruction")
        tree.cache(2, 2, "2048K", *both)
    for first in (0, 4):
        cpus = range(first, first + 4)
        tree.cache(3, 3, "30M", *cpus, *(cpu + 8 for cpu in cpus))


def test_two_sockets_whose_cores_have_two_threads(tree: Tree) -> None:
    two_sockets(tree)
    found = topology(tree.folder, range(16))
    assert (len(found.cores), found.cpus) == (8, 16)
    assert found.caches == (
        Cache("L1", 48 * KIB, 8 * 48 * KIB, shared=False),
        Cache("L2", 2 * MIB, 16 * MIB, shared=False),
        Cache("L3", 30 * MIB, 60 * MIB, shared=True),
    )


def test_few_threads_reach_the_caches_of_their_cores_only(tree: Tree) -> None:
    two_sockets(tree)
    found = topology(tree.folder, range(16), threads=3)
    assert found.cores == (frozenset({0, 8}), frozenset({1, 9}), frozenset({2, 10}))
    assert [cache.total for cache in found.caches] == [3 * 48 * KIB, 6 * MIB, 30 * MIB]
    one = topology(tree.folder, range(16), threads=1)
    assert not any(cache.shared for cache in one.caches)
    assert topology(tree.folder, range(16), threads=12) == topology(tree.folder, range(16))


def test_a_container_with_few_cpus(tree: Tree) -> None:
    """Both threads of one core, and one of another."""
    two_sockets(tree)
    found = topology(tree.folder, [5, 8, 0])
    assert found.cores == (frozenset({0, 8}), frozenset({5}))
    assert found.cpus == 3
    assert found.caches[-1] == Cache("L3", 30 * MIB, 60 * MIB, shared=False)


def test_a_hybrid_cpu(tree: Tree) -> None:
    """Two large cores with two threads each, and four small ones that share a second cache."""
    for both in ((0, 1), (2, 3)):
        tree.core(*both)
        tree.cache(0, 1, "48K", *both, kind="Data")
        tree.cache(2, 2, "1280K", *both)
    for cpu in range(4, 8):
        tree.core(cpu)
        tree.cache(0, 1, "32K", cpu, kind="Data")
    tree.cache(2, 2, "2M", 4, 5, 6, 7)
    tree.cache(3, 3, "12M", *range(8))
    found = topology(tree.folder, range(8))
    assert (len(found.cores), found.cpus) == (6, 8)
    assert found.caches == (
        Cache("L1", 32 * KIB, (2 * 48 + 4 * 32) * KIB, shared=False),
        Cache("L2", 1280 * KIB, 2 * 1280 * KIB + 2 * MIB, shared=True),
        Cache("L3", 12 * MIB, 12 * MIB, shared=True),
    )


def test_an_older_system_names_the_list_otherwise(tree: Tree) -> None:
    tree.core(0, 1, file="thread_siblings_list")
    assert topology(tree.folder, [0, 1]).cores == (frozenset({0, 1}),)


def test_a_system_that_tells_nothing(tmp_path: Path) -> None:
    found = topology(tmp_path / "missing", range(4))
    assert (len(found.cores), found.cpus) == (4, 4)
    assert [cache.name for cache in found.caches] == ["L1", "L2", "L3"]
    assert [cache.shared for cache in found.caches] == [False, False, True]


def test_folders_that_cannot_be_listed_tell_nothing(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that had no descriptor left could not compile a kernel that was there already."""

    def refused(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    tree.core(0, 1)
    tree.cache(0, 1, "32K", 0, kind="Data")
    monkeypatch.setattr(os, "scandir", refused)
    found = topology(tree.folder, [0, 1])
    assert found.cores == (frozenset({0, 1}),)
    assert [cache.name for cache in found.caches] == ["L1", "L2", "L3"]


@pytest.mark.parametrize("text", ["", "many", "1-", "-"])
def test_files_that_cannot_be_read_are_left_out(tree: Tree, text: str) -> None:
    tree.core(0)
    tree.cache(0, 1, "32K", 0, kind="Data")
    tree.write("cpu0/topology/core_cpus_list", text)
    tree.write("cpu0/cache/index2/type", "Unified")
    tree.write("cpu0/cache/index2/size", text)
    found = topology(tree.folder, [0])
    assert found.cores == (frozenset({0}),)
    assert found.caches == (Cache("L1", 32 * KIB, 32 * KIB, shared=False),)


def test_lists_of_cpus() -> None:
    assert numbers("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}


def test_this_host_has_a_core() -> None:
    found = topology()
    assert 1 <= len(found.cores) <= found.cpus
    assert found.caches
