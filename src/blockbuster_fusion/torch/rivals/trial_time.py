"""The time for trials of a model's kernels."""

SECONDS = {"cpu": 10.0, "cuda": 0.0}
"""The time for all trials of a model. Triton's compiler takes too long for them."""


class TrialTime:
    """The seconds that are left for the trials of a model, by target."""

    def __init__(self) -> None:
        self.left = dict(SECONDS)
