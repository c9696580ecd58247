"""The table of operators: every function has a text in every language."""

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.array.arrays import elementwise
from blockbuster_fusion.ir.expr import FUNCTIONS, call
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.printers.c.kernel import print_c
from blockbuster_fusion.printers.c.prelude import PARTS
from blockbuster_fusion.printers.operators import (
    C_STORED,
    C_TYPES,
    OPERATORS,
    TRITON_REDUCTIONS,
    TRITON_TYPES,
)
from blockbuster_fusion.printers.triton.helpers import HELPERS
from blockbuster_fusion.printers.triton.kernel import print_triton
from blockbuster_fusion.schedule.schedule import scheduled


def test_every_function_has_a_row():
    assert list(OPERATORS) == list(FUNCTIONS)


@pytest.mark.parametrize("types", [C_TYPES, C_STORED, TRITON_TYPES])
def test_every_dtype_has_a_name(types):
    assert set(types) == set(DType)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forms_have_all_operands_and_known_parts(name):
    operands = [f"x{number}" for number in range(FUNCTIONS[name].arity)]
    for dtype in DType:
        c, triton = OPERATORS[name].c.of(dtype), OPERATORS[name].triton.of(dtype)
        for form in (c, triton):
            text = form.pattern.format(*operands, f="f", dtype=dtype.value, type=C_TYPES[dtype])
            assert all(operand in text for operand in operands) or text == "x0"
        assert c.part is None or c.part in PARTS
        assert triton.part is None or triton.part in HELPERS


def test_reductions_have_known_parts():
    for form in TRITON_REDUCTIONS.values():
        assert form.part is None or form.part in HELPERS


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_is_printed(name):
    """A condition is a boolean; every other operand is a float."""
    arity = FUNCTIONS[name].arity
    floats = bb.trace(
        lambda X, Y: elementwise(
            lambda x, y: call(name, *(x < y, x, y)[3 - arity :]) + x * y, X, Y
        ),
        X="M N",
        Y="M N",
    )
    nest = scheduled(bb.lower(floats))
    assert print_c(nest, {})
    compile(print_triton(nest), name, "exec")
