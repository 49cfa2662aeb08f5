"""Requests in the chat wire format: an agent's call as a JSON body, in the words that its endpoint takes.

Makes no calls and reads no replies (`chat_answer` does).
"""

import json
import math
from dataclasses import replace
from typing import Any

from coterie.backends.endpoint import Endpoint
from coterie.types import Agent, Message, Messages, record

BYTES_A_TOKEN, TOKENS_A_MESSAGE = 4, 4
MOST_STOPS = 4
"""What OpenAI takes. An answer is cut at all of them in any case (`chat_answer`)."""
SEEDS = 2**31
"""Seeds are sent below this: some servers take 32 bits, signed."""


@record
class Request:
    """One call of an agent, or, with several seeds, several samples in one. `model` is the name that the server
    knows: the base model's, or a loaded adapter's."""

    agent: Agent
    messages: Messages
    model: str
    seeds: tuple[int, ...]


def chat_body(endpoint: Endpoint, request: Request, stream: bool) -> dict[str, Any]:
    """The JSON body of a request."""
    sampling = request.agent.sampling
    body: dict[str, Any] = {
        "model": request.model,
        "messages": [{"role": m.role, "content": m.content} for m in sent_messages(endpoint, request)],
        "temperature": sampling.temperature,
        endpoint.max_tokens_field: sampling.max_tokens,
    }
    if sampling.top_p < 1:
        body["top_p"] = sampling.top_p
    if sampling.top_k:
        body["top_k"] = sampling.top_k
    if sampling.stop:
        body["stop"] = list(dict.fromkeys(sampling.stop))[:MOST_STOPS]
    if endpoint.seed:
        body["seed"] = request.seeds[0] % SEEDS
    if len(request.seeds) > 1:
        body["n"] = len(request.seeds)
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    body |= _options(endpoint, request)
    return {name: value for name, value in body.items() if name not in endpoint.omit} | dict(endpoint.extra)


def _options(endpoint: Endpoint, request: Request) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if endpoint.prefill == "continue" and prefill_of(request.messages):
        found |= {"continue_final_message": True, "add_generation_prompt": False}
    if endpoint.logprobs:
        found["logprobs"] = True
    own = request.agent.sampling.schema if endpoint.schemas else ""
    schema = json.loads(own) if own else endpoint.json_schema
    if schema is not None:
        asked = {"name": "answer", "strict": True, "schema": dict(schema)}
        found["response_format"] = {"type": "json_schema", "json_schema": asked}
    return found


def sent_messages(endpoint: Endpoint, request: Request) -> Messages:
    """The prompt as this server gets it: cut to `max_prompt_tokens`, its prefill as the endpoint takes one."""
    messages, prefill = request.messages, prefill_of(request.messages)
    if prefill and endpoint.prefill == "drop":
        messages = _asking_for(prefill, messages[:-1])
    limit = request.agent.sampling.max_prompt_tokens
    return cut_left(messages, limit) if limit else messages


def _asking_for(prefill: str, messages: Messages) -> Messages:
    """The prompt with the prefill asked for in words, at the end of its last message."""
    wish = f"Begin your reply with: {prefill.strip()}"
    if not messages:
        return (Message(role="user", content=wish),)
    last = messages[-1]
    return (*messages[:-1], replace(last, content=f"{last.content}\n\n{wish}"))


def prefill_of(messages: Messages) -> str:
    """What the assistant has begun to say."""
    return messages[-1].content if messages and messages[-1].role == "assistant" else ""


def cut_left(messages: Messages, limit: int) -> Messages:
    """The end of the prompt, about `limit` tokens of it: whole messages go first, then a message's beginning.

    The server's tokenizer is not here, so tokens are estimated (`about`). vLLM counts itself where
    `extra: {truncate_prompt_tokens: N}` asks it to.
    """
    kept: list[Message] = []
    room = limit * BYTES_A_TOKEN
    for message in reversed(messages):
        room -= TOKENS_A_MESSAGE * BYTES_A_TOKEN
        text = message.content.encode(errors="surrogatepass")
        if room <= 0 and kept:
            break
        if len(text) > max(room, BYTES_A_TOKEN):
            end = text[-max(room, BYTES_A_TOKEN) :].decode(errors="ignore")
            kept.append(replace(message, content=end))
            break
        kept.append(message)
        room -= len(text)
    return tuple(reversed(kept))


def about(text: str) -> int:
    """Tokens of a text by the rule of thumb of four bytes each."""
    return math.ceil(len(text.encode(errors="surrogatepass")) / BYTES_A_TOKEN)


def about_prompt(messages: Messages) -> int:
    """Tokens of a prompt, with a few for each message's frame."""
    return sum(about(m.content) + TOKENS_A_MESSAGE for m in messages)
