"""The limiter: never more inside than allowed, groups together, nobody forgotten, cancellation leaves no hole."""

import asyncio

import pytest

from coterie.backends import gate as module
from coterie.backends.gate import Gate


class Room:
    """Work behind a gate, noting who goes in and how many are inside."""

    def __init__(self, gate):
        self.gate, self.order, self.inside, self.most = gate, [], 0, 0

    async def work(self, group, steps=2):
        async with self.gate.place(group):
            self.order.append(group)
            self.inside += 1
            self.most = max(self.most, self.inside)
            for _ in range(steps):
                await asyncio.sleep(0)
            self.inside -= 1


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 50])
async def test_all_get_in_and_never_too_many(limit, grouped):
    room = Room(Gate(limit, grouped))
    await asyncio.gather(*(room.work(f"g{i % 5}", i % 4) for i in range(100)))
    assert room.most == min(limit, 100)
    assert len(room.order) == 100
    assert room.gate.inside == 0


async def test_without_groups_it_is_the_order_of_arrival():
    room = Room(Gate(1))
    await asyncio.gather(*(room.work(name) for name in "abcabc"))
    assert room.order == list("abcabc")


async def test_with_groups_those_of_one_model_go_together():
    """A one-model server loads each model once, not once a request."""
    room = Room(Gate(1, grouped=True))
    await asyncio.gather(*(room.work(name) for name in "abcabcabc"))
    assert room.order == list("aaabbbccc")


async def test_a_group_that_never_ends_gives_way(monkeypatch):
    monkeypatch.setattr(module, "RUN", 3)
    room = Room(Gate(1, grouped=True))
    await asyncio.gather(*(room.work(name) for name in "aaaaaaaab"))
    assert room.order.index("b") == 3
    assert room.order.count("a") == 8


async def test_cancelled_waiters_and_workers_leave_no_hole():
    room = Room(Gate(2))
    tasks = [asyncio.ensure_future(room.work(f"g{i}", 5)) for i in range(30)]
    for step, task in enumerate(tasks):
        if step % 3:
            task.cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert room.gate.inside == 0
    room.inside = 0
    await asyncio.wait_for(room.work("last"), 1)


async def test_a_turn_that_comes_with_the_cancellation_goes_on_to_the_next():
    gate = Gate(1)
    room = Room(gate)
    async with gate.place("x"):
        first, second = (asyncio.ensure_future(room.work(name)) for name in "ab")
        await asyncio.sleep(0)
    first.cancel()  # its turn was just granted and it has not run yet
    await asyncio.wait_for(asyncio.gather(first, second, return_exceptions=True), 1)
    assert room.order == ["b"]
    assert gate.inside == 0
