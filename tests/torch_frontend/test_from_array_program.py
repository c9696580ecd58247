"""Array programs in PyTorch's own operators, which compiled ones are compared with."""

import numpy as np
import pytest
import torch

import blockbuster_fusion as bb
from helpers import torch_reference
from helpers.lookup_programs import FORMS, inputs_of, traced


@pytest.mark.parametrize("name", FORMS)
def test_lookups_are_those_of_the_program(name: str) -> None:
    """Also if the index has an axis of the table, as the classes of rows have."""
    program = traced(name)
    inputs = inputs_of(program)
    expected = bb.evaluate(program, inputs)
    found = torch_reference.run(program, inputs, torch.float64)
    for output, array in expected.items():
        np.testing.assert_allclose(found[output], array, rtol=1e-12, atol=1e-12)
