"""Barriers between the threads of a program, where a kernel reads what it has written."""

from blockbuster_fusion.nest.nest import Body, Buffer, Kernel, Store, accesses, walk


class Barriers:
    """The buffers that a kernel both writes and reads, and the barriers that this needs."""

    def __init__(self, kernel: Kernel) -> None:
        self.shared = self._both(kernel.body)
        self.written: set[Buffer] = set()
        self.read: set[Buffer] = set()

    @staticmethod
    def _both(body: Body) -> set[Buffer]:
        sides: tuple[set[Buffer], set[Buffer]] = (set(), set())
        for s in walk(body):
            sides[isinstance(s, Store)].update(a.buffer for a in accesses(s))
        return sides[0] & sides[1]

    def barrier(self, buffer: Buffer, stores: bool) -> bool:
        """True if a barrier has to stand before this access."""
        if buffer not in self.shared:
            return False
        needed = buffer in (self.read if stores else self.written)
        if needed:
            self.written.clear()
            self.read.clear()
        (self.written if stores else self.read).add(buffer)
        return needed

    def enter(self, body: Body) -> None:
        """Notes the accesses of an earlier iteration at the beginning of the next."""
        for s in walk(body):
            buffers = {a.buffer for a in accesses(s)} & self.shared
            (self.written if isinstance(s, Store) else self.read).update(buffers)

    def carried(self, body: Body) -> bool:
        return bool(self._both(body))
