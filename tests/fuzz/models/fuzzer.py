"""The fuzzer of models: `python -m fuzz.models.fuzzer --count 5000 --jobs 16`, from tests/."""

import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from blockbuster_fusion.torch import compile_parts
from fuzz.harness import Failure, main
from fuzz.models.generate import random_model
from fuzz.models.judge import judged
from fuzz.models.maker import runs
from fuzz.models.program import Kind, Program, without


@dataclass(frozen=True)
class Case:
    """A random model, and how it is compiled."""

    program: Program
    strict: bool
    dynamic: bool | None


@dataclass(frozen=True)
class Models:
    """Random models over the whole operator table, against eager and float64."""

    name: str = "models"

    def generate(self, seed: int) -> Case:
        program = random_model(seed)
        dynamic = None if not program.lengths else (None, True)[seed % 3 > 0]
        return Case(program, seed % 2 == 0, dynamic)

    def run(self, case: Case) -> Failure | None:
        torch.set_num_threads(1)
        logging.getLogger("blockbuster_fusion").setLevel(logging.CRITICAL)
        try:
            found = judged(case.program, strict=case.strict, dynamic=case.dynamic)
        finally:
            compile_parts._COMPILED.clear()
        if not found:
            return None
        cause = str(found[0]).replace("\n", " ")
        cause = re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?(e[-+]\d+)?", "#", cause)[:160]
        return Failure("wrong", cause, "\n".join(map(str, found)))

    def shrink(self, case: Case) -> Iterator[Case]:
        for program in smaller(case.program):
            yield replace(case, program=program)

    def save(self, case: Case) -> str:
        return case.program.script(strict=case.strict, dynamic=case.dynamic)


def smaller(program: Program) -> Iterator[Program]:
    """Programs with less in them that PyTorch still runs."""
    for made in _candidates(program):
        least = made.needed()
        if least != program and runs(least):
            yield least


def _candidates(program: Program) -> Iterator[Program]:
    results = program.results
    if len(results) > 1:
        yield from (replace(program, results=(r,)) for r in results)
        for i in range(len(results)):
            yield replace(program, results=results[:i] + results[i + 1 :])
    for line in reversed(program.lines):  # results further up
        for name in (n for n in line.makes if n not in results):
            yield replace(program, results=(name,))
    for i, line in enumerate(program.lines):
        if line.kind is Kind.WRITE:
            yield without(program, [i])
        for old in line.makes:  # replaces a result by an operand
            for new in sorted(line.reads):
                yield _renamed(without(program, [i]), old, new)
    if len(program.lengths) > 1:
        yield replace(program, lengths=program.lengths[:1])
    for i, given in enumerate(program.given):
        for plain in (
            replace(given, layout="plain"),
            replace(given, odd=False),
            replace(given, scale=1.0, offset=0.0),
            replace(given, dtype=torch.float32),
        ):
            if plain != given:
                yield replace(program, given=(*program.given[:i], plain, *program.given[i + 1 :]))


def _renamed(program: Program, old: str, new: str) -> Program:
    word = re.compile(rf"\b{old}\b")
    lines = tuple(replace(line, text=word.sub(new, line.text)) for line in program.lines)
    results = tuple(new if r == old else r for r in program.results)
    return replace(program, lines=lines, results=results)


if __name__ == "__main__":
    sys.exit(main(Models()))
