"""`blockbuster passes`: prints a program after each pass of the compiler."""

import argparse

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.cli.command import Command
from blockbuster_fusion.cli.options import (
    FUNCTION,
    PROGRAM,
    add_choices,
    add_rules,
    add_sizes,
    add_target,
    given_sizes,
    numbers,
    snapshot_index,
    snapshots_from_1,
)
from blockbuster_fusion.cli.programs import find_program
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.tools.passes import AfterPass, pass_docs, passes

EXAMPLE = f"""\
{FUNCTION}
example (the loop nest before and after loads leave its loops):
    blockbuster passes attention --size D=64,L=64 --after lower_to_nest
    blockbuster passes attention --size D=64,L=64 --after hoist
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", nargs="?", help=PROGRAM)
    parser.add_argument("--list", action="store_true", help="the names of the passes, in order")
    parser.add_argument("--after", metavar="NAME", help="the program after this pass alone")
    add_target(parser)
    add_rules(parser)
    add_choices(parser)
    add_sizes(parser, "a size that is fixed: D=64 (default: sizes are arguments)")


def _run(options: argparse.Namespace) -> None:
    if options.list:
        width = max(map(len, pass_docs()))
        for name, doc in pass_docs().items():
            print(f"{name:{width}}  {doc}")
        return
    if options.program is None:
        raise BlockbusterError(message="passes: name a program, or list the passes with --list")
    if options.after is not None and options.after not in pass_docs():
        known = ", ".join(pass_docs())
        raise BlockbusterError(message=f"passes: unknown pass {options.after}; known are {known}")
    program = find_program(options.program)
    with snapshots_from_1(options.snapshot):
        found = list(
            passes(
                program,
                target=options.target,
                snapshot=snapshot_index(options.snapshot),
                tiles=dict(numbers("--tile", options.tile).items()),
                sizes=given_sizes(lower(program), options.size),
                dtype=options.dtype,
                rules=options.rules,
            )
        )
    _print(found, options.after)


def _print(found: list[AfterPass], after: str | None) -> None:
    if after is not None:
        texts = dict(found)
        if after not in texts:
            ran = ", ".join(texts)
            message = f"passes: {after} does not run with these options; those that do are {ran}"
            raise BlockbusterError(message=message)
        print(texts[after], end="")
        return
    before = ""
    for name, text in found:
        if text == before:
            print(f"{name}: no change\n")
        else:
            print(f"{name}:\n")
            print("\n".join(f"    {line}".rstrip() for line in text.rstrip().splitlines()) + "\n")
        before = text


COMMAND = Command("passes", "print a program after each pass", _run, _add_options, EXAMPLE)
