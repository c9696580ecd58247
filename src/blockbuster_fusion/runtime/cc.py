"""The system's C compiler: from a source text to a shared library in the cache."""

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from blockbuster_fusion.errors import CompilerFailed, NoCompiler
from blockbuster_fusion.runtime.cache import cached, digest

FLAGS = (
    *("-O2", "-march=native", "-std=gnu11", "-fPIC", "-shared"),
    # What -ffast-math has beyond these reorders sums and breaks the polynomial of exp; and with
    # -fno-signed-zeros, which gains nothing, gcc takes NaN * 0 for 0 in vectors.
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
    # Contractions use the widest vectors anyway, so the rest may as well.
    *(["-mprefer-vector-width=512"] if platform.machine() in ("x86_64", "AMD64") else []),
)
OPENMP = ("-fopenmp",)
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
LIBRARIES = ("-lm",)
_OPENMP_WORDS = ("openmp", "omp.h", "lomp", "lgomp")
_MESSAGE_LINES = 12


def compile_c(source: str, *, flags: Sequence[str] = (), sanitize: bool = False) -> Path:
    """A shared library of a C source, compiled once for this compiler and this CPU.

    Without OpenMP in the compiler it is compiled for one thread.
    """
    command = compiler()
    options = (*FLAGS, *OPENMP, *(SANITIZE if sanitize else ()), *flags, *LIBRARIES)
    key = digest(source, *options, *command, _version(command), _cpu())
    text = cached(digest(source), ".c", lambda path: _write(path, source))

    def make(library: Path) -> None:
        message = _run(command, options, text, library)
        if message is not None and any(word in message.lower() for word in _OPENMP_WORDS):
            serial = [option for option in options if option not in OPENMP]
            message = _run(command, serial, text, library)
        if message is not None:
            raise CompilerFailed(command=shlex.join(command), source=text, message=message)

    return cached(key, ".so", make)


def compiler() -> tuple[str, ...]:
    """The command of the C compiler: $CC, or the first of cc, gcc and clang that there is."""
    named = shlex.split(os.environ.get("CC", ""))
    if named:
        if shutil.which(named[0]) is None:
            raise NoCompiler(problem=f"CC says {named[0]}, and there is no such command")
        return tuple(named)
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name) is not None:
            return (name,)
    raise NoCompiler(problem="neither cc nor gcc nor clang is on the path")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _run(command: Sequence[str], options: Sequence[str], source: Path, library: Path) -> str | None:
    """Compile; the first lines of what the compiler says where it fails."""
    libraries = [option for option in options if option.startswith("-l")]
    others = [option for option in options if option not in libraries]
    arguments = [*command, *others, "-o", str(library), str(source), *libraries]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise NoCompiler(problem=f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"]
    return "\n".join(lines[:_MESSAGE_LINES])


@cache
def _version(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True)
    except OSError as error:
        raise NoCompiler(problem=f"{command[0]} cannot be run: {error.strerror}") from error
    return done.stdout


@cache
def _cpu() -> str:
    """What -march=native depends on: the model of the CPU and what it can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    known = ("model name", "flags", "Features", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(known)))
