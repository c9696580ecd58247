"""From a snapshot to its kernels as data for the page: safety, loop nests and source text."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace

from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.explorer.array_names import ArrayNames
from blockbuster_fusion.explorer.safety_words import NOTES, SafetyWords
from blockbuster_fusion.explorer.sizes import Sizes
from blockbuster_fusion.explorer.steps import Data, difference, frame, made_cells
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.nest.listing import show_nest
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.printers.c.kernel import print_c
from blockbuster_fusion.printers.reserved import kernel_name
from blockbuster_fusion.printers.triton.kernel import print_triton
from blockbuster_fusion.safety.choices import Safe
from blockbuster_fusion.safety.pipeline import make_safe
from blockbuster_fusion.tools.passes import pass_docs

LANGUAGES = {"cpu": "C", "cuda": "Triton"}


class Choices:
    """The choices that kernels are made of, for each target and snapshot."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.found: dict[tuple[str, int], Choice] = {}
        self.default: dict[str, int] = {}
        """The snapshot that each target runs where nothing else is said."""
        for target in LANGUAGES:
            ordered = choose(replace(request, target=target))
            self.default[target] = ordered[0].snapshot
            self.found |= {(target, choice.snapshot): choice for choice in ordered}

    def all(self, snapshot: int) -> list[Choice]:
        """The choices for a snapshot, one for each target."""
        return [self.of(target, snapshot) for target in LANGUAGES]

    def compared(self, target: str, snapshots: int) -> list[Choice]:
        """The program before fusion, then each snapshot."""
        own = [self.of(target, number) for number in range(snapshots)]
        unfused = own[0].before_fusion
        assert unfused is not None
        return [unfused(), *own]

    def of(self, target: str, snapshot: int) -> Choice:
        """The choice for a snapshot, chosen by default or not."""
        if (target, snapshot) not in self.found:
            (choice,) = choose(replace(self.request, target=target, snapshot=snapshot))
            self.found[target, snapshot] = choice
        return self.found[target, snapshot]


class KernelMoments:
    """The moments from snapshots to kernels; pictures are added to `frames`.

    Passes that change nothing have no moment.
    """

    def __init__(self, sizes: Sizes, frames: list[Data], names: ArrayNames) -> None:
        self.sizes, self.frames, self.names = sizes, frames, names
        self.docs = pass_docs()

    def of(self, snapshot: int, choices: Sequence[Choice], first: int) -> Iterator[Data]:
        """The changes of safety passes in a snapshot, then each target's nests and source.

        `choices` has one for each target, and `first` is the frame of the snapshot itself.
        """
        group = f"snapshot-{snapshot + 1}"
        safe = yield from self._safety(group, choices[0], first)
        for choice in choices:
            try:
                yield from list(self._target(group, choice, safe))
            except BlockbusterError as error:
                title, target = f"No kernel in {LANGUAGES[choice.target]}", choice.target
                moment = {"id": f"{group}-{target}", "group": group, "title": title}
                yield moment | {"about": str(error), "stage": target, "frame": safe}

    def _safety(self, group: str, choice: Choice, current: int) -> Generator[Data, None, int]:
        """A moment for each safety pass that changes the program; the frame after the last."""
        made: list[tuple[str, object]] = []
        before, known = choice.fused or choice.graph, 0
        make_safe(before, lambda name, after: made.append((name, after)))
        for name, after in made:
            assert isinstance(after, Safe)
            self.names = self.names.across(before, after.graph)
            moment = self._program(f"{group}-{name}", name, after.graph, current)
            words = SafetyWords(name, before, after.graph, after.choices[known:])
            before, known = after.graph, len(after.choices)
            if moment is not None:
                current = moment["frame"]
                said = {"short": words.short(), "decisions": words.decisions()}
                notes = {"note": NOTES[name], "cost_note": words.costs()}
                yield moment | {"group": group, "stage": "safety"} | notes | said
        return current

    def _target(self, group: str, choice: Choice, current: int) -> Iterator[Data]:
        """A moment for each pass over loop nests that changes one, and for the source."""
        made: list[tuple[str, object]] = []
        nest, tiles = choice.scheduled(lambda name, after: made.append((name, after)))
        program, before = choice.graph, ""
        own = f"{group}-{choice.target}"
        where = {"group": group, "stage": choice.target}
        for name, after in made:
            if isinstance(after, Graph):
                self.names, program = self.names.across(program, after), after
                moment = self._program(f"{own}-{name}", name, after, current)
                if moment is not None:
                    current = moment["frame"]
                    yield moment | where
            elif isinstance(after, Nest) and (text := show_nest(after)) != before:
                before, text = text, self.names.rewritten(text, program)
                yield self._moment(f"{own}-{name}", name, current) | where | {"text": text}
        language = LANGUAGES[choice.target]
        source = self.names.rewritten(_source(choice, nest, tiles), program)
        yield where | {
            "id": f"{own}-source",
            "title": f"The kernel in {language}",
            "about": "The text that is compiled, with this page's numbers of stored arrays. Its "
            "names are those of the loop nest and the listing; larger numbers are for values that "
            "only the kernel has.",
            "frame": current,
            "text": source,
            "language": language,
            "line": _first_line(source, kernel_name(choice.name)),
        }

    def _program(self, key: str, name: str, graph: Graph, current: int) -> Data | None:
        """The moment after a pass over block programs, with a picture; None if it is as before."""
        drawn = frame(graph, self.sizes, self.names.listed(graph))
        if drawn["lines"] == self.frames[current]["lines"]:
            return None
        own, before = drawn.pop("cost"), self.frames[current]
        made = made_cells(before, drawn)
        marked = {"made": made, "new": difference(before, drawn, made)["new"]}
        self.frames.append(drawn)
        return self._moment(key, name, len(self.frames) - 1) | {"cost": own} | marked

    def _moment(self, key: str, name: str, current: int) -> Data:
        return {"id": key, "title": name, "about": self.docs[name], "frame": current}


def _source(choice: Choice, nest: Nest, tiles: Mapping[Dim, int]) -> str:
    if choice.target == "cpu":
        return print_c(nest, tiles, choice.schedule.chunk, choice.schedule.past)
    return print_triton(nest)


def _first_line(source: str, name: str) -> int:
    """The line at which the first kernel begins, after its helpers."""
    lines = enumerate(source.splitlines())
    return next((at for at, line in lines if name in line), 0)
