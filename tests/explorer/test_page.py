"""The page as text: one file, nothing fetched, and no text of a user that becomes markup."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.cli.main import main
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.explorer.page import as_json, page

HOSTILE = "</script><img src=x onerror=alert(1)>{{script}}"


class Tags(HTMLParser):
    """The elements of a page, and what is in its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in self.inside:
            self.inside[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(("", {}))

    def handle_data(self, data: str) -> None:
        tag = self.tags[-1][0] if self.tags else ""
        if tag in self.inside:
            self.inside[tag][-1] += data


@pytest.fixture(scope="module")
def made():
    return bb.explore(bb.examples.find("matmul-relu"), times=False)


def test_it_is_one_file_that_asks_for_nothing(made) -> None:
    for tag, attributes in Tags(made.html()).tags:
        assert tag not in ("link", "img", "iframe", "object", "embed"), tag
        assert not {"src", "action"} & set(attributes), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes)
        assert "style" not in attributes


def test_the_policy_allows_its_own_script_and_style_alone(made) -> None:
    found = Tags(made.html())
    (policy,) = [a["content"] for t, a in found.tags if "http-equiv" in a]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    _, script = found.inside["script"]
    (style,) = found.inside["style"]
    for kind, text in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_the_data_comes_back(made) -> None:
    data, _ = Tags(made.html()).inside["script"]
    assert json.loads(data) == made.data


def test_a_hostile_name_stays_text() -> None:
    program = bb.trace(lambda X: {HOSTILE: bb.ops.exp(X)}, X="M N", name=HOSTILE)
    made = bb.explore(program, times=False)
    found = Tags(made.html())
    assert [tag for tag, _ in found.tags].count("script") == 2
    assert "img" not in [tag for tag, _ in found.tags]
    assert json.loads(found.inside["script"][0])["title"] == HOSTILE


def test_json_cannot_end_its_element() -> None:
    text = as_json({"a": "</script><!--\u2028&"})
    assert not set("<>&") & set(text)
    assert "\u2028" not in text
    assert json.loads(text) == {"a": "</script><!--\u2028&"}


def test_a_notebook_shows_it_in_a_frame(made) -> None:
    shown = made._repr_html_()
    (tag, attributes), _ = Tags(shown).tags
    assert tag == "iframe"
    assert attributes["srcdoc"] == made.html()
    assert attributes["sandbox"] == "allow-scripts"


def test_it_is_saved(made, tmp_path: Path) -> None:
    file = made.save(tmp_path / "page.html")
    assert file.read_text(encoding="utf-8") == made.html()
    assert "matmul_relu" in repr(made)


def test_explore_takes_what_compile_takes() -> None:
    function = bb.explore(lambda A, B: A @ B.T, A="M K", B="N K", times=False, name="scores")
    assert function.data["title"] == "scores"
    graph = bb.explore(bb.lower(bb.examples.find("softmax")), sizes={"M": 64}, times=False)
    assert graph.data["sizes"] == {"MM": 64, "NN": 512}
    fixed = bb.explore(lambda X: bb.ops.softmax(X), X="M N:64", times=False)
    assert fixed.data["sizes"]["N"] == 64


def test_times_are_predicted_or_measured() -> None:
    made = bb.explore(bb.examples.find("softmax"), sizes={"M": 64, "N": 64}, measure=True)
    for snapshot in made.data["snapshots"]:
        kinds = {name.partition(",")[0]: seconds for name, seconds in snapshot["times"].items()}
        assert set(kinds) == {"predicted", "measured"}
        assert all(0 < seconds < 10 for seconds in kinds.values())


def test_what_cannot_be_explored_gets_a_sentence() -> None:
    with pytest.raises(BlockbusterError, match="Z"):
        bb.explore(bb.examples.find("softmax"), sizes={"Z": 3}, times=False)
    with pytest.raises(BlockbusterError, match="Z"):
        bb.explore(bb.lower(bb.examples.find("softmax")), sizes={"Z": 3}, times=False)


def test_an_operator_that_has_no_kernel() -> None:
    """Misc operators in a loop have no kernel: the page says so, and has all else."""
    made = bb.explore(bb.examples.find("self-attention"), times=False)
    assert any(
        moment["title"].startswith(("The kernel", "No kernel")) for moment in made.data["moments"]
    )


def test_the_command_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["explore", "matmul-relu", "--size", "M=96"]) == 0
    assert capsys.readouterr().out == "written: matmul_relu.html\n"
    text = (tmp_path / "matmul_relu.html").read_text(encoding="utf-8")
    assert re.search(r'"sizes":\{"M":96', text)
    assert main(["explore", "matmul-relu", "-o", str(tmp_path / "no" / "page.html")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_templates_in_data_stay_as_they_are() -> None:
    """Data may have the braces of the template."""
    made = page({"title": "{{style}}", "moments": []})
    assert "<title>{{style}} · " in made
