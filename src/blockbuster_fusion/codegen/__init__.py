"""Code generation: block programs become scheduled loop nests, and these become source text."""
