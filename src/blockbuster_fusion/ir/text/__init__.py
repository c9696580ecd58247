"""The text form of a program, which `to_text` writes and `from_text` reads back exactly.

    program {
      axis B = 8                                    # its extent is a number
      axis M = MM                                   # or a symbol
      combiner online = (-inf, 0.0) {               # those that are not add, mul, max, min or any
        t1 = maximum(x0, x2)                        # large expressions have named parts
        return t1, x1 * exp(x0 - t1) + x3 * exp(x2 - t1)
      }
      %0 = input "Q": [B.*/1 M.*](M.*)float32       # [lists](items)dtype; `.*` is a free dim,
      %1 = pick(%0) over B.0/1 at 3                 # `/1` one of unpacked blocks of size 1
      %2 = input "scale": []()float32
      %7 = map(each %1, whole %2) over M.0 {        # after peeling: `over M.0 from 1 {`
        %3 = input "Q": [](M.0)float32              # the operands in order
        %4 = input "scale": []()float32
        %5 = apply(%3, %4) exp(-x0) * x1
        %6 = block_reduce(%5) over M.0 by max
        yield %5 stack, %6 add, %6 online:0, %6 online:1
      }
      output "O" = %7 [M]                           # its layout
      output "sum" = %7.1                           # result 1 of %7
    }

Types are written only if they cannot be inferred. A statement is a line; indentation has no
meaning. Reading makes a graph and executes nothing; `verify` checks that it is a sound program.
"""

from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.text.reader import Reader
from blockbuster_fusion.ir.text.writer import Writer


def to_text(graph: Graph) -> str:
    """The program as text."""
    return Writer().program(graph)


def from_text(text: str) -> Graph:
    """The program that a text describes, or BadText with the place and the reason."""
    return Reader(text).program()
