"""Samples of one prompt that are asked for at the same moment, sent as one request with `n`.

What the server leaves out is asked for apart, from what is left of the same budget, and never repeated (B4).
Knows no wire format.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from coterie.backends.chat_request import Request
from coterie.backends.retries import Budget
from coterie.errors import BackendError, MalformedAnswer
from coterie.types import Agent, Completion, Messages

Sampled = list[Completion | BackendError | None]
Send = Callable[[Request, Budget], Awaitable[Sampled]]
Prompt = tuple[Agent, Messages, str]


@dataclass
class Group:
    """The samples that one request is to bring, in the order asked for, within the least of their budgets."""

    budget: Budget
    seeds: list[int] = field(default_factory=list)
    waiting: int = 0
    sending: "asyncio.Task[Sampled] | None" = None


class Together:
    """Gathers the calls of one turn of the event loop by prompt."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._open: dict[Prompt, Group] = {}

    async def ask(self, request: Request, budget: Budget) -> Completion:
        """The sample of one seed. Cancelling the last one that waits cancels the request for all."""
        prompt = (request.agent, request.messages, request.model)
        group = self._open.setdefault(prompt, Group(budget.branch()))
        group.budget = min(group.budget, budget.branch(), key=lambda one: one.left)
        if group.sending is None:
            # This task begins after all that are ready now, and closes the group when it does.
            group.sending = asyncio.ensure_future(self._bring(prompt))
        place = len(group.seeds)
        group.seeds += request.seeds
        group.waiting += 1
        try:
            rows = await asyncio.shield(group.sending)
        finally:
            group.waiting -= 1
            if not group.waiting:
                group.sending.cancel()
        if rows[place] is None:
            return await one(self._send, request, group.budget.branch())
        return settled(rows[place])

    async def _bring(self, prompt: Prompt) -> Sampled:
        agent, messages, model = prompt
        group = self._open.pop(prompt)
        asked = Request(agent=agent, messages=messages, model=model, seeds=tuple(group.seeds))
        return await self._send(asked, group.budget)


async def one(send: Send, request: Request, budget: Budget) -> Completion:
    """The one sample of a request; raises what it failed with."""
    [found] = await send(request, budget)
    return settled(found)


def settled(found: Completion | BackendError | None) -> Completion:
    """The sample; raises what it failed with."""
    if isinstance(found, Completion):
        return found
    raise found or MalformedAnswer("the answer has no choice of index 0")
