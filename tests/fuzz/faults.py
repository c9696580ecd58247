"""Faults: kills, damaged entries, full disks, bad compilers, processes and threads at once.

A case is a kind of fault and a seed. It runs in a process of its own, with a cache of its own, and
compiles tiny libraries there. Each gives the right answer, or a sentence; a crash, a hang, another
error or a wrong answer is a failure. Once the fault is over, answers are right.

Run it with `PYTHONPATH=tests python -m fuzz.faults --count 1000 --jobs 2`.
"""

import contextlib
import errno
import faulthandler
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.runtime import disk_cache, process_folder
from blockbuster_fusion.runtime.c import compiler as cc
from blockbuster_fusion.runtime.c import kernels as cpu
from blockbuster_fusion.runtime.c import library
from fuzz.harness import Failure, main

ERRORS = (
    *(errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO, errno.EACCES, errno.EPERM),
    *(errno.ENOENT, errno.ENOMEM, errno.EMFILE, errno.ENAMETOOLONG, errno.ESTALE),
)
OTHER = 12345
"""A user and a group that nobody has."""


@dataclass(frozen=True)
class Case:
    """A kind of fault, and the seed of its random choices."""

    kind: str
    seed: int


class Faults:
    """Faults of files, disks, compilers and processes."""

    name = "faults"

    def generate(self, seed: int) -> Case:
        return Case(random.Random(seed).choice(sorted(KINDS)), seed)

    def run(self, case: Case) -> Failure | None:
        place = Path(tempfile.mkdtemp(prefix="faults-"))
        try:
            return _alone(case, place)
        finally:
            _unmount(place)
            shutil.rmtree(place, ignore_errors=True)

    def shrink(self, case: Case) -> Iterator[Case]:
        yield from ()

    def save(self, case: Case) -> str:
        return f"from fuzz.faults import Case, Faults\n\nprint(Faults().run({case}))\n"


def _alone(case: Case, place: Path) -> Failure | None:
    """Runs a case in a forked process; all that it has started ends with it."""
    cc._version(cc.compiler(), cc._file(cc.compiler()))  # known before the fork: it takes time
    receive, send = os.pipe()
    child = _fork()
    if child == 0:
        os.setsid()
        os.close(receive)
        _child(case, place, send)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        try:
            said = pipe.read().decode("utf-8", "replace")
            _, status = os.waitpid(child, 0)
            child = 0
        finally:
            if child:
                with contextlib.suppress(OSError):
                    os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return Failure("crash", f"{case.kind}: ended by {name}", said)
    if said:
        kind = "wrong" if "AssertionError" in said.splitlines()[-1] else "crash"
        return Failure(kind, f"{case.kind}: {said.splitlines()[-1][:120]}", said)
    return None


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child runs no threads of ours
        return os.fork()


def _child(case: Case, place: Path, send: int) -> None:
    faulthandler.disable()  # a crash is reported by its status
    try:
        (place / "tmp").mkdir()
        tempfile.tempdir = str(place / "tmp")
        os.environ |= {disk_cache.VARIABLE: str(place / "cache"), "TMPDIR": str(place / "tmp")}
        os.environ[cc.SECONDS_VARIABLE] = "20"
        disk_cache.log.disabled = True
        KINDS[case.kind](random.Random(case.seed), place)
    except BaseException:
        with os.fdopen(send, "w", encoding="utf-8", errors="replace") as pipe:
            pipe.write(traceback.format_exc())
        os._exit(1)
    os._exit(0)


# ------------------------------------------------------------------------- attempts


def source(number: int) -> str:
    return f"int answer(void) {{ return {number}; }}\n"


def attempt(number: int) -> bool:
    """True if a library gives its answer; False where it is a sentence that says why not."""
    try:
        found = cpu.loaded(source(number)).answer()
    except BlockbusterError as error:
        sentence = str(error)
        if len(sentence) < 10 or "\x1b" in sentence:
            raise AssertionError(f"no sentence: {sentence!r}") from error
        return False
    assert found == number, f"{found} for {number}"
    return True


def certain(number: int) -> None:
    """A library that has to give its answer."""
    found = cpu.loaded(source(number)).answer()
    assert found == number, f"{found} for {number}"


def entry(number: int) -> Path:
    """The file of a library."""
    file = cc.compile_c(source(number)).file
    assert file is not None
    return file


def in_process(work: Callable[[], object]) -> int:
    """Starts a process that ends with 0, 1 with a traceback on stderr."""
    child = _fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


# --------------------------------------------------------------------------- damages


def _flip(file: Path, rng: random.Random) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(rng.choice((1, 1, 10, 1000))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def _link(path: Path, rng: random.Random) -> None:
    above = path.parent if path.name == "cache" else path.parents[1]
    aside = above / f"aside{rng.random()}"
    path.rename(aside)
    path.symlink_to(rng.choice((aside, path, Path("/dev/zero"), Path("/nowhere"))))


def _swap(file: Path, rng: random.Random) -> None:
    other = entry(rng.randrange(10**6, 10**7))
    match rng.randrange(3):
        case 0:
            file.write_bytes(other.read_bytes())
        case 1:
            file.unlink()
            other.rename(file.with_name(other.name))
        case 2:
            file.parent.rename(file.parent.with_name("aside"))
            other.parent.rename(file.parent)


def _replace(path: Path, rng: random.Random) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    make: list[Callable[[], object]] = [
        lambda: path.write_bytes(rng.randbytes(rng.choice((0, 10, 5000)))),
        lambda: os.mkfifo(path),
        path.mkdir,
        lambda: None,
    ]
    rng.choice(make)()


def _give_away(path: Path, rng: random.Random) -> None:
    if os.geteuid() == 0 and rng.random() < 0.5:
        os.chown(path, OTHER, rng.choice((0, OTHER)))
    else:
        path.chmod(rng.choice((0o777, 0o666, 0o622, 0o702, 0, 0o200)))


def damage(file: Path, rng: random.Random) -> None:
    """One of many things that can happen to an entry."""
    whole = rng.choice((file, file, file.parent))
    ways: list[Callable[[], object]] = [
        lambda: os.truncate(file, rng.randrange(file.stat().st_size)),
        lambda: os.truncate(file, file.stat().st_size + rng.randrange(1, 5000)),
        lambda: _flip(file, rng),
        lambda: _link(whole, rng),
        lambda: _swap(file, rng),
        lambda: _replace(whole, rng),
        lambda: _give_away(whole, rng),
        lambda: (file.parent / "more").write_bytes(b"more"),
    ]
    rng.choice(ways)()


def damaged(rng: random.Random, place: Path) -> None:
    """An entry is damaged, once or several times: it is made again."""
    number = rng.randrange(10**6)
    for _ in range(rng.choice((1, 1, 2))):
        damage(entry(number), rng)
        certain(number)
    certain(number)


def whole_programs(rng: random.Random, place: Path) -> None:
    """A program is compiled, its entries are damaged, and it is compiled again."""
    number = float(rng.randrange(100))
    x = np.arange(5, dtype=np.float32)
    for _ in range(2):
        made = bb.compile(lambda x: {"O": x + number}, "M", threads=1)
        assert np.array_equal(made(x)[0], x + np.float32(number))
        for file in [*(place / "cache").glob("*.so/*")]:
            damage(file, rng)


# --------------------------------------------------------------------------- folders


def folders(rng: random.Random, place: Path) -> None:
    """The cache's folder is unusable, so kernels are kept elsewhere."""
    folder, number = place / "cache", rng.randrange(10**6)
    if rng.random() < 0.5:
        certain(number)
    else:
        folder.mkdir(mode=0o700)
    ways: list[Callable[[], object]] = [
        lambda: folder.chmod(rng.choice((0o777, 0o1777, 0o702, 0o770, 0, 0o500))),
        lambda: _link(folder, rng),
        lambda: _replace(folder, rng),
        lambda: _give_away(folder, rng),
        lambda: _give_away(place, rng),
        lambda: os.environ.update({disk_cache.VARIABLE: str(folder / ("x" * 300))}),
        lambda: os.environ.update({disk_cache.VARIABLE: "/proc/self/nothing"}),
        lambda: os.environ.update({disk_cache.VARIABLE: "/dev/null/x"}),
        lambda: os.environ.update({disk_cache.VARIABLE: os.fsdecode(bytes(folder) + b"\xff\n'x")}),
        lambda: os.environ.update({disk_cache.VARIABLE: "relative", "HOME": str(place)}),
        lambda: shutil.rmtree(place / "tmp"),
    ]
    os.chdir(place)
    rng.choice(ways)()
    certain(number)
    certain(number + 1)
    certain(number)


# ----------------------------------------------------------------------------- disks


def injected(rng: random.Random, place: Path) -> None:
    """Calls of the system fail at random."""
    often, code = rng.choice((0.02, 0.1, 0.4)), rng.choice(ERRORS)
    active = True

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            if active and rng.random() < often:
                raise OSError(code, os.strerror(code))
            return real(*given, **named)

        return called

    for name in ("open", "listdir", "fstat", "utime", "scandir", "memfd_create", "lstat"):
        setattr(disk_cache.os, name, failing(getattr(os, name)))
    disk_cache.tempfile.mkdtemp = failing(tempfile.mkdtemp)  # type: ignore[assignment]
    for name in ("rename", "write_text", "mkdir", "unlink"):
        setattr(Path, name, failing(getattr(Path, name)))
    for number in range(3):
        attempt(rng.choice((7, 8, number)))
    active = False
    for number in range(3):
        certain(number)


def _mount(folder: Path, options: str) -> bool:
    folder.mkdir(mode=0o700, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"{options},mode=0700", "tmpfs", str(folder)]
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _unmount(place: Path) -> None:
    for folder in (place / "cache", place / "tmp"):
        if os.path.ismount(folder):
            subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)


def disks(rng: random.Random, place: Path) -> None:
    """Small, read-only and noexec disks; where nothing can be mounted, files cannot grow."""
    size = rng.choice((4, 8, 16, 24, 32, 64, 128))
    ways = (f"size={size}k", f"size={size}k,nr_inodes={rng.randrange(1, 9)}", "size=1m,noexec")
    there = _mount(place / "cache", rng.choice(ways))
    if there and rng.random() < 0.3:
        _mount(place / "tmp", f"size={size}k")
    if not there:
        files(rng, place)
    for number in range(rng.choice((2, 5))):
        attempt(number % 3)
    if there:
        options = ["mount", "-o", "remount,ro", str(place / "cache")]
        subprocess.run(options, capture_output=True, check=False)
        attempt(rng.randrange(4))
        _unmount(place)
        certain(1)


def files(rng: random.Random, place: Path) -> None:
    """Files cannot grow, or there are few descriptors: as of a quota."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if rng.random() < 0.5:
        limit = rng.choice((0, 100, 1000, 5000, 15000))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        kind = resource.RLIMIT_FSIZE
    else:
        opened = os.dup(0)  # the lowest that is free
        os.close(opened)
        kind = resource.RLIMIT_NOFILE
        before = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (opened + rng.randrange(8), before))
    for number in range(3):
        attempt(number)
    resource.setrlimit(kind, (resource.getrlimit(kind)[1],) * 2)
    for number in range(3):
        certain(number)


# ------------------------------------------------------------------------- compilers

SCRIPTS = (
    "exit 0",
    "exit $((RANDOM % 250 + 1))",
    "kill -$((RANDOM % 2 ? 9 : 11)) $$",
    "head -c $((RANDOM % 9000)) /dev/urandom > $OUT",
    "printf '\\x7fELF\\x02\\x01\\x01' > $OUT; head -c $((RANDOM % 9000)) /dev/urandom >> $OUT",
    '$REAL "$@" && truncate -s $((RANDOM % 16000)) $OUT',
    '$REAL "$@" && truncate -s -$((RANDOM % 3000 + 1)) $OUT',
    "head -c 3000000 /dev/urandom >&2; exit 1",
    "printf 'error: \\xff\\xfe \\x1b[31m%s%n\\n' >&2; exit 1",
    "sleep 3",
    "sleep 3 & exit 0",
    "exec 1>&- 2>&-; sleep 3",
    "mkfifo $OUT",
    "mkdir $OUT",
    "ln -s /dev/zero $OUT",
    "rm -rf $(dirname $OUT)",
    'echo "cc1: No space left on device" >&2; exit 1',
    'echo "unsupported option -fopenmp" >&2; exit 1',
    'case "$*" in *-fopenmp*) echo "no openmp" >&2; exit 1;; esac; exec $REAL "$@"',
    '[ $((RANDOM % 2)) = 0 ] && exit 1; exec $REAL "$@"',
    "echo 'int other(void) { return 1; }' | $REAL -shared -fPIC -x c - -o $OUT",
    'chmod 777 $(dirname $OUT); exec $REAL "$@"',
    'umask 0; exec $REAL "$@"',
)


def compilers(rng: random.Random, place: Path) -> None:
    """A compiler that fails, hangs or writes something else."""
    real, fake = shutil.which(cc.compiler()[0]), place / "fake-cc"
    version = rng.choice(("echo fake", "exit 1", "printf '\\xff\\xfe'", "sleep 3", "echo fake >&2"))
    fake.write_text(
        f'#!/bin/bash\nif [ "$1" = --version ]; then {version}; exit; fi\n'
        f'REAL={real}; for a; do [ "$last" = -o ] && OUT=$a; last=$a; done\n{rng.choice(SCRIPTS)}\n'
    )
    fake.chmod(0o755)
    os.environ |= {"CC": str(fake), cc.SECONDS_VARIABLE: "1"}
    for number in range(2):
        with contextlib.suppress(AttributeError):  # a library without the function
            attempt(number)
    del os.environ["CC"]
    os.environ[cc.SECONDS_VARIABLE] = "20"
    certain(0)


def settings(rng: random.Random, place: Path) -> None:
    """Variables that say nothing sensible."""
    odd = ("'", '"x', "no-such-cc", str(place), "\\", "/dev/null", "  ", "gcc 'x", "-x", "\n", "0")
    odd += ("-1", "nan", "inf", "1e999", "much", "٣", "x" * 100_000, os.fsdecode(b"\xff"))
    names = (
        "CC",
        disk_cache.LIMIT_VARIABLE,
        cc.SECONDS_VARIABLE,
        "TMPDIR",
        "PATH",
        "HOME",
        "CPATH",
    )
    kept = dict(os.environ)
    for _ in range(3):
        name = rng.choice(names)
        os.environ[name] = rng.choice(odd)
        attempt(rng.randrange(3))
    os.environ.clear()
    os.environ |= kept
    certain(1)


# ------------------------------------------------------------------- many at a time


def kills(rng: random.Random, place: Path) -> None:
    """Processes are killed while they compile and store."""
    for _ in range(rng.choice((1, 2, 3))):
        child = in_process(lambda: [attempt(number) for number in range(4)])
        time.sleep(rng.random() * rng.choice((0.02, 0.1, 0.3)))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    for number in range(4):
        certain(number)
    for file in (place / "cache").glob("*.so/*"):
        assert library.is_whole(file.read_bytes()), "half a library in the cache"


def processes(rng: random.Random, place: Path) -> None:
    """Processes that make, load, damage and remove the same entries."""
    os.environ[disk_cache.LIMIT_VARIABLE] = rng.choice(("20K", "40K", "1G"))
    hostile = rng.random() < 0.5

    def work() -> None:
        own = random.Random(rng.random() + os.getpid())
        for _ in range(3):
            certain(own.randrange(3))
            if own.random() < 0.3:
                disk_cache.shrink(place / "cache", 0)

    def harm() -> None:
        for _ in range(20):
            with contextlib.suppress(OSError, ValueError):
                for file in (place / "cache").glob("*.so/*"):
                    _flip(file, rng)
            time.sleep(0.01)

    children = [in_process(work) for _ in range(3)]
    children += [in_process(harm)] if hostile else []
    statuses = [os.waitpid(child, 0)[1] for child in children]
    assert not any(statuses), f"statuses {statuses}"
    certain(1)


def threads(rng: random.Random, place: Path) -> None:
    """Threads that make and load the same entries."""
    os.environ[disk_cache.LIMIT_VARIABLE] = rng.choice(("20K", "1G"))
    problems: list[str] = []
    numbers = [rng.randrange(3) for _ in range(6)]

    def work(number: int) -> None:
        try:
            certain(number)
        except BaseException:
            problems.append(traceback.format_exc())

    running = [threading.Thread(target=work, args=(number,)) for number in numbers]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not problems, problems[0]


def forgotten(rng: random.Random, place: Path) -> None:
    """The folders go while they are used."""
    certain(1)
    shutil.rmtree(rng.choice((place / "cache", place / "tmp")))
    own = process_folder.process_folder(make=False)
    if own is not None:
        shutil.rmtree(own)
    certain(1)
    certain(2)


KINDS: dict[str, Callable[[random.Random, Path], None]] = {
    kind.__name__: kind
    for kind in (
        *(damaged, whole_programs, folders, injected, disks, files, compilers, settings),
        *(kills, processes, threads, forgotten),
    )
}

if __name__ == "__main__":
    sys.exit(main(Faults()))
