"""The substitution rules, a file each, and the sets in which they are applied."""
