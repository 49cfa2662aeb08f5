"""Backends that run no model: Scripted answers by a script, Replay from a recorded outcome table.

Scripted is the test double that the package ships. Neither is ever a default or a fallback: an agent's model has to
name it, and without a script, table or recorded outcome it fails.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from threading import Lock
from typing import Literal

from coterie.config import nearest
from coterie.errors import (
    BackendError,
    ConfigError,
    ContextOverflow,
    MalformedAnswer,
    Overloaded,
)
from coterie.storage.tablefile import OUTCOMES
from coterie.storage.tables import Table, Verdict, prompt_of, prompts_of, read_table
from coterie.types import Agent, Completion, Messages, record, spec

Said = str | Completion | Exception
FAULTS: Mapping[str, type[BackendError]] = {
    "error": BackendError,
    "overloaded": Overloaded,
    "overflow": ContextOverflow,
    "malformed": MalformedAnswer,
}


# --- Scripted ----------------------------------------------------------------------------------------


@record
class Call:
    """One call that a scripted backend got, in the order of arrival."""

    agent: Agent
    messages: Messages
    seed: int


@record
class Rule:
    """What to say to a call whose last user message holds `contains`, and that is for `agent` if one is named.

    `fault` fails the call in place of a reply. `delay` is seconds; `.inf` hangs until the call is cancelled.
    """

    reply: str = ""
    contains: str = ""
    agent: str = ""
    fault: Literal["", "error", "overloaded", "overflow", "malformed"] = ""
    delay: float = 0.0

    def holds(self, agent: Agent, text: str) -> bool:
        return self.contains in text and self.agent in ("", agent.name)

    def said(self) -> Said:
        return FAULTS[self.fault](self.reply or f"scripted {self.fault}") if self.fault else self.reply


@spec
class Scripted:
    """Answers by script: a function, or data that a recipe can hold. A double for tests and demonstrations.

    `rules` are tried in order, then `replies` (a part of the last user message: the text to say to it), then
    `answer(agent, messages, seed)`, which gives a text, a Completion, or an exception to raise. `delay` is seconds
    a call, `broken` what preparing fails with. `calls` and `prepared` say what was asked of it.
    """

    model: str
    answer: Callable[[Agent, Messages, int], Said] | None = None
    rules: tuple[Rule, ...] = ()
    replies: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    broken: str = ""
    calls: list[Call] = field(default_factory=list, init=False, repr=False, compare=False)
    prepared: list[Agent] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def identity(self) -> str:
        """The script as far as it is data: part of every cache key."""
        return repr((self.rules, sorted(self.replies.items())))

    async def prepare(self, agent: Agent) -> None:
        """Note the agent; raise BackendError if the script says that it is broken, ConfigError without a script."""
        self._check()
        if self.broken:
            raise BackendError(self.broken)
        self.prepared.append(agent)

    async def generate(self, agent: Agent, messages: Messages, *, seed: int) -> Completion:
        """What the script says; raises what it says should be raised, and BackendError where it says nothing."""
        self._check()
        self.calls.append(Call(agent=agent, messages=messages, seed=seed))
        rule = self._rule(agent, messages)
        delay = self.delay + (rule.delay if rule else 0.0)
        await _wait(delay)
        said = self._said(rule, agent, messages, seed)
        if isinstance(said, Exception):
            raise said
        return said if isinstance(said, Completion) else _completion(said, messages, delay)

    async def aclose(self) -> None:
        """Nothing is held."""

    def _check(self) -> None:
        if self.answer is None and not self.rules and not self.replies:
            raise ConfigError(f"scripted:{self.model} has no script: give it rules or replies")

    def _rule(self, agent: Agent, messages: Messages) -> Rule | None:
        text = _question(messages)
        rules = (*self.rules, *(Rule(contains=part, reply=reply) for part, reply in self.replies.items()))
        return next((rule for rule in rules if rule.holds(agent, text)), None)

    def _said(self, rule: Rule | None, agent: Agent, messages: Messages, seed: int) -> Said:
        if rule is not None:
            return rule.said()
        if self.answer is not None:
            return self.answer(agent, messages, seed)
        return BackendError(f"scripted:{self.model} has no reply to {_question(messages)[:60]!r}")


async def _wait(seconds: float) -> None:
    if math.isinf(seconds):
        await asyncio.Event().wait()
    await asyncio.sleep(seconds)


def _completion(text: str, messages: Messages, seconds: float) -> Completion:
    return Completion(
        text=text,
        prompt_tokens=_about(m.content for m in messages),
        completion_tokens=_about([text]),
        estimated=True,
        seconds=seconds,
    )


def _about(texts: Iterable[str]) -> int:
    """Tokens by the rule of thumb of four characters each."""
    return sum(math.ceil(len(text) / 4) for text in texts)


def _question(messages: Messages) -> str:
    return next((m.content for m in reversed(messages) if m.role == "user"), "")


# --- Replay ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Index:
    """A table with its ways in: the row of a prompt, the column of an agent."""

    table: Table
    rows: Mapping[str, tuple[int, ...]]
    columns: Mapping[str, int]

    @staticmethod
    def of(table: Table) -> "Index":
        """Items by their prompt, and by their bare question where that alone names them."""
        rows: dict[str, tuple[int, ...]] = {}
        for bare in ([i.question.strip() for i in table.items], map(prompt_of, table.items), prompts_of(table)):
            found: dict[str, tuple[int, ...]] = {}
            for row, text in enumerate(bare):
                found[text] = (*found.get(text, ()), row)
            rows |= found
        return Index(table, rows, {name: i for i, name in enumerate(table.agents)})

    def row(self, messages: Messages) -> int:
        """The one item that was asked; raises BackendError for anything but a recorded question alone."""
        if [m.role for m in messages] != ["user"]:
            raise BackendError("no recorded outcome: agents were recorded on the bare question only")
        found = self.rows.get(messages[0].content.strip(), ())
        if not found:
            raise BackendError(f"no recorded outcome: {messages[0].content[:60]!r} is not in {self.table.folder}")
        if len(found) > 1:
            ids = ", ".join(self.table.items[row].id for row in found[:3])
            raise BackendError(f"no recorded outcome: the question is that of {len(found)} items ({ids}, ...)")
        return found[0]

    def column(self, name: str) -> int:
        """The column of an agent; raises ConfigError that names the nearest one."""
        if name not in self.columns:
            raise ConfigError(f"table {self.table.folder} has no agent {name!r}{nearest(name, self.columns)}")
        return self.columns[name]

    def completion(self, row: int, column: int) -> Completion:
        """The recorded outcome; raises BackendError where there is none."""
        item, agent = self.table.items[row], self.table.agents[column]
        score = float(self.table.scores[row, column])
        if math.isnan(score):
            raise BackendError(f"no recorded outcome: {agent!r} was not run on {item.id!r}")
        prompt, said = self.table.prompt_tokens[row, column], self.table.completion_tokens[row, column]
        unknown = math.isnan(prompt) or math.isnan(said)
        asked = _about([prompt_of(item)]) if math.isnan(prompt) else int(prompt)
        answered = 0 if math.isnan(said) else int(said)
        if math.isnan(prompt) and answered:  # a count without the prompt's is a total
            asked = min(asked, answered)
            answered -= asked
        return Completion(
            text=Verdict(query=item.id, agent=agent, score=score).text(),
            prompt_tokens=asked,
            completion_tokens=answered,
            estimated=unknown,
        )


@spec
class Replay:
    """Answers from a recorded table: `replay:<folder>`, by the agent's name, or `replay:<folder>#<recorded name>`.

    The text states the recorded score, for `verify_recorded` to read back; answers were not recorded. There is
    one outcome of each agent on each query, so every seed gives it. Anything but a recorded question alone fails:
    an instruction, an adapter, other agents' answers, a neighbouring question. Where tokens were not recorded
    the prompt's are estimated and the completion's counted as 0, so that costs are lower bounds.
    """

    model: str

    async def prepare(self, agent: Agent) -> None:
        """Read the table; raise DataError if it cannot be, ConfigError if it cannot speak for this agent."""
        self._column(agent, await self._opened())

    async def generate(self, agent: Agent, messages: Messages, *, seed: int) -> Completion:
        """The recorded outcome; raises BackendError where there is none."""
        index = await self._opened()
        return index.completion(index.row(messages), self._column(agent, index))

    async def aclose(self) -> None:
        """Let go of the table."""
        self.__dict__.pop("_index", None)

    @cached_property
    def _index(self) -> Index:
        return _shared(Path(self.model.rpartition("#")[0] or self.model))

    async def _opened(self) -> Index:
        return self._index if "_index" in self.__dict__ else await asyncio.to_thread(lambda: self._index)

    def _column(self, agent: Agent, index: Index) -> int:
        if agent.instruction or agent.adapter:
            raise ConfigError(f"agent {agent.name!r}: a recorded agent can have no instruction or adapter")
        folder, sign, name = self.model.rpartition("#")
        return index.column(name if sign and folder else agent.name)


_READING = Lock()


def _shared(folder: Path) -> Index:
    """The folder's index. Backends for columns of one table, which are opened together, read it once."""
    file = folder / OUTCOMES
    with _READING:
        return _read(folder, file.stat().st_mtime_ns if file.is_file() else 0)


@lru_cache(maxsize=1)
def _read(folder: Path, written: int) -> Index:
    return Index.of(read_table(folder))
