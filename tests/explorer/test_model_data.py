"""The data of the page of a model: its rows, arrays and kernels."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.cli.main import main
from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.explorer.plan_data import plan_data
from blockbuster_fusion.report.collect import report_of
from helpers.plans import layered, plan_of, stored

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

from blockbuster_fusion.explorer.model import model_data  # noqa: E402
from helpers.twelve_layers import X  # noqa: E402


def test_rows_are_those_of_the_report(twelve) -> None:
    explanation, made = twelve
    (section,) = explanation.report.sections
    data = made.data
    assert data["title"] == explanation.name == "Twelve"
    assert [x["title"] for x in data["sections"][0]["layers"]] == [x.title for x in section.layers]
    assert [row["name"] for row in data["rows"]] == [
        row.name for layers in section.layers for row in layers.rows
    ]
    steps = [number for row in data["rows"] for number in row["steps"]]
    assert sorted(steps) == [*range(1, len(explanation.plan.steps) + 1)]
    assert any("F.layer_norm(x, (7,))" in text for text in data["lines"].values())


def test_every_stored_array_is_there_with_its_reason(twelve) -> None:
    explanation, made = twelve
    arrays = made.data["arrays"]
    kept = [array for graph in explanation.plan.graphs for array in graph.plans[0].stored]
    assert sum(array["count"] for array in arrays) == len(kept)
    assert {array["reason"] for array in arrays} == {array.reason for array in kept}
    rows = made.data["rows"]
    crossing = [array for array in arrays if array["crosses"]]
    assert crossing  # a layer stores something for the next one
    assert all(rows[x["from"]]["layers"] == rows[x["to"]]["layers"] for x in crossing)


def test_a_result_of_one_layer_names_the_layer() -> None:
    own = layered(4, None)
    last = next(step for step in reversed(own.steps) if step.region)
    result = replace(stored(last, last), read_by="", decided="result")
    plan = plan_of((replace(own, stored=(*own.stored, result)),))
    arrays = plan_data(plan, report_of(plan), "a plan")["arrays"]
    (found,) = (array for array in arrays if array["decided"] == "result")
    assert (found["count"], found["made_in"], found["read_in"]) == (1, "layers.3", "")
    (found,) = (array for array in arrays if array["crosses"])
    assert (found["count"], found["made_in"], found["read_in"]) == (3, "layers 0–2", "layers 1–3")
    assert {array["made_in"] for array in arrays if array["count"] == 4} == {""}


def test_equal_kernels_have_one_page_with_the_source_that_runs(twelve) -> None:
    explanation, made = twelve
    programs = made.data["programs"]
    parts = {id(f.executable): f.executable for g in explanation.graphs for f in g.fused}
    assert len(programs) == len(parts) < 12
    sources = {executable.source.strip() for executable in parts.values()}
    for program in programs:
        ids = [moment["id"] for moment in program["moments"]]
        doors = dict(program["doors"])
        assert doors["Block program"] == "step-0"
        assert {program["runs"], *doors.values()} <= {*ids}
        assert ids[-1] == doors["Source"]
        assert program["blocks"].endswith(", as it runs")
        assert program["moments"][-1]["text"].strip() in sources


def test_the_costliest_step_is_told_with_its_arrays(twelve) -> None:
    explanation, made = twelve
    first = made.data["answers"][0]
    costly = explanation.report.costliest(1)[0]
    assert first["name"] == costly.row.name
    assert made.data["rows"][first["row"]]["digest"] == costly.row.digest
    ends = {end for array in made.data["arrays"] for end in (array["from"], array["to"])}
    assert first["row"] in ends


def test_models_of_every_form() -> None:
    model = torch.nn.Sequential(torch.nn.Softmax(-1)).eval()

    def softmax(x):
        return x.softmax(-1)

    exported = torch.export.export(model, (X,))
    with torch.no_grad():
        forms = {
            "Sequential": bb.explore(torch.compile(model), X),
            "softmax": bb.explore(softmax, X, dynamic=True),
            "ExportedProgram": bb.explore(exported, measure=True),
        }
    for title, made in forms.items():
        assert made.data["title"] == title
        assert [row["name"] for row in made.data["rows"]] == ["softmax"]
        assert made.data["programs"][0]["sizes"] == {"B": 5, "M": 7}
    assert forms["ExportedProgram"].data["rows"][0]["time"]["basis"] == "measured"
    assert "softmax: 1 row" in repr(forms["softmax"])
    with pytest.raises(WrongKind, match="inputs of the exported program"):
        bb.explore(_without_examples(exported), measure=True)


def _without_examples(program):
    program.example_inputs = None
    return program


def test_narrow_numbers_and_sections() -> None:
    def halves(x):
        y = x.softmax(-1)
        torch._dynamo.graph_break()
        return F.layer_norm(y, (7,))

    with torch.no_grad():
        made = bb.explore(halves, X.bfloat16())
    assert [x["title"] for x in made.data["sections"]] == ["graph 1", "graph 2"]
    assert [row["section"] for row in made.data["rows"]] == [0, 1]
    stages = [moment.get("stage") for moment in made.data["programs"][0]["moments"]]
    assert stages[-1] == "cpu"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, page = tmp_path / "small.py", tmp_path / "small.html"
    file.write_text(
        "import torch\n\n\ndef make():\n"
        "    return torch.nn.Softmax(-1), (torch.ones(2, 3, requires_grad=True),)\n"
    )
    assert main(["explore", f"{file}:make", "--measure", "-o", str(page)]) == 0
    assert f"written: {page}" in capsys.readouterr().out
    assert "<title>Softmax · Blockbuster explorer</title>" in page.read_text(encoding="utf-8")
    assert main(["explore", f"{file}:make", "--size", "M=3", "-o", str(page)]) == 1
    assert "--size is for programs" in capsys.readouterr().err


def test_data_is_plain(twelve) -> None:
    explanation, made = twelve
    assert json.loads(json.dumps(made.data)) == made.data
    assert model_data(explanation)["rows"] == made.data["rows"]
