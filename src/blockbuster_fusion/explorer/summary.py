"""The whole fusion on one screen: the fate of each stored array, and how often each rule fired."""

import re
from collections.abc import Iterator, Sequence

from blockbuster_fusion.explorer.steps import Data

_STORE = re.compile(r"store\((\w+),(\w+)[\[)]")
_MADE = re.compile(r"([\w,]+) ([+*]?=) (.*)")
_LOAD = re.compile(r"load\((\w+)[\[)]")
_LOCAL = re.compile(r"\b(t\d+)\b")


def with_fates(moments: Sequence[Data], frames: Sequence[Data]) -> list[Data]:
    """The moments of a fusion, each with the arrays that it takes out of memory and puts there."""
    made, before = list[Data](), list[str]()
    for moment in moments:
        after = _stored(frames[moment["frame"]])
        removed = [name for name in before if name not in after]
        added = [name for name in after if name not in before]
        made.append(moment | ({"removes": removed, "adds": added} if "rule" in moment else {}))
        before = after
    return made


def summary(moments: Sequence[Data], frames: Sequence[Data]) -> Data:
    """The arrays of a fusion with the moments between which they are stored, and its rules."""
    arrays: dict[str, Data] = {}
    for moment in moments:
        drawn = frames[moment["frame"]]
        stored = _stored(drawn)
        for name, row in arrays.items():
            if name not in stored and not row["gone"]:
                row["gone"] = moment["id"]
        for name in stored:
            if name not in arrays:
                what = statement(drawn, name)
                arrays[name] = {"name": name, "what": what, "since": moment["id"], "gone": ""}
    return {"arrays": sorted(arrays.values(), key=_order), "rules": list(_tally(moments))}


def statement(drawn: Data, name: str) -> str:
    """The statement of a listing that makes an array, in arrays where these are loaded."""
    known: dict[str, str] = {}
    loaded: dict[str, str] = {}
    for line, _ in drawn["lines"]:
        text = str(line).strip()
        stores = _STORE.match(text)
        if stores is not None and stores[2] == name:
            return f"{name} {known.get(stores[1], '')}".strip()
        made = _MADE.match(text)
        if made is None:
            continue
        if name in made[1].split(","):
            return text
        loads = _LOAD.match(made[3])
        if loads is not None:
            loaded[made[1]] = loads[1]
            known[made[1]] = f"= {loads[1]}"
            continue
        value = "".join(loaded.get(part, part) for part in _LOCAL.split(made[3]))
        known |= dict.fromkeys(made[1].split(","), f"{made[2]} {value}")
    return name


def _stored(drawn: Data) -> list[str]:
    arrays = (box["names"] for box in drawn["boxes"] if box["kind"] == "array")
    return list(dict.fromkeys(name for names in arrays for name in names))


def _order(row: Data) -> int:
    """The number of an array's name; others come last."""
    digits = re.fullmatch(r"I(\d+)", row["name"])
    return int(digits[1]) if digits else 1 << 30


def _tally(moments: Sequence[Data]) -> Iterator[Data]:
    """Each rule with the number of its steps, the paper's rules first."""
    rules = [moment["rule"] for moment in moments if "rule" in moment]
    seen = {rule["name"]: rule for rule in rules}
    for name, rule in sorted(seen.items(), key=lambda x: (x[1]["number"] or 99, x[0])):
        count = sum(each["name"] == name for each in rules)
        yield {"name": name, "number": rule["number"], "count": count}
