"""Which training queries come next: every one once an epoch, in an order that hangs on seed and epoch alone."""

from collections.abc import Sequence

import numpy as np

from coterie.types import draw


class Cursor:
    """A place in an endless stream over `ids`. `position` is all that a checkpoint needs.

    The last `batch` - 1 of an epoch are not among as many first ones of the next: where there are three times as
    many queries, none stands twice in a batch, and none is left out for that.
    """

    def __init__(self, ids: Sequence[str], seed: int, batch: int = 1) -> None:
        self.ids, self.seed, self.position = tuple(ids), seed, 0
        self.apart = min(batch - 1, len(self.ids) // 3)
        self._order: tuple[int, list[int]] = (-1, [])

    def take(self, count: int) -> list[str]:
        """The next `count` ids."""
        found = [self._at(self.position + i) for i in range(count)]
        self.position += count
        return found

    def _at(self, position: int) -> str:
        epoch, place = divmod(position, len(self.ids))
        if self._order[0] != epoch:
            self._order = epoch, self._order_of(epoch)
        return self.ids[self._order[1][place]]

    def _order_of(self, epoch: int) -> list[int]:
        order = self._drawn(epoch)
        if not epoch or not self.apart:
            return order
        # Only the first two thirds are ever moved: the last ones of an epoch are those that were drawn.
        late = set(self._drawn(epoch - 1)[-self.apart :])
        early = sorted(order[: 2 * self.apart], key=lambda i: i in late)
        return [*early, *order[2 * self.apart :]]

    def _drawn(self, epoch: int) -> list[int]:
        random = np.random.default_rng(draw(self.seed, "epoch", epoch))
        return [int(i) for i in random.permutation(len(self.ids))]
