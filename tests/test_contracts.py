"""The contract of each kind of part, run over every built-in one and every installed plugin."""

import asyncio
import random
from dataclasses import replace

import numpy as np
import pytest

from coterie.backends.recorded import Scripted
from coterie.config import build, names
from coterie.outcomes import Outcomes
from coterie.pool import pool_of, revise
from coterie.rollout import Limits
from coterie.tasks import catalog
from coterie.tasks.extract import CONTRACTS
from coterie.types import Agent, Completion, Message, Price, Query, State, Tokens

AGENTS = [
    revise(Agent(name=name, model=f"scripted:{name}", price=Price(prompt=p, completion=p)))
    for name, p in (("ada", 0.0), ("bob", 1.0), ("cyd", None))
]
POOL = pool_of(AGENTS)
QUERIES = tuple(
    Query(
        id=f"q{n}",
        messages=(Message(role="user", content=f"{kind} number {n}"),),
        task="math",
        contract="answer",
        reference={"answer": str(n)},
        metadata={"domain": kind},
    )
    for n in range(12)
    for kind in ("sum", "word")
    for n in (n * 2 + (kind == "word"),)
)


def outcomes() -> Outcomes:
    """ada is right on sums, bob on words, cyd now and then; one outcome is missing."""
    scores = np.array(
        [[q.domain == "sum", q.domain == "word", i % 4 == 0] for i, q in enumerate(QUERIES)], dtype=float
    )
    scores[3, 2] = np.nan
    used = np.full_like(scores, 10.0)
    revisions = {agent.name: agent.revision for agent in AGENTS}
    return Outcomes(
        queries=QUERIES,
        agents=("ada", "bob", "cyd"),
        scores=scores,
        tokens=used,
        costs=used / 1e6,
        revisions=revisions,
    )


def router(name: str):
    """The router as a user would have it: over a light encoder, fitted where it learns."""
    fields = build_fields(name)
    made = build("router", {"use": name, **fields})
    return made.fit(outcomes()) if hasattr(made, "fit") else made


def build_fields(name: str) -> dict:
    from coterie.config import find

    return {"encoder": {"use": "hashed"}} if "encoder" in find("router", name).__dataclass_fields__ else {}


@pytest.mark.parametrize("name", names("router"))
def test_router_weights_sum_to_one_over_the_solvers(name):
    made = router(name)
    judge = revise(Agent(name="judge", model="scripted:j", role="reviewer"))
    for query in QUERIES[:4]:
        routing = made.route(State(query, POOL.with_agents(judge), (), 5))
        assert set(routing.weights) == {"ada", "bob", "cyd"}
        assert sum(routing.weights.values()) == pytest.approx(1.0)
        assert all(np.isfinite(v) and v >= 0 for v in routing.weights.values())
        assert all(isinstance(v, float) for v in routing.weights.values())


@pytest.mark.parametrize("name", names("router"))
def test_router_does_not_depend_on_the_order_of_agents(name):
    """R6: permuting agents permutes scores, and a tie is no privilege of the first."""
    made = router(name)
    turned = pool_of(AGENTS[::-1])
    for query in QUERIES[:4]:
        one, two = (made.route(State(query, pool, (), 7)) for pool in (POOL, turned))
        assert one.ranked() == two.ranked()
        assert dict(one.weights) == pytest.approx(dict(two.weights))


@pytest.mark.parametrize("name", names("router"))
def test_router_decides_the_same_again_and_from_threads(name):
    made = router(name)
    states = [State(query, POOL, (), seed) for seed, query in enumerate(QUERIES)]

    async def together():
        return await asyncio.gather(*(asyncio.to_thread(made.route, state) for state in states))

    serial = [made.route(state) for state in states]
    assert [r.weights for r in asyncio.run(together())] == [r.weights for r in serial]


@pytest.mark.parametrize("name", [n for n in names("router") if n not in ("random", "uniform", "cheapest")])
def test_learned_router_survives_the_disk_and_fit_leaves_the_old_one_alone(name, tmp_path):
    bare = build("router", {"use": name, **build_fields(name)})
    fitted = bare.fit(outcomes())
    assert fitted is not bare
    fitted.save(tmp_path / "router.safetensors")
    loaded = build("router", {"use": name, **build_fields(name), "weights": "router.safetensors"}, base=tmp_path)
    for query in QUERIES:
        state = State(query, POOL, (), 1)
        assert loaded.route(state).ranked() == fitted.route(state).ranked()
        assert dict(loaded.route(state).weights) == pytest.approx(dict(fitted.route(state).weights), abs=1e-6)


@pytest.mark.parametrize("name", ["domain", "familiarity", "knn", "mlp", "oracle"])
def test_learned_router_tells_planted_experts_apart(name):
    made = router(name)
    right = sum(
        made.route(State(q, POOL, (), 3)).ranked()[0]
        in ({"sum": ("ada",), "word": ("bob",)}[q.domain] + ("cyd",) * (i % 4 == 0))
        for i, q in enumerate(QUERIES)
    )
    assert right >= 0.8 * len(QUERIES)


@pytest.mark.parametrize("name", names("router"))
def test_router_gives_an_agent_it_never_saw_a_valid_weight(name):
    made = router(name)
    new = revise(Agent(name="new", model="scripted:new", price=Price(prompt=2.0, completion=2.0)))
    routing = made.route(State(QUERIES[0], POOL.with_agents(new), (), 1))
    assert set(routing.weights) == {"ada", "bob", "cyd", "new"}
    assert sum(routing.weights.values()) == pytest.approx(1.0)


def reply(agent, messages, seed):
    text = str(seed % 3)
    tokens = Tokens(prompt=(1,), completion=(2, 3), logprobs=(-0.1 * (seed % 5), -0.2))
    return Completion(text=text, prompt_tokens=5, completion_tokens=2, tokens=tokens)


@pytest.mark.parametrize("name", names("strategy"))
async def test_strategy_asks_pool_members_within_the_limits(name, scripted_team):
    for calls in (1, 2, 64):
        team = scripted_team(
            dict.fromkeys("abc", reply), strategy=build("strategy", name), limits=Limits(calls=calls)
        )
        trace = await team.solve(QUERIES[0])
        assert len(trace.turns) <= calls
        assert {t.agent for t in trace.turns} <= set(team.pool)
        assert trace.final is not None
        assert trace.stopped in ("done", "budget")


@pytest.mark.parametrize("name", names("strategy"))
async def test_strategy_gives_the_same_trace_under_other_latencies(name, scripted_team):
    async def jittered(agent, messages, *, seed):
        await asyncio.sleep(random.random() / 100)
        return reply(agent, messages, seed)

    traces = []
    for _ in range(3):
        team = scripted_team(dict.fromkeys("abc", reply), strategy=build("strategy", name))
        for agent in team.pool.values():
            object.__setattr__(team.backends.of(agent), "generate", jittered)
        traces.append(replace(await team.solve(QUERIES[1]), seconds=0.0))
    assert traces[0] == traces[1] == traces[2]


@pytest.mark.parametrize("name", names("strategy"))
async def test_strategy_survives_an_agent_that_fails(name, scripted_team):
    """What cannot be answered ends as data, never as an exception."""
    from coterie.errors import BackendError

    for failing in ("a", "b", "c"):
        replies = {n: BackendError("down") if n == failing else reply for n in "abc"}
        trace = await scripted_team(replies, strategy=build("strategy", name)).solve(QUERIES[2])
        assert trace.stopped in ("done", "failed")
        assert (trace.final is None) == (trace.stopped == "failed")
    every = {n: BackendError("down") for n in "abc"}
    trace = await scripted_team(every, strategy=build("strategy", name)).solve(QUERIES[2])
    assert trace.stopped == "failed"


@pytest.mark.parametrize("kind", sorted(catalog.KINDS))
def test_kind_judges_nothing_as_something(kind):
    """G4: no text is ever right by being empty, and no gold is an error, not a wrong answer."""
    query = Query(
        id="q", messages=(Message(role="user", content="?"),), task=kind, contract=catalog.KINDS[kind].contract
    )
    score = catalog.verify("anything", query)
    assert score.verdict == "error"
    assert score.value is None
    reader = catalog.reader_of(query)
    assert reader.same("a", "a")


@pytest.mark.parametrize("name", sorted(CONTRACTS))
@pytest.mark.parametrize(
    "text", ["", " \n", "\\boxed{", "```", "{}", "ANSWER:", "Answer:", "\ud800", "x" * 100_000]
)
def test_contract_reads_any_text(name, text):
    found = CONTRACTS[name].extract(text)
    assert found is None or isinstance(found, str)


@pytest.mark.parametrize("name", [n for n in names("encoder") if n != "hidden"])
def test_encoder_gives_one_row_a_prompt_and_the_same_again(name):
    encoder = build("encoder", name)
    prompts = [q.messages for q in QUERIES[:5]]
    first, second = encoder.encode(prompts), encoder.encode(prompts[::-1])[::-1]
    assert first.shape[0] == 5
    assert first.dtype == np.float32
    assert np.allclose(first, second, atol=1e-5)
    assert np.isfinite(first).all()
    assert encoder.encode([]).shape[0] == 0


@pytest.mark.parametrize("name", names("backend"))
def test_backend_says_what_it_is_without_loading_anything(name):
    from coterie.config import find

    cls = find("backend", name)
    assert {"prepare", "generate", "aclose"} <= set(dir(cls))


async def test_backend_gives_equal_completions_for_equal_calls():
    backend = Scripted(model="s", answer=reply)
    one, two = [await backend.generate(AGENTS[0], QUERIES[0].messages, seed=4) for _ in range(2)]
    assert one.text == two.text
