"""Settings have bounds, and a recipe that breaks one is told so in a line that names the key."""

import math

import pytest

from coterie.config import build, validate
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
