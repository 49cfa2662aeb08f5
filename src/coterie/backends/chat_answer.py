"""Replies in the chat wire format: JSON as typed choices, choices as completions or failures. Makes no calls.

What a reply leaves out is worked out here and flagged; what it gets wrong is a typed failure.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from coterie.backends.chat_request import BYTES_A_TOKEN, Request, about, about_prompt, prefill_of, sent_messages
from coterie.backends.endpoint import Endpoint
from coterie.backends.refusals import error_within
from coterie.errors import BackendError, ContentFiltered, EmptyAnswer, MalformedAnswer, ServerFault
from coterie.types import Completion, record

Finish = Literal["stop", "length", "tool_calls", "content_filter"]
ENDS: Mapping[str, Finish] = {
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "safety": "content_filter",
}
MOST_TOKENS = 10**9
"""Of one answer; a server that says more has not counted."""
THINKING, THOUGHT = "<think>", "</think>"


@dataclass(slots=True)
class Draft:
    """One choice as the server gave it, not judged yet. Without `parts` it had no content, not even a blank one."""

    parts: list[str] = field(default_factory=list)
    finish: str | None = None
    refusal: str = ""
    reasoning: int = 0
    tools: bool = False
    logprobs: list[float] = field(default_factory=list)

    @property
    def content(self) -> str:
        return "".join(self.parts)


@record
class Answer:
    """A whole reply: choices by index, and (prompt, completion) tokens, None where the server did not say."""

    drafts: Mapping[int, Draft]
    usage: tuple[int | None, int | None] = (None, None)


@record
class Used:
    """What one sample took: tokens, `estimated` where the server did not say, and seconds."""

    prompt: int
    completion: int
    estimated: bool
    seconds: float


# --- reading -----------------------------------------------------------------------------------------


def parsed(body: bytes) -> Any:
    """JSON, or MalformedAnswer, which another try may mend."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        start = body.decode(errors="replace").strip()
        what = "an HTML page" if start.startswith("<") else f"no JSON, or half of it: {start!r}"
        raise MalformedAnswer(f"the server answered with {what if start else 'nothing'}", again=True) from None


def read_answer(body: bytes) -> Answer:
    """The answer in a JSON body. Raises MalformedAnswer, or what an error object in it stands for."""
    data = parsed(body)
    if (error := error_within(data)) is not None:
        raise error
    choices = data.get("choices") if isinstance(data, Mapping) else None
    if not isinstance(choices, list) or not choices:
        raise MalformedAnswer("the answer has no choices")
    drafts: dict[int, Draft] = {}
    for place, choice in enumerate(choices):
        if isinstance(choice, Mapping):
            drafts[_index(choice, place, len(choices))] = _draft(choice)
    return Answer(drafts=drafts, usage=read_usage(data))


def _index(choice: Mapping[str, Any], place: int, several: int) -> int:
    index = choice.get("index")
    return index if several > 1 and type(index) is int and 0 <= index < several else place


def _draft(choice: Mapping[str, Any]) -> Draft:
    draft = Draft()
    add_message(draft, choice.get("message"))
    add_choice(draft, choice)
    return draft


def add_choice(draft: Draft, choice: Mapping[str, Any]) -> None:
    """Finish reason and log-probabilities of a choice, whole or a piece of a stream."""
    if isinstance(finish := choice.get("finish_reason"), str):
        draft.finish = finish
    logprobs = choice.get("logprobs")
    rows = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    for row in rows if isinstance(rows, list) else ():
        value = row.get("logprob") if isinstance(row, Mapping) else None
        if (number := _finite(value)) is not None:
            draft.logprobs.append(number)


def _finite(value: Any) -> float | None:
    """The number; None for what is none, or is beyond what a float holds."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def add_message(draft: Draft, message: Any) -> str:
    """Take in a message, or a delta of one, which may be null; returns its visible text."""
    if not isinstance(message, Mapping):
        return ""
    text = _text(message.get("content"))
    if text is not None:
        draft.parts.append(text)
    draft.refusal += _text(message.get("refusal")) or ""
    draft.reasoning += len(_text(message.get("reasoning_content") or message.get("reasoning")) or "")
    draft.tools = draft.tools or bool(message.get("tool_calls") or message.get("function_call"))
    return text or ""


def _text(content: Any) -> str | None:
    """The text of a message's content, which may be a list of parts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else None


def read_usage(data: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """(prompt, completion) tokens. What a total holds beyond both is completion: reasoning that only it counts.

    Costs that a server states are not read: prices of agents are the one source.
    """
    usage = data.get("usage")
    counts = usage if isinstance(usage, Mapping) else {}
    prompt, said, total = (_count(counts.get(f"{name}_tokens")) for name in ("prompt", "completion", "total"))
    if total is not None and prompt is not None:
        said = max(said or 0, total - prompt)
    return prompt or None, said or None


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None


# --- judging -----------------------------------------------------------------------------------------


def completions(
    answer: Answer, request: Request, endpoint: Endpoint, seconds: float
) -> list[Completion | BackendError | None]:
    """What each sample of a request got, in the order of its seeds; None: the server left it out.

    The prompt's tokens are counted with the first sample, the completion's are shared out by length.
    """
    drafts = [answer.drafts.get(index) for index in range(len(request.seeds))]
    prompt = answer.usage[0] or about_prompt(sent_messages(endpoint, request))
    shares = _shares(answer.usage[1], [draft for draft in drafts if draft is not None])
    guessed = answer.usage[0] is None or answer.usage[1] is None or len(shares) > 1
    made: list[Completion | BackendError | None] = []
    for draft in drafts:
        if draft is None:
            made.append(None)
            continue
        used = Used(prompt=prompt, completion=shares.pop(0), estimated=guessed, seconds=seconds)
        made.append(_judged(draft, request, endpoint, used))
        prompt = 0
    return made


def _judged(draft: Draft, request: Request, endpoint: Endpoint, used: Used) -> Completion | BackendError:
    try:
        text, finish = _usable(draft, request, used.completion)
        if endpoint.json_schema is not None and finish != "content_filter":
            _check_json(text)
    except BackendError as error:
        error.prompt_tokens, error.completion_tokens = used.prompt, used.completion
        return error
    return Completion(
        text=text,
        finish=finish,
        prompt_tokens=used.prompt,
        completion_tokens=used.completion,
        estimated=used.estimated,
        seconds=used.seconds,
        logprobs=tuple(draft.logprobs) or None,
    )


def _usable(draft: Draft, request: Request, used: int) -> tuple[str, Finish]:
    """The text and how it ended; raises what an unusable choice is."""
    finish = _finish(draft, request, used)
    text, cut = cut_at(whole(draft.content), request.agent.sampling.stop)
    text = _continuation(text, prefill_of(request.messages))
    if text.strip() and not _only_thinking(text):
        return text, "stop" if cut else finish
    if draft.refusal or finish == "content_filter":
        raise ContentFiltered(f"no answer: {draft.refusal or 'the content filter took it'}")
    if draft.tools:
        raise EmptyAnswer("only calls of tools, which nobody offered")
    if draft.reasoning or _only_thinking(text):
        hint = ", cut at max_tokens: raise them" if finish == "length" else ""
        raise EmptyAnswer(f"only reasoning and no answer{hint}")
    if not draft.parts:
        raise MalformedAnswer("the answer's content is null")
    raise EmptyAnswer(f"a blank answer (finish_reason {finish})")


def _finish(draft: Draft, request: Request, used: int) -> Finish:
    reason = draft.finish
    if reason is None:  # a whole body without one
        return "length" if used >= request.agent.sampling.max_tokens else "stop"
    if reason in ("error", "abort", "cancelled"):
        raise ServerFault(f"the server gave up (finish_reason {reason})")
    return ENDS.get(reason.lower(), "stop")


def _only_thinking(text: str) -> bool:
    return text.lstrip().startswith(THINKING) and not text.partition(THOUGHT)[2].strip()


def _continuation(text: str, prefill: str) -> str:
    """The text without an echo of the prefill that it goes on from."""
    start, said = prefill.strip(), text.lstrip()
    return said[len(start) :] if start and said.startswith(start) else text


def _check_json(text: str) -> None:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        raise MalformedAnswer(f"not the JSON that json_schema asks for: {text!r}") from None


def cut_at(text: str, stops: Iterable[str]) -> tuple[str, bool]:
    """The text before the first stop text, for servers that ignore them; and whether there was one."""
    places = [place for stop in stops if stop and (place := text.find(stop)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def whole(text: str) -> str:
    """The text with halves of a character joined that came in different pieces; a single half is replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _shares(total: int | None, drafts: Sequence[Draft]) -> list[int]:
    """Completion tokens of each draft: estimated where no total is known, else parts that sum to it."""
    if total is not None and len(drafts) == 1:
        return [total]
    sizes = [len(d.logprobs) or about(d.content) + about(d.refusal) + d.reasoning // BYTES_A_TOKEN for d in drafts]
    if total is None:
        return sizes
    weight = sum(sizes) or 1
    marks = [round(total * sum(sizes[: i + 1]) / weight) for i in range(len(sizes))]
    parts = [mark - before for mark, before in zip(marks, [0, *marks], strict=False)]
    if parts and not sum(sizes):
        parts[0] = total
    return parts
