"""Tools around the compiler: examples, emitted files, benchmarks, the judge."""
