"""The parts of benchmarks/never_slower.py: cases, timing, what is kept, and the report."""
