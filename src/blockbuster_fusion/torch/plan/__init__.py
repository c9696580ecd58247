"""A model's plan while it runs: steps, recorded calls and their replay."""
