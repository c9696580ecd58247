"""`blockbuster plan`: the kernels and operators that run a program or a model, and why."""

import argparse
from pathlib import Path

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.cli.command import Command
from blockbuster_fusion.cli.models import MODEL_FUNCTION, compiled_by
from blockbuster_fusion.cli.options import (
    FUNCTION,
    PROGRAM,
    add_rules,
    add_sizes,
    add_target,
    all_sizes,
    check_writable,
)
from blockbuster_fusion.cli.programs import Model, find_model
from blockbuster_fusion.compiler import Request
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.plans.plan import Plan
from blockbuster_fusion.plans.programs import plan_program
from blockbuster_fusion.plans.text import why_text

EXAMPLE = f"""\
{FUNCTION}
{MODEL_FUNCTION}
examples:
    blockbuster plan attention --size D=64,L=64 --why
    blockbuster plan model.py:make -o plan.json
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", help=PROGRAM)
    text = "for every array that is stored between steps, the reason"
    parser.add_argument("--why", action="store_true", help=text)
    text = "write the plan as JSON, as bb.Plan.load reads it"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)
    add_target(parser)
    add_rules(parser)
    add_sizes(parser, "a length: M=1024 (default: 512, batch 4)")


def _run(options: argparse.Namespace) -> None:
    if options.output is not None:
        check_writable(options.output)
    found = find_model(options.program)
    if isinstance(found, ArrayProgram):
        plan = _plan_program(found, options)
    else:
        plan = _plan_model(found, options)
    print(plan)
    if options.why:
        print("\nstored between steps:")
        print("\n".join(why_text(plan.why_not())) or "nothing")
    if options.output is not None:
        plan.save(options.output)
        print(f"\nsaved to {options.output}")


def _plan_program(program: ArrayProgram, options: argparse.Namespace) -> Plan:
    sizes = all_sizes(lower(program), options.size)
    return plan_program(Request(program, target=options.target, sizes=sizes, rules=options.rules))


def _plan_model(found: Model, options: argparse.Namespace) -> Plan:
    if options.size:
        message = "plan: --size is for programs; the inputs of a model have their sizes"
        raise BlockbusterError(message=message)
    made: Plan = compiled_by("plan", found)
    return made


COMMAND = Command("plan", "the kernels that run a program, and why", _run, _add_options, EXAMPLE)
