"""The command line, as a user runs it."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.cli import main as cli
from blockbuster_fusion.cli.main import main
from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.runtime import disk_cache, tuning_database
from blockbuster_fusion.runtime.tuning_database import Key, Record


@pytest.mark.parametrize("name", ["attention", "layernorm-matmul", "rmsnorm-swiglu", "matmul-relu"])
def test_trace_prints_every_step(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", name]) == 0
    printed = capsys.readouterr().out
    steps = bb.fuse(bb.examples.find(name)).trace
    assert all(f"{step}, " in printed for step in steps)
    assert printed.count("forall m in range(M):") >= len(steps)


def test_trace_matmul_relu(capsys: pytest.CaptureFixture[str], golden) -> None:
    assert main(["trace", "matmul-relu", "--size", "MM=100", "--tile", "M=32"]) == 0
    golden(capsys.readouterr().out)


def test_trace_saved_and_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "a.json")
    assert main(["trace", "attention", "--steps", "last", "--save", file]) == 0
    saved = capsys.readouterr().out
    assert main(["trace", "--load", file, "--steps", "last"]) == 0
    loaded = capsys.readouterr().out
    assert saved.split("initial")[1].replace(f"saved to {file}\n", "") == loaded.split("initial")[1]


def test_table(capsys: pytest.CaptureFixture[str], golden) -> None:
    assert main(["table", "--rules", "paper"]) == 0
    golden(capsys.readouterr().out)


def test_fuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuse", "softmax", "--rules", "paper", "--raw"]) == 0
    printed = capsys.readouterr().out
    assert "snapshot 1, 1 interior buffered edges" in printed
    assert "left in global memory: I1, from the loop over N that makes I1, t3" in printed
    assert main(["fuse", "softmax", "--unit", "N"]) == 0
    assert "snapshot 1, 0 interior buffered edges" in capsys.readouterr().out


def test_pareto(capsys: pytest.CaptureFixture[str], golden) -> None:
    assert main(["fuse", "rmsnorm-swiglu-residual", "--pareto", "--size", "MM=256"]) == 0
    golden(capsys.readouterr().out)


def test_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert "Example 1" in capsys.readouterr().out
    assert main(["show", "matmul-relu"]) == 0
    assert "for k in range(K):" in capsys.readouterr().out
    assert main(["show", "matmul-relu", "--lock"]) == 0
    assert "with lock:" in capsys.readouterr().out
    assert main(["show", "matmul-relu", "--text"]) == 0
    text = capsys.readouterr().out
    assert bb.from_text(text).digest == bb.lower(bb.examples.matmul_relu()).digest


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["trace", "flash"], "unknown example 'flash': try one of"),
        (["trace"], "name a program, or a saved trace with --load"),
        (["trace", "attention", "--load", "x"], "name a program, or a saved trace with --load"),
        (["trace", "--load", "missing.json"], "missing.json: cannot be read"),
        (["trace", "attention", "--size", "MM"], "--size MM: write it as NAME=NUMBER"),
        (["trace", "attention", "--size", "ZZ=3"], "--size ZZ=3: unknown; known are D, DD"),
        (["trace", "attention", "--tile", "Q=3"], "tiles['Q']"),
        (["trace", "attention", "--tile", "M=0"], "--tile M=0: write it as NAME=NUMBER, with a"),
        (["emit", "attention", "--tile", "M=-1"], "with a positive whole number"),
        (["trace", "softmx"], "unknown example 'softmx': did you mean softmax?"),
        (["fuse", "attention", "--unit", "Q"], "unit Q: there is no such dim"),
        (["fuse", "multi-head-attention", "--unit", "H"], "its blocks have one element"),
        (["fuse", "attention", "--size", "MM=8"], "--size goes with --pareto only"),
        (["fuse", "attention", "--pareto", "--raw"], "--raw does not go with --pareto"),
        (["trace", "attention", "--save", "no/such/folder/f.json"], "No such file"),
    ],
)
def test_bad_arguments_get_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    assert sentence in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "trace" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0


@pytest.mark.parametrize("command", ["emit", "bench", "passes"])
def test_help_of_a_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    printed = capsys.readouterr().out
    assert f"    blockbuster {command} attention" in printed
    assert 'def scores(Q: "M D", K: "N D"):' in printed
    assert "counted from 1" in printed
    assert "(default: cpu)" in printed


def test_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["passes", "--list"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names[:3] == ["trace", "lower", "fuse"]
    assert main(["passes", "matmul-relu", "--size", "M=64"]) == 0
    printed = capsys.readouterr().out
    assert "\ntail_masks:\n\n    kernel matmul_relu:" in printed
    assert "\nsplit_prologue: no change\n" in printed
    assert main(["passes", "matmul-relu", "--size", "M=64", "--after", "tail_masks"]) == 0
    assert capsys.readouterr().out.startswith("kernel matmul_relu:\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "passes: name a program, or list the passes with --list"),
        (
            ["softmax", "--after", "hoisting"],
            "passes: unknown pass hoisting; known are trace, ",
        ),
        (["softmax", "--after", "merge_kernels"], "passes: merge_kernels does not run with these"),
    ],
)
def test_passes_that_there_are_not(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["passes", *arguments]) == 1
    assert capsys.readouterr().err.startswith(f"blockbuster: {sentence}")


def replace_command(
    monkeypatch: pytest.MonkeyPatch, name: str, run: Callable[[object], None]
) -> None:
    """Lets a command run another function."""
    changed = [replace(c, run=run) if c.name == name else c for c in cli.COMMANDS]
    monkeypatch.setattr(cli, "COMMANDS", tuple(changed))


@pytest.mark.parametrize("command", ["list", "demo", "table"])
def test_interrupted(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(options: object) -> None:
        raise KeyboardInterrupt

    replace_command(monkeypatch, command, interrupted)
    assert main([command]) == 130
    assert capsys.readouterr().err == ""


PROGRAMS = """
import blockbuster_fusion as bb

def scores(Q: "M D", K: bb.array("N D")):
    return bb.ops.softmax(Q @ K.T)
"""


@pytest.fixture
def function(tmp_path: Path) -> str:
    """A function of a file, as a command names it."""
    file = tmp_path / "mine.py"
    file.write_text(PROGRAMS)
    return f"{file}:scores"


COMMANDS = {
    "trace": (["trace", "--steps", "none"], "initial block program"),
    "fuse": (["fuse"], "snapshot 1, "),
    "pareto": (["fuse", "--pareto"], "unit dims"),
    "check": (["check"], "snapshot"),
    "show": (["show"], "forall m in range(M):"),
    "emit": (["emit"], "scores, made by Blockbuster"),
    "bench": (["bench", "--seconds", "0.01", "--size", "M=8,N=8,D=8"], "scores on cpu"),
    "tune": (["tune", "--seconds", "0.01", "--size", "M=8,N=8,D=8"], "the fastest of"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_a_function_of_a_file(
    command: str,
    function: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    which = shutil.which  # without a C++ compiler, torch.compile is left out: it takes long
    monkeypatch.setattr(shutil, "which", lambda name: None if "++" in name else which(name))
    arguments, expected = COMMANDS[command]
    assert main([*arguments, function]) == 0
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize("command", [["trace", "--steps", "none"], ["fuse", "--pareto"], ["emit"]])
def test_sizes_are_given_by_axis_or_by_symbol(
    command: list[str], function: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for sizes in (["--size", "M=96", "--size", "D=32"], ["--size", "MM=96,DD=32"]):
        assert main([*command, function, *sizes]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert main([*command, function]) == 0
    assert capsys.readouterr().out != printed[0]


@pytest.mark.parametrize("command", ["trace", "emit", "bench"])
@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ("Z=3", "--size Z=3: unknown; known are D, DD, M, MM, N, NN"),
        ("M=3,MM=4", "--size MM=4: axis M has 4 elements, but axis M of extents['M'] has 3"),
        ("M=3,M=4", "--size M=4: M is given as 3 as well"),
    ],
)
def test_sizes_that_cannot_be(
    command: str, sizes: str, sentence: str, function: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, function, "--size", sizes]) == 1
    assert capsys.readouterr().err.startswith(f"blockbuster: {sentence}")


def test_every_command_has_the_same_rules(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("trace", "fuse", "check", "passes", "emit", "bench", "table"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert "rule set (default: extended)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "arguments", [["trase"], ["emit"], ["emit", "attention", "--target", "tpu"], ["fuse", "--no"]]
)
def test_usage_is_told_in_a_sentence(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("blockbuster: ")
    assert line.endswith(" --help`")


def test_warnings_and_the_log_have_the_prefix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def noisy(options: object) -> None:
        for _ in range(2):
            warnings.warn("blockbuster: told once\nand no more", stacklevel=1)
        logging.getLogger("blockbuster_fusion").warning("a part has no kernel")

    replace_command(monkeypatch, "list", noisy)
    assert main(["list"]) == 0
    expected = "blockbuster: warning: told once\nblockbuster: a part has no kernel\n"
    assert capsys.readouterr().err == expected


def test_an_error_that_an_interruption_causes_is_not_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken_off(options: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("a library turns it into its own error") from None

    replace_command(monkeypatch, "list", broken_off)
    before = signal.getsignal(signal.SIGINT)
    assert main(["list"]) == 130
    assert capsys.readouterr().err == ""
    assert signal.getsignal(signal.SIGINT) is before


SLOW_IMPORT = """
import sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "blockbuster_fusion":
            print("importing", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
import blockbuster_command
sys.exit(blockbuster_command.main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_interrupted_while_it_is_imported() -> None:
    source = Path(bb.__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_IMPORT, "list"],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (130, "")


@pytest.mark.parametrize("option", ["tiles", "sizes"])
def test_options_that_are_no_mappings(option: str) -> None:
    with pytest.raises(WrongKind, match=f"compile: takes {option} by name, not 5; write {option}="):
        bb.compile(bb.examples.attention(), **{option: 5})


def test_the_cache_is_shown_shrunk_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(disk_cache.VARIABLE, str(tmp_path / "cache"))
    for key in "abc":
        disk_cache.cached(key * 64, ".so", lambda file: file.write_bytes(b"x" * 2048) and None)
    for arguments, shown in (
        ([], "kernels: 3, 6 KiB"),
        (["--limit", "5K"], "kernels: 2, 4 KiB"),
        (["--clear"], "kernels: 0, 0 bytes"),
    ):
        assert main(["cache", *arguments]) == 0
        printed = capsys.readouterr().out
        assert shown in printed
        assert str(tmp_path / "cache") in printed
        assert "limit:   1 GiB" in printed
    assert main(["cache", "--limit", "much"]) == 1
    assert "a size such as 500M or 2G, not 'much'" in capsys.readouterr().err
    (tmp_path / "cache").chmod(0o777)
    assert main(["cache"]) == 1
    assert "others can write to" in capsys.readouterr().err


def test_the_database_is_shown_exported_imported_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "tuning.sqlite3", tmp_path / "other.json"
    monkeypatch.setenv(tuning_database.VARIABLE, str(file))
    for size in (64, 128):
        for machine in ("a CPU", "H200"):
            key = Key("d", (("M", size),), machine, 1, (), "1")
            for tile in (8, 16, 32):
                measured = Record({"tile": tile}, 1.0, 1.0, 1.0, 0.0, 1e-3, 5)
                tuning_database.database().put(key, measured)
    tuning_database.database().put_library("matmul", "H200", 1, (), 1e-5, 1e-5)
    full = ("kernels:        4", "configurations: 12", "library times:  1",
            "machines:       H200, a CPU", "generators:     1")  # fmt: skip
    empty = ("kernels:        0", "configurations: 0", "library times:  0", "machines:       none")
    for arguments, shown in (
        ([], full),
        (["--export", str(other)], (f"written:        {other}", *full)),
        (["--clear"], ("removed:        13 measurements", *empty)),
        (["--import", str(other)], ("taken over:     13 measurements", *full)),
        (["--import", str(other)], ("taken over:     0 measurements", *full)),
    ):
        assert main(["database", *arguments]) == 0
        printed = capsys.readouterr().out
        assert f"file:           {file} (BLOCKBUSTER_DATABASE names another)" in printed
        assert all(line in printed.splitlines() for line in shown), printed
    tuning_database.database().close()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, ": cannot be read: No such file or directory"),
        ("{", ": is no JSON: Expecting property name"),
        ("[" * 100_000, ": is no JSON: "),
        ("\xff", ": is no JSON: "),
        ("{}", ": it has no measurements of the format"),
        ('{"format": "blockbuster tuning 2", "records": [{}]}', ", records[0]: digest is missing"),
    ],
)
def test_a_file_that_cannot_be_imported(
    content: str | None,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(tuning_database.VARIABLE, str(tmp_path / "tuning.sqlite3"))
    if content is not None:
        (tmp_path / "other.json").write_text(content, encoding="latin-1")
    assert main(["database", "--import", str(tmp_path / "other.json")]) == 1
    assert capsys.readouterr().err.startswith(f"blockbuster: {tmp_path / 'other.json'}{said}")
    tuning_database.database().close()


def test_no_database(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(tuning_database.VARIABLE, "off")
    assert main(["database"]) == 1
    assert "there is no file for measurements; name one in BLOCK" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["database", "--clear", "--import", "x"])
    assert "not allowed with argument" in capsys.readouterr().err
