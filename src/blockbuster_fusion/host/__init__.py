"""Arrays and operators on the host: NumPy's side of a program."""
