"""The chat wire format as a stream of events: pieces of choices become drafts. Makes no calls."""

from collections.abc import Mapping
from typing import Any

from coterie.backends.chat_answer import Answer, Draft, add_choice, add_message, parsed, read_usage
from coterie.backends.refusals import error_within
from coterie.backends.sse import Event
from coterie.errors import BrokenStream, MalformedAnswer, ServerFault

DONE = b"[DONE]"
MOST_CHOICES = 256


class ChatStream:
    """Gathers one streamed reply; `limit` bounds its texts, in characters.

    Only `[DONE]` or the end of the connection ends it; usage is data, whatever chunk it comes on, and the last one
    counts. `samples` is how many choices were asked for.
    """

    def __init__(self, limit: int, samples: int = 1) -> None:
        self.done = False
        self._limit, self._samples = limit, samples
        self._drafts: dict[int, Draft] = {}
        self._usage: tuple[int | None, int | None] = (None, None)
        self._size = 0

    def take(self, event: Event) -> list[tuple[int, str]]:
        """The visible text that an event adds, by choice. Raises what an error in the stream stands for (B48)."""
        if self.done or event.data.strip() == DONE:
            self.done = True
            return []
        data = parsed(event.data)
        if (error := error_within(data)) is not None:
            raise error
        if event.name == "error" or not isinstance(data, Mapping):
            raise ServerFault(f"error in the stream: {event.data.decode(errors='replace')}")
        if any(found := read_usage(data)):
            self._usage = found
        choices = data.get("choices")
        rows = choices if isinstance(choices, list) else []
        return [piece for row in rows if isinstance(row, Mapping) and (piece := self._add(row))[1]]

    def _add(self, row: Mapping[str, Any]) -> tuple[int, str]:
        index = row.get("index")
        index = index if type(index) is int else 0
        if not 0 <= index < MOST_CHOICES:
            raise MalformedAnswer(f"the stream has a choice of index {index}")
        draft = self._drafts.setdefault(index, Draft())
        before, ended = draft.reasoning + len(draft.refusal), draft.finish is not None
        text = add_message(draft, row.get("delta"))
        if ended and (text or (self._samples > 1 and row.get("finish_reason"))):
            raise MalformedAnswer(
                "the stream goes on after a finish_reason, or mixes choices under one index"
            )  # B41
        add_choice(draft, row)
        self._size += len(text) + draft.reasoning + len(draft.refusal) - before
        if self._size > self._limit:
            raise MalformedAnswer(f"the answer is longer than {self._limit} characters")
        return index, text

    def answer(self) -> Answer:
        """The whole reply. Raises BrokenStream where a choice has no end, MalformedAnswer where there is none."""
        if any(draft.finish is None for draft in self._drafts.values()):
            raise BrokenStream("the stream ended without a finish_reason")
        if not self._drafts:
            if self.done:
                raise MalformedAnswer("the stream has no choices")
            raise BrokenStream("the stream ended before it began")
        return Answer(drafts=self._drafts, usage=self._usage)
