"""Agreement of positions: operands of one operator get the same factors where they meet."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from blockbuster_fusion.array.axes import ONE, AxesDisagree, AxesMeet, Factor, Position
from blockbuster_fusion.array.primitives import Renaming
from blockbuster_fusion.array.recorder import Recorder
from blockbuster_fusion.array.records import PositionalArray
from blockbuster_fusion.errors import NotExpressible


@dataclass(frozen=True)
class Agreement:
    """Makes the arrays of a recorder agree; an array that cannot is renamed."""

    recorder: Recorder

    def aligned(self, arrays: Sequence[PositionalArray]) -> list[PositionalArray]:
        """The arrays broadcast to one rank, with the same factors at each position."""
        rank = max((len(x.positions) for x in arrays), default=0)
        made: list[PositionalArray] = []
        for x in (x.with_rank(rank) for x in arrays):
            wide = [at for at in range(rank) if x.sizes[at] != ONE]
            first = {at: next((y for y in made if y.sizes[at] != ONE), None) for at in wide}
            x = self.agreed(x, [(y, at, at) for at, y in first.items() if y is not None])
            made.append(self.apart_elsewhere(x, made))
        return made

    def apart_elsewhere(
        self, y: PositionalArray, others: Sequence[PositionalArray]
    ) -> PositionalArray:
        """`y` without factors that another array has at another position: x and x transposed."""
        atoms = self.recorder.axes.atoms
        for at, position in enumerate(y.positions):
            here = {f for x in others for f in atoms(x.positions[at])}
            elsewhere = {
                f for x in others for i, p in enumerate(x.positions) if i != at for f in atoms(p)
            }
            own = atoms(position)
            if any(f in elsewhere for f in own):
                if any(f in here for f in own):
                    raise NotExpressible(what="an array and itself with axes exchanged")
                y = self.renamed(y, [at])
        return y

    def agreed(
        self, y: PositionalArray, wanted: Sequence[tuple[PositionalArray, int, int]]
    ) -> PositionalArray:
        """`y` with the factors of other arrays: (`x`, its position, that of `y`) each."""
        try:
            made = y
            for x, at, y_at in wanted:
                made = self.unified(x, at, made, y_at)
            return made
        except AxesMeet:
            # a factor that one position needs stands at another one: rename all of them
            made = self.renamed(y, range(len(y.positions)))
        try:
            for x, at, y_at in wanted:
                made = self.unified(x, at, made, y_at)
            return made
        except AxesMeet:
            raise NotExpressible(what="an array that has one axis twice") from None

    def unified(
        self, x: PositionalArray, at: int, y: PositionalArray, y_at: int
    ) -> PositionalArray:
        """`y` with the factors of one position of `x` at one of its own, or AxesMeet."""
        axes = self.recorder.axes
        try:
            try:
                axes.unify(x.positions[at], y.positions[y_at])
            except AxesMeet:
                y = self.renamed(y, [y_at])
                axes.unify(x.positions[at], y.positions[y_at])
        except AxesDisagree as error:
            raise NotExpressible(what=f"positions that fit no common axes ({error})") from None
        return y

    def apart(self, y: PositionalArray, at: Sequence[int], taken: set[Factor]) -> PositionalArray:
        """`y` with none of the factors in `taken` at some positions: one array has none twice."""
        atoms = self.recorder.axes.atoms
        clash = [i for i in at if any(f in taken for f in atoms(y.positions[i]))]
        return self.renamed(y, clash) if clash else y

    def renamed(self, y: PositionalArray, at: Sequence[int]) -> PositionalArray:
        """`y` with new factors at some positions."""
        axes = self.recorder.axes
        old = axes.atoms(f for i in at for f in y.positions[i])
        swap = {f: Factor(f.size) for f in old}

        def moved(position: Position) -> Position:
            return tuple(swap.get(f, f) for f in axes.atoms(position))

        positions = tuple(moved(p) for p in y.positions)
        if y.constant is not None:
            return replace(y, positions=positions)
        again = self.recorder.along(y.record, swap)
        if again is not None:
            axes.keep_apart(f for p in positions for f in p)
            return replace(y, positions=positions, record=again)
        have = axes.atoms(self.recorder.records[y.record].axes)
        really = tuple(f for f in old if f in have)
        if not really:
            return replace(y, positions=positions)
        renaming = Renaming(really, tuple(swap[f] for f in really))
        own = tuple(swap.get(f, f) for f in have)
        return self.recorder.record(renaming, (y.record,), own, y.dtype, positions, y.sizes)
