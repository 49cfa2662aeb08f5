"""The contract of each kind of part, run over every built-in one and every installed plugin."""

import asyncio
import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import config
from coterie.backends.recorded import Replay, Scripted
from coterie.config import build, find, names
from coterie.errors import BackendError, ConfigError, UserError
from coterie.outcomes import Outcomes
from coterie.pool import pool_of, revise
from coterie.rollout import Limits
from coterie.storage.tables import Verdict, write_table
from coterie.tasks import catalog
from coterie.tasks.contamination import question_and_options
from coterie.tasks.extract import CONTRACTS
from coterie.types import Agent, Completion, Message, Price, Query, Routing, Sampling, State, Tokens, Turn, spec

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
    for pair in range(12)
    for n, kind in ((2 * pair, "sum"), (2 * pair + 1, "word"))
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


INNER = {"use": "knn", "encoder": "hashed", "k": 5}
SETTINGS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "router": {
        "calibrated": {"router": INNER},
        "cost_aware": {"router": INNER, "trade": 100.0},
        "extended": {"router": INNER},
    },
    "encoder": {"joined": {"encoders": ["hashed", "layout"]}},
}
"""What a part cannot be made without; the others have defaults."""
LEARNED = [name for name in names("router") if hasattr(find("router", name), "fit")]
PREDICTING = [name for name in names("router") if hasattr(find("router", name), "predict")]


def table_of(name: str, **more: Any) -> dict[str, Any]:
    """The router's settings, over a light encoder."""
    light = {"encoder": "hashed"} if "encoder" in find("router", name).__dataclass_fields__ else {}
    return {"use": name, **light, **SETTINGS["router"].get(name, {}), **more}


@cache
def router(name: str):
    """The router as a user would have it, fitted where it learns; once, as nothing that a test does changes it."""
    made = build("router", table_of(name))
    if name == "learned_scores":
        return online(made.encoder)
    return made.fit(outcomes()) if name in LEARNED else made


def online(encoder: Any) -> Any:
    """The one router that only training makes."""
    from coterie.learning.routing import RoutingLearner, RoutingUpdate

    settings = RoutingUpdate(metric="regression", hidden=8, standardise=0)
    width = encoder.encode([QUERIES[0].messages]).shape[1]
    return RoutingLearner(POOL.names(), width, settings).router(POOL, encoder)


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


@pytest.mark.parametrize("name", PREDICTING)
def test_router_predicts_for_many_what_it_decides_for_one(name):
    """R1: a query's scores do not depend on those that are asked about with it, nor on the order of agents."""
    made = router(name)
    table = made.predict(QUERIES, POOL)
    assert table.shape == (len(QUERIES), 3)
    assert np.isfinite(table).all()
    assert (table >= 0).all()
    for row, query in zip(table, QUERIES, strict=True):
        scores = made.route(State(query, POOL, (), 1)).scores
        assert [scores[name] for name in POOL.names()] == pytest.approx(row.tolist(), abs=1e-6)
    assert np.allclose(made.predict(QUERIES[::-1], pool_of(AGENTS[::-1]))[::-1], table, atol=1e-6)
    assert made.predict([], POOL).shape == (0, 3)


@pytest.mark.parametrize("name", LEARNED)
def test_learned_router_survives_the_disk_and_fit_leaves_the_old_one_alone(name, tmp_path):
    bare = build("router", table_of(name))
    before = dict(vars(bare))
    fitted = bare.fit(outcomes())
    assert fitted is not bare
    assert {key: vars(bare)[key] for key in before} == before
    fitted.save(tmp_path / "router.safetensors")
    loaded = build("router", table_of(name, weights="router.safetensors"), base=tmp_path)
    for query in QUERIES:
        state = State(query, POOL, (), 1)
        assert loaded.route(state).ranked() == fitted.route(state).ranked()
        assert dict(loaded.route(state).weights) == pytest.approx(dict(fitted.route(state).weights), abs=1e-6)


@pytest.mark.parametrize("name", LEARNED)
def test_router_fitted_on_the_same_outcomes_decides_the_same(name):
    """What the survivor of the disk decides is what this test's own fit decides: nothing is left to chance."""
    again = build("router", table_of(name)).fit(outcomes())
    for query in QUERIES[:6]:
        state = State(query, POOL, (), 1)
        assert again.route(state) == router(name).route(state)


WITHOUT_EXTRAS = """
import sys
for name in ("torch", "sklearn", "scipy"):
    sys.modules[name] = None
sys.path.insert(0, sys.argv[1])
import test_contracts as here
from coterie.errors import ConfigError, MissingExtra
for name in here.LEARNED:
    table = here.table_of(name)
    try:
        made = here.build("router", table).fit(here.outcomes())
        print(name, "fits", sorted(made.route(here.State(here.QUERIES[0], here.POOL)).weights))
    except MissingExtra as error:
        print(name, "needs", error)
asked = here.build("router", here.table_of("familiarity", weights=sys.argv[2]))
try:
    asked.route(here.State(here.QUERIES[0], here.POOL))
except MissingExtra as error:
    print("asking familiarity needs", error)
"""


def test_a_router_whose_extra_is_absent_says_what_to_install(tmp_path):
    """Without torch and scikit-learn a router can be fitted, or names the extra that it needs: no traceback."""
    router("familiarity").save(tmp_path / "weights")
    command = [sys.executable, "-c", WITHOUT_EXTRAS, str(Path(__file__).parent), str(tmp_path / "weights")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert set(said) == {*LEARNED, "asking"}
    light = {name for name, text in said.items() if text.startswith("fits")}
    assert {"best_single", "calibrated", "cost_aware", "domain", "extended", "knn", "oracle"} <= light
    for name in ("mlp", "familiarity"):
        assert said[name] == "needs torch is not installed: pip install 'coterie[local]'"
    assert said["asking"].endswith("needs torch is not installed: pip install 'coterie[local]'")
    assert said["forest"] == "needs scikit-learn is not installed: pip install 'coterie[routers]'"


@pytest.mark.parametrize(
    "name", ["calibrated", "domain", "extended", "familiarity", "forest", "knn", "mlp", "oracle"]
)
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
    for failing in ("a", "b", "c"):
        replies = {n: BackendError("down") if n == failing else reply for n in "abc"}
        trace = await scripted_team(replies, strategy=build("strategy", name)).solve(QUERIES[2])
        assert trace.stopped in ("done", "failed")
        assert (trace.final is None) == (trace.stopped == "failed")
    every = {n: BackendError("down") for n in "abc"}
    trace = await scripted_team(every, strategy=build("strategy", name)).solve(QUERIES[2])
    assert trace.stopped == "failed"


# --- kinds of task and answer contracts ---------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """A small item of one kind: its gold, a right text, a wrong one, and golds that nothing can be graded by."""

    gold: Mapping[str, Any]
    right: str
    wrong: str
    malformed: tuple[Mapping[str, Any], ...]


SUM = {"dataset": "chain_sum", "config": {}, "answer": "7", "entry": {"answer": "7", "metadata": {}}}
CASES = [{"input": "3\n", "output": "6\n"}, {"input": "5\n", "output": "10\n"}]
SHORT = {"instruction_id_list": ["punctuation:no_comma"], "instruction_kwargs": [{}]}
SAMPLES = {
    "choice": Sample(
        {"answer": "B", "choices": ["red", "blue"]},
        "The answer is B.",
        "The answer is A.",
        ({"answer": "C", "choices": ["red", "blue"]}, {"choices": ["red", "blue"]}, {"answer": 3, "choices": 4}),
    ),
    "code_function": Sample(
        {"tests": ["assert twice(2) == 4", "assert twice(0) == 0"], "fn_name": "twice"},
        "```python\ndef twice(n):\n    return 2 * n\n```",
        "```python\ndef twice(n):\n    return n\n```",
        ({"tests": []}, {"tests": ["assert ("]}, {}),
    ),
    "code_stdio": Sample(
        {"tests": CASES},
        "```python\nprint(2 * int(input()))\n```",
        "```python\nprint(int(input()))\n```",
        ({"tests": []}, {"tests": ["3"]}, {}),
    ),
    "instruction": Sample(
        SHORT,
        "No such mark here.",
        "First, second.",
        (SHORT | {"instruction_id_list": ["punctuation:no_coma"]}, SHORT | {"instruction_kwargs": []}, {}),
    ),
    "math": Sample(
        {"answer": "\\frac{1}{2}"}, "so \\boxed{0.5}", "so \\boxed{2}", ({"answer": ""}, {"answer": None}, {})
    ),
    "qa": Sample(
        {"answers": ["Lima", "the city of Lima"]},
        "Answer: lima",
        "Answer: Quito",
        ({"answers": []}, {"answers": ["Lima"], "metric": "bleu"}, {}),
    ),
    "reasoning_gym": Sample(
        SUM, "Answer: 7", "Answer: 8", (SUM | {"dataset": "chain_sun", "answer": "9"}, SUM | {"entry": None}, {})
    ),
    "recorded": Sample(
        {"query_id": "q1"},
        Verdict(query="q1", agent="ada", score=1.0).text(),
        Verdict(query="q1", agent="ada", score=0.5).text(),
        ({"query_id": "q2"}, {}),
    ),
}


def asked(kind: str, gold: Mapping[str, Any] | None) -> Query:
    message = Message(role="user", content="?")
    return Query(id="q", messages=(message,), task=kind, contract=catalog.KINDS[kind].contract, reference=gold)


def test_every_kind_that_is_graded_is_sampled_here():
    assert set(SAMPLES) | {"chat"} == set(catalog.KINDS)


@pytest.mark.parametrize("kind", sorted(SAMPLES))
def test_kind_passes_the_right_answer_and_fails_a_wrong_one(kind):
    """And a text without any answer fails too, but for `recorded`, where it is no recorded outcome (G4)."""
    sample = SAMPLES[kind]
    query = asked(kind, sample.gold)
    right, wrong, none = (catalog.verify(text, query) for text in (sample.right, sample.wrong, " "))
    assert (right.verdict, right.value) == ("pass", 1.0), right
    assert wrong.verdict == "fail", wrong
    assert wrong.value is not None
    assert 0 <= wrong.value < 1
    assert (none.verdict, none.value) == (("error", None) if kind == "recorded" else ("fail", 0.0)), none


@pytest.mark.parametrize("kind", sorted(SAMPLES))
def test_kind_has_no_verdict_by_a_malformed_gold(kind):
    """G17, R24: an error of its own, without value, with a reason in one line; right answers are no exception."""
    for gold in SAMPLES[kind].malformed:
        for text in (SAMPLES[kind].right, SAMPLES[kind].wrong):
            score = catalog.verify(text, asked(kind, gold))
            assert (score.verdict, score.value, score.correct) == ("error", None, None), gold
            assert score.reason
            assert "\n" not in score.reason


@pytest.mark.parametrize("kind", sorted(SAMPLES))
def test_kind_tells_the_same_answer_from_another(kind):
    reader = catalog.reader_of(asked(kind, SAMPLES[kind].gold))
    right, wrong = (reader.extract(text) for text in (SAMPLES[kind].right, SAMPLES[kind].wrong))
    assert right is not None
    assert wrong is not None
    assert reader.same(right, right)
    assert not reader.same(right, wrong)
    assert not reader.same(wrong, right)


def test_chat_is_never_graded():
    for gold in (None, {"answer": "4"}):
        assert catalog.verify("4", asked("chat", gold)).verdict == "error"


@pytest.mark.parametrize("kind", catalog.kind_names())
def test_kind_judges_nothing_as_something(kind):
    """G4: no text is ever right by being empty, and no gold is an error, not a wrong answer."""
    query = Query(
        id="q",
        messages=(Message(role="user", content="?"),),
        task=kind,
        contract=catalog.find_kind(kind).contract,
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


# --- encoders and backends ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    """Folder of a tiny random model, that of the local backend's own tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(Path(__file__).parent / "backends"), *sys.path])
        from tiny_models import save
    return save(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def encoder(request):
    """The encoder of a name; `hidden` reads the states of the tiny model."""
    name = request.param
    if name != "hidden":
        return build("encoder", {"use": name, **SETTINGS["encoder"].get(name, {})})
    return build("encoder", {"use": name, "model": request.getfixturevalue("tiny")})


@pytest.mark.parametrize("encoder", names("encoder"), indirect=True)
def test_encoder_gives_one_row_a_prompt_and_the_same_again(encoder):
    prompts = [q.messages for q in QUERIES[:5]]
    first, second = encoder.encode(prompts), encoder.encode(prompts[::-1])[::-1]
    assert first.shape[0] == 5
    assert first.dtype == np.float32
    assert np.allclose(first, second, atol=1e-5)
    assert np.isfinite(first).all()
    assert encoder.encode([]).shape == (0, first.shape[1])
    assert len(np.unique(first.round(4), axis=0)) == 5
    assert encoder.identity == replace(encoder).identity


@pytest.mark.parametrize("encoder", names("encoder"), indirect=True)
def test_encoder_gives_threads_what_it_gives_one(encoder):
    """R1, R8: also where the threads are what loads the model."""
    prompts = [q.messages for q in QUERIES[:6]]

    async def together():
        return await asyncio.gather(*(asyncio.to_thread(encoder.encode, [p]) for p in (*prompts, *prompts)))

    rows = np.concatenate(asyncio.run(together()))
    assert np.allclose(rows, np.concatenate([encoder.encode(prompts)] * 2), atol=1e-5)


@dataclass(frozen=True)
class Offer:
    """A backend with an agent that it serves, and pairs of backend and agent that cannot be served."""

    backend: Any
    agent: Agent
    absent: tuple[tuple[Any, Agent], ...]


def local_offer(folder: Path, request: pytest.FixtureRequest) -> Offer:
    from coterie.backends.local import Local

    tiny = request.getfixturevalue("tiny")
    agent = revise(Agent(name="ada", model=f"local:{tiny}", sampling=Sampling(temperature=0.8, max_tokens=8)))
    backend = Local(model=tiny, deterministic=True, max_batch=4)
    lost = replace(agent, adapter=str(folder / "no-adapter"))
    return Offer(backend, agent, ((Local(model=str(folder / "nothing")), agent), (backend, lost)))


def replay_offer(folder: Path, request: pytest.FixtureRequest) -> Offer:
    write_table(folder / "table", outcomes(), asked=question_and_options)
    agent = Agent(name="ada", model=f"replay:{folder / 'table'}")
    backend = Replay(model=str(folder / "table"))
    absent = (
        (Replay(model=str(folder / "nothing")), agent),
        (backend, replace(agent, name="eve")),
        (backend, replace(agent, instruction="Be brief.")),
    )
    return Offer(backend, agent, absent)


def scripted_offer(folder: Path, request: pytest.FixtureRequest) -> Offer:
    absent = ((Scripted(model="s"), AGENTS[0]), (Scripted(model="s", answer=reply, broken="down"), AGENTS[0]))
    return Offer(Scripted(model="s", answer=reply), AGENTS[0], absent)


def http_offer(folder: Path, request: pytest.FixtureRequest) -> Offer:
    from coterie.backends.endpoint import Endpoint
    from coterie.backends.http import Http

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(Path(__file__).parent / "backends"), *sys.path])
        from upstream import in_thread
    served = in_thread()
    upstream = served.__enter__()
    request.addfinalizer(lambda: served.__exit__(None, None, None))
    agent = revise(Agent(name="ada", model="http:e/m"))
    gone = Http(endpoints={"e": Endpoint(base_url="http://127.0.0.1:9/v1", retries=0)})
    backend = Http(endpoints={"e": Endpoint(base_url=upstream.base_url)})
    absent = ((Http(), agent), (gone, agent), (backend, replace(agent, adapter=str(folder))))
    return Offer(backend, agent, absent)


OFFERS = {"http": http_offer, "local": local_offer, "replay": replay_offer, "scripted": scripted_offer}


@pytest.fixture
async def offer(request, tmp_path):
    made = OFFERS[request.param](tmp_path, request)
    yield made
    for backend in (made.backend, *(backend for backend, _ in made.absent)):
        await backend.aclose()


def said(completion: Completion) -> Completion:
    """All of a completion but the time that it took."""
    return replace(completion, seconds=0.0)


BACKENDS = pytest.mark.parametrize("offer", sorted(config.COMPONENTS["backend"]), indirect=True)
CALLS = [(query.messages, seed) for query in QUERIES[:3] for seed in (1, 2)]


@pytest.mark.parametrize("name", names("backend"))
def test_backend_says_what_it_is_without_loading_anything(name):
    assert {"prepare", "generate", "aclose"} <= set(dir(find("backend", name)))


@BACKENDS
async def test_backend_gives_equal_completions_for_equal_calls_and_for_concurrent_ones(offer):
    """R1: what else is running changes nothing, and neither does asking again."""
    await offer.backend.prepare(offer.agent)
    serial = [await offer.backend.generate(offer.agent, m, seed=s) for m, s in CALLS]
    again = [await offer.backend.generate(offer.agent, m, seed=s) for m, s in CALLS]
    once = await asyncio.gather(*(offer.backend.generate(offer.agent, m, seed=s) for m, s in CALLS))
    assert [said(c) for c in serial] == [said(c) for c in again] == [said(c) for c in once]
    assert len({c.text for c in serial}) > 1
    assert all(c.prompt_tokens + c.completion_tokens > 0 and c.seconds >= 0 for c in serial)


@BACKENDS
async def test_backend_that_was_closed_can_be_used_again(offer):
    messages = QUERIES[0].messages
    before = await offer.backend.generate(offer.agent, messages, seed=3)
    await offer.backend.aclose()
    await offer.backend.aclose()
    assert said(await offer.backend.generate(offer.agent, messages, seed=3)) == said(before)


@BACKENDS
async def test_backend_says_in_one_line_what_it_cannot_serve(offer):
    """B39: nothing answers in its place; what was refused does not keep others from being served."""
    assert offer.absent
    for backend, agent in offer.absent:
        with pytest.raises((UserError, BackendError)) as caught:
            await backend.prepare(agent)
        assert str(caught.value).strip()
        assert "\n" not in str(caught.value)
    assert await offer.backend.generate(offer.agent, QUERIES[0].messages, seed=0)


# --- installed plugins ---------------------------------------------------------------------------------


@spec
class Favourite:
    """A router of somebody else's package: one agent before all others."""

    agent: str = "bob"

    def route(self, state: State) -> Routing:
        solvers = state.pool.names()
        return Routing(weights={name: float(name == self.agent) for name in solvers}, seed=state.seed)


@spec
class Second:
    """A strategy of somebody else's package: asks whoever comes second."""

    async def solve(self, rollout: Any) -> Turn:
        routing = await rollout.route()
        return await rollout.ask(routing.ranked()[1])


@pytest.fixture
def plugins(monkeypatch):
    """Two installed entry points, and one that would take a built-in name."""
    installed = [
        EntryPoint("favourite", f"{__name__}:Favourite", "coterie.router"),
        EntryPoint("uniform", f"{__name__}:Favourite", "coterie.router"),
        EntryPoint("second", f"{__name__}:Second", "coterie.strategy"),
    ]

    def entry_points(*, group: str, name: str | None = None) -> list[EntryPoint]:
        return [point for point in installed if point.group == group and name in (None, point.name)]

    monkeypatch.setattr(config, "entry_points", entry_points)


@pytest.mark.usefixtures("plugins")
def test_installed_plugins_are_found_and_built_strictly():
    assert find("router", "favourite") is Favourite
    assert find("strategy", "second") is Second
    assert {"favourite", "familiarity"} <= set(names("router"))
    assert {"second", "vote"} <= set(names("strategy"))
    with pytest.raises(ConfigError, match="did you mean 'favourite'"):
        build("router", "favorite")
    with pytest.raises(ConfigError, match="did you mean 'agent'"):
        build("router", {"use": "favourite", "agnet": "a"})


@pytest.mark.usefixtures("plugins")
def test_no_plugin_takes_a_built_in_name():
    assert names("router").count("uniform") == 1
    assert find("router", "uniform").__module__ == "coterie.routers.baselines"


@pytest.mark.usefixtures("plugins")
async def test_installed_plugins_solve_together(scripted_team):
    router = build("router", {"use": "favourite", "agent": "c"})
    team = scripted_team(dict.fromkeys("ac", reply), router=router, strategy=build("strategy", "second"))
    trace = await team.solve(QUERIES[0])
    assert [turn.agent for turn in trace.turns] == ["a"]
