"""How evenly work is spread over agents: a window of who was asked, shares, load entropy."""

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any


class Window:
    """Who was asked on the last `size` queries."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.groups: deque[tuple[str, ...]] = deque()
        self.counts: Counter[str] = Counter()

    def push(self, agents: Sequence[str]) -> None:
        """One more query."""
        self.groups.append(tuple(agents))
        self.counts.update(agents)
        if len(self.groups) > self.size:
            self.counts.subtract(self.groups.popleft())

    @property
    def full(self) -> bool:
        """Whether there are enough queries to judge by."""
        return len(self.groups) >= self.size

    def shares(self, agents: Iterable[str]) -> dict[str, float]:
        """Each agent's part of all allocations to these agents; equal ones before any."""
        found = {name: self.counts[name] for name in agents}
        total = sum(found.values())
        return {name: count / total if total else 1 / len(found) for name, count in found.items()}

    def mean_size(self) -> float:
        """Agents a query; 0 before any query."""
        return sum(map(len, self.groups)) / len(self.groups) if self.groups else 0.0

    def state(self) -> dict[str, Any]:
        """The window as plain JSON: names once, groups by their indices."""
        names = sorted({name for group in self.groups for name in group})
        row = {name: i for i, name in enumerate(names)}
        return {"names": names, "groups": [[row[name] for name in group] for group in self.groups]}

    def load(self, about: dict[str, Any]) -> None:
        """Take up a `state`."""
        names = about["names"]
        self.groups = deque(tuple(names[i] for i in group) for group in about["groups"])
        self.counts = Counter(name for group in self.groups for name in group)


def load_entropy(shares: Sequence[float]) -> float:
    """Entropy of the shares over its largest value: 1 where all are equal, 0 where one of several has all."""
    if len(shares) < 2:
        return 1.0
    return -sum(share * math.log(share) for share in shares if share > 0) / math.log(len(shares))
