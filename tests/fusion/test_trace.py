"""Traces: replayed on demand, saved and loaded, refused when they do not fit."""

import json
from pathlib import Path

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.errors import BadTrace, UnknownRules


@pytest.fixture
def fusion() -> bb.Fusion:
    return bb.fuse(bb.lower(bb.examples.rmsnorm_swiglu()), "paper")


def test_replaying_gives_the_snapshots(fusion: bb.Fusion) -> None:
    for steps, snapshot in zip(fusion.trace.snapshots, fusion.fused, strict=True):
        assert fusion.trace[steps - 1].after.digest == snapshot.digest
        assert bb.to_text(fusion.trace[steps - 1].after) == bb.to_text(snapshot)


def test_steps_in_any_order(fusion: bb.Fusion) -> None:
    forwards = [step.after.digest for step in fusion.trace]
    backwards = [step.after.digest for step in reversed(fusion.trace)]
    assert forwards == backwards[::-1]
    assert fusion.trace[-1].after.digest == forwards[-1]
    assert [s.index for s in fusion.trace[3:5]] == [4, 5]
    assert fusion.trace[4].before.digest == forwards[3]
    with pytest.raises(IndexError):
        fusion.trace[26]


def test_saved_and_loaded(fusion: bb.Fusion, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    fusion.trace.save(file)
    loaded = bb.Trace.load(file)
    assert [str(s) for s in loaded] == [str(s) for s in fusion.trace]
    assert [s.after.digest for s in loaded] == [s.after.digest for s in fusion.trace]
    assert loaded.snapshots == fusion.trace.snapshots
    assert loaded.to_json() == fusion.trace.to_json()


def test_traffic_of_each_step(fusion: bb.Fusion) -> None:
    sizes = dict.fromkeys(["MM", "NN", "KK", "DD"], 64)
    tiles = dict.fromkeys("MNKD", 32)
    first, last = fusion.trace[0], fusion.trace[-1]
    assert len(first.buffered) == 13
    assert last.buffered == []
    assert last.traffic(sizes, tiles).stored == 64 * 64 * 4
    assert first.traffic(sizes, tiles).stored > last.traffic(sizes, tiles).stored


def damaged(trace: bb.Trace, change) -> dict:
    data = json.loads(json.dumps(trace.to_json()))
    change(data)
    return data


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: d.update(format=7), "no fusion trace of format 1"),
        (lambda d: d.pop("firings"), "a field is missing or wrong"),
        (lambda d: d.update(initial="program"), "the initial program: line 1"),
        (lambda d: d["firings"][0].update(nodes=[10**6, 3]), "step 1 (fuse_consecutive_maps)"),
        (lambda d: d["firings"][0].update(nodes=[]), "the rule does not match there"),
        (lambda d: d["firings"][9].update(path=[10**6]), "step 10"),
        (lambda d: d["firings"].pop(0), "snapshots after (22, 24, 26) of 25 steps"),
        (lambda d: d.update(snapshots=[-5, 999]), "they ascend and lie within the trace"),
        (lambda d: d["firings"].reverse(), "step 1 (fuse_sibling_maps): cannot be replayed"),
        (lambda d: d["firings"][0].update(variant="z"), "the rule does not match there"),
        (lambda d: d["firings"][0].update(dim="K.0"), "the rule does not match there"),
        (lambda d: d["firings"][0].update(fresh=0), "the rule does not match there"),
        (lambda d: d["firings"][0].update(unify=[["M.0", "N.0"]]), "the rule does not match there"),
        (lambda d: d["firings"][0].update(dim="Q.9"), "a field is missing or wrong"),
        (lambda d: d["firings"][0].update(rule="burn"), "burn"),
    ],
)
def test_a_damaged_trace_is_refused(fusion: bb.Fusion, change, sentence: str) -> None:
    with pytest.raises((BadTrace, UnknownRules)) as caught:
        bb.Trace.from_json(damaged(fusion.trace, change), "t.json")
    assert sentence in str(caught.value)


def test_files_that_are_no_traces(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="cannot be read"):
        bb.Trace.load(tmp_path / "missing.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(BadTrace, match="is no JSON"):
        bb.Trace.load(tmp_path / "bad.json")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(BadTrace, match="no fusion trace"):
        bb.Trace.load(tmp_path / "list.json")


def test_unknown_rule_set() -> None:
    with pytest.raises(UnknownRules, match="unknown rule set 'papers': known are paper"):
        bb.fuse(bb.lower(bb.examples.attention()), rules="papers")


def test_an_array_program_is_lowered_first() -> None:
    assert len(bb.fuse(bb.examples.attention(), "paper").trace) == 17
