"""Array programs: tracing, the lookup table, lowering."""
