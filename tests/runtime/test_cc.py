"""The C compiler: libraries from the cache, and sentences where there are none."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.errors import CompilerFailed, NoCompiler, WrongKind
from blockbuster_fusion.printers.c.prelude import large_functions
from blockbuster_fusion.runtime import disk_cache
from blockbuster_fusion.runtime.c import compiler as cc
from blockbuster_fusion.runtime.c.compiler import compile_c
from blockbuster_fusion.runtime.c.kernels import loaded
from blockbuster_fusion.runtime.c.library import is_whole, load_library
from blockbuster_fusion.runtime.c.topology import Cache, Topology
from blockbuster_fusion.runtime.disk_cache import CacheEntry

SOURCE = "int answer(void) { return 42; }\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(disk_cache.VARIABLE, str(tmp_path / "cache"))
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


def answer(library: CacheEntry) -> int:
    return load_library(library.content).answer()


def test_compiled_once(runs: list) -> None:
    assert answer(compile_c(SOURCE)) == 42
    assert compile_c(SOURCE) == compile_c(SOURCE)
    assert len(runs) == 1
    compile_c(SOURCE, flags=["-DOTHER"])
    compile_c(SOURCE + "\n")
    assert len(runs) == 3


def test_large_functions_are_compiled_once_for_all_kernels(runs: list) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for rows in (32, 64):
        kernel = bb.compile(bb.examples.matmul_relu(), tiles={"M": rows})
        np.testing.assert_array_equal(kernel(x, x)[0], x @ x.T)
    alone = [options for options in runs if "-c" in options]
    assert len(alone) == len(large_functions(kernel.source)) > 0
    assert len(runs) == len(alone) + 2


def test_a_garbled_library_is_compiled_again(runs: list) -> None:
    compile_c(SOURCE).file.write_bytes(b"\x7fELF and then nothing")
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
    cc._openmp_of.cache_clear()
    assert answer(compile_c(SOURCE)) == 42
    assert len(runs) == 3  # it was asked whether there is OpenMP now
    assert runs[2] == ["-fPIC", "-shared", "-fopenmp"]
    status = refusing.stat()
    refusing.write_text(f'#!/bin/sh\nexec {real} "$@"\n'.ljust(status.st_size))
    os.utime(refusing, ns=(status.st_mtime_ns, status.st_mtime_ns))
    cc._openmp_of.cache_clear()
    assert answer(compile_c(SOURCE)) == 42
    assert "-fopenmp" in runs[-1]
    assert len(runs[-1]) > 4


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
    script = f"from blockbuster_fusion.runtime.c.compiler import compile_c; compile_c({SOURCE!r})"
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


def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A compiler that does as the script says; OUT is the file to write, REAL the real one."""
    file = tmp_path / "fake-cc"
    real = shutil.which(cc.compiler()[0])
    file.write_text(
        "#!/bin/bash\n"
        'if [ "$1" = --version ]; then echo fake 1; exit; fi\n'
        f'REAL={real}; for a; do [ "$last" = -o ] && OUT=$a; last=$a; done\n{script}\n'
    )
    file.chmod(0o755)
    monkeypatch.setenv("CC", str(file))


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("exit 0", "wrote no library"),
        ("exit 3", "ended with status 3"),
        ("kill -SEGV $$", "ended by SIGSEGV"),
        ("printf 'b\\xff\\xfe\\x1b[31m' >&2; exit 1", "b"),
        ("yes no | head -c 30000000 >&2; exit 1", "no\nno"),
        ("mkfifo $OUT", "wrote no library"),
        ("ln -s /dev/zero $OUT", "wrote no library"),
    ],
    ids=["nothing", "status", "signal", "no text", "endless", "pipe", "link"],
)
def test_compilers_that_fail(
    script: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, monkeypatch, script)
    with pytest.raises(CompilerFailed) as caught:
        loaded(SOURCE)
    assert sentence in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    "script",
    [
        "echo garbage > $OUT",
        '$REAL "$@" && truncate -s 4000 $OUT',
        '$REAL "$@" && truncate -s -100 $OUT',
        "head -c 100000 /dev/urandom > $OUT",
        ": > $OUT",
    ],
    ids=["text", "half", "no end", "random", "empty"],
)
def test_what_is_no_library_is_not_loaded(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, monkeypatch, script)
    with pytest.raises(CompilerFailed, match="what it wrote cannot be loaded"):
        loaded(SOURCE)


@pytest.mark.parametrize("script", ["sleep 100", "sleep 100 & exec >&- 2>&-; wait", "cat"])
def test_a_compiler_that_does_not_end(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ended with all that it has started; nothing is read from the terminal."""
    fake(tmp_path, monkeypatch, script)
    monkeypatch.setenv(cc.SECONDS_VARIABLE, "0.5")
    with pytest.raises(CompilerFailed, match=r"within 0.5 s; BLOCKBUSTER_COMP|wrote no library"):
        compile_c(SOURCE)


def test_a_time_limit_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cc.SECONDS_VARIABLE, "soon")
    with pytest.raises(WrongKind, match="a number of seconds above 0, not 'soon'"):
        cc.time_limit()


def test_a_compiler_with_an_open_quote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "gcc 'x")
    with pytest.raises(NoCompiler, match="which is no command"):
        compile_c(SOURCE)


def test_a_full_disk_sends_the_compiler_elsewhere(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    full = f'case $OUT in {folder}/*) echo "cc1: No space left on device" >&2; exit 1;; esac'
    fake(tmp_path, monkeypatch, f'{full}\nexec $REAL "$@"')
    assert answer(compile_c(SOURCE)) == 42
    assert "cannot be written (No space left on device)" in caplog.text


@pytest.mark.parametrize("name", cc.SEARCHED)
def test_what_a_compiler_searches_is_part_of_the_key(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = cc._key(SOURCE, ("cc",), ())
    monkeypatch.setenv(name, "/elsewhere")
    assert cc._key(SOURCE, ("cc",), ()) != before


def test_the_c_library_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cc._key(SOURCE, ("cc",), ())
    cc._version.cache_clear()
    monkeypatch.setattr(cc.os, "confstr", lambda name: "glibc 99")
    changed = cc._key(SOURCE, ("cc",), ())
    cc._version.cache_clear()
    assert changed != before


def test_what_was_hashed_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is swapped after it was looked at is not executed."""
    entry = compile_c(SOURCE)
    other = compile_c(SOURCE.replace("42", "666"))
    entry.file.write_bytes(other.content)
    assert answer(entry) == 42


def test_libraries_are_told_apart() -> None:
    """The loader knows them by path, and descriptors are used again."""
    sources = [SOURCE.replace("42", str(n)) for n in range(5)]
    libraries = [load_library(compile_c(source).content) for source in sources]
    assert [library.answer() for library in libraries] == list(range(5))


def test_a_copy_is_loaded_where_there_are_no_memory_files(monkeypatch: pytest.MonkeyPatch) -> None:
    content = compile_c(SOURCE).content

    def refuse(*given: object) -> int:
        raise OSError("not here")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert load_library(content).answer() == 42


def test_a_piece_of_a_library_is_told() -> None:
    content = compile_c(SOURCE).content
    assert is_whole(content)
    assert not any(is_whole(content[:at]) for at in range(0, len(content), 97))


@pytest.mark.parametrize(
    ("cores", "reported", "counted"), [(2, 32, 32), (2, 300, 32), (16, 300, 64), (1, 8, 8)]
)
def test_the_last_cache_of_a_host_is_shared_with_others(
    monkeypatch: pytest.MonkeyPatch, cores: int, reported: int, counted: int
) -> None:
    last = Cache("L3", reported << 20, reported << 20, shared=True)
    found = Topology(tuple(frozenset([n]) for n in range(cores)), (last,))
    monkeypatch.setattr(cc, "topology", lambda: found)
    assert cc.last_cache.__wrapped__() == counted << 20
