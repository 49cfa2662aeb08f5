"""Names to objects: YAML tables become components, strictly. Knows no component by import.

An unknown key is an error that names the nearest known one, with file and path. Third-party components
come through entry points `coterie.<kind>`, the mechanism that built-in names use as a table of text.
"""

import difflib
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from coterie.errors import ConfigError

COMPONENTS: Mapping[str, Mapping[str, str]] = {
    "backend": {
        "http": "coterie.backends.http:Http",
        "local": "coterie.backends.local:Local",
        "replay": "coterie.backends.recorded:Replay",
        "scripted": "coterie.backends.recorded:Scripted",
    },
    "encoder": {
        "hidden": "coterie.features.hidden:Hidden",
        "joined": "coterie.features.joined:Joined",
        "layout": "coterie.features.layout:Layout",
        "sentence": "coterie.features.sentence:Sentence",
        "hashed": "coterie.features.hashed:Hashed",
    },
    "learner": {
        "at_grpo": "coterie.learning.tree:ATGRPO",
        "coevolve": "coterie.learning.coevolve:Coevolve",
        "distill": "coterie.learning.examples:Distill",
        "maporl": "coterie.learning.debate:MAPoRL",
    },
    "router": {
        "best_single": "coterie.routers.baselines:BestSingle",
        "cheapest": "coterie.routers.baselines:Cheapest",
        "domain": "coterie.routers.baselines:Domain",
        "calibrated": "coterie.routers.calibrated:Calibrated",
        "cost_aware": "coterie.routers.cost_aware:CostAware",
        "extended": "coterie.routers.extended:Extended",
        "familiarity": "coterie.routers.familiarity:Familiarity",
        "hybrid_llm": "coterie.routers.hybrid:HybridLLM",
        "icl": "coterie.routers.in_context:ICL",
        "forest": "coterie.routers.forest:Forest",
        "knn": "coterie.routers.supervised:KNN",
        "learned_scores": "coterie.routers.learned_scores:LearnedScores",
        "lin_ucb": "coterie.routers.bandit:LinUCB",
        "matrix_factorisation": "coterie.routers.factorisation:MatrixFactorisation",
        "mlp": "coterie.routers.supervised:MLP",
        "oracle": "coterie.routers.baselines:Oracle",
        "random": "coterie.routers.baselines:Random",
        "route_moa": "coterie.routers.contrastive:RouteMoA",
        "router_dc": "coterie.routers.contrastive:RouterDC",
        "thompson": "coterie.routers.bandit:Thompson",
        "uniform": "coterie.routers.baselines:Uniform",
    },
    "strategy": {
        "attention_moa": "coterie.strategies.attention_moa:AttentionMoA",
        "best_of_n": "coterie.strategies.single:BestOfN",
        "debate": "coterie.strategies.revision:Debate",
        "moa": "coterie.strategies.moa:MoA",
        "rank_and_fuse": "coterie.strategies.rank_and_fuse:RankAndFuse",
        "rem_moa": "coterie.strategies.rem_moa:RemMoA",
        "rmoa": "coterie.strategies.rmoa:RMoA",
        "self_consistency": "coterie.strategies.single:SelfConsistency",
        "self_moa": "coterie.strategies.moa:SelfMoA",
        "self_refine": "coterie.strategies.revision:SelfRefine",
        "single": "coterie.strategies.single:Single",
        "smoa": "coterie.strategies.moa:SMoA",
        "top_k": "coterie.strategies.vote:TopK",
        "vote": "coterie.strategies.vote:Vote",
    },
}


FILES = ("weights", "choice")
"""Fields that name a file; a relative one is taken from the recipe's folder."""


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` or the list of what is known: the end of every message about a wrong name."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names) or 'none'}"


_KEY = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:sk|pk|rk|gsk|xai|hf|r8)[-_][\w*.-]{6,}|(?:ghp|gho|glpat|xox[abp])[-_][\w-]{10,}"
    r"|AIza[\w-]{8,}|(?i:bearer|basic)\s+(?=\S*[0-9])[\w.~+/=-]{6,})"
)
_RUN = re.compile(r"[A-Za-z0-9+/=_.~-]{24,}")
_USER = re.compile(r"(://)[^\s/@]+@")


def like_key(text: str) -> bool:
    """Whether a text holds what looks like a secret: a known prefix, or 24 characters, letters among digits."""
    return bool(_KEY.search(text)) or any(_mixed(run) for run in _RUN.findall(text))


def _mixed(run: str) -> bool:
    solid = any(not part.isalpha() and not part.isdigit() for part in re.findall("[A-Za-z0-9]{24,}", run))
    # Names of models and files have a few digits in places; keys change between the two all the time.
    return solid or len(re.findall("[A-Za-z][-_.]*(?=[0-9])|[0-9][-_.]*(?=[A-Za-z])", run)) >= 6


def hidden(text: str) -> str:
    """The text without what looks like a secret: for messages about settings."""
    text = _USER.sub(r"\1***@", _KEY.sub("***", text))
    return _RUN.sub(lambda found: "***" if _mixed(found[0]) else found[0], text)


def shown(value: object) -> str:
    """A setting as a message quotes it: short, one line, secrets hidden."""
    text = hidden(repr(value) if isinstance(value, str) else str(value))
    return text if len(text) <= 100 else f"{text[:99]}…"


def names(kind: str) -> list[str]:
    """All names of a kind: built-in ones and installed entry points."""
    return sorted({*COMPONENTS[kind], *(point.name for point in entry_points(group=f"coterie.{kind}"))})


def find(kind: str, name: str, where: str = "") -> type:
    """The class behind a name. A built-in name cannot be taken by a plugin."""
    if target := COMPONENTS[kind].get(name):
        module, _, attribute = target.partition(":")
        return typing.cast(type, getattr(import_module(module), attribute))
    for point in entry_points(group=f"coterie.{kind}", name=name):
        return typing.cast(type, point.load())
    raise ConfigError(f"{where}unknown {kind} {name!r}{nearest(name, names(kind))}")


def build(kind: str, table: Any, where: str = "", base: Path | None = None) -> Any:
    """Make the component that a table describes: `use` names it, the other keys are its fields.

    `where` starts every message (file and path); a relative path in one of FILES is taken from `base`.
    """
    if isinstance(table, str):
        table = {"use": table}
    if not isinstance(table, Mapping) or not isinstance(table.get("use"), str):
        raise ConfigError(f"{where}{kind}: needs `use: <name>`; known: {', '.join(names(kind))}")
    cls = find(kind, table["use"], f"{where}{kind}: ")
    options = {key: value for key, value in table.items() if key != "use"}
    for key, value in options.items():
        if key in COMPONENTS and isinstance(value, Mapping | str):
            options[key] = build(key, value, f"{where}{kind}.", base)
        elif key.removesuffix("s") in COMPONENTS and isinstance(value, list):
            options[key] = [build(key.removesuffix("s"), item, f"{where}{kind}.", base) for item in value]
        elif key in FILES and isinstance(value, str) and base is not None:
            options[key] = str(base / value)
    return validate(cls, options, f"{where}{kind}")


def validate(cls: Any, table: Any, where: str) -> Any:
    """A strict dataclass from a mapping; a wrong key or value is a ConfigError of one line."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: expected a mapping of settings, not {type(table).__name__}")
    table = _spelt_out(cls, table, where)
    check_keys(cls, table, where)
    try:
        return TypeAdapter(cls).validate_python(table)
    except ValidationError as error:
        first = error.errors()[0]
        path = hidden(".".join(str(part) for part in first["loc"]))
        reason = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{where}{'.' * bool(path)}{path}: {reason}") from None


def _spelt_out(cls: Any, table: Mapping[Any, Any], where: str) -> dict[Any, Any]:
    """The table with a field's named settings, those in `presets` of its class, written out: `loss: dapo`.

    `{use: dapo, beta: 0.01}` is that with another `beta`.
    """
    hints, found = typing.get_type_hints(cls), dict(table)
    for key, value in table.items():
        known = getattr(_dataclass_in(hints.get(key)), "presets", None)
        inner = {"use": value} if isinstance(value, str) else value
        if known is None or not isinstance(inner, Mapping) or "use" not in inner:
            continue
        if not isinstance(name := inner["use"], str) or name not in known:
            raise ConfigError(f"{where}.{key}: no preset {shown(name)}{nearest(str(name), known)}")
        found[key] = asdict(known[name]) | {part: given for part, given in inner.items() if part != "use"}
    return found


def check_keys(cls: Any, table: Mapping[Any, Any], where: str) -> None:
    """Raise ConfigError for the first key, at any depth, that the dataclass does not have, or that has no number.

    pydantic takes true for 1.
    """
    hints = typing.get_type_hints(cls)
    known = [field.name for field in fields(cls) if field.init and not field.name.startswith("_")]
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{where}: unknown key {shown(key)}{nearest(str(key), known)}")
        if _has_no_number(hints[key], value):
            raise ConfigError(f"{where}.{key}: {shown(value)}: true and false are no numbers")
        inner = _dataclass_in(hints[key])
        if inner is not None and isinstance(value, Mapping):
            check_keys(inner, value, f"{where}.{key}")
        named = _dataclass_named_in(hints[key])
        for name, table_of in value.items() if named and isinstance(value, Mapping) else ():
            if isinstance(table_of, Mapping):
                check_keys(named, table_of, f"{where}.{key}.{name}")


def _has_no_number(hint: Any, value: Any) -> bool:
    """Whether a truth value stands where a hint asks for a number, also within its lists and mappings."""
    options = _options(hint)
    if isinstance(value, bool):
        return bool not in options and bool({int, float} & set(options))
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    parts = [part for option in options for part in typing.get_args(option)]
    return any(_has_no_number(part, each) for each in inner for part in parts)


def _options(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows, one or those of a union."""
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if union else (hint,)


def _dataclass_in(hint: Any) -> Any:
    """The dataclass that a hint allows (`Sampling`, `Sampling | None`), or None."""
    return next((one for one in _options(hint) if isinstance(one, type) and is_dataclass(one)), None)


def _dataclass_named_in(hint: Any) -> Any:
    """The dataclass that a hint maps names to (`Mapping[str, Endpoint]`), or None."""
    mapped = typing.get_origin(hint) is Mapping and _dataclass_in(typing.get_args(hint)[1])
    return mapped or None


class _StrictLoader(yaml.SafeLoader):
    """YAML that refuses a key written twice, which PyYAML lets the last one win silently."""


def _unique_mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node, deep=True)  # type: ignore[no-untyped-call]
        if not isinstance(key, typing.Hashable) or key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} twice", key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds one mapping; anything else is a ConfigError of one line."""
    try:
        data = parse_yaml(path.read_text(encoding="utf-8"), f"{path}: ")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a mapping of settings at the top")
    return data


def parse_yaml(text: str, where: str) -> Any:
    """The value of a YAML text. ConfigError for what is not YAML or has no value, such as the day 2020-13-45."""
    try:
        return _whole(yaml.load(text, _StrictLoader))
    except RecursionError:
        raise ConfigError(f"{where}nested too deep") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{where}not valid YAML: {_problem(error)}") from None


def _problem(error: Exception) -> str:
    """What a YAML error says and where, without the lines that it quotes: they may hold half a key."""
    for name in ("problem_mark", "context_mark"):
        if (mark := getattr(error, name, None)) is not None:
            mark.buffer = None
    return hidden(" ".join(str(error).split()))[:300]


def _whole(value: Any) -> Any:
    """The value, halves of a character that JSON writes as two escapes joined; ValueError for a single half."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16")
    if isinstance(value, dict):
        return {_whole(key): _whole(inner) for key, inner in value.items()}
    return [_whole(inner) for inner in value] if isinstance(value, list) else value


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """One table over another: mappings join key by key, anything else replaces.

    A component under another name (`use`) replaces too: what it replaces has other fields.
    """
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping) and value.get("use") in (None, old.get("use")):
            value = laid_over(old, value)
        result[key] = value
    return result


def override(data: dict[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """`data` with `key.path=value` settings applied; values are read as YAML. The input is left alone."""
    result = {**data}
    for setting in settings:
        path, sign, text = setting.partition("=")
        if not sign or not path:
            raise ConfigError(f"--set {shown(setting)}: expected key.path=value")
        value = parse_yaml(text, f"--set {shown(setting)}: ")
        result = _put(result, path.split("."), value, setting)
    return result


def _put(node: Any, path: list[str], value: Any, setting: str) -> Any:
    """A copy of `node` with `value` at `path`; a name becomes `{use: name}` when its field is set."""
    head, *rest = path
    if isinstance(node, list):
        if not (head.isascii() and head.isdigit()) or int(head) >= len(node):
            raise ConfigError(f"--set {shown(setting)}: {shown(head)} is no index of a list of {len(node)}")
        index = int(head)
        return [*node[:index], _put(node[index], rest, value, setting) if rest else value, *node[index + 1 :]]
    if isinstance(node, str):
        node = {"use": node}
    if not isinstance(node, dict | types.NoneType):
        raise ConfigError(f"--set {shown(setting)}: {shown(head)} lies below a plain value")
    inner = (node or {}).get(head)
    return {**(node or {}), head: _put(inner, rest, value, setting) if rest else value}
