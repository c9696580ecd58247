"""Significand-exponent pairs: exponentials that neither overflow nor vanish."""
