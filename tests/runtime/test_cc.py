"""The C compiler: libraries from the cache, and sentences where there are none."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blockbuster_fusion.errors import CompilerFailed, NoCompiler
from blockbuster_fusion.runtime import cache, cc
from blockbuster_fusion.runtime.cc import compile_c

SOURCE = "int answer(void) { return 42; }\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The options of every run of the compiler."""
    made: list[list[str]] = []
    run = cc._run

    def counted(command, options, source, library):
        made.append(list(options))
        return run(command, options, source, library)

    monkeypatch.setattr(cc, "_run", counted)
    return made


def answer(library: Path) -> int:
    return ctypes.CDLL(str(library)).answer()


def test_compiled_once(runs: list) -> None:
    assert answer(compile_c(SOURCE)) == 42
    assert compile_c(SOURCE) == compile_c(SOURCE)
    assert len(runs) == 1
    compile_c(SOURCE, flags=["-DOTHER"])
    compile_c(SOURCE + "\n")
    assert len(runs) == 3


def test_a_garbled_library_is_compiled_again(runs: list) -> None:
    library = compile_c(SOURCE)
    library.write_bytes(b"\x7fELF and then nothing")
    assert answer(compile_c(SOURCE)) == 42
    assert len(runs) == 2


def test_without_openmp_it_is_compiled_for_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: list
) -> None:
    refusing = tmp_path / "refusing-cc"
    real = cc.compiler()[0]
    refusing.write_text(
        "#!/bin/sh\n"
        'case "$*" in *-fopenmp*) echo "unsupported option -fopenmp" >&2; exit 1;; esac\n'
        f'exec {real} "$@"\n'
    )
    refusing.chmod(0o755)
    monkeypatch.setenv("CC", str(refusing))
    assert answer(compile_c(SOURCE)) == 42
    assert ["-fopenmp" in options for options in runs] == [True, False]


def test_an_error_names_the_source_that_is_kept() -> None:
    with pytest.raises(CompilerFailed, match="answer") as caught:
        compile_c("int answer(void) { return nothing; }\n")
    assert "error" in str(caught.value)
    assert "nothing" in caught.value.source.read_text()


def test_a_missing_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    with pytest.raises(NoCompiler, match="CC says no-such-compiler"):
        compile_c(SOURCE)
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCompiler, match="neither cc nor gcc nor clang"):
        compile_c(SOURCE)


def test_a_killed_compilation_costs_one_more(tmp_path: Path, folder: Path) -> None:
    slow = tmp_path / "slow-cc"
    real = cc.compiler()[0]
    slow.write_text(
        f'#!/bin/sh\nif [ "$1" != --version ]; then touch {tmp_path}/started; sleep 60; fi\n'
        f'exec {real} "$@"\n'
    )
    slow.chmod(0o755)
    script = f"from blockbuster_fusion.runtime.cc import compile_c; compile_c({SOURCE!r})"
    environment = {**os.environ, "CC": str(slow)}
    child = subprocess.Popen(
        [sys.executable, "-c", script], env=environment, start_new_session=True
    )
    while not (tmp_path / "started").exists():
        assert child.poll() is None
        time.sleep(0.02)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    assert len(list(folder.glob(".making-*"))) == 1
    assert answer(compile_c(SOURCE)) == 42


def test_sanitizers_are_asked_for(runs: list) -> None:
    compile_c(SOURCE, sanitize=True)
    assert "-fsanitize=address,undefined" in runs[0]
