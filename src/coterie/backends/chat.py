"""Chat messages to token ids: the model's own template, its quirks, and the ids that end a turn.

Text inside a message never becomes a control token, whatever it spells.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from jinja2 import TemplateError

from coterie.errors import UserError
from coterie.types import Message, Messages

# The switches by which known templates turn reasoning off.
THINKING = ("enable_thinking", "thinking")
PROBE = "coterieprobe"
# Private-use characters stand for control words that a message spells out, until its text is tokenized.
MARK, FIRST = "\ue0f0", 0xE100


def prompt_ids(tokenizer: Any, messages: Messages) -> list[int]:
    """Ids of the prompt that asks for the next assistant turn.

    A final assistant message is that turn's beginning. A template that knows no system role gets the system text
    in the user turn. Without a template the contents are written one after another.

    Raises: UserError when the template refuses the messages.
    """
    words = sorted(control_words(tokenizer), key=len, reverse=True)
    spelled = [w for w in words if any(w in m.content for m in messages)]
    hidden = tuple(Message(role=m.role, content=_hide(m.content, spelled)) for m in messages)
    templated = bool(tokenizer.chat_template)
    text = render(tokenizer, hidden) if templated else plain(hidden)
    ids = _tokenized(tokenizer, text, spelled, start=not templated)
    return ids or [_any_start(tokenizer)]


def render(tokenizer: Any, messages: Messages) -> str:
    """The templated text, open at the end for the assistant to go on."""
    body, prefill = split(messages)
    try:
        text = _apply(tokenizer, body)
        system = "".join(m.content.strip() for m in body if m.role == "system")
        if system not in text:
            text = _apply(tokenizer, merged(body))
    except TemplateError:
        try:
            text = _apply(tokenizer, merged(body))
        except TemplateError as error:
            raise UserError(f"the model's chat template refuses these messages: {error}") from error
    return text + prefill


def merged(messages: Messages) -> Messages:
    """Without system role and with alternating turns: the system text opens the user turn, neighbours join."""
    roles = [Message(role="assistant" if m.role == "assistant" else "user", content=m.content) for m in messages]
    turns = [(role, "\n\n".join(m.content for m in group)) for role, group in groupby(roles, key=lambda m: m.role)]
    return tuple(Message(role=role, content=content) for role, content in turns)


def plain(messages: Messages) -> str:
    """For models without a template: one question as it stands, several turns with their speakers."""
    body, prefill = split(messages)
    if sum(m.role != "system" for m in body) <= 1:
        text = "\n\n".join(m.content for m in body)
        return f"{text}\n{prefill}" if prefill else text
    speakers = {"user": "User: ", "assistant": "Assistant: ", "system": ""}
    lines = [speakers[m.role] + m.content for m in body]
    return "\n\n".join([*lines, f"Assistant: {prefill}".rstrip(" ")])


def control_words(tokenizer: Any) -> set[str]:
    """The texts that the tokenizer turns into special tokens."""
    added = tokenizer.added_tokens_decoder.values()
    return {str(t) for t in added if t.special and str(t).strip()} | set(tokenizer.all_special_tokens)


def end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a turn: generation config, model config, tokenizer, and what the template writes there."""
    stated = [model.generation_config.eos_token_id if model.generation_config else None]
    stated += [getattr(model.config.get_text_config(), "eos_token_id", None), tokenizer.eos_token_id]
    return frozenset([*_flat(stated), *_template_ends(tokenizer)])


def _flat(values: Iterable[int | list[int] | None]) -> Iterable[int]:
    for value in values:
        if value is not None:
            yield from value if isinstance(value, list | tuple) else [value]


def _template_ends(tokenizer: Any) -> list[int]:
    """The special token that follows an assistant's words in a rendered chat, if there is one."""
    if not tokenizer.chat_template:
        return []
    chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": PROBE}]
    try:
        text: str = tokenizer.apply_chat_template(chat, tokenize=False)
    except TemplateError:
        return []
    tail = text.rpartition(PROBE)[2].lstrip()
    ids = tokenizer(tail, add_special_tokens=False).input_ids if tail else []
    special = {i for i, t in tokenizer.added_tokens_decoder.items() if t.special} | set(tokenizer.all_special_ids)
    return [i for i in ids[:1] if i in special]


def split(messages: Messages) -> tuple[Messages, str]:
    """The messages, and what the assistant has begun to say."""
    if messages and messages[-1].role == "assistant":
        return messages[:-1], messages[-1].content
    return messages, ""


def _apply(tokenizer: Any, messages: Messages) -> str:
    switches = {name: False for name in THINKING if name in str(tokenizer.chat_template)}
    chat = [{"role": m.role, "content": m.content} for m in messages]
    text: str = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **switches)
    return text


def _hide(text: str, words: list[str]) -> str:
    for number, word in enumerate(words):
        text = text.replace(word, f"{MARK}{chr(FIRST + number)}{MARK}")
    return text


def _tokenized(tokenizer: Any, text: str, words: list[str], *, start: bool) -> list[int]:
    """Ids of the text; the hidden words are spelled out in ordinary tokens."""
    ids: list[int] = []
    for part in text.split(MARK) if words else [text]:
        if words and len(part) == 1 and 0 <= ord(part) - FIRST < len(words):
            spelled = words[ord(part) - FIRST]
            ids += tokenizer(spelled, add_special_tokens=False, split_special_tokens=True).input_ids
        elif part:
            ids += tokenizer(part, add_special_tokens=start and not ids).input_ids
    return ids


def _any_start(tokenizer: Any) -> int:
    """An empty prompt still needs one token to go on from."""
    known = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, 0)
    return next(int(i) for i in known if i is not None)
