"""The system's C compiler: from a source text to a shared library in the cache."""

import contextlib
import errno
import os
import platform
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from blockbuster_fusion.errors import CompilerFailed, NoCompiler, WrongKind
from blockbuster_fusion.printers.c.prelude import large_functions
from blockbuster_fusion.progress import doing
from blockbuster_fusion.runtime.c.topology import topology
from blockbuster_fusion.runtime.disk_cache import CacheEntry, cached, digest, find

FLAGS = (
    *("-O3", "-march=native", "-std=gnu11", "-fPIC"),
    # The rest of -ffast-math reorders sums and breaks the polynomial of exp; and with
    # -fno-signed-zeros, which gains nothing, gcc takes NaN * 0 for 0 in vectors.
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
    # Contractions use the widest vectors anyway, so the rest may as well.
    *(["-mprefer-vector-width=512"] if platform.machine() in ("x86_64", "AMD64") else []),
)
OPENMP = ("-fopenmp",)
# More optimisation takes several times as long, and hides accesses rather than showing more.
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")
# Kernels with products have dozens of loops. gcc would unroll what is left of each behind its
# vectors, up to 15 elements, and take several times as long; other kernels gain by unrolling.
UNROLL_LITTLE = "--param=max-completely-peel-times=4"
LIBRARIES = ("-lm",)
SECONDS_VARIABLE = "BLOCKBUSTER_COMPILER_SECONDS"
DEFAULT_SECONDS = 600.0
SEARCHED = (
    *("CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"),
    *("SDKROOT", "MACOSX_DEPLOYMENT_TARGET", "CCC_OVERRIDE_OPTIONS"),
)
"""Environment variables that change the output of a compiler."""
_OPENMP_WORDS = ("openmp", "omp.h", "lomp", "lgomp")
_NO_ROOM = tuple(
    (os.strerror(code).lower(), code)
    for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)
)
stopping: ContextVar[threading.Event | None] = ContextVar("stopping", default=None)
"""An event that ends the compilers of a thread: nobody waits for their results any more."""
_MESSAGE_LINES = 12
_LONGEST_OUTPUT = 1 << 16


def compile_c(source: str, *, flags: Sequence[str] = (), sanitize: bool = False) -> CacheEntry:
    """A shared library of a C source, compiled once for this compiler and this CPU.

    If the compiler lacks OpenMP, it is compiled for one thread, and again once OpenMP is there.
    """
    command = compiler()
    shared = tuple(str(file) for file in [loaded_openmp()] if file is not None)
    own = (f"-DLAST_CACHE={last_cache()}", *(SANITIZE if sanitize else ()), *flags)
    parts = tuple(large_functions(source))
    serial = _Build(command, (*FLAGS, *own), parts)
    runtime = ("-Wl,--as-needed", *shared) if shared else ()
    threaded = _Build(command, (*FLAGS, *OPENMP, *own), parts, runtime)
    found = threaded.find(source)
    if found is None:
        alone = serial.find(source)
        found = alone if alone is not None and not _has_openmp(command) else None
    if found is not None:
        return found
    try:
        return threaded.library(source)
    except CompilerFailed as error:
        message = str(error.details["message"]).lower()
        if not any(word in message for word in _OPENMP_WORDS):
            raise
    return serial.library(source)


@dataclass(frozen=True)
class _Build:
    """A compiler with the options of all files, the large functions to link, and a runtime."""

    command: tuple[str, ...]
    options: tuple[str, ...]
    parts: tuple[str, ...]
    runtime: tuple[str, ...] = ()

    @property
    def linking(self) -> tuple[str, ...]:
        """The options of the library."""
        little = (UNROLL_LITTLE,) if self.parts else ()
        return (*self.options, *little, "-shared", "-DLINKED=1", *self.runtime, *LIBRARIES)

    def find(self, source: str) -> CacheEntry | None:
        """The library of a source, if it is in the cache."""
        return find(_key(source, self.command, self.linking), ".so")

    def library(self, source: str) -> CacheEntry:
        """The library of a source, linked with its large functions.

        These take a compiler longer than most kernels do, so each is compiled once.
        """
        alone = (*self.options, "-c", "-DLINKED=0")
        objects = [_made(text, self.command, alone, ".o") for text in self.parts]
        return _made(source, self.command, self.linking, ".so", objects)


CACHE_OF_A_CORE, LEAST_CACHE = 4 << 20, 32 << 20
"""The bytes of the last cache that each core can count on, and those of a few cores together."""


@cache
def last_cache() -> int:
    """The bytes of the last cache that this process can count on.

    Larger results are written past it. A virtual machine sees the whole cache of its host, which
    it shares with others: its part grows with its cores.
    """
    here = topology()
    return min(here.caches[-1].one, max(LEAST_CACHE, CACHE_OF_A_CORE * len(here.cores)))


OPENMP_RUNTIMES = re.compile(r"/(libgomp|libiomp5|libomp)[^/]*\.so[^/]*$")
"""Paths of libraries that run OpenMP's threads."""


def loaded_openmp() -> Path | None:
    """The OpenMP runtime of this process, if the compiler's would be a second one beside it.

    PyTorch may bring its own. The threads of two runtimes wait in loops and hold each other up.
    """
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            file = Path(line.partition("/")[1] + line.partition("/")[2])
            if OPENMP_RUNTIMES.search(str(file)):
                is_usual = file.name.startswith("libgomp.so.1")  # the name that compilers link
                return None if is_usual or not file.is_file() else file
    return None


def _made(
    source: str,
    command: tuple[str, ...],
    options: Sequence[str],
    suffix: str = ".so",
    objects: Sequence[CacheEntry] = (),
) -> CacheEntry:
    """The library or object of a source, with objects: from the cache, or made now."""

    def make(library: Path) -> None:
        files = [library.with_suffix(".c")]
        files[0].write_text(source, encoding="utf-8")
        for number, entry in enumerate(objects):
            files.append(library.with_name(f"part{number}.o"))
            files[-1].write_bytes(entry.content)
        message = _run(command, options, files, library)
        if message is None and not library.is_file():
            message = "it ended well and wrote no library"
        if message is None:
            return
        for words, code in _NO_ROOM:
            if words in message.lower():
                raise OSError(code, os.strerror(code))
        kept = cached(digest(source), ".c", lambda path: _write(path, source))
        name = kept.file or "a source that could not be kept"
        raise CompilerFailed(command=shlex.join(command), source=name, message=message)

    return cached(_key(source, command, options), suffix, make)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _key(source: str, command: tuple[str, ...], options: Sequence[str]) -> str:
    """The key of a library: texts, options, compiler, C library, CPU and search paths."""
    searched = [f"{name}={os.environ.get(name, '')}" for name in SEARCHED]
    return digest(source, *options, *command, _version(command, _file(command)), *searched, _cpu())


# ---------------------------------------------------------------------- the compiler


def compiler() -> tuple[str, ...]:
    """The command of the C compiler: $CC, or the first of cc, gcc and clang that exists."""
    given = os.environ.get("CC", "")
    try:
        named = shlex.split(given)
    except ValueError as error:
        problem = f"CC says {given!r}, which is no command ({str(error).lower()})"
        raise NoCompiler(problem=problem) from None
    if named:
        if shutil.which(named[0]) is None:
            raise NoCompiler(problem=f"CC says {named[0]}, and there is no such command")
        return tuple(named)
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name) is not None:
            return (name,)
    raise NoCompiler(problem="neither cc nor gcc nor clang is on the path")


def time_limit() -> float:
    """The time limit of a compiler in seconds: $BLOCKBUSTER_COMPILER_SECONDS, or 600."""
    given = os.environ.get(SECONDS_VARIABLE, "")
    if not given:
        return DEFAULT_SECONDS
    with contextlib.suppress(ValueError):
        if 0 < float(given) < float("inf"):
            return float(given)
    wanted, remedy = (
        "a number of seconds above 0",
        f"it is {DEFAULT_SECONDS:g} where nothing is said",
    )
    raise WrongKind(function=SECONDS_VARIABLE, wanted=wanted, given=repr(given), remedy=remedy)


@doing("the C compiler")
def _run(
    command: Sequence[str], options: Sequence[str], files: Sequence[Path], library: Path
) -> str | None:
    """Compiles; the first lines of the compiler's messages if it fails."""
    libraries = [option for option in options if option.startswith("-l")]
    others = [option for option in options if option not in libraries]
    arguments = [*command, *others, "-o", str(library), *map(str, files), *libraries]
    status, output = _output(arguments, library.parent)
    if status == 0:
        return None
    lines = output.strip().splitlines()[:_MESSAGE_LINES]
    return "\n".join(lines or [_ending(status)])


def _ending(status: int | None) -> str:
    if status is None:
        return f"it did not end within {time_limit():g} s; {SECONDS_VARIABLE} sets the limit"
    if status > 0:
        return f"it ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"it was ended by {signal.Signals(-status).name}"
    return f"it was ended by signal {-status}"


def _output(arguments: Sequence[str], folder: Path | None = None) -> tuple[int | None, str]:
    """The status of a command and its output; None if it did not end in time.

    It is told to speak English, and to put its temporary files into `folder`.
    """
    environment = {**os.environ, "LC_ALL": "C"}
    if folder is not None:
        environment["TMPDIR"] = str(folder)
    end = time.monotonic() + time_limit()
    try:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or error
        raise NoCompiler(problem=f"{arguments[0]} cannot be run: {problem}") from error
    try:
        said = _read(process, end)
        status = process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None, _ending(None)
    finally:
        if process.poll() is None:
            with contextlib.suppress(OSError):  # with all that it has started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
    text = said.decode("utf-8", "replace")
    return status, "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def _read(process: "subprocess.Popen[bytes]", end: float) -> bytes:
    """The beginning of a process's output, until it ends or the time is up."""
    assert process.stdout is not None
    said = bytearray()
    stopped = stopping.get()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (left := end - time.monotonic()) > 0:
            if stopped is not None and stopped.is_set():
                command, message = "the C compiler", "it was stopped"
                raise CompilerFailed(command=command, source="a kernel", message=message)
            if not selector.select(min(left, 0.5)):
                if process.poll() is not None:
                    break  # what it has started still holds the pipe
                continue
            chunk = os.read(process.stdout.fileno(), _LONGEST_OUTPUT)
            if not chunk:
                break
            said += chunk[: _LONGEST_OUTPUT - len(said)]
    return bytes(said)


def _file(command: tuple[str, ...]) -> str:
    """The file of a compiler, its size and its age: another one may have the same version."""
    path = shutil.which(command[0]) or command[0]
    with contextlib.suppress(OSError):
        status = Path(path).stat()
        return f"{Path(path).resolve()} {status.st_size} {status.st_mtime_ns}"
    return path


@cache
def _version(command: tuple[str, ...], file: str) -> str:
    """The version text of a compiler, and the version of the C library."""
    _, said = _output([*command, "--version"])
    library = ""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        library = os.confstr("CS_GNU_LIBC_VERSION") or ""
    return f"{file}\n{said}\n{library or platform.platform()}"


_OPENMP_TEST = "int f(int n) {\n#pragma omp parallel num_threads(n)\n    {}\n    return n;\n}\n"


def has_openmp() -> bool:
    """True if the C compiler has OpenMP; without it, kernels run on one thread."""
    return _has_openmp(compiler())


def _has_openmp(command: tuple[str, ...]) -> bool:
    """True if a compiler has OpenMP now; asked if a library was compiled without it."""
    return _openmp_of(command, _file(command))


@cache
def _openmp_of(command: tuple[str, ...], file: str) -> bool:
    options = ("-fPIC", "-shared", *OPENMP)
    try:
        _made(_OPENMP_TEST, command, options)
    except CompilerFailed:
        return False
    return True


@cache
def _cpu() -> str:
    """The facts that -march=native depends on: the model of the CPU and its features."""
    if sys.platform != "linux":
        return f"{platform.machine()} {platform.processor()}"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    known = ("model name", "flags", "Features", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(known)))
