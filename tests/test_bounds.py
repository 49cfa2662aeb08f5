"""Settings have bounds, and a recipe that breaks one is told so in a line that names the key."""

import math
import re
import typing
from dataclasses import is_dataclass
from types import UnionType

import pytest

from coterie.config import COMPONENTS, build, check_keys, find, validate
from coterie.errors import ConfigError
from coterie.rollout import Limits
from coterie.types import Agent

AGENT = {"name": "a", "model": "scripted:a"}
NAN, INF = math.nan, math.inf

WRONG = [
    ("strategy", "top_k", "k", (0, -1)),
    ("strategy", "single", "fallbacks", (-1,)),
    ("strategy", "self_consistency", "samples", (0,)),
    ("strategy", "self_consistency", "temperature", (-0.1, NAN)),
    ("strategy", "best_of_n", "samples", (0,)),
    ("strategy", "vote", "threshold", (-0.1, NAN)),
    ("strategy", "rem_moa", "layers", (0,)),
    ("strategy", "rem_moa", "agreement", (0, 1.1, NAN)),
    ("strategy", "rem_moa", "aggregator_contrastive", (0,)),
    (
        "strategy",
        "rem_moa",
        "panel",
        ({"width": 0}, {"quorum": 0}, {"deadline": 0}, {"deadline": INF}, {"context": 0}),
    ),
    ("strategy", "moa", "layers", (0,)),
    ("strategy", "rmoa", "keep", (0,)),
    ("strategy", "smoa", "keep", (0,)),
    ("strategy", "self_moa", "samples", (0,)),
    ("strategy", "self_refine", "rounds", (-1,)),
    ("strategy", "debate", "rounds", (0,)),
    ("strategy", "rank_and_fuse", "keep", (0,)),
    ("router", "cheapest", "prompt_tokens", (-1,)),
    ("router", "knn", "k", (0,)),
    ("router", "mlp", "layers", ([8, 0],)),
    ("router", "mlp", "lr", (0, -1, NAN, INF)),
    ("router", "mlp", "epochs", (0,)),
    ("router", "mlp", "batch", (0,)),
    ("router", "mlp", "validation", (-0.1, 1, NAN)),
    ("router", "mlp", "patience", (0,)),
    ("router", "mlp", "decay", (-1,)),
    ("router", "familiarity", "hidden", (0,)),
    ("router", "familiarity", "scale", (0, NAN)),
    ("router", "familiarity", "margin", (-1,)),
    ("router", "familiarity", "noise", (-1,)),
    ("router", "familiarity", "validation", (1.0,)),
]


@pytest.mark.parametrize(("kind", "use", "key", "values"), WRONG)
def test_components(kind, use, key, values):
    for value in values:
        with pytest.raises(ConfigError, match=rf"^toy\.yaml: {kind}\.{key}.*: Input should be") as error:
            build(kind, {"use": use, key: value}, "toy.yaml: ")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "values"),
    [("calls", (-1,)), ("tokens", (-1,)), ("cost_usd", (-0.1, NAN)), ("seconds", (-1, NAN, INF))],
)
def test_limits(key, values):
    for value in values:
        with pytest.raises(ConfigError, match=rf"^limits\.{key}: "):
            validate(Limits, {key: value}, "limits")


@pytest.mark.parametrize(
    ("part", "key", "values"),
    [
        ("sampling", "temperature", (-0.1, NAN, INF)),
        ("sampling", "top_p", (0, 1.1, NAN)),
        ("sampling", "top_k", (-1,)),
        ("sampling", "max_tokens", (0,)),
        ("sampling", "max_prompt_tokens", (-1,)),
        ("price", "prompt", (-1, NAN)),
        ("price", "completion", (-1,)),
    ],
)
def test_agents(part, key, values):
    for value in values:
        with pytest.raises(ConfigError, match=rf"^agent a\.{part}\.{key}: "):
            validate(Agent, {**AGENT, part: {key: value}}, "agent a")


@pytest.mark.parametrize(("key", "value"), [("max_batch", 0), ("cache_gib", 0), ("cache_gib", NAN)])
def test_the_local_backend(key, value):
    with pytest.raises(ConfigError, match=key):
        build("backend", {"use": "local", "model": "m", key: value})


def test_the_edges_are_inside():
    sampling = {"temperature": 0, "top_p": 1, "top_k": 0, "max_tokens": 1, "max_prompt_tokens": 0}
    agent = validate(Agent, {**AGENT, "sampling": sampling, "price": {"prompt": 0, "completion": None}}, "a")
    assert (agent.sampling.max_tokens, agent.price.prompt, agent.price.completion) == (1, 0.0, None)
    limits = validate(Limits, {"calls": 0, "tokens": None, "cost_usd": 0, "seconds": None}, "limits")
    assert (limits.calls, limits.tokens, limits.cost_usd) == (0, None, 0.0)
    assert build("strategy", {"use": "top_k", "k": None}).k is None
    assert build("strategy", {"use": "vote", "threshold": 0}).threshold == 0
    assert build("strategy", {"use": "self_consistency", "temperature": None}).temperature is None
    assert build("router", {"use": "mlp", "layers": [], "validation": 0}).validation == 0


# --- truth values are no numbers ----------------------------------------------------------------------


def numeric(cls, path=()):
    """Every setting of a component and of what it holds that asks for a number, as a path of keys."""
    for key, hint in typing.get_type_hints(cls).items():
        parts = typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)
        if {int, float} & set(parts) and bool not in parts:
            yield (*path, key)
        for part in parts:
            if is_dataclass(part):
                yield from numeric(part, (*path, key))


def settings_of(path, value):
    """`value` under a path of keys."""
    for key in reversed(path):
        value = {key: value}
    return value


ALL = [(kind, name) for kind, table in COMPONENTS.items() for name in table]


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_true_is_not_one_in_any_setting(kind, name):
    """pydantic reads true as 1: `queries: true` would train on one query."""
    cls = find(kind, name)
    for path in numeric(cls):
        for value in (True, False):
            with pytest.raises(ConfigError, match=rf"^toy\.{re.escape('.'.join(path))}: {value}: true and false"):
                validate(cls, settings_of(path, value), "toy")


@pytest.mark.parametrize(
    ("kind", "name", "table", "where"),
    [
        ("learner", "coevolve", {"tasks": {"builtin": True}}, "tasks"),
        ("learner", "coevolve", {"tasks": {}, "optimiser": {"betas": [0.9, True]}}, "optimiser.betas"),
        ("router", "mlp", {"layers": [True, 8]}, "layers"),
        ("encoder", "hidden", {"layers": [False]}, "layers"),
    ],
)
def test_true_is_not_one_within_a_list_or_a_mapping(kind, name, table, where):
    with pytest.raises(ConfigError, match=rf"^toy\.{re.escape(where)}: .*true and false are no numbers"):
        validate(find(kind, name), table, "toy")


def test_numbers_are_asked_for_in_many_settings_and_true_stands_where_it_may():
    found = {name: len(list(numeric(find(kind, name)))) for kind, name in ALL}
    assert found["coevolve"] > 40
    assert found["vote"] == 1
    assert validate(find("router", "knn"), {"standardise": True, "k": 1}, "toy").standardise is True
    check_keys(Agent, {**AGENT, "sampling": {"temperature": 1}}, "toy")
