"""The parts of benchmarks/coverage.py: a model, its memory, what is kept, and the page."""
