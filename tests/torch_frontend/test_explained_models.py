"""Explanations of models: folded layers, marks of times, files, and sizes, breaks and rivals."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import blockbuster_fusion as bb
from blockbuster_fusion.cli.main import main
from blockbuster_fusion.errors import BadMachine, WrongKind
from blockbuster_fusion.plans.plan import Plan
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch.capture.source_lines import relative
from blockbuster_fusion.torch.explain import Explanation
from blockbuster_fusion.torch.planned import steps as planned_steps
from blockbuster_fusion.torch.rivals import library

KERNELS = {"library": "never", "materialise": ["add", "add_*"]}
"""Each layer ends with an array in memory."""
HERE = "torch_frontend/test_explained_models.py:"


class Layer(nn.Module):
    def __init__(self, gates: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(7, 13), nn.Linear(13, 7)
        self.gates = gates

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(F.layer_norm(x, (7,)))
        return x + self.down(y.sigmoid() if self.gates else y.relu())


class Model(nn.Module):
    """Twelve layers, of which one may differ."""

    def __init__(self, odd: int | None = 5) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(at == odd) for at in range(12))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


X = torch.linspace(-1, 1, 35).reshape(5, 7)


def explain(model, *inputs, **options) -> Explanation:
    with torch.no_grad():
        return bb.explain(model, *inputs, **options)


@pytest.fixture(scope="module")
def twelve() -> Explanation:
    return explain(Model().eval(), X, options=KERNELS)


def test_equal_layers_are_folded_around_one_that_differs(twelve: Explanation) -> None:
    (section,) = twelve.report.sections
    folded = {layers.title: layers for layers in section.layers}
    assert [*folded] == ["layers 0–4, 6–11", "layers.5"]
    assert "sigmoid" in folded["layers.5"].differs
    assert folded["layers.5"].differs.startswith("unlike layers 0–4, 6–11: ")
    lines = str(twelve).splitlines()
    assert sum(line.startswith("layers") for line in lines) == 2
    steps = [number for layers in section.layers for row in layers.rows for number in row.steps]
    assert sorted(steps) == [*range(1, len(twelve.plan.steps) + 1)]


def test_all_layers_alike_are_one() -> None:
    (section,) = explain(Model(None).eval(), X, options=KERNELS).report.sections
    assert [layers.title for layers in section.layers] == ["layers 0–11"]
    assert section.layers[0].share == pytest.approx(1)


def test_predicted_and_measured_times_are_marked(twelve: Explanation) -> None:
    rows = [row for layers in twelve.report.sections[0].layers for row in layers.rows]
    assert {row.time.basis for row in rows if row.time} == {"predicted"}
    assert twelve.report.totals.measured == 0
    assert " µs predicted " in str(twelve)
    assert "measured" not in str(twelve)
    for name in ("measure", "time"):
        found = explain(lambda x: x.softmax(-1).sort(-1)[0], X, **{name: True})
        rows = [row for layers in found.report.sections[0].layers for row in layers.rows]
        assert len(rows) > 1  # kernels, and an operator of PyTorch's
        assert {row.time.basis for row in rows if row.time} == {"measured"}
        assert found.report.totals.predicted == found.report.totals.untimed == 0
        assert "predicted" not in str(found).partition("costliest")[0]


def test_bytes_are_those_of_the_kernels(twelve: Explanation) -> None:
    assert twelve.report.totals.bytes_read == sum(k.bytes_read for k in twelve.kernels)
    assert twelve.report.totals.bytes_written == sum(k.bytes_written for k in twelve.kernels)
    assert twelve.report.totals.kernels == len(twelve.kernels)


def test_rows_have_lines_of_the_model(twelve: Explanation) -> None:
    rows = [row for layers in twelve.report.sections[0].layers for row in layers.rows]
    lines = [line for row in rows for line in row.lines]
    assert lines
    assert all(line.startswith(HERE) for line in lines)
    text = Path(__file__).read_text(encoding="utf-8").splitlines()
    numbers = {int(line.removeprefix(HERE)) for line in lines}
    assert {text[number - 1].strip() for number in numbers} == {
        "y = self.up(F.layer_norm(x, (7,)))",
        "return x + self.down(y.sigmoid() if self.gates else y.relu())",
    }


def test_paths_are_relative(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inner = tmp_path / "site" / "models"
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), "", "relative"])
    assert relative(str(inner / "llama.py")) == "models/llama.py"
    assert relative("/elsewhere/own.py") == "own.py"
    monkeypatch.chdir(tmp_path)
    assert relative(str(tmp_path / "mine" / "model.py")) == "mine/model.py"
    assert relative("<string>") == "<string>"


def test_the_report_is_of_the_plan(twelve: Explanation) -> None:
    assert isinstance(twelve.plan, Plan)
    assert [s.name for s in twelve.plan.steps] == [s.name for s in twelve.plan.steps if s.kernels]
    assert twelve.data()["report"] == twelve.report.data()
    assert json.loads(json.dumps(twelve.data()["report"])) == twelve.report.data()


def test_files_of_three_kinds(twelve: Explanation, tmp_path: Path) -> None:
    for suffix in ("txt", "html", "json"):
        twelve.save(tmp_path / f"twelve.{suffix}")
    assert (tmp_path / "twelve.txt").read_text(encoding="utf-8") == f"{twelve}\n"
    assert (tmp_path / "twelve.html").read_text(encoding="utf-8") == twelve.html()
    assert f"<title>{twelve.name} for cpu (" in twelve.html()
    saved = json.loads((tmp_path / "twelve.json").read_text(encoding="utf-8"))
    assert saved["sections"][0]["layers"][0]["title"] == "layers 0–4, 6–11"
    assert str(Path.cwd()) not in json.dumps(saved)
    assert twelve._repr_html_() in twelve.html()
    with pytest.raises(WrongKind, match=r"ends in \.txt, \.html or \.json, not twelve\.csv"):
        twelve.save(tmp_path / "twelve.csv")


# ------------------------------------------------------------------------ other models


def test_a_library_choice_has_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.LibraryTimes, "_timed", lambda *_: Seconds(1e-12))
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(7, 13), nn.ReLU()).eval()
    found = explain(model, X, options={"library": "auto"})
    rows = [row for layers in found.report.sections[0].layers for row in layers.rows]
    assert {row.kind for row in rows} == {"library"}
    for row in rows:
        assert row.rival is not None
        assert row.rival.kernels is not None
        assert row.rival.kernels.seconds > 1e-9
        assert row.rival.kernels.basis in ("predicted", "at least", "measured")
        assert row.rival.library is not None
        assert row.rival.library.basis == "measured"
        assert row.rival.reason
    assert found.coverage == 0
    assert "why they are not fused further" in str(found)


def test_equal_choices_of_layers_are_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.LibraryTimes, "_timed", lambda *_: Seconds(1e-12))
    torch._dynamo.reset()
    found = explain(Model(None).eval(), X, options={"library": "auto"})
    (note,) = [x for x in found.report.notes if x.title == "run by PyTorch because it is faster"]
    assert len(found.library) >= 12 > len(note.lines)
    assert any(" in layers 0–11: " in line for line in note.lines)


def test_nothing_is_fused() -> None:
    found = explain(lambda x: x.sort(-1)[0].sort(0)[0], X)
    rows = [row for layers in found.report.sections[0].layers for row in layers.rows]
    assert [(row.name, row.kind) for row in rows] == [("sort", "misc"), ("sort", "misc")]
    assert "[a] not in the operator table" in str(found).splitlines()
    assert "0.0% of the operators in kernels" in str(found)
    nothing = explain(lambda x: x.t(), X)
    assert nothing.report.totals.steps == 0
    assert str(nothing)
    assert nothing.html().startswith("<!doctype html>")


def test_the_interpreter_has_no_times() -> None:
    found = explain(lambda x: x.exp() + 1, X, options={"target": "interpret"})
    (row,) = found.report.sections[0].layers[0].rows
    assert (row.by, row.time, row.share) == ("interpreter, snapshot 1", None, None)
    assert "the time of 1 step is not known" in str(found)
    assert "costliest" not in str(found)


def test_a_machine_that_cannot_be_measured_has_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    found = explain(lambda x: x.exp() - 2, X, options={"library": "never"})

    def failing(*_: object) -> None:
        raise BadMachine(name="cpu", problem="it is too fast")

    monkeypatch.setattr(planned_steps, "machine_for", failing)
    assert found.report.totals.untimed == 1
    assert found.report.machine == "none"
    assert str(found)


def test_graph_breaks_give_sections() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.exp()
        torch._dynamo.graph_break()
        return y * 2

    found = explain(function, X)
    assert [section.title for section in found.report.sections] == ["graph 1", "graph 2"]
    assert found.report.graph_breaks == found.graph_breaks
    assert len(found.graph_breaks) == 1
    whole = sum(section.totals.seconds for section in found.report.sections)
    assert found.report.totals.seconds == pytest.approx(whole)
    shares = [layers.share for section in found.report.sections for layers in section.layers]
    assert sum(shares) == pytest.approx(1)
    assert "graph break: " in str(found)
    assert "graph break: " in found.html()


def test_compiled_and_exported_models_have_pages() -> None:
    with torch.no_grad():
        compiled = bb.compile(lambda x: x.exp() * 3, X, library="never")
        exported = bb.from_torch(torch.export.export(nn.ReLU(), (X,)), library="never")
    for made in (compiled, exported):
        assert made.explanation.report.totals.kernels == 1
        assert "1 kernel" in made.explanation.html()


# ------------------------------------------------------------------------ the command

FILE = """\
import torch
from torch import nn


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 6), nn.ReLU()).eval(), (torch.ones(3, 8),)


def scores(Q: "M D", K: "N D"):
    return Q @ K.T
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "model.py"
    found.write_text(FILE, encoding="utf-8")
    return found


@pytest.mark.parametrize("suffix", ["txt", "html", "json"])
def test_the_command(file: Path, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    saved = file.parent / f"model.{suffix}"
    assert main(["explain", f"{file}:make", "--measure", "-o", str(saved)]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith(f"\nsaved to {saved}\n")
    assert "of the operators in kernels" in printed.splitlines()[0]
    assert " measured " in printed
    text = saved.read_text(encoding="utf-8")
    if suffix == "txt":
        assert printed.startswith(text)
    assert str(file.parent) not in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{file}:make", "-o", "model.pdf"], "a file that ends in .txt, .html or .json"),
        (["{file}:make", "-o", "nowhere/model.txt"], "nowhere/model.txt"),
        (["{file}:scores"], "it is an array program; `blockbuster plan` tells of these"),
        (["softmax"], "it is an array program; `blockbuster plan` tells of these"),
        (["{file}"], "which function? write"),
    ],
)
def test_complaints(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main(["explain", *(x.replace("{file}", str(file)) for x in arguments)]) == 1
    assert sentence in capsys.readouterr().err
