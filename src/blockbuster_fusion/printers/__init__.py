"""Printers: loop nests become source text, in C or in Triton."""
