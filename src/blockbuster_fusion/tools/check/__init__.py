"""The judge of precision."""
