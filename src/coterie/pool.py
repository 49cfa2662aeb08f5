"""Expert folders: read, write, and the digest that is an agent's revision. Loads no model.

A folder holds `agent.yaml` and, where the agent has one, `adapter/` (PEFT format, safetensors).
"""

import glob
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from coterie.config import nearest, read_yaml, shown, validate
from coterie.errors import ConfigError
from coterie.types import Agent, Pool

FILE = "agent.yaml"
BUILTIN = "builtin"
BY_NAME = "replay"
"""The backend that answers by the agent's name: two agents of one table are never the same one."""


def split_model(model: str) -> tuple[str, str]:
    """`<backend>:<model>` in two. `builtin:<model>` belongs to the local backend, name kept whole."""
    scheme, sign, name = model.partition(":")
    if not sign or not name or not scheme:
        raise ConfigError(f"model {model!r}: expected <backend>:<model>, such as builtin:smollm2-135m")
    return ("local", model) if scheme == BUILTIN else (scheme, name)


def revise(agent: Agent) -> Agent:
    """The agent with its revision: a digest of model, adapter content, instruction and sampling."""
    scheme, model = split_model(agent.model)
    facts = {
        "model": [scheme, *_identity(model), *([agent.name] if scheme == BY_NAME else [])],
        "adapter": content_digest(Path(agent.adapter)) if agent.adapter else None,
        "instruction": agent.instruction,
        "sampling": agent.sampling.facts(),
    }
    text = json.dumps(facts, sort_keys=True, ensure_ascii=False)
    return replace(agent, revision=hashlib.sha256(text.encode()).hexdigest()[:16])


def _identity(model: str) -> list[str]:
    """What a model name stands for: the content of a path (`path#part` too), else the name itself."""
    path, _, part = model.rpartition("#") if "#" in model else (model, "", "")
    return [content_digest(Path(path)), part] if Path(path).exists() else [model]


def content_digest(path: Path) -> str:
    """SHA-256 over the names and bytes of a file or of all files below a folder."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    total = hashlib.sha256()
    for file in files:
        name = file.relative_to(path).as_posix() if path.is_dir() else ""
        status = file.stat()
        total.update(f"{name}\0{_file_digest(str(file), status.st_size, status.st_mtime_ns)}\n".encode())
    return total.hexdigest()


@lru_cache(maxsize=4096)
def _file_digest(path: str, size: int, modified: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_agent(folder: Path) -> Agent:
    """The agent of an expert folder, with its revision."""
    file = folder / FILE
    if not file.is_file():
        raise ConfigError(f"{folder}: is no expert folder, it has no {FILE}")
    table = {"name": folder.name, **read_yaml(file)}
    return agent_from(table, str(file), folder)


def agent_from(table: Mapping[str, Any], where: str, base: Path, own_folder: bool = True) -> Agent:
    """The agent that a table describes; a relative `adapter` or model path is taken from `base`."""
    for key in ("folder", "revision"):
        if key in table:
            raise ConfigError(f"{where}: {key!r} is worked out, it cannot be set")
    agent: Agent = validate(Agent, table, where)
    if not agent.name.isprintable() or agent.name != agent.name.strip() or not agent.name:
        raise ConfigError(f"{where}: name {shown(agent.name)}: must be printable, with no space around it")
    split_model(agent.model)
    adapter = agent.adapter or ("adapter" if own_folder and (base / "adapter").is_dir() else None)
    if adapter is not None and not (base / adapter).is_dir():
        raise ConfigError(f"{where}: adapter {adapter!r} is not a folder in {base}")
    return revise(
        replace(
            agent,
            adapter=None if adapter is None else str((base / adapter).resolve()),
            model=_from_base(agent.model, base),
            folder=str(base) if own_folder else None,
        )
    )


def _from_base(model: str, base: Path) -> str:
    scheme, _, name = model.partition(":")
    inside = base / name
    return f"{scheme}:{inside.resolve()}" if name.startswith(".") and inside.exists() else model


def write_agent(folder: Path, agent: Agent) -> None:
    """Write `agent.yaml` (atomically); the adapter's files stay where they are."""
    table = {k: v for k, v in asdict(agent).items() if k not in ("folder", "revision")}
    table["sampling"] = agent.sampling.facts()
    plain = Agent(name=agent.name, model=agent.model)
    default = asdict(plain) | {"sampling": plain.sampling.facts()}
    kept = {k: v for k, v in table.items() if k in ("name", "model") or v != default[k]}
    if agent.adapter:
        kept["adapter"] = os.path.relpath(agent.adapter, folder.resolve())
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{FILE}.{os.getpid()}"
    draft.write_text(yaml.safe_dump(_plain(kept), sort_keys=False, allow_unicode=True), encoding="utf-8")
    draft.replace(folder / FILE)


def _plain(value: Any) -> Any:
    """The value with tuples as lists, which YAML can say."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def read_pool(entries: Sequence[Any], where: str, base: Path) -> Pool:
    """The pool of a recipe: each entry is a table, a folder, or a pattern of folders below `base`."""
    if not isinstance(entries, list | tuple) or not entries:
        raise ConfigError(f"{where}: agents must be a list with at least one agent")
    agents: list[Agent] = []
    for index, entry in enumerate(entries):
        if isinstance(entry, Mapping):
            agents.append(agent_from(entry, f"{where}: agents.{index}", base, own_folder=False))
        else:
            agents += [read_agent(folder) for folder in _folders(str(entry), where, base)]
    return pool_of(agents, where)


def pool_of(agents: Sequence[Agent], where: str = "pool") -> Pool:
    """A pool from agents whose names must differ."""
    seen = [agent.name for agent in agents]
    twice = sorted({name for name in seen if seen.count(name) > 1})
    if twice:
        raise ConfigError(f"{where}: agent name {twice[0]!r} is used twice")
    return Pool({agent.name: agent for agent in agents})


def _folders(pattern: str, where: str, base: Path) -> list[Path]:
    found = sorted(Path(p) for p in glob.glob(str(base / pattern)) if (Path(p) / FILE).is_file())
    if not found:
        known = [p.parent.name for p in base.glob(f"*/{FILE}")]
        raise ConfigError(f"{where}: no expert folder matches {pattern!r} in {base}{nearest(pattern, known)}")
    return found
