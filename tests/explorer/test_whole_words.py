"""A whole model in words: times by their sources, PyTorch's own time, and the least bytes."""

from dataclasses import replace

from blockbuster_fusion.explorer.whole_words import (
    least_bytes,
    library_seconds,
    whole_words,
)
from blockbuster_fusion.plans.plan import RunnerUp, SizePlan, StoredArray
from blockbuster_fusion.schedule.cost import Seconds
from helpers.plans import kernel_step, layered, plan_of


def test_measured_and_predicted_times_are_told_apart() -> None:
    headline, *told = whole_words(plan_of((layered(),)))
    assert headline.startswith("25 steps, 12 kernels; 1200 µs estimated; ")
    assert told[0] == (
        "The time is estimated as a sum, 1200 µs: 12 steps measured (1080 µs) and 12 steps "
        "predicted (120 µs)."
    )
    assert told[1].startswith("Of 10 predictions, 9 are right within a factor of 1.5, or 2 with")
    assert "The time of 1 step is not known." in told


def test_times_of_one_sentence_have_one_unit() -> None:
    plan = plan_of((layered(400, None),))
    _, first, *_ = whole_words(plan)
    assert "as a sum, 40 ms: 400 steps measured (36 ms) and 400 steps predicted (4 ms)" in first


def test_the_time_of_pytorch_is_told_if_every_step_has_one() -> None:
    own = layered(2, None)
    known = RunnerUp("library", (), Seconds(5e-4), "measured", "", None)
    steps = tuple(replace(s, runner_up=known) if s.kind == "kernels" else s for s in own.steps)
    timed = tuple(s for s in steps if s.seconds is not None)
    plan = plan_of((replace(own, steps=timed, stored=()),))
    kernels = sum(s.kind == "kernels" for s in timed)
    library = sum(s.seconds.total() for s in timed if s.kind != "kernels" and s.seconds)
    assert kernels
    assert library_seconds(plan) == library + kernels * 5e-4
    assert any(text.startswith("PyTorch's operators alone take") for text in whole_words(plan))
    assert library_seconds(plan_of((own,))) is None


def test_the_least_bytes_count_inputs_weights_and_results_once() -> None:
    first, second = (kernel_step(name, "", at, 1e-5) for at, name in enumerate(("gelu", "relu")))
    first = replace(first, reads={"x": 100, "w": 50}, writes={"y": 100})
    second = replace(second, reads={"y": 100, "w": 60, "x": 100}, writes={"z": 70, "u": 9})
    result = StoredArray("z", 70, "relu_1", "", "result", "it is a result of the model")
    between = StoredArray("y", 100, "gelu_0", "relu_1", "cost", "")
    plan = plan_of((SizePlan((first, second), stored=(between, result)),))
    assert least_bytes(plan) == 100 + 60 + 70
    headline, *told = whole_words(plan)
    assert headline.endswith("; 6 kB moved, of which 230 B are needed")
    assert told[-1].endswith("each once, are 230 B: no plan moves less.")
