"""Products of inputs that are stored as float32 beside others in 16 bits."""

from collections.abc import Container
from dataclasses import replace

from blockbuster_fusion.array.program import ArrayProgram, Operator
from blockbuster_fusion.ir.types import DType

EXACT = ("rounds_to", str(DType.float32))


def with_exact_products(program: ArrayProgram, narrow: Container[str]) -> ArrayProgram:
    """The program with products in float32 of float32 inputs, but for those with `narrow` names."""
    wide = {
        number
        for number, given in enumerate(program.inputs)
        if given.type.dtype is DType.float32 and given.name not in narrow
    }

    def exact(op: Operator) -> Operator:
        if op.name != "matmul" or wide.isdisjoint(op.operands) or EXACT in op.attributes:
            return op
        return replace(op, attributes=(*op.attributes, EXACT))

    return replace(program, operators=tuple(map(exact, program.operators)))
