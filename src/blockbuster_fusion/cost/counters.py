"""The cost of a run: bytes that cross buffered edges, operations, and local memory."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Traffic:
    """The bytes and operations of one processor that runs a program block by block.

    A block is *loaded* where a list is iterated down to an item that is used (an iterated port of a
    map, a Reduce, a Pick). It is charged when its address changes: each of these sites remembers
    which block of which buffer it loaded last, so what does not vary in an inner loop is loaded
    once, as a compiler would hoist it. A list that is made again is a new buffer. A block is
    *stored* where a map or a Join puts an item into a list. Items of the program's inputs (if used)
    and outputs are loaded and stored once; misc operators load and store all their lists; virtual
    lists and what is passed whole cost nothing; a Take loads, each time, as many elements of its
    table as it gives. Sizes are those of the declared dtypes. Kernels that run all loops in one
    program load and store the same bytes, some of them in buffers of that program alone
    (tests/runtime/test_counted.py); they also load the places of a scatter, and a block of such a
    buffer that they have just stored.

    `flops` counts function applications per element of an Elementwise (on its result), 2·m·n·k for
    a Dot, one per element of what a BlockReduce or a Scan takes, and a combiner's operations for
    every element that comes into a Reduce or a reduced output.

    `peak_local` is the most bytes of items that live at one time. An item lives from its making, or
    from its first use where it is loaded, to its last use in its graph; an accumulator from the end
    of the first iteration to the end of the loop. An item passed whole is not counted again inside.
    """

    loaded: int = 0
    stored: int = 0
    flops: int = 0
    peak_local: int = 0
    by_buffer: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Bytes loaded and stored by buffer: an input's or output's name, or the node that makes it."""

    def __str__(self) -> str:
        rows = [("", "loaded", "stored")]
        rows += [(name, f"{a:,}", f"{b:,}") for name, (a, b) in self.by_buffer.items()]
        rows += [("bytes", f"{self.loaded:,}", f"{self.stored:,}")]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [
            f"{name:<{widths[0]}}  {a:>{widths[1]}}  {b:>{widths[2]}}".rstrip()
            for name, a, b in rows
        ]
        lines.append(f"{self.flops:,} operations; at most {self.peak_local:,} bytes live at a time")
        return "\n".join(lines)


class Tally:
    """Counters of a run, or of a metered program."""

    __slots__ = ("flops", "live", "loaded", "peak", "stored")

    def __init__(self) -> None:
        self.loaded: dict[str, int] = {}
        self.stored: dict[str, int] = {}
        self.flops = 0
        self.live = 0
        self.peak = 0

    def load(self, place: str, size: int) -> None:
        if size:
            self.loaded[place] = self.loaded.get(place, 0) + size

    def store(self, place: str, size: int) -> None:
        if size:
            self.stored[place] = self.stored.get(place, 0) + size

    def hold(self, size: int) -> None:
        """`size` more bytes are live."""
        self.live += size
        if self.live > self.peak:
            self.peak = self.live

    def traffic(self) -> Traffic:
        return Traffic(
            sum(self.loaded.values()),
            sum(self.stored.values()),
            self.flops,
            self.peak,
            {
                place: (self.loaded.get(place, 0), self.stored.get(place, 0))
                for place in dict.fromkeys([*self.loaded, *self.stored])
            },
        )
