"""The backends that run no model: scripts do as they say, replays say what was recorded or fail."""

import asyncio
import gzip

import pytest

from coterie.backends import recorded
from coterie.backends.recorded import Replay, Rule, Scripted
from coterie.config import validate
from coterie.errors import (
    BackendError,
    ConfigError,
    ContextOverflow,
    DataError,
    MalformedAnswer,
    Overloaded,
)
from coterie.storage.tables import agents_of, queries_of, read_table, verify_recorded
from coterie.types import Agent, Completion, Message

ADA = Agent(name="ada", model="scripted:x")
BOB = Agent(name="bob", model="scripted:x")


def user(text):
    return (Message(role="system", content="Be brief."), Message(role="user", content=text))


def say(backend, agent, text, seed=0):
    return asyncio.run(backend.generate(agent, user(text), seed=seed))


# --- Scripted ----------------------------------------------------------------------------------------


def test_a_function_answers_and_every_call_is_noted():
    backend = Scripted(model="x", answer=lambda agent, asked, seed: f"{agent.name} {asked[-1].content} {seed}")
    found = say(backend, ADA, "2+2?", seed=3)
    assert (found.text, found.finish, found.estimated) == ("ada 2+2? 3", "stop", True)
    assert (found.prompt_tokens, found.completion_tokens) == (3 + 1, 3)
    say(backend, BOB, "3+3?")
    noted = [(call.agent, call.messages, call.seed) for call in backend.calls]
    assert noted == [(ADA, user("2+2?"), 3), (BOB, user("3+3?"), 0)]


def test_a_completion_is_given_as_it_is_and_an_exception_raised():
    whole = Completion(text="4", finish="length", prompt_tokens=9, seconds=2.5)
    answers = {"ada": whole, "bob": Overloaded("later")}
    backend = Scripted(model="x", answer=lambda agent, messages, seed: answers[agent.name])
    assert say(backend, ADA, "2+2?") is whole
    with pytest.raises(Overloaded, match="later"):
        say(backend, BOB, "2+2?")
    assert len(backend.calls) == 2


def test_replies_and_rules_come_from_a_recipe():
    """The same data as YAML gives them; the first rule that holds speaks, then the first reply."""
    table = {
        "model": "x",
        "rules": [
            {"contains": "sum", "agent": "bob", "fault": "overloaded", "reply": "busy"},
            {"contains": "sum", "reply": "\\boxed{4}"},
        ],
        "replies": {"2+2": "four", "": "I do not know."},
    }
    backend = validate(Scripted, table, "recipe.yaml: backends.scripted")
    assert say(backend, ADA, "the sum of 2+2").text == "\\boxed{4}"
    assert say(backend, ADA, "2+2?").text == "four"
    assert say(backend, ADA, "3+3?").text == "I do not know."
    with pytest.raises(Overloaded, match="busy"):
        say(backend, BOB, "the sum of 2+2")


@pytest.mark.parametrize("table", [{"reples": {}}, {"rules": [{"contain": "x"}]}, {"calls": []}, {"delay": "soon"}])
def test_a_wrong_key_or_value_is_a_users_mistake(table):
    with pytest.raises(ConfigError):
        validate(Scripted, {"model": "x", **table}, "recipe.yaml")


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("error", BackendError),
        ("overloaded", Overloaded),
        ("overflow", ContextOverflow),
        ("malformed", MalformedAnswer),
    ],
)
def test_a_rule_fails_in_each_way_a_backend_can(fault, kind):
    backend = Scripted(model="x", rules=(Rule(fault=fault),))
    with pytest.raises(BackendError) as caught:
        say(backend, ADA, "2+2?")
    assert type(caught.value) is kind


def test_without_a_script_it_does_not_invent_an_answer():
    """B39: an unconfigured double fails closed, when prepared and when asked."""
    backend = Scripted(model="x")
    for doing in (lambda: asyncio.run(backend.prepare(ADA)), lambda: say(backend, ADA, "2+2?")):
        with pytest.raises(ConfigError, match="scripted:x has no script"):
            doing()


def test_what_the_script_does_not_cover_fails():
    """B39: there is no default answer."""
    with pytest.raises(BackendError, match="no reply to '3"):
        say(Scripted(model="x", replies={"2+2": "4"}), ADA, "3+3?")


def test_preparing_is_noted_or_fails_as_scripted():
    sound = Scripted(model="x", replies={"": "a"})
    broken = Scripted(model="x", replies={"": "a"}, broken="no weights")
    asyncio.run(sound.prepare(ADA))
    assert sound.prepared == [ADA]
    with pytest.raises(BackendError, match="no weights"):
        asyncio.run(broken.prepare(ADA))
    assert broken.prepared == []


def test_delays_let_others_go_first_and_are_the_models_time():
    backend = Scripted(model="x", rules=(Rule(contains="slow", delay=0.05, reply="s"), Rule(reply="f")))
    order = []

    async def ask(text):
        found = await backend.generate(ADA, user(text), seed=0)
        order.append((found.text, found.seconds))

    async def both():
        await asyncio.gather(ask("slow"), ask("fast"))

    asyncio.run(both())
    assert order == [("f", 0.0), ("s", 0.05)]


def test_a_hanging_call_ends_when_it_is_cancelled():
    backend = validate(Scripted, {"model": "x", "replies": {"": "a"}, "delay": float("inf")}, "recipe.yaml")

    async def impatient():
        async with asyncio.timeout(0.02):
            await backend.generate(ADA, user("2+2?"), seed=0)

    with pytest.raises(TimeoutError):
        asyncio.run(impatient())
    assert len(backend.calls) == 1


def test_two_doubles_share_no_calls():
    first, second = Scripted(model="x", replies={"": "a"}), Scripted(model="x", replies={"": "a"})
    say(first, ADA, "2+2?")
    assert (len(first.calls), len(second.calls), first == second) == (1, 0, True)


# --- Replay ------------------------------------------------------------------------------------------

FILES = {
    "queries.csv.gz": '''query_id,dataset,task,category,question,choices,answer
q1,quiz,choice,geo,Capital of France?,"[""Paris"", ""Rome""]","""A"""
q2,quiz,math,,1+1?,,"""2"""
q3,quiz_et,math,,1+1?,,"""2"""
q4,quiz,math,,1+1? Explain.,,
''',
    "outcomes.csv.gz": """query_id,agent,score,input_tokens,output_tokens,cost_usd
q1,small,0,10,2,
q1,big|cot,1,20,100,0.0005
q2,big|cot,0.25,,,
q3,big|cot,0.75,7,,
""",
    "models.csv": """agent,base_model,workflow,params,price_in_per_mtok,price_out_per_mtok,price_source,note
small,small,direct,7B,0,0.5,repo,
big|cot,big,cot,,,,,
""",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        data = text.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return tmp_path


@pytest.fixture
def table(folder):
    return read_table(folder)


def replay(folder, agent, messages, seed=0):
    return asyncio.run(Replay(model=str(folder)).generate(agent, messages, seed=seed))


def test_every_recorded_cell_is_replayed_and_every_other_one_fails(folder, table):
    """R23, B39: score, tokens and failure are those of the table for each agent on each query."""
    for i, query in enumerate(queries_of(table)):
        for j, agent in enumerate(agents_of(table)):
            if table.scores[i, j] != table.scores[i, j]:
                with pytest.raises(BackendError, match="no recorded outcome"):
                    replay(folder, agent, query.messages)
                continue
            found = replay(folder, agent, query.messages)
            assert verify_recorded(found.text, found.text, query.reference).value == table.scores[i, j]


def test_tokens_are_the_recorded_ones_or_marked_as_estimated(folder, table):
    """B13: unknown tokens are estimated and flagged."""
    first, second, third, _ = queries_of(table)
    small, big = agents_of(table)
    used = replay(folder, small, first.messages)
    assert (used.prompt_tokens, used.completion_tokens, used.estimated) == (10, 2, False)
    assert small.price.of(used.prompt_tokens, used.completion_tokens) == 1e-6
    unknown = replay(folder, big, second.messages)
    assert (unknown.prompt_tokens, unknown.completion_tokens, unknown.estimated) == (1, 0, True)
    half = replay(folder, big, third.messages)
    assert (half.prompt_tokens, half.completion_tokens, half.estimated) == (7, 0, True)


def test_equal_questions_are_told_apart_and_alone_refused(folder, table):
    """The bare question of two items is no query; the prompts that `queries_of` writes are."""
    _, second, third, _ = queries_of(table)
    big = agents_of(table)[1]
    assert '"score": 0.25' in replay(folder, big, second.messages).text
    assert '"score": 0.75' in replay(folder, big, third.messages).text
    with pytest.raises(BackendError, match=r"2 items \(q2, q3"):
        replay(folder, big, (Message(role="user", content="1+1?"),))


def test_a_question_that_is_the_only_one_needs_no_options(folder, table):
    found = replay(folder, agents_of(table)[0], (Message(role="user", content=" Capital of France?\n"),))
    assert '"query": "q1"' in found.text


@pytest.mark.parametrize(
    "messages",
    [
        (Message(role="user", content="Capital of Spain?"),),
        (Message(role="user", content="Capital of France"),),
        (Message(role="user", content=""),),
        (Message(role="system", content="Be brief."), Message(role="user", content="Capital of France?")),
        (Message(role="user", content="Capital of France?"), Message(role="assistant", content="Answer:")),
        (Message(role="user", content="Hello"), Message(role="user", content="Capital of France?")),
        (),
    ],
)
def test_a_prompt_that_was_not_recorded_fails_rather_than_finds_a_neighbour(folder, table, messages):
    with pytest.raises(BackendError, match="no recorded outcome"):
        replay(folder, agents_of(table)[0], messages)


def test_the_model_may_name_the_recorded_agent(folder, table):
    query = queries_of(table)[0]
    mine = Agent(name="thinker", model=f"replay:{folder}#big|cot")
    backend = Replay(model=f"{folder}#big|cot")

    async def ask():
        await backend.prepare(mine)
        return await backend.generate(mine, query.messages, seed=1)

    assert '"score": 1.0' in asyncio.run(ask()).text


def test_columns_of_one_table_read_it_once(folder, table, monkeypatch):
    reads = []
    monkeypatch.setattr(recorded, "read_table", lambda path: reads.append(path) or table)
    backends = [Replay(model=f"{folder}#{name}") for name in table.agents]

    async def prepare():
        await asyncio.gather(*(backend.prepare(ADA) for backend in backends))

    asyncio.run(prepare())
    assert reads == [folder]


def test_who_was_not_recorded_is_a_users_mistake_that_names_the_nearest(folder):
    with pytest.raises(ConfigError, match=r"no agent 'smal'; did you mean 'small'\?"):
        asyncio.run(Replay(model=str(folder)).prepare(Agent(name="smal", model=f"replay:{folder}")))


@pytest.mark.parametrize("change", [{"instruction": "Think."}, {"adapter": "a"}])
def test_what_would_change_the_answers_is_refused(folder, change):
    agent = Agent(name="small", model=f"replay:{folder}", **change)
    with pytest.raises(ConfigError, match="no instruction or adapter"):
        asyncio.run(Replay(model=str(folder)).prepare(agent))


def test_a_missing_table_is_a_users_mistake(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        asyncio.run(Replay(model=str(tmp_path / "nothing")).prepare(ADA))


def test_any_seed_gives_the_recorded_outcome_also_after_closing(folder, table):
    backend, query, agent = Replay(model=str(folder)), queries_of(table)[0], agents_of(table)[0]

    async def twice():
        first = await backend.generate(agent, query.messages, seed=1)
        await backend.aclose()
        await backend.aclose()
        return first, await backend.generate(agent, query.messages, seed=2)

    first, second = asyncio.run(twice())
    assert first == second
