"""The data of a page: pictures, moments and snapshots, by the names of the listing."""

import json
import re

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.explorer import steps
from blockbuster_fusion.explorer.collect import program_data
from blockbuster_fusion.explorer.picture import bytes_text, picture
from blockbuster_fusion.explorer.rule_words import WORDS
from blockbuster_fusion.explorer.sizes import Sizes
from blockbuster_fusion.explorer.steps import Data, array_names, fusion_moments
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.ir.listing import show

SIZES = {"M": 256, "N": 256, "D": 64, "L": 64, "K": 256}
PAPER = ["attention", "layernorm-matmul", "rmsnorm-swiglu"]


def data_of(name: str) -> Data:
    program = bb.examples.find(name)
    axes = {axis.name for given in program.inputs for axis in given.type.axes}
    return program_data(program, {a: SIZES.get(a, 128) for a in sorted(axes)}, times=False)


def drawn_text(frame: Data) -> str:
    """A picture as text: cells, edges and lines."""
    lines = []
    for box in frame["boxes"]:
        named = " ".join(box.get("names", ()))
        where = ",".join(map(str, box["at"]))
        facts = [
            box["kind"],
            box.get("memory", ""),
            f"in {box['parent']}" if "parent" in box else "",
        ]
        moved = f"moved {box['moved']}" if "moved" in box else ""
        parts = [box["key"], *facts, f"({named})", box["text"], moved, f"at {where}"]
        lines.append(" ".join(part for part in parts if part))
    for edge in frame["edges"]:
        lines.append(
            f"{' -> '.join(edge['ends'])} {edge['memory']} {edge.get('name', '')}".rstrip()
        )
    lines += [f"{key or '-':>4} | {line}" for line, key in frame["lines"]]
    return "\n".join(lines)


def test_picture_of_matmul_relu(golden) -> None:
    graph = bb.lower(bb.examples.find("matmul-relu"))
    golden(drawn_text(picture(graph, bb.meter(graph, {"M": 128, "N": 128, "K": 128}))))


def test_picture_of_fused_attention(golden) -> None:
    golden(drawn_text(picture(bb.fuse(bb.examples.find("attention")).fused[-1])))


def test_moments_of_attention(golden) -> None:
    lines = []
    for moment in data_of("attention")["moments"]:
        cost = moment.get("cost", {})
        lines.append(f"{moment['id']}: {moment['title']} {cost or ''}".rstrip())
        for key in (
            "about",
            "cost_note",
            "short",
            "said",
            "replaced",
            "became",
            "made",
            "new",
            "decisions",
        ):
            if moment.get(key):
                lines.append(f"    {key}: {moment[key]}")
    golden("\n".join(lines))


@pytest.mark.parametrize("name", list(bb.examples.EXAMPLES))
def test_every_example_has_a_picture_for_each_program(name: str) -> None:
    fusion = bb.fuse(bb.examples.find(name))
    for graph in (fusion.initial, *fusion.fused, *fusion.snapshots):
        drawn = picture(graph)
        assert [line for line, _ in drawn["lines"]] == show(graph).splitlines()
        boxes = {box["key"]: box for box in drawn["boxes"]}
        assert len(boxes) == len(drawn["boxes"])
        for edge in drawn["edges"]:
            assert set(edge["ends"]) <= set(boxes)
        assert {key for _, key in drawn["lines"]} <= {"", *boxes}
        assert set(drawn["makers"].values()) <= set(boxes)


@pytest.mark.parametrize("name", PAPER)
def test_interior_arrays_are_the_buffered_edges(name: str) -> None:
    fusion = bb.fuse(bb.examples.find(name))
    for step in fusion.trace:
        drawn = picture(step.after)
        arrays = {box["key"] for box in drawn["boxes"] if box["kind"] == "array"}
        readers = {tuple(e["ends"]) for e in drawn["edges"] if e["ends"][0] in arrays}
        inner = [pair for pair in readers if not pair[1].startswith("o")]
        assert len(inner) == len(buffered(step.after)), step


@pytest.mark.parametrize("name", PAPER)
def test_figures_are_the_meter_s(name: str) -> None:
    data = data_of(name)
    trace = bb.fuse(bb.examples.find(name)).trace
    moments = [moment for moment in data["moments"] if moment["group"] == "fusion"]
    assert len(moments) == len(trace) + 1
    for step, moment in zip(trace, moments[1:], strict=True):
        traffic = step.traffic(data["sizes"])
        assert moment["cost"] == {
            "edges": len(step.buffered),
            "traffic": traffic.loaded + traffic.stored,
            "flops": traffic.flops,
            "local": traffic.peak_local,
        }


@pytest.mark.parametrize("name", PAPER)
def test_moments_refer_to_what_there_is(name: str) -> None:
    data = data_of(name)
    ids = [moment["id"] for moment in data["moments"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z0-9_-]+", each) for each in ids)
    for moment in data["moments"]:
        assert 0 <= moment["frame"] < len(data["frames"])
        keys = {box["key"] for box in data["frames"][moment["frame"]]["boxes"]}
        assert set(moment.get("made", ())) <= keys
    for snapshot in data["snapshots"]:
        assert snapshot["moment"] in ids
        frame = data["frames"][data["moments"][ids.index(snapshot["moment"])]["frame"]]
        arrays = {box["key"] for box in frame["boxes"] if box["kind"] == "array"}
        assert {reason["array"] for reason in snapshot["reasons"]} <= arrays
        assert len(snapshot["reasons"]) == (
            snapshot["cost"]["edges"] if "number" in snapshot else 0
        )


def test_kernels_are_in_both_languages_and_named_alike() -> None:
    data = data_of("attention")
    by_id = {moment["id"]: moment for moment in data["moments"]}
    assert "@triton.jit" in by_id["snapshot-2-cuda-source"]["text"]
    assert "int attention(" in by_id["snapshot-2-cpu-source"]["text"]
    for group in ("snapshot-1-cpu", "snapshot-1-cuda", "snapshot-2-cpu", "snapshot-2-cuda"):
        for stage in ("lower_to_nest", "source"):
            moment = by_id[f"{group}-{stage}"]
            names = data["frames"][moment["frame"]]["makers"]
            lists = {name for name in names if not name.startswith("t")}
            assert {"Q", "KT", "VT", "O"} <= lists <= words_of(moment)


def words_of(moment: Data) -> set[str]:
    return set(re.findall(r"[A-Za-z]\w*?(?=_ptr|\W)", moment["text"]))


def test_a_fold_of_several_values_has_a_ring_for_each() -> None:
    """Online softmax: the maximum, the sum and the result are updated together."""
    data = data_of("attention")
    moment = next(each for each in data["moments"] if each["id"] == "snapshot-2-cuda-source")
    drawn = data["frames"][moment["frame"]]
    kinds = {box["key"]: (box["kind"], box.get("names")) for box in drawn["boxes"]}
    makers = {name: kinds[key] for name, key in drawn["makers"].items()}
    assert [makers[f"t{n}"] for n in (11, 12, 13)] == [
        ("accumulate", [f"t{n}"]) for n in (11, 12, 13)
    ]
    assert {makers[f"t{n}"] == makers["t11"] for n in (14, 15, 16)} == {True}
    assert makers["t3"][0] == "dot"  # one value has the operator that makes it


@pytest.mark.parametrize("name", PAPER)
def test_passes_give_new_values_names_that_the_listing_lacks(name: str) -> None:
    """Sums in place need fewer tiles; their names are not used again."""
    data = data_of(name)
    first: dict[str, set[str]] = {}
    for moment in data["moments"]:
        if "text" in moment:
            key = f"{moment['group']}-{moment['stage']}"
            words = {word for word in words_of(moment) if re.fullmatch(r"t\d+", word)}
            made = words - first.setdefault(key, words)
            assert not made & set(data["frames"][moment["frame"]]["makers"]), moment["id"]


def test_survivors_keep_their_keys_and_sizes() -> None:
    """A node that a step leaves alone has the same key, and its cell the same height."""
    fusion = bb.fuse(bb.examples.find("attention"))
    frames = list[Data]()
    sizes = Sizes({axis: SIZES[axis] for axis in "MNDL"})
    moments = fusion_moments(fusion, sizes, frames, array_names(fusion.trace))
    for before, after, moment in zip(frames, frames[1:], moments[1:], strict=False):
        old = {box["key"]: box for box in before["boxes"] if box["kind"] not in ("map", "input")}
        kept = [box for box in after["boxes"] if box["key"] in old]
        assert len(kept) >= len(after["boxes"]) / 2, moment["id"]
        assert all(box["at"][3] == old[box["key"]]["at"][3] for box in kept)


def test_a_large_program_has_fewer_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "ROOM", 3000)

    def program(X):
        for _ in range(20):
            X = bb.ops.exp(X) + X
        return {"O": X}

    fusion = bb.fuse(bb.lower(bb.trace(program, X="M N")))
    frames = list[Data]()
    moments = fusion_moments(fusion, Sizes({"M": 64, "N": 64}), frames, array_names(fusion.trace))
    assert len(moments) < len(fusion.trace)
    assert moments[-1]["id"] == f"step-{len(fusion.trace)}"
    assert any("together" in moment for moment in moments)
    assert sum(len(frame["boxes"]) for frame in frames) < 3 * 3000


def test_every_rule_is_told_in_words() -> None:
    rules = {rule for each in bb.RULE_SETS.values() for rule in (*each.local, *each.extending)}
    assert {rule.name for rule in rules} <= set(WORDS)


def test_data_is_plain() -> None:
    data = data_of("attention")
    assert json.loads(json.dumps(data, allow_nan=False)) == data


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (2_097_152, "2.1 MB"), (999_900, "1 MB")],
)
def test_bytes(size: int, text: str) -> None:
    assert bytes_text(size) == text
