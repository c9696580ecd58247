"""Golden files: the expected text of a test stands in tests/golden/<module>/<test>.txt."""

import difflib
import logging
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from blockbuster_fusion.runtime import tuning_database
from helpers.effort import FULL

settings.register_profile("full", deadline=None)  # no test is timed: machines are busy
settings.register_profile("part", deadline=None, derandomize=True)  # the same examples each time
settings.load_profile("full" if FULL else "part")

# Tests run beside one another. A thread that waits in a loop takes a core from another test.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("BLOCKBUSTER_LIBRARY", "never")  # tests of kernels need them to be run
os.environ.setdefault("BLOCKBUSTER_DATABASE", "off")  # what was tuned here once does not count

TESTS = Path(__file__).parent
CLAIMS = pytest.StashKey[dict[Path, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the golden files of the tests run"
    )
    parser.addoption(
        "--all-cases", action="store_true", help="run all cases of sweeps, not one in some"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out cases of tests with the mark `sweep(n)`: one in n is run, and all in full runs."""
    seen = Counter[str]()
    left: list[pytest.Item] = []
    for item in [] if FULL or config.getoption("--all-cases") else items:
        mark = item.get_closest_marker("sweep")
        if mark is None:
            continue
        test = item.nodeid.partition("[")[0]
        if seen[test] % mark.args[0]:
            left.append(item)
        seen[test] += 1
    if left:
        config.hook.pytest_deselected(items=left)
        gone = {*left}
        items[:] = [item for item in items if item not in gone]


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Return a check that a text equals this test's golden file; a test calls it once."""
    test = f"{request.path.relative_to(TESTS.parent).as_posix()}::{request.node.name}"
    module = request.path.relative_to(TESTS).with_suffix("")
    name = re.sub(r"[^\w.]+", "-", request.node.name).strip("-")
    path = TESTS / "golden" / module / f"{name}.txt"
    shown = path.relative_to(TESTS.parent).as_posix()
    accept = (
        f"To accept it: .venv/bin/python -m pytest {shlex.quote(test)} --update-golden, "
        f"then read the diff of {shown}."
    )

    def check(text: str) -> None:
        __tracebackhide__ = True
        # Two tests whose names are sanitised alike would silently rewrite each other's file.
        claims = request.config.stash.setdefault(CLAIMS, {})
        if path in claims:
            pytest.fail(f"{shown} is already used by {claims[path]}; one test has one golden file.")
        claims[path] = test

        found = text if text.endswith("\n") else text + "\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(found, encoding="utf-8", newline="\n")
            return
        if not path.exists():
            pytest.fail(f"{shown} does not exist; the text is\n\n{found}\n{accept}", pytrace=False)
        expected = path.read_text(encoding="utf-8")
        if found != expected:
            diff = difflib.unified_diff(
                expected.splitlines(), found.splitlines(), shown, "this run", lineterm=""
            )
            pytest.fail("\n".join([f"The text differs from {shown}.", *diff, "", accept]), False)

    return check


@pytest.fixture(autouse=True)
def level_of_the_log() -> Iterator[None]:
    """Restores the level of the package's log: fuzzers silence it."""
    log = logging.getLogger("blockbuster_fusion")
    level = log.level
    yield
    log.setLevel(level)


@pytest.fixture(autouse=True)
def fresh_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives each test a database in memory of its own: what another test measured is unknown."""
    monkeypatch.setattr(tuning_database, "_own", {})


@pytest.fixture(autouse=True)
def hasty_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has measurements not wait for a quiet CPU: other tests run beside each one."""
    timing = sys.modules.get("blockbuster_fusion.torch.rivals.timing")  # torch may be missing
    if timing is not None:
        monkeypatch.setattr(timing, "RUNNING", 0.0)
