"""The code of a page of the documentation: it is run, and its output compared with the page.

Blocks run one after the other, in one namespace and in an empty folder. A `text` block right after
a `python` block is what that prints; a `console` block has commands after `$`, each followed by its
output. A line `...` stands for any lines.
"""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from blockbuster_fusion.cli import main as cli

BLOCK = re.compile(r"^```([\w{}-]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"# (\w+\.py)\n")
"""The first line of a block that is a file as well."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the place of the text in the page."""

    language: str
    code: str
    start: int
    follows: bool
    """True if nothing but space is between the block before and this one."""


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    end = 0
    for match in BLOCK.finditer(page):
        follows = not page[end : match.start()].strip()
        found.append(Block(match[1], match[2], match.start(2), follows))
        end = match.end()
    return found


def run_page(page: str, folder: Path) -> str:
    """The page with the output that its code gives; equal to the page if that is what it shows."""
    namespace: dict[str, object] = {}
    printed: str | None = None
    changes: list[tuple[Block, str]] = []
    for number, block in enumerate(blocks(page)):
        if block.language == "python":
            printed = _run(block.code, folder, number, namespace)
        elif block.language == "text" and block.follows and printed is not None:
            changes.append((block, agreed(block.code, printed)))
            printed = None
        elif block.language == "console":
            changes.append((block, _console(block.code)))
    for block, text in reversed(changes):
        page = page[: block.start] + text + page[block.start + len(block.code) :]
    return page


def _run(code: str, folder: Path, number: int, namespace: dict[str, object]) -> str:
    """The output of code that is run from a file, as torch.compile wants it."""
    named = NAMED.match(code)
    # torch.compile knows code by its file, so that those of two pages have different names
    file = folder / (named[1] if named else f"{folder.name}_{number}.py")
    file.write_text(code, encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, str(file), "exec"), namespace)
    return out.getvalue()


def _console(code: str) -> str:
    """The same commands with the output that they give."""
    return "".join(
        f"$ {command}\n{agreed(shown, _command(command))}" for command, shown in _commands(code)
    )


def _commands(code: str) -> Iterator[tuple[str, str]]:
    for part in code.split("$ ")[1:] if code.startswith("$ ") else []:
        command, _, shown = part.partition("\n")
        yield command, shown


def _command(command: str) -> str:
    program, *arguments = shlex.split(command)
    assert program == "blockbuster", f"{command}: a console block runs blockbuster alone"
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert cli.main(arguments) == 0, command
    return out.getvalue()


def agreed(shown: str, printed: str) -> str:
    """The shown text if it stands for what is printed, else what is printed."""
    text = "".join(f"{line.rstrip()}\n" for line in printed.rstrip().splitlines())
    pieces = (f"{piece}\n" if piece else "" for piece in re.split(r"^\.\.\.\n", shown, flags=re.M))
    pattern = "(?:.*\n)*?".join(re.escape(piece.removesuffix("\n")) for piece in pieces)
    return shown if re.fullmatch(pattern, text) else text
