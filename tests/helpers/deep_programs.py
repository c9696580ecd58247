"""Programs of any length, depth and width."""

import blockbuster_fusion as bb
from blockbuster_fusion.array.arrays import Array, elementwise
from blockbuster_fusion.ir.expr import Expr


def chain(operators: int) -> bb.ArrayProgram:
    """So many operators, each of the one before."""

    def program(X: Array) -> Array:
        Y = X
        for _ in range(operators // 2):
            Y = bb.ops.tanh(Y) + X
        return Y

    return bb.trace(program, X="M N")


def unary_chain(operators: int) -> bb.ArrayProgram:
    """So many functions of one array, one after another."""

    def program(X: Array) -> Array:
        for at in range(operators):
            X = bb.ops.sin(X) if at % 2 else X * 0.5
        return X

    return bb.trace(program, X="M N")


def nested(operators: int) -> bb.ArrayProgram:
    """One elementwise operator whose expression is so many operators deep."""

    def expression(x: Expr) -> Expr:
        made = x
        for at in range(operators):
            made = -made if at % 3 else (made * 0.5 + x)
        return made

    return bb.trace(lambda X: elementwise(expression, X), X="M N")


def doubled(times: int) -> bb.ArrayProgram:
    """An expression that shares its parts: written out it has 2 ** `times` leaves."""

    def expression(x: Expr) -> Expr:
        for _ in range(times):
            x = x * 0.25 + x * 0.25
        return x

    return bb.trace(lambda X: elementwise(expression, X), X="M N")


def outputs(number: int) -> bb.ArrayProgram:
    """So many outputs of one input."""

    def program(X: Array) -> dict[str, Array]:
        return {f"O{i}": bb.ops.sin(X * (i + 1.0)) for i in range(number)}

    return bb.trace(program, X="M N")


def products(number: int) -> bb.ArrayProgram:
    """So many products with one matrix."""

    def program(X: Array, Y: Array) -> dict[str, Array]:
        return {f"O{i}": (X * (i + 1.0)) @ Y for i in range(number)}

    return bb.trace(program, X="M K", Y="K N")
