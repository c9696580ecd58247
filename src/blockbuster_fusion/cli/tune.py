"""`blockbuster tune`: finds the fastest configuration of a program's kernels, and keeps it."""

import argparse
import json

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.cli.command import Command
from blockbuster_fusion.cli.options import (
    FUNCTION,
    PROGRAM,
    add_sizes,
    add_target,
    given_sizes,
    positive,
    seconds,
)
from blockbuster_fusion.cli.programs import find_program
from blockbuster_fusion.errors import MissingPackage
from blockbuster_fusion.messages import complain
from blockbuster_fusion.tools.bench import default_lengths, inputs_for

EXAMPLE = f"""\
{FUNCTION}
examples:
    blockbuster tune softmax --size M=2048,N=1000 --seconds 30
    blockbuster tune attention --ray auto

Ctrl-C keeps all that was measured; a later run goes on from there.
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", help=PROGRAM)
    add_target(parser)
    add_sizes(parser, "a length: M=1024 (default: as for bench)")
    text = "the most that tuning takes (default: %(default)s)"
    parser.add_argument("--seconds", type=seconds, default=60.0, metavar="S", help=text)
    text = "configurations compiled at a time (default: $BLOCKBUSTER_WORKERS, or one for each core)"
    parser.add_argument("--workers", type=positive, metavar="N", help=text)
    text = "measure on a Ray cluster: auto, local or HOST:PORT"
    parser.add_argument("--ray", metavar="ADDRESS", help=text)
    text = "print the configuration as JSON, as bb.compile(…, config=…) takes it"
    parser.add_argument("--json", action="store_true", help=text)


def _run(options: argparse.Namespace) -> None:
    program = find_program(options.program)
    sizes = given_sizes(lower(program), options.size)
    lengths = default_lengths(program, options.target, sizes)
    arrays = inputs_for(program, lengths)
    try:
        from blockbuster_fusion.torch.tune import kept, subject_of, tune_subject
    except ImportError as error:
        package = error.name or "torch"
        raise MissingPackage(function="tune", package=package, extra="torch") from error
    subject = subject_of(program, (), arrays, options.target)
    try:
        found = tune_subject(subject, options.seconds, options.workers, options.ray)
    except KeyboardInterrupt:
        complain(kept(subject))
        raise
    if options.json:
        print(json.dumps(found.config.data()))
        return
    shown = ", ".join(f"{name}={length}" for name, length in lengths.items())
    print(f"{program.name} ({shown}) on {options.target}")
    print(f"  {found}")


COMMAND = Command("tune", "the fastest configuration of a program", _run, _add_options, EXAMPLE)
