"""From an item to a query that hides its gold: what is asked, in the words of an answer contract.

Reads no file; grading an answer is in `catalog`.
"""

from collections.abc import Mapping
from typing import Any

from coterie.config import nearest
from coterie.errors import ConfigError
from coterie.tasks.choice import render
from coterie.tasks.extract import CONTRACTS
from coterie.tasks.items import Case, Item
from coterie.types import Message, Messages, Query

CONTRACTS_OF: Mapping[str, str] = {
    "chat": "raw",
    "choice": "letter",
    "code_function": "fence",
    "code_stdio": "fence",
    "instruction": "raw",
    "math": "boxed",
    "qa": "answer",
    "reasoning_gym": "answer",
    "recorded": "raw",
}
"""The usual answer contract of each built-in kind of item."""

DOMAIN_KEYS = ("subtask", "category", "subject")


# --- queries ------------------------------------------------------------------------------------------


def to_query(item: Item, contract: str | None = None) -> Query:
    """The query of an item, its prompt written for `contract` (None: the usual one of its kind).

    Only question, context, options and the name of a wanted function enter the messages; answer, tests and
    meta never do. ConfigError for an unknown contract.
    """
    name = contract or CONTRACTS_OF.get(item.task, "text")
    return Query(
        id=item.id,
        messages=prompt(_asked(item), name),
        task=item.task,
        contract=name,
        reference=_reference(item),
        metadata={"source": item.source, "domain": _domain(item)},
    )


def prompt(text: str, contract: str) -> Messages:
    """What is asked, followed by the contract's suffix and, where it has one, its prefilled answer."""
    if contract not in CONTRACTS:
        raise ConfigError(f"unknown contract {contract!r}{nearest(contract, CONTRACTS)}")
    suffix, prefill = CONTRACTS[contract].suffix.strip(), CONTRACTS[contract].prefill
    user = Message(role="user", content=f"{text}\n\n{suffix}" if suffix else text)
    return (user, Message(role="assistant", content=prefill)) if prefill else (user,)


def _asked(item: Item) -> str:
    parts = [f"{part.title}\n{part.text}" if part.title else part.text for part in item.context or []]
    parts.append(render(item.question, item.choices) if item.choices else item.question)
    if item.task == "code_function" and item.fn_name:
        parts.append(f"Write the Python function `{item.fn_name}`.")
    if item.task == "code_stdio":
        parts.append("Write a Python program that reads standard input and writes to standard output.")
    return "\n\n".join(parts)


def _reference(item: Item) -> Mapping[str, Any] | None:
    match item.task:
        case "chat":
            return None
        case "choice":
            return {"answer": item.answer, "choices": item.choices}
        case "qa":
            answers = [item.answer] if isinstance(item.answer, str) else item.answer
            return {"answers": answers, "metric": item.meta.get("metric")}
        case "code_function":
            table = {"tests": item.tests, "test_setup": item.meta.get("test_setup") or "", "fn_name": item.fn_name}
            return table | ({"prefix": item.question} if item.meta.get("prompt_is_code_prefix") else {})
        case "code_stdio":
            return {"tests": [case.model_dump() for case in item.tests or [] if isinstance(case, Case)]}
        case "instruction":
            ids, arguments = item.instruction_id_list, item.instruction_kwargs
            return {"prompt": item.question, "instruction_id_list": ids, "instruction_kwargs": arguments}
        case _:
            return {"answer": item.answer}


def _domain(item: Item) -> str:
    found = (item.meta.get(key) for key in DOMAIN_KEYS)
    return next((value for value in found if isinstance(value, str) and value), item.source)
