"""`bb.explain`, the log, the profiler, and warnings of lost gradients."""

import logging
import subprocess
import sys
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import profile

import blockbuster_fusion as bb
from blockbuster_fusion.messages import log


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(F.layer_norm(x, (8,)))))


class Model(nn.Module):
    """Equal layers between two products that differ."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.last = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


X = torch.arange(24.0).reshape(6, 4) / 10
INTERPRETED = {"target": "interpret"}
LAYERWISE = {"materialise": ["addmm", "add", "add_*"]}
"""The products around the layers are parts of their own."""


@pytest.fixture(scope="module")
def explanation() -> "bb.torch.explain.Explanation":
    return bb.explain(Model().eval(), X, measure=True, options=LAYERWISE)


def test_kernels_that_differ_have_names_that_differ(explanation) -> None:
    found = {(k.name, k.digest) for k in explanation.kernels}
    assert len(found) == len({name for name, _ in found}) == len({d for _, d in found})
    assert "linear" in {name for name, _ in found}  # the two products around the layers:
    assert "linear_2" in {name for name, _ in found}


def test_equal_layers_are_printed_once(explanation) -> None:
    lines = str(explanation).splitlines()
    assert any(line.startswith("layers 0–2: 3 alike; ") for line in lines)
    assert not any(line.startswith("layers.1") for line in lines)


def test_kernels_have_bytes_lines_and_times(explanation) -> None:
    kernel = explanation.kernels[0]
    assert kernel.bytes_read == 4 * (6 * 4 + 8 * 4 + 8)  # the input, the weight and the bias
    assert kernel.bytes_written == 4 * 6 * 8
    assert kernel.lines
    assert all(line.startswith("torch_frontend/test_explain.py:") for line in kernel.lines)
    assert kernel.seconds is not None
    assert kernel.seconds > 0
    text = str(explanation)
    (row,) = [line for line in text.splitlines() if line.startswith("1  linear ")]
    assert " µs measured " in row
    assert " 256 B 192 B " in " ".join(row.split())
    assert row.endswith(kernel.lines[0])
    data = explanation.data()["kernels"][0]
    assert (data["bytes_read"], data["lines"]) == (256, [*kernel.lines])


def test_bytes_of_a_lookup_are_those_of_the_rows() -> None:
    table, ids = torch.randn(1000, 8), torch.arange(6)
    (kernel,) = bb.explain(lambda t, i: F.embedding(i, t) * 2, table, ids).kernels
    assert kernel.bytes_read == 6 * 8 * 4 + 6 * 8
    assert kernel.bytes_written == 6 * 8 * 4
    assert kernel.seconds is None


def test_nothing_compiled_is_no_coverage() -> None:
    """A graph of views has nothing to compute, and no kernel computes it."""
    found = bb.explain(lambda x: x.t(), X)
    assert (found.kernels, found.coverage) == ([], 0)
    assert "0.0% of the operators in kernels" in str(found)
    assert bb.explain(torch.cov, X).coverage == 0


# ------------------------------------------------------------------------ gradients


def test_gradients_are_told_of() -> None:
    model = Model(1).eval()
    found = bb.explain(model, X, options=INTERPRETED)
    assert found.needs_gradients
    assert found.data()["needs_gradients"]
    assert "it needs them and runs eagerly" in str(found).splitlines()[0]
    with torch.no_grad():
        found = bb.explain(model, X, options=INTERPRETED)
    assert not found.needs_gradients
    assert "gradients" not in str(found)
    assert not bb.explain(lambda x: x * 2, X, options=INTERPRETED).needs_gradients


def warned(function, *inputs: Tensor) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        function(*inputs)
    return [str(w.message) for w in caught if "blockbuster" in str(w.message)]


def test_each_model_that_needs_gradients_gets_one_warning() -> None:
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    def tripled(x: Tensor) -> Tensor:
        return x * 3

    short, long = torch.ones(3, requires_grad=True), torch.ones(4, 2, requires_grad=True)
    for function in (doubled, tripled):
        compiled = torch.compile(function, backend="blockbuster")
        (message,) = warned(compiled, short)
        assert message.startswith("blockbuster: only inference is compiled")
        assert warned(compiled, long) == []  # compiled anew, and told of already


def test_a_compiled_model_says_that_gradients_are_lost() -> None:
    with torch.no_grad():
        model = bb.compile(lambda x: x * 2, X, target="interpret")
    wanting = X.clone().requires_grad_()
    assert warned(model, X) == []
    (message,) = warned(model, wanting)
    assert message.startswith("blockbuster: inputs require gradients, and a compiled model gives")
    assert warned(model, wanting) == []


def test_an_exported_model_says_that_gradients_are_lost() -> None:
    model = bb.from_torch(torch.export.export(nn.ReLU(), (X,)), target="interpret")
    (message,) = warned(model, X.clone().requires_grad_())
    assert message.startswith("blockbuster: inputs require gradients")


# ------------------------------------------------------------------------ log and profiler


def test_the_log_has_the_sources(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "blockbuster_fusion"):
        bb.explain(lambda x: x.softmax(-1) * 0.37, X)
    texts = [r.getMessage() for r in caplog.records if "int softmax_mul(" in r.getMessage()]
    assert len(texts) == 1
    assert texts[0].startswith("kernel softmax_mul:\n")


SCRIPT = """
import torch
import blockbuster_fusion as bb

bb.register_backend()
with torch.no_grad():
    torch.compile(lambda x: x.softmax(-1) * 0.37, backend="blockbuster")(torch.ones(3, 4))
bb.messages.log.warning("told")
bb.messages.log.warning("told")
"""


def test_torch_logs_show_the_sources_and_messages_have_the_prefix(monkeypatch) -> None:
    monkeypatch.setenv("TORCH_LOGS", "output_code")
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "[__output_code] kernel softmax_mul:" in done.stderr
    assert "int softmax_mul(" in done.stderr
    assert done.stderr.count("told") == 1
    assert "blockbuster: told\n" in done.stderr


def test_a_log_with_handlers_is_left_to_them(capsys: pytest.CaptureFixture[str]) -> None:
    log.warning("something that a handler of pytest has")
    assert capsys.readouterr().err == ""


def test_kernels_have_names_in_a_profiler() -> None:
    with torch.no_grad():
        compiled = torch.compile(Model(2).eval(), backend="blockbuster", options=LAYERWISE)
        for calls in range(3):  # on a new tape, and again
            with profile() as found:
                compiled(X)
            names = [e.key for e in found.events() if e.key.startswith("blockbuster::")]
            assert names[0] == "blockbuster::linear", calls
            assert names[-1] == "blockbuster::linear_2"
            assert len(names) == 2 + 2  # and one for each layer
