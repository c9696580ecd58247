"""Loop nests as Triton."""
