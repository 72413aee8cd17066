"""A buddy allocator: pieces of memory whose sizes are powers of two. It holds no memory itself."""

from __future__ import annotations


class Buddy:
    """Hands out pieces of `capacity` slots. It takes the smallest free piece that suffices, lowest address first.

    A larger piece is split into two buddies, until the size fits. Two free buddies become one piece again. A capacity
    that is no power of two consists of several top pieces, largest first. For example, 13 slots are 8, 4 and 1.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a memory has at least 1 slot, not {capacity}")
        self.free = capacity
        """Sum of the slots of all free pieces."""
        self.largest = 1 << (capacity.bit_length() - 1)
        """Number of slots of the largest piece that can be taken from an empty memory."""
        self._free: list[set[int]] = [set() for _ in range(capacity.bit_length())]
        """[log2 of the size] first slots of the free pieces of this size. A free piece has a buddy in use, so each size
        has few of them.
        """
        self._sizes: dict[int, int] = {}
        """First slot of each piece in use -> log2 of its size."""
        begin = 0
        for order in reversed(range(capacity.bit_length())):
            if capacity >> order & 1:
                self._free[order].add(begin)
                begin += 1 << order

    @staticmethod
    def piece(slots: int) -> int:
        """Size of the piece for this number of slots: the next power of two."""
        return 1 << (slots - 1).bit_length()

    def take(self, slots: int) -> int | None:
        """Take a piece of at least this number of slots. Returns the first slot of the piece, or None if no free piece
        suffices.
        """
        wanted = (slots - 1).bit_length()
        found = next((order for order in range(wanted, len(self._free)) if self._free[order]), None)
        if found is None:
            return None
        begin = min(self._free[found])
        self._free[found].remove(begin)
        for order in range(wanted, found):
            self._free[order].add(begin + (1 << order))
        self._sizes[begin] = wanted
        self.free -= 1 << wanted
        return begin

    def give_back(self, begin: int) -> None:
        """Free the piece that begins at this slot. Raises KeyError if no piece in use begins there."""
        order = self._sizes.pop(begin)
        self.free += 1 << order
        # A top piece has no buddy: fewer slots follow than the piece has.
        while (buddy := begin ^ (1 << order)) in self._free[order]:
            self._free[order].remove(buddy)
            begin &= ~(1 << order)
            order += 1
        self._free[order].add(begin)

    def free_below(self, slots: int) -> int:
        """Sum of the slots of free pieces that are too small for this number of slots."""
        return sum(len(begins) << order for order, begins in enumerate(self._free[: (slots - 1).bit_length()]))
