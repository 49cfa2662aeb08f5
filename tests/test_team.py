"""The one flow: solve, limits, failures as data, and the hot swap."""

import asyncio
import random
import threading
from dataclasses import replace

import pytest

from coterie.backends.recorded import Scripted
from coterie.errors import BackendError, ConfigError, Overloaded
from coterie.pool import revise
from coterie.rollout import Limits, with_instruction
from coterie.routers.baselines import Uniform
from coterie.storage.cache import Cache
from coterie.strategies.single import SelfConsistency, Single
from coterie.strategies.vote import TopK, Vote
from coterie.team import Team, recipes
from coterie.types import Agent, Completion, Message, Price, Query, Tokens


def query(text="2 + 2?", id="q"):
    return Query(id=id, messages=(Message(role="user", content=text),), contract="answer")


async def test_a_trace_holds_everything_that_happened(scripted_team):
    team = scripted_team({"a": "4", "b": "4", "c": "5"})
    trace = await team.solve(query())
    assert trace.answer == "4"
    assert [turn.index for turn in trace.turns] == [0, 1, 2]
    assert {turn.agent for turn in trace.turns} == {"a", "b", "c"}
    assert all(turn.revision == team.pool[turn.agent].revision for turn in trace.turns)
    assert trace.revisions == {name: team.pool[name].revision for name in team.pool}
    assert trace.stopped == "done"
    [(state, routing)] = trace.decisions(team.pool)
    assert team.router.route(state).weights == routing.weights


async def test_turns_are_in_request_order_whatever_arrives_first(scripted_team):
    async def late(agent, messages, *, seed):
        await asyncio.sleep(random.random() / 50)
        return Completion(text="4")

    orders = []
    for names in ("abc", "cba", "bca"):
        team = scripted_team(dict.fromkeys(names, "4"))
        for agent in team.pool.values():
            object.__setattr__(team.backends.of(agent), "generate", late)
        trace = await team.solve(query())
        orders.append([turn.agent for turn in trace.turns])
    assert orders[0] == orders[1] == orders[2]


async def test_a_failure_is_data_and_the_siblings_go_on(scripted_team):
    """R23: a missing outcome is missing; nobody's failure becomes an answer."""
    team = scripted_team({"a": Overloaded("busy"), "b": "4", "c": "4"})
    trace = await team.solve(query())
    assert trace.answer == "4"
    assert {turn.agent for turn in trace.turns} == {"b", "c"}
    [failure] = trace.failures
    assert (failure.agent, failure.kind, failure.message) == ("a", "Overloaded", "busy")


async def test_all_failing_is_a_failed_trace_that_says_why(scripted_team):
    trace = await scripted_team({"a": BackendError("down"), "b": BackendError("gone")}).solve(query())
    assert trace.stopped == "failed"
    assert trace.final is None
    assert {f.message for f in trace.failures} == {"down", "gone"}


async def test_a_systemic_fault_raises(scripted_team):
    team = scripted_team({"a": ConfigError("broken"), "b": "4"})
    with pytest.raises(ConfigError, match="broken"):
        await team.solve(query())


@pytest.mark.parametrize(
    ("limits", "asked"),
    [
        (Limits(calls=2), 2),
        (Limits(calls=0), 0),
        (Limits(tokens=150), 2),
        (Limits(cost_usd=150 / 1e6), 2),
        (Limits(tokens=None, cost_usd=None), 3),
    ],
)
async def test_a_spent_limit_ends_in_the_best_answer_so_far(scripted_team, limits, asked):
    """W7: hard caps, checked with the worst case of the next call before it is made."""
    team = scripted_team({"a": "4", "b": "4", "c": "4"}, limits=limits)
    trace = await team.solve(query())
    assert len(trace.turns) == asked
    assert trace.stopped == ("done" if asked == 3 else "budget")
    assert trace.answer == ("4" if asked else None)


async def test_wall_time_keeps_what_was_finished(scripted_team):
    async def hang(agent, messages, seed):
        await asyncio.sleep(60)

    team = scripted_team({"a": "4", "b": "4"}, limits=Limits(seconds=0.2))
    backend = team.backends.of(team.pool["b"])
    object.__setattr__(backend, "generate", lambda agent, messages, seed: hang(agent, messages, seed))
    trace = await team.solve(query())
    assert trace.stopped == "budget"
    assert trace.answer == "4"


def test_a_cost_limit_with_an_unknown_price_is_refused(scripted_team):
    """W31: an unknown price is never taken for free."""
    team = scripted_team({"a": "4"})
    agent = replace(team.pool["a"], price=Price())
    with pytest.raises(ConfigError, match="price of agent 'a' is unknown"):
        Team(
            pool=team.pool.with_agents(agent),
            router=team.router,
            strategy=team.strategy,
            limits=Limits(cost_usd=1.0),
        )


async def test_costs_add_up_and_unknown_stays_unknown(scripted_team):
    def reply(agent, messages, seed):
        return Completion(text="4", prompt_tokens=100, completion_tokens=10)

    team = scripted_team({"a": reply, "b": reply})
    trace = await team.solve(query())
    assert trace.cost == pytest.approx(2 * 110 / 1e6)
    unknown = replace(trace, turns=(trace.turns[0], replace(trace.turns[1], cost=None)))
    assert unknown.cost is None
    assert trace.tokens == 220


async def test_every_call_has_its_own_seed_and_reruns_are_equal(scripted_team):
    def reply(agent, messages, seed):
        return str(seed)

    team = scripted_team({"a": reply}, strategy=SelfConsistency(samples=4))
    one, two = await team.solve(query()), await team.solve(query())
    seeds = [t.completion.text for t in one.turns]
    assert len(set(seeds)) == 4
    assert seeds == [t.completion.text for t in two.turns]
    other = await team.solve(query(), sample=1)
    assert not set(seeds) & {t.completion.text for t in other.turns}


async def test_the_same_call_is_shared_by_all_recipes(scripted_team, tmp_path):
    """A call is keyed by agent revision, prompt and seed: another strategy asks nobody again."""
    cache = Cache(tmp_path / "calls.sqlite")
    team = scripted_team({"a": "4", "b": "5"}, cache=cache)
    await team.solve(query())
    again = replace(team, strategy=TopK(weighted=False))
    await again.solve(query())
    calls = [call for agent in team.pool.values() for call in team.backends.of(agent).calls]
    assert len(calls) == 2


async def test_a_swap_prepares_first_and_running_rollouts_keep_their_pool(scripted_team):
    gate = asyncio.Event()

    async def wait(agent, messages, seed):
        await gate.wait()
        return "old"

    team = scripted_team({"a": "4"}, strategy=Single())
    backend = team.backends.of(team.pool["a"])
    old = team.pool["a"]
    object.__setattr__(backend, "generate", lambda agent, messages, seed: _completion(wait(agent, messages, seed)))
    running = asyncio.create_task(team.solve(query()))
    await asyncio.sleep(0.05)
    new = revise(replace(old, instruction="New."))
    await team.swap(new)
    assert team.pool["a"].revision == new.revision
    assert team.pool.version == 1
    gate.set()
    trace = await running
    assert trace.turns[0].revision == old.revision
    assert trace.revisions == {"a": old.revision}


async def _completion(text):
    return Completion(text=await text)


async def test_a_swap_that_fails_leaves_the_team_as_it_was(scripted_team):
    team = scripted_team({"a": "4", "b": "5"})
    before = team.pool

    async def refuse(agent):
        raise BackendError("does not fit")

    object.__setattr__(team.backends.of(team.pool["b"]), "prepare", refuse)
    with pytest.raises(BackendError):
        await team.swap(
            revise(replace(team.pool["a"], instruction="x")), revise(replace(team.pool["b"], instruction="y"))
        )
    assert team.pool is before
    with pytest.raises(ConfigError, match="cannot remove agent 'aa'"):
        await team.swap(without=("aa",))
    with pytest.raises(ConfigError, match="no agent with role solver"):
        await team.swap(without=("a", "b"))
    assert team.pool is before


async def test_many_swaps_under_load_never_mix_revisions(scripted_team):
    """Every trace is of one pool: what answered is what the trace says was in place."""

    def reply(agent, messages, seed):
        return agent.instruction or "0"

    team = scripted_team({"a": reply, "b": reply}, strategy=TopK(weighted=False))

    asked = []
    for n in range(1, 20):
        await team.swap(*[revise(replace(agent, instruction=str(n))) for agent in team.pool.values()])
        asked += [asyncio.create_task(team.solve(query(id=f"{n}/{k}"))) for k in range(3)]
        await asyncio.sleep(0)  # the next swap comes when these have begun and none is over
    assert not any(task.done() for task in asked[-3:])
    traces = await asyncio.gather(*asked)
    for trace in traces:
        assert len({turn.completion.text for turn in trace.turns}) == 1
        assert all(turn.revision == trace.revisions[turn.agent] for turn in trace.turns)
    assert len({trace.turns[0].completion.text for trace in traces}) > 3


async def test_parallel_solving_equals_serial_solving(scripted_team):
    """R1: no router or rollout state is shared between queries."""

    def reply(agent, messages, seed):
        return f"{messages[-1].content}-{agent.name}-{seed % 7}"

    team = scripted_team({"a": reply, "b": reply, "c": reply})
    queries = [query(text=str(n), id=str(n)) for n in range(200)]
    serial = [await team.solve(q) for q in queries]
    parallel = await asyncio.gather(*(team.solve(q) for q in queries))
    assert [t.text for t in serial] == [t.text for t in parallel]


@pytest.mark.parametrize("instant", [True, False])
async def test_only_an_instant_router_is_asked_on_the_event_loop(scripted_team, instant):
    threads = []

    class Asked(Uniform):
        def route(self, state):
            threads.append(threading.current_thread())
            return super().route(state)

    Asked.instant = instant
    team = scripted_team({"a": "4"})
    team.router = Asked()
    assert (await team.solve(query())).answer == "4"
    assert [thread is threading.main_thread() for thread in threads] == [instant]


async def test_solve_all_bounds_how_many_run(scripted_team):
    now, most = 0, 0

    async def count(agent, messages, *, seed):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.002)
        now -= 1
        return Completion(text="4")

    team = scripted_team({"a": "4"})
    object.__setattr__(team.backends.of(team.pool["a"]), "generate", count)
    traces = [t async for t in team.solve_all([query(id=str(n)) for n in range(30)], concurrency=4)]
    assert len({t.query.id for t in traces}) == 30
    assert most == 4


def test_an_agents_instruction_leads_the_system_message():
    agent = Agent(name="a", model="scripted:a", instruction="Be brief.")
    user = Message(role="user", content="Hi")
    assert with_instruction(agent, (user,)) == (Message(role="system", content="Be brief."), user)
    merged = with_instruction(agent, (Message(role="system", content="Own."), user))
    assert merged == (Message(role="system", content="Be brief.\n\nOwn."), user)


def test_builtin_recipes_load_without_a_model():
    assert recipes()
    for name in recipes():
        assert Team.load(name).pool.names("solver")


def test_a_recipe_error_names_file_and_key(tmp_path):
    file = tmp_path / "team.yaml"
    file.write_text("agents: [{name: a, model: 'scripted:a'}]\nstrategie: vote\n")
    with pytest.raises(ConfigError, match=r"team\.yaml: unknown key 'strategie'; did you mean 'strategy'"):
        Team.load(file)
    with pytest.raises(ConfigError, match="no such file or built-in recipe"):
        Team.load("nothing")


def test_options_for_a_backend_are_strict(tmp_path):
    file = tmp_path / "team.yaml"
    file.write_text("agents: [{name: a, model: 'scripted:a'}]\nbackends: {scripted: {dealy: 1}}\n")
    with pytest.raises(ConfigError, match="unknown key 'dealy'"):
        Team.load(file)


def test_vote_is_the_default_strategy(tmp_path):
    file = tmp_path / "team.yaml"
    file.write_text("agents: [{name: a, model: 'scripted:a'}]\n")
    team = Team.load(file)
    assert isinstance(team.strategy, Vote)
    assert isinstance(team.backends.of(team.pool["a"]), Scripted)


async def test_swaps_at_the_same_time_are_all_kept(scripted_team):
    team = scripted_team({"a": "4"})
    others = [replace(team.pool["a"], name=name, revision="") for name in ("b", "c")]
    await asyncio.gather(*(team.swap(agent) for agent in others))
    assert sorted(team.pool) == ["a", "b", "c"]
    assert all(agent.revision for agent in team.pool.values())


async def test_a_backends_own_timeout_is_that_agents_failure(scripted_team):
    """R23: an outage is never taken for a spent limit, and so never for a wrong answer."""
    team = scripted_team({"a": TimeoutError("upstream"), "b": TimeoutError("upstream")})
    trace = await team.solve(query())
    assert trace.stopped == "failed"
    assert {failure.kind for failure in trace.failures} == {"BackendError"}


async def test_a_failed_call_counts_with_the_time_it_took(scripted_team):
    async def slow(agent, messages, *, seed):
        await asyncio.sleep(0.15)
        raise BackendError("down")

    team = scripted_team({"a": "4", "b": "4"})
    object.__setattr__(team.backends.of(team.pool["a"]), "generate", slow)
    trace = await team.solve(query())
    assert trace.seconds >= 0.15


async def test_a_hit_without_tokens_is_no_hit_where_tokens_are_wanted(scripted_team, tmp_path):
    def reply(agent, messages, seed):
        return Completion(text="4", tokens=Tokens(prompt=(1,), completion=(2,), logprobs=(-0.1,)))

    cache = Cache(tmp_path / "calls.sqlite")
    plain = scripted_team({"a": "4"}, cache=cache)
    await plain.solve(query())
    team = scripted_team({"a": reply}, cache=cache)
    object.__setattr__(team.backends.of(team.pool["a"]), "return_tokens", True)
    assert (await team.solve(query())).turns[0].completion.tokens is not None
    assert (await team.solve(query())).turns[0].completion.tokens is not None
    assert len(team.backends.of(team.pool["a"]).calls) == 1
