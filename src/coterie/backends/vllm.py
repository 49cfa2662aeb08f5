"""vLLM's LoRA folders at run time: loaded under a name that says their content, probed, unloaded.

Needs `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True` on the server, which has to see the folder at the same path. A name
stands for one content for ever, so that no stale adapter can answer (R13).
"""

import asyncio
import json
import math
import re
from collections.abc import Mapping
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from coterie.backends.chat_answer import parsed
from coterie.backends.line import Line, Port
from coterie.backends.retries import Budget
from coterie.errors import BackendError, BadRequest, ConfigError, MalformedAnswer, UnknownModel
from coterie.types import Agent, Message, Messages

FILES = ("adapter_config.json", "adapter_model.safetensors")
PROBE: Messages = (Message(role="user", content="Name one thing that can be found in a kitchen."),)
PROBED = 10
MOST_HEADER = 100_000_000
"""Bytes that safetensors allows a header."""
NOISE = 1e-3
"""Nats. What floating point alone changes between two runs is to stay below, where one batch holds both."""


def adapter_name(agent: Agent) -> str:
    """The name that the server knows an agent's adapter by: the agent's, and a digest of the adapter's files."""
    folder = Path(agent.adapter or "")
    total = sha256()
    for name in FILES:
        try:
            with (folder / name).open("rb") as file:
                total.update(file_digest(file, "sha256").digest())
        except OSError as error:
            raise ConfigError(f"agent {agent.name!r}: {folder / name} cannot be read ({error.strerror})") from None
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '-', agent.name)}-{total.hexdigest()[:16]}"


async def load(line: Line, port: Port, agent: Agent, base: str, budget: Budget) -> str:
    """Load the agent's adapter, unless it is there, and probe it, all within one budget; its name on the server.

    Raises: BackendError where the server cannot load it, or answers as without it.
    """
    name = await asyncio.to_thread(adapter_name, agent)
    try:
        await line.call(port, "load_lora_adapter", {"lora_name": name, "lora_path": agent.adapter}, budget)
    except BadRequest as error:
        if "already" not in str(error):
            raise BackendError(f"the adapter of {agent.name!r} was not loaded: {error}") from None
    await asyncio.to_thread(_known_content, agent, name)
    with_adapter, without = [await probe(line, port, model, budget=budget) for model in (name, base)]
    alike = distance(with_adapter, without) <= NOISE
    if alike and await asyncio.to_thread(changes_anything, Path(agent.adapter or "")):
        raise BackendError(f"the server answers under {name!r} as it does without: the adapter was not applied")
    return name


def _known_content(agent: Agent, name: str) -> None:
    """Raise BackendError where the folder changed while the server read it: nobody knows what it has."""
    if adapter_name(agent) != name:
        raise BackendError(f"the adapter of {agent.name!r} changed while it was loaded")


async def unload(line: Line, port: Port, name: str) -> None:
    """Take an adapter off the server; one that is gone is no fault."""
    try:
        await line.call(port, "unload_lora_adapter", {"lora_name": name})
    except (BadRequest, UnknownModel) as error:
        if "not" not in str(error):
            raise


async def probe(
    line: Line, port: Port, model: str, messages: Messages = PROBE, budget: Budget | None = None
) -> dict[str, float]:
    """Log-probabilities, in nats, of the likeliest first tokens of an answer: what tells adapters apart.

    Raises: MalformedAnswer where the server gives none.
    """
    body = {
        "model": model,
        "messages": [{"role": m.role, "content": m.content} for m in messages],
        "max_tokens": 1,
        "temperature": 0.0,
        "logprobs": True,
        "top_logprobs": PROBED,
    }
    reply = parsed(await line.call(port, "chat/completions", body, budget))
    try:
        rows: list[Mapping[str, Any]] = reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        return {str(row["token"]): float(row["logprob"]) for row in rows}
    except (LookupError, TypeError, ValueError, OverflowError):
        raise MalformedAnswer(
            f"{port.endpoint.base_url} gives no log-probabilities to probe {model!r} by"
        ) from None


def distance(one: Mapping[str, float], two: Mapping[str, float]) -> float:
    """The largest difference in nats over tokens that both name; infinite where they share none."""
    common = one.keys() & two.keys()
    return max((abs(one[token] - two[token]) for token in common), default=math.inf)


def changes_anything(folder: Path) -> bool:
    """Whether any B matrix of the adapter has a value other than zero: a fresh LoRA's have none.

    Raises: ConfigError for a file that is not such an adapter's.
    """
    try:
        return _changes(folder)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        raise ConfigError(f"{folder / FILES[1]} cannot be read as safetensors") from None


def _changes(folder: Path) -> bool:
    with (folder / FILES[1]).open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > MOST_HEADER:
            raise ValueError(size)
        entries = json.loads(file.read(size))
        for name, entry in entries.items():
            if "lora_B" not in name:
                continue
            begin, end = entry["data_offsets"]
            file.seek(8 + size + begin)
            if file.read(end - begin).strip(b"\0"):
                return True
    return not any("lora_B" in name for name in entries)
