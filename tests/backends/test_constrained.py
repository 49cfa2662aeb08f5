"""Completions held to a JSON schema by the local backend: what they say, their company, their ends and failures."""

import asyncio
import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("llguidance")

from coterie.backends.base_model import base_model  # noqa: E402
from coterie.backends.constrained import KEPT, Grammars, Held  # noqa: E402
from coterie.backends.decode import Decoder  # noqa: E402
from coterie.backends.local import Local  # noqa: E402
from coterie.errors import BackendError, BadRequest, ConfigError  # noqa: E402
from coterie.strategies import prompts  # noqa: E402
from coterie.strategies.reviewer import read  # noqa: E402
from coterie.types import Sampling  # noqa: E402

SHORT = json.dumps({"type": "string", "maxLength": 5})
PAIR = json.dumps(
    {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 3, "maximum": 7},
            "s": {"type": "string", "maxLength": 9},
        },
        "required": ["n", "s"],
        "additionalProperties": False,
    }
)


@pytest.fixture
async def local(llama):
    made = []

    def make(**options):
        made.append(Local(model=llama, **options))
        return made[-1]

    yield make
    for backend in made:
        await backend.aclose()


async def said(backend, *calls):
    return await asyncio.gather(
        *(backend.generate(asked, messages, seed=seed) for asked, messages, seed in calls), return_exceptions=True
    )


@pytest.mark.parametrize("heat", [{}, {"temperature": 1.5}, {"temperature": 1.0, "top_p": 0.3}])
async def test_a_completion_fits_its_schema_and_ends_with_it(local, agent, ask, heat):
    """The random model would never end by itself; complete, the row ends, with nothing behind it."""
    [first, *others] = await said(
        local(), *((agent(schema=PAIR, max_tokens=60, **heat), ask("hi"), seed) for seed in range(8))
    )
    for found in (first, *others):
        value = json.loads(found.text)
        assert (found.finish, list(value)) == ("stop", ["n", "s"])
        assert 3 <= value["n"] <= 7
        assert len(value["s"]) <= 9
    assert ("temperature" in heat) == (len({found.text for found in (first, *others)}) > 1)


async def test_top_k_counts_the_tokens_that_the_schema_allows(local, agent, ask):
    """Masked first: were the best token taken before, there would be none to draw."""
    greedy, hot = await said(
        local(),
        (agent(schema=PAIR, max_tokens=60), ask("hi"), 0),
        (agent(schema=PAIR, max_tokens=60, temperature=3.0, top_k=1), ask("hi"), 0),
    )
    assert hot.text == greedy.text


@pytest.mark.parametrize("text", ['"a\\"b"', "{'x': \"é 😀\"}", "tab\tline\n\\u0041 \x7f \\", "数 ‮ \x00"])
async def test_quotes_escapes_and_characters_of_several_tokens_come_out_whole(local, agent, ask, text):
    """A byte tokenizer writes a character in up to four tokens, and the mask lets none be left half."""
    schema = json.dumps({"type": "array", "items": {"enum": [text]}, "minItems": 2, "maxItems": 2})
    [found] = await said(local(), (agent(schema=schema, max_tokens=200), ask("hi"), 0))
    assert json.loads(found.text) == [text, text]
    assert found.finish == "stop"


async def test_the_longest_string_ends_where_max_length_says(local, agent, ask):
    schema = json.dumps({"type": "string", "minLength": 7, "maxLength": 7})
    found = await said(
        local(), *((agent(schema=schema, temperature=2.0, max_tokens=60), ask("hi"), seed) for seed in range(6))
    )
    assert {len(json.loads(one.text)) for one in found} == {7}
    assert {one.finish for one in found} == {"stop"}


async def test_what_max_tokens_cuts_is_cut_and_what_they_just_hold_is_whole(local, agent, ask):
    schema = json.dumps({"enum": ["abcd"]})
    cut, whole = await said(local(), *((agent(schema=schema, max_tokens=n), ask("hi"), 0) for n in (4, 6)))
    assert (cut.text, cut.finish, cut.completion_tokens) == ('"abc', "length", 4)
    assert (whole.text, whole.finish, whole.completion_tokens) == ('"abcd"', "stop", 6)


@pytest.mark.parametrize("deterministic", [False, True])
async def test_rows_beside_held_ones_are_bit_for_bit_what_they_are(local, agent, ask, deterministic):
    """Ids and log-probabilities: a mask changes its own row's draw alone. Held rows hang on no company either."""
    options = {"deterministic": deterministic, "max_batch": 6, "return_tokens": True}
    free = [(agent(f"f{n}", temperature=0.8 * n, max_tokens=20), ask("x" * 9), n) for n in range(3)]
    held = [
        (agent(f"h{n}", schema=s, temperature=0.9, max_tokens=20), ask("x" * 9), n)
        for n, s in enumerate([PAIR, SHORT])
    ]
    plain = await said(local(**options), *free, *[(agent("p", max_tokens=20), ask("x" * 9), 9)] * 2)
    mixed = await said(local(**options), *free, *held)
    assert [one.tokens.completion for one in mixed[:3]] == [one.tokens.completion for one in plain[:3]]
    if deterministic:
        assert [one.tokens.logprobs for one in mixed[:3]] == [one.tokens.logprobs for one in plain[:3]]
    alone = [(await said(local(**options), call))[0] for call in held]
    assert [one.text for one in alone] == [one.text for one in mixed[3:]]


async def test_log_probabilities_are_the_models_own(local, agent, ask):
    """As where top-p cuts: what the schema forces is not certain, and nothing is minus infinity."""
    [found] = await said(local(return_tokens=True), (agent(schema=json.dumps({"enum": ["ab"]})), ask("hi"), 0))
    assert all(-60 < value < -0.01 for value in found.tokens.logprobs)


async def test_a_prefill_is_the_beginning_of_what_fits(local, agent, ask):
    whole = '{"n": 5, "s": "'
    [found] = await said(local(), (agent(schema=PAIR, max_tokens=60), ask("hi", whole), 0))
    assert json.loads(whole + found.text)["n"] == 5
    assert found.finish == "stop"


async def test_a_prefill_that_begins_nothing_is_refused_in_one_line(local, agent, ask):
    backend = local()
    found, free = await said(
        backend, (agent(schema=PAIR), ask("hi", "Answer:"), 0), (agent(), ask("hi", "Answer:"), 0)
    )
    assert isinstance(found, BadRequest)
    assert "prefill 'Answer:' begins no JSON" in str(found)
    assert free.text


BAD = {
    "type": {"type": "wurst"},
    "pattern": {"type": "string", "pattern": "("},
    "keyword": {"type": "object", "unevaluatedProperties": False},
    "reference": {"$ref": "http://elsewhere/schema"},
    "nothing fits": {"type": "integer", "minimum": 3, "maximum": 2},
    "two types": {"allOf": [{"type": "string"}, {"type": "integer"}]},
}


@pytest.mark.parametrize("schema", BAD.values(), ids=BAD)
async def test_a_schema_that_cannot_be_held_to_fails_its_own_call_only(local, agent, ask, schema):
    backend = local()
    bad, beside = await said(
        backend,
        (agent("bad", schema=json.dumps(schema)), ask("hi"), 0),
        (agent("good", schema=SHORT, max_tokens=30), ask("hi"), 0),
    )
    assert isinstance(bad, BadRequest)
    assert "schema is wrong or not supported" in str(bad)
    assert "\n" not in str(bad)
    assert json.loads(beside.text) is not None
    assert (await said(backend, (agent(), ask("hi"), 0)))[0].text


@pytest.mark.parametrize("text", ["{", "[]", "true", "nonsense", "[" * 100_000])
def test_what_is_no_table_is_refused_where_it_is_set(text):
    with pytest.raises(ConfigError, match="no JSON schema"):
        Sampling(schema=text)


async def test_a_grammar_that_cannot_go_on_fails_its_own_row(local, agent, ask, monkeypatch):
    """The library has limits; the thread lives on, and so does the row beside it."""
    before = Held.allowed

    def limited(self, width):
        self.seen = getattr(self, "seen", 0) + 1
        if self.seen == 3:
            raise BackendError("too many states")
        return before(self, width)

    monkeypatch.setattr(Held, "allowed", limited)
    backend = local()
    calls = [
        (agent("held", schema=PAIR, max_tokens=40), ask("hi"), 0),
        (agent("free", max_tokens=20), ask("hi"), 0),
    ]
    held, free = await said(backend, *calls)
    assert "too many states" in str(held)
    assert free.completion_tokens == 20
    monkeypatch.undo()
    assert json.loads((await said(backend, calls[0]))[0].text)


async def test_a_schema_is_compiled_once_and_the_oldest_is_forgotten(llama, local, agent, ask, monkeypatch):
    made, compiled = [], Grammars._compile

    def counted(self, schema):
        made.append(schema)
        return compiled(self, schema)

    monkeypatch.setattr(Grammars, "_compile", counted)
    fresh = [json.dumps({"enum": [word]}) for word in ("once", "and for all")]
    await said(local(), *((agent(schema=schema), ask("hi"), n) for n in range(4) for schema in fresh))
    assert sorted(made) == sorted(fresh)
    grammars = base_model(llama).grammars
    for n in range(KEPT):
        grammars.begin(json.dumps({"enum": [n]}))
    assert len(grammars._compiled) == KEPT
    assert not set(fresh) & set(grammars._compiled)


@pytest.mark.parametrize("deterministic", [False, True])
async def test_a_cancelled_held_row_leaves_its_batch(local, agent, ask, monkeypatch, deterministic):
    endless = json.dumps({"type": "string", "minLength": 500})
    backend = local(deterministic=deterministic, max_batch=2)
    busy, step = [], Decoder.step

    def counted(self, slots, tokens, positions, columns):
        busy.append(sum(position > 0 for position in positions))
        return step(self, slots, tokens, positions, columns)

    monkeypatch.setattr(Decoder, "step", counted)
    held = asyncio.ensure_future(backend.generate(agent("h", schema=endless, max_tokens=400), ask("x"), seed=0))
    free = asyncio.ensure_future(backend.generate(agent("f", max_tokens=40), ask("x"), seed=0))
    while 2 not in busy:
        await asyncio.sleep(0.001)
    held.cancel()
    assert (await free).completion_tokens == 40
    with pytest.raises(asyncio.CancelledError):
        await held
    assert busy[-1] == 1
    assert len(busy) < 400


@pytest.mark.model
async def test_fifty_reviews_of_the_embedded_model_are_all_of_the_form(agent, ask):
    """R8: a model of 135M hardly ever writes the JSON by itself; within its `max_tokens` it does here."""
    backend = Local(model="builtin:smollm2-135m", max_batch=32)
    asks = [
        f"Review these attempts at 12 + {n}: 1. 'It is \"{n}\".' 2. '🙂 {n + 12}' Reply with {prompts.SHAPE}"
        for n in range(5)
    ]
    schema = prompts.review_schema((1, 2), 110)
    reviewer = agent("r", schema=schema, temperature=1.0, max_tokens=110)
    try:
        found = await said(backend, *((reviewer, ask(text), seed) for text in asks for seed in range(11)))
    finally:
        await backend.aclose()
    exact = [read(one.text, 2).exact for one in found]
    assert len(exact) == 55
    assert sum(exact) >= 0.99 * len(exact)
    assert len({one.text for one in found}) > 2 * len(asks), "the draw is still a draw"
