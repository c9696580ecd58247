"""The progress line of long work on a terminal; it leaves nothing behind."""

import io
import sys
import threading
from types import SimpleNamespace

import pytest

from blockbuster_fusion import messages, progress
from blockbuster_fusion.messages import complain
from blockbuster_fusion.progress import doing


class Terminal(io.StringIO):
    """Records the written text; `drawn` is set when a line is there."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "blockbuster" in text:
            self.drawn.set()
        return super().write(text)

    @property
    def lines(self) -> list[str]:
        return [line.strip() for line in self.getvalue().split(progress._ERASE) if line.strip()]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    made = Terminal()
    for module in (progress, messages):  # pytest itself sets sys.stderr before a test begins
        monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=made))
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "_EVERY", 0.001)
    return made


def test_a_line_is_drawn_and_erased(terminal: Terminal) -> None:
    with doing("checking", 3) as task:
        task.step()
        assert terminal.drawn.wait(60)
    assert all(line.startswith("blockbuster: checking") for line in terminal.lines)
    assert terminal.getvalue().endswith(progress._ERASE)
    terminal.drawn.clear()
    assert progress._line.tasks == []


def test_work_inside_work_is_on_the_same_line(terminal: Terminal) -> None:
    with doing("compiling"), doing("parts", 2) as task:
        task.step()
        terminal.drawn.clear()
        assert terminal.drawn.wait(60)
    assert any(line.startswith("blockbuster: compiling: parts, 1 of 2") for line in terminal.lines)


def test_what_threads_do_alike_is_said_once(terminal: Terminal) -> None:
    with doing("tuning", 4), doing("the C compiler"), doing("the C compiler"):
        terminal.drawn.clear()
        assert terminal.drawn.wait(60)
    drawn = "blockbuster: tuning, 0 of 4: the C compiler ("
    assert any(line.startswith(drawn) for line in terminal.lines)


def test_short_work_says_nothing(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 1e9)
    with doing("compiling"):
        threading.Event().wait(0.02)
    assert terminal.getvalue() == ""


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with doing("compiling"):
        assert progress._line.watcher is None
    assert pipe.getvalue() == ""


def test_there_may_be_no_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with doing("compiling"):
        assert progress._line.watcher is None


def test_a_message_has_a_line_of_its_own(terminal: Terminal) -> None:
    with doing("compiling"):
        assert terminal.drawn.wait(60)
        complain("no kernel")
    assert f"{progress._ERASE}blockbuster: no kernel\n" in terminal.getvalue()


def test_an_error_ends_the_line(terminal: Terminal) -> None:
    def work() -> None:
        with doing("compiling"):
            assert terminal.drawn.wait(60)
            raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        work()
    assert progress._line.tasks == []
    assert terminal.getvalue().endswith(progress._ERASE)


def test_threads_share_the_line(terminal: Terminal) -> None:
    def work() -> None:
        for _ in range(50):
            with doing("compiling"):
                pass

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert progress._line.tasks == []
    assert not progress._line.is_shown
