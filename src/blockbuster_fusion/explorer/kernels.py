"""From a snapshot to its kernels as data for the page: safety, loop nests and source text."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.explorer.names import block_names
from blockbuster_fusion.explorer.steps import Data, frame
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.nest.listing import show_nest
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.printers.c.kernel import print_c
from blockbuster_fusion.printers.reserved import kernel_name
from blockbuster_fusion.printers.triton.kernel import print_triton
from blockbuster_fusion.safety.choices import Safe
from blockbuster_fusion.safety.pipeline import SAFETY_PASSES
from blockbuster_fusion.tools.passes import observed, pass_docs

LANGUAGES = {"cpu": "C", "cuda": "Triton"}


class Choices:
    """What the compiler would make kernels of, for each target and snapshot."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.found: dict[tuple[str, int], Choice] = {}
        self.default: dict[str, int] = {}
        """The snapshot that each target runs where nothing else is said."""
        for target in LANGUAGES:
            ordered = choose(replace(request, target=target))
            self.default[target] = ordered[0].snapshot
            self.found |= {(target, choice.snapshot): choice for choice in ordered}

    def of(self, target: str, snapshot: int) -> Choice:
        """The choice for a snapshot, chosen by default or not."""
        if (target, snapshot) not in self.found:
            (choice,) = choose(replace(self.request, target=target, snapshot=snapshot))
            self.found[target, snapshot] = choice
        return self.found[target, snapshot]


def kernel_moments(
    choice_of: Callable[[str, int], Choice],
    snapshot: int,
    sizes: Mapping[str, int],
    frames: list[Data],
    names: dict[str, dict[str, str]],
    first: int,
    languages: Mapping[str, str] = LANGUAGES,
) -> Iterator[Data]:
    """The moments after a snapshot: what safety changes, then each target's nests and source.

    `choice_of` has the choice for a target and a snapshot, and `languages` the targets. `first` is
    the frame of the snapshot itself. Passes that change nothing have no moment. Pictures are added
    to `frames`, and the block program's names of a nest's names to `names`.
    """
    group, docs = f"snapshot-{snapshot + 1}", pass_docs()
    safe_frame: int | None = None
    for target, language in languages.items():
        choice = choice_of(target, snapshot)
        try:
            made, source, names[f"{group}-{target}"] = _passes(choice)
        except BlockbusterError as error:
            yield {
                "id": f"{group}-{target}",
                "group": group,
                "title": f"No kernel in {language}",
                "about": str(error),
                "frame": first if safe_frame is None else safe_frame,
            }
            continue
        current, before = first, ""
        for name, program in made:
            is_safety = name in SAFETY
            moment: Data = {
                "id": f"{group}-{name if is_safety else f'{target}-{name}'}",
                "group": group,
                "title": name,
                "about": docs[name],
                "stage": "safety" if is_safety else target,
            }
            match program:
                case Safe() | Graph():
                    graph = program.graph if isinstance(program, Safe) else program
                    drawn = frame(graph, sizes)
                    if drawn["lines"] == frames[current]["lines"]:
                        continue
                    if is_safety and safe_frame is not None:
                        current = safe_frame  # the other target has the same
                        continue
                    found = program.choices if isinstance(program, Safe) else ()
                    moment |= {"cost": drawn.pop("cost"), "frame": len(frames)}
                    moment["decisions"] = [each.reason for each in found]
                    frames.append(drawn)
                    current = len(frames) - 1
                    yield moment
                case Nest():
                    text = show_nest(program)
                    if text == before:
                        continue
                    before = text
                    yield moment | {"frame": current, "text": text, "names": f"{group}-{target}"}
        if safe_frame is None:
            safe_frame = current
        yield {
            "id": f"{group}-{target}-source",
            "group": group,
            "title": f"The kernel in {language}",
            "about": "The text that is compiled. Its names are those of the loop nest.",
            "stage": target,
            "frame": current,
            "text": source,
            "names": f"{group}-{target}",
            "language": language,
            "line": _first_line(source, choice.name),
        }


SAFETY = tuple(each.name for each in SAFETY_PASSES)


def _first_line(source: str, name: str) -> int:
    """The line at which the first kernel begins, after its helpers."""
    lines = source.splitlines()
    found = (at for at, line in enumerate(lines) if kernel_name(name) in line)
    return next(found, 0)


def _passes(choice: Choice) -> tuple[list[tuple[str, object]], str, dict[str, str]]:
    """The programs after each pass, the source text, and names of the block program in it."""
    made = observed(choice, None)[1:]  # without the snapshot itself
    nest, tiles = choice.scheduled()
    if choice.target == "cpu":
        source = print_c(nest, tiles, choice.schedule.chunk, choice.schedule.past)
    else:
        source = print_triton(nest)
    graphs = [p.graph if isinstance(p, Safe) else p for _, p in made if isinstance(p, Safe | Graph)]
    return made, source, block_names(graphs[-1], choice) if graphs else {}
