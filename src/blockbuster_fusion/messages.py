"""Messages of the package: each line on stderr begins with `blockbuster:`."""

import logging
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

PREFIX = "blockbuster: "
INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended, as in shells."""


log = logging.getLogger("blockbuster_fusion")
"""The log of the package; at DEBUG it has the source of every kernel."""


before_messages: list[Callable[[], None]] = []
"""Called before a message is printed, to erase the line of progress."""


def complain(message: str) -> None:
    """Prints a message on stderr, with the prefix before each of its lines."""
    for make_room in before_messages:
        make_room()
    for line in message.splitlines() or [""]:
        print(f"{PREFIX}{line.removeprefix(PREFIX)}", file=sys.stderr)


@dataclass
class Interruption:
    """Notes that Ctrl-C was pressed: the interrupted code may raise another error."""

    happened: bool = False

    def notice(self, signum: int, frame: FrameType | None) -> None:
        self.happened = True
        raise KeyboardInterrupt


@contextmanager
def prefixed_messages() -> Iterator[Interruption]:
    """Sends warnings and the package's log to stderr with the prefix, and notes Ctrl-C."""
    interruption = Interruption()
    handler = _Handler(logging.WARNING)
    on_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, interruption.notice) if on_main else None
    log.addHandler(handler)
    try:
        with warnings.catch_warnings():
            if not sys.warnoptions:
                warnings.simplefilter("once")
            warnings.showwarning = _show_warning
            yield interruption
    finally:
        log.removeHandler(handler)
        if on_main:
            signal.signal(signal.SIGINT, before)


class _Handler(logging.Handler):
    """Prints records of the log as messages."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(record.getMessage())


def _show_warning(message: Warning | str, *where: object, **named: object) -> None:
    first = (str(message).strip().splitlines() or [type(message).__name__])[0]
    complain(f"warning: {first.removeprefix(PREFIX)}")


class _LastResort(logging.Handler):
    """Prints warnings with the prefix, each once, in programs that have no handler of their own."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.told: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if len(log.handlers) > 1 or logging.getLogger().handlers:
            return
        text = record.getMessage()
        if text not in self.told and len(self.told) < MOST_MESSAGES:
            self.told[text] = None
            complain(text)


MOST_MESSAGES = 1000
"""The most different messages that a program prints."""

if not any(type(handler).__name__ == _LastResort.__name__ for handler in log.handlers):
    log.addHandler(_LastResort())
