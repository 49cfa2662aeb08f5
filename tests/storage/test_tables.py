"""Recorded outcome tables: strict reading, exact writing, what missing means, the figures of published ones."""

import csv
import gzip
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import ConfigError, DataError
from coterie.outcomes import Outcomes
from coterie.storage.tablefile import Item as Row
from coterie.storage.tablefile import Recorded, Table
from coterie.storage.tables import (
    Verdict,
    agents_of,
    covered,
    prompts_of,
    queries_of,
    read_table,
    save_table,
    to_outcomes,
    verify_recorded,
    write_table,
)
from coterie.tasks.contamination import digest, question_and_options
from coterie.tasks.extract import CONTRACTS
from coterie.tasks.items import Item
from coterie.tasks.prompts import to_query
from coterie.types import Agent, Completion, Message, Price, Query, Score, Trace, Turn

QUERIES = '''query_id,dataset,task,category,question,choices,answer
q1,quiz,choice,geo,Capital of France?,"[""Paris"", ""Rome""]","""A"""
q2,quiz,math,,"A sum
over two lines: 1+1?",,"""2"""
q3,quiz,math,,1+1?,,
'''
OUTCOMES = """query_id,agent,score,input_tokens,output_tokens,cost_usd
q1,small,0,10,2,
q1,big|cot,1,20,100,0.5
q2,big|cot,0.25,,,
q3,small,1,4,1,
"""
MODELS = """agent,base_model,workflow,params,price_in_per_mtok,price_out_per_mtok,price_source,note
small,small,direct,7B,0,0.5,repo,
big|cot,big,cot,,,,,"no price, sadly"
"""


@pytest.fixture
def write(tmp_path):
    """Writes a table folder from texts; a text may be given as bytes to be stored as they are."""

    def make(queries=QUERIES, outcomes=OUTCOMES, models=MODELS):
        for name, text in (("queries", queries), ("outcomes", outcomes)):
            data = text if isinstance(text, bytes) else gzip.compress(text.encode())
            (tmp_path / f"{name}.csv.gz").write_bytes(data)
        (tmp_path / "models.csv").write_text(models, encoding="utf-8")
        return tmp_path

    return make


def test_a_table_reads_as_written(write):
    table = read_table(write())
    assert table.agents == ("small", "big|cot")
    assert table.items[0].choices == ("Paris", "Rome")
    assert [item.answer for item in table.items] == ["A", "2", None]
    assert table.items[1].question == "A sum\nover two lines: 1+1?"
    np.testing.assert_array_equal(table.scores, [[0, 1], [np.nan, 0.25], [1, np.nan]])
    np.testing.assert_array_equal(table.prompt_tokens, [[10, 20], [np.nan, np.nan], [4, np.nan]])
    np.testing.assert_array_equal(table.costs, [[np.nan, 0.5], [np.nan, np.nan], [np.nan, np.nan]])
    assert [m.price for m in table.models] == [Price(prompt=0.0, completion=0.5), Price()]


def test_what_was_not_recorded_is_missing_and_never_zero(write):
    """R23: an agent that was not run on a query has no score there, and its mean leaves the query out."""
    outcomes = to_outcomes(read_table(write()))
    np.testing.assert_array_equal(np.isnan(outcomes.scores), [[False, False], [True, False], [False, True]])
    assert outcomes.means() == {"small": 0.5, "big|cot": 0.625}


def test_the_recorded_cost_is_preferred_and_a_price_of_zero_is_a_price(write):
    """B79: 10 tokens at $0 and 2 at $0.5 a million; where price or tokens are unknown there is no cost."""
    outcomes = to_outcomes(read_table(write()))
    np.testing.assert_allclose(outcomes.costs, [[1e-6, 0.5], [np.nan, np.nan], [5e-7, np.nan]])
    np.testing.assert_array_equal(outcomes.tokens, [[12, 120], [np.nan, np.nan], [5, np.nan]])


def test_queries_hold_the_question_and_nothing_of_the_answer(write):
    first, second, _ = queries_of(read_table(write()))
    assert first.messages == (Message(role="user", content="Capital of France?\n\nA. Paris\nB. Rome"),)
    assert (first.id, first.task, first.contract, first.domain) == ("q1", "recorded", "raw", "geo")
    assert second.domain == "quiz"
    assert second.reference == {"query_id": "q2"}
    assert second.metadata["task"] == "math"


def test_items_with_the_same_prompt_are_told_apart(write):
    """The same question under two graders, as HumanEval and its extended tests have it."""
    twins = QUERIES + 'q4,quiz_et,math,,1+1?,,\nq5,quiz,choice,,1+1?,"[""1""]",\n'
    prompts = prompts_of(read_table(write(queries=twins)))
    assert prompts[2:] == ("1+1?\n\n[quiz: q3]", "1+1?\n\n[quiz_et: q4]", "1+1?\n\nA. 1")
    assert len(set(prompts)) == 5


def test_agents_carry_list_prices_and_the_revision_of_their_column(write):
    table = read_table(write())
    small, big = agents_of(table)
    assert (small.name, small.price, big.price) == ("small", Price(prompt=0, completion=0.5), Price())
    assert small.model == f"replay:{table.folder}"
    assert to_outcomes(table).revisions == {"small": small.revision, "big|cot": big.revision}
    later = agents_of(read_table(write(outcomes=OUTCOMES.replace("q3,small,1", "q3,small,0"))))
    assert later[0].revision != small.revision
    assert later[1].revision == big.revision


def test_outcomes_may_stand_for_the_revisions_of_a_pool(write):
    pool = {"small": Agent(name="small", model="replay:x", revision="r9")}
    table = read_table(write())
    revisions = to_outcomes(table, pool).revisions
    assert revisions == {"small": "r9", "big|cot": agents_of(table)[1].revision}


# --- malformed files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "line", "says"),
    [
        ("q1,small,1,1,1,", 6, "a second outcome of 'small' on 'q1'"),
        ("q9,small,1,1,1,", 6, "'q9'"),
        ("q2,huge,1,1,1,", 6, "'huge'"),
        ("q2,small,1.5,1,1,", 6, "score '1.5'"),
        ("q2,small,-0.1,1,1,", 6, "score '-0.1'"),
        ("q2,small,nan,1,1,", 6, "score 'nan'"),
        ("q2,small,,1,1,", 6, "could not convert"),
        ("q2,small,yes,1,1,", 6, "could not convert"),
        ("q2,small,1,-1,1,", 6, "'-1'"),
        ("q2,small,1,1,inf,", 6, "'inf'"),
        ("q2,small,1,1,1,nan", 6, "'nan'"),
        ("q2,small,1,1,1", 6, "5 fields"),
        ("q2,small,1,1,1,,", 6, "7 fields"),
        ('q2,"sm"all,1,1,1,', 6, "cannot be read"),
    ],
)
def test_a_bad_outcome_is_named_by_file_and_line(write, row, line, says):
    with pytest.raises(DataError) as caught:
        read_table(write(outcomes=f"{OUTCOMES}{row}\n"))
    message = str(caught.value)
    assert f"outcomes.csv.gz:{line}: " in message
    assert says in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("q1,quiz,math,,Again?,,", "'q1' is there twice"),
        (",quiz,math,,Nameless?,,", "must be given"),
        ("q4,quiz,math,, ,,", "must be given"),
        ("q4,quiz,choice,,Which?,A or B,", "Expecting value"),
        ('q4,quiz,choice,,Which?,"{""A"": 1}",', "JSON list"),
        ("q4,quiz,math,,Open?,,unquoted", "Expecting value"),
    ],
)
def test_a_bad_query_is_named_by_the_line_it_begins_on(write, row, says):
    """The line counts that quoted questions take are counted."""
    with pytest.raises(DataError, match=r"queries\.csv\.gz:6: ") as caught:
        read_table(write(queries=f"{QUERIES}{row}\n"))
    assert says in str(caught.value)


@pytest.mark.parametrize("row", ["small,small,direct,,,,,", "huge,huge,direct,,-1,,,", ",x,,,,,,", "huge,huge"])
def test_a_bad_model_is_named_by_file_and_line(write, row):
    with pytest.raises(DataError, match=r"models\.csv:4: "):
        read_table(write(models=f"{MODELS}{row}\n"))


@pytest.mark.parametrize(
    "outcomes",
    [
        b"not gzip",
        gzip.compress(OUTCOMES.encode())[:-12],
        gzip.compress(b"\xff\xfe not utf-8"),
        "query_id,agent,score\n",
        "",
    ],
    ids=["no gzip", "cut off", "no utf-8", "columns", "empty"],
)
def test_a_file_that_cannot_be_read_is_named(write, outcomes):
    with pytest.raises(DataError, match=r"outcomes\.csv\.gz:\d+: "):
        read_table(write(outcomes=outcomes))


def test_a_missing_file_is_named(write):
    folder = write()
    (folder / "models.csv").unlink()
    with pytest.raises(DataError, match=r"models\.csv: no such file"):
        read_table(folder)


# --- writing -----------------------------------------------------------------------------------------


def test_a_saved_table_reads_back_equal(write, tmp_path):
    table = read_table(write())
    copy = tmp_path / "copy"
    save_table(copy, table)
    again = read_table(copy)
    assert (again.items, again.models) == (table.items, table.models)
    for name in ("scores", "prompt_tokens", "completion_tokens", "costs"):
        np.testing.assert_array_equal(getattr(again, name), getattr(table, name))
    before = {f.name: f.read_bytes() for f in copy.iterdir()}
    save_table(copy, again)
    assert {f.name: f.read_bytes() for f in copy.iterdir()} == before


def traced(query, agent, value):
    turn = Turn(
        index=0,
        agent=agent,
        role="solver",
        revision=f"{agent}-1",
        messages=query.messages,
        completion=Completion(text="x", prompt_tokens=30, completion_tokens=3),
        cost=1 / 3,
        score=Score(verdict="error" if value is None else "fail", value=value),
    )
    return Trace(query=query, turns=(turn,))


def test_outcomes_of_a_run_become_a_table(tmp_path):
    """What the verifier could not judge is left out of the file, not written as 0."""
    queries = [
        Query(
            id=f"m{i}",
            messages=(
                Message(role="system", content="Be brief."),
                Message(role="user", content=f'{i}, "a"\nor é?'),
            ),
            task="math",
            reference={"answer": "7"},
            metadata={"source": "gsm8k"},
        )
        for i in range(2)
    ]
    traces = [traced(queries[0], "a", 0.1), traced(queries[1], "a", None), traced(queries[1], "b", 1.0)]
    outcomes = Outcomes.from_traces(traces)
    pool = {"a": Agent(name="a", model="local:m", price=Price(prompt=0, completion=2.5))}
    write_table(tmp_path / "run", outcomes, pool, asked=question_and_options)
    table = read_table(tmp_path / "run")
    again = to_outcomes(table)
    assert again.agents == ("a", "b")
    assert [q.text for q in again.queries] == [q.text for q in queries]
    assert table.items[0].answer == "7"
    assert [m.price for m in table.models] == [pool["a"].price, Price()]
    for name in ("scores", "tokens", "costs"):
        np.testing.assert_array_equal(getattr(again, name), getattr(outcomes, name))


ITEMS = [
    {"task": "choice", "question": "Which is red?", "choices": ["a rose", "two\nlines", "C. coal"], "answer": "A"},
    {"task": "choice", "question": "Which?", "choices": ["x", "y"], "answer": "B"},
    {"task": "math", "question": "Pick one:\nA. 3\nB. 4\nWhat is 3 - 2?", "answer": "1"},
    {"task": "math", "question": "Pick one:\nA. 3\nB. 4", "answer": "3"},
    {"task": "qa", "question": "Who?", "answer": ["Ada"], "context": [{"title": "T", "text": "Ada did."}]},
]


def exported(folder, queries):
    """The queries of a table that was written of outcomes on these, by way of its files."""
    shape = np.ones((len(queries), 1))
    table = Outcomes(
        queries=tuple(queries), agents=("a",), scores=shape, tokens=shape, costs=shape, revisions={"a": "r"}
    )
    write_table(folder, table, asked=question_and_options)
    return queries_of(read_table(folder))


@pytest.mark.parametrize("contract", [None, *sorted(CONTRACTS)])
def test_an_exported_query_is_the_same_question_without_the_contract(tmp_path, contract):
    """A test item is found in a table that was exported of a run, under whatever contract it was asked."""
    items = [Item.model_validate({"id": f"i{n}", "source": "s", **row}) for n, row in enumerate(ITEMS)]
    queries = [to_query(item, contract) for item in items]
    back = exported(tmp_path / "once", queries)
    assert [digest(query) for query in back] == [digest(query) for query in queries]
    assert [query.text for query in back] == [to_query(item, "raw").text for item in items]
    assert [item.choices for item in read_table(tmp_path / "once").items[:2]] == [
        ("a rose", "two\nlines", "C. coal"),
        ("x", "y"),
    ]
    assert read_table(tmp_path / "once").items[4].answer == ["Ada"]
    assert exported(tmp_path / "twice", back) == back


def test_recorded_twins_are_still_the_question_that_both_are(tmp_path):
    """The line that tells two equal prompts apart is no part of the question."""
    items = [Item.model_validate({"id": name, "source": "s", **ITEMS[0]}) for name in ("i", "j")]
    queries = [to_query(item) for item in items]
    back = exported(tmp_path / "once", queries)
    assert [query.text.splitlines()[-1] for query in back] == ["[s: i]", "[s: j]"]
    assert {digest(query) for query in back} == {digest(queries[0])}
    assert exported(tmp_path / "twice", back) == back


def test_a_total_of_tokens_has_a_cost_only_where_both_prices_are_equal(write):
    """B79: 30 tokens in all are $60e-6 at 2 and 2 a million, and unknown at 1 and 2; a cost of its own stays."""
    models = MODELS.splitlines()[0] + "\nsame,,,,2,2,given,\nother,,,,1,2,given,\nopen,,,,,,,\n"
    rows = "q1,same,1,,30,\nq1,other,1,,30,\nq1,open,1,,30,\nq2,other,1,,30,0.5\nq2,same,1,30,,\nq3,same,1,20,10,"
    outcomes = to_outcomes(read_table(write(outcomes=OUTCOMES.splitlines()[0] + f"\n{rows}\n", models=models)))
    nan = np.nan
    np.testing.assert_array_equal(outcomes.tokens, [[30, 30, 30], [30, 30, nan], [30, nan, nan]])
    np.testing.assert_allclose(outcomes.costs, [[6e-5, nan, nan], [nan, 0.5, nan], [6e-5, nan, nan]])


def test_covered_keeps_agents_of_full_coverage_and_rows_without_holes(write):
    outcomes = to_outcomes(read_table(write()))
    both = covered(outcomes, 0.6)
    assert ([q.id for q in both.queries], both.agents) == (["q1"], ("small", "big|cot"))
    assert covered(outcomes, 1.0).agents == ()
    one = covered(replace(outcomes, scores=np.array([[1, np.nan], [0, 1], [1, np.nan]])))
    assert (one.agents, one.means(), list(one.revisions)) == (("small",), {"small": 2 / 3}, ["small"])


def of_rows(*items, models=(Recorded(agent="a"),), score=1.0, cost=np.nan):
    """A table of these rows in which every cell is the same."""
    shape = (len(items), len(models))
    return Table(
        folder="",
        items=items,
        models=models,
        scores=np.full(shape, score),
        prompt_tokens=np.full(shape, np.nan),
        completion_tokens=np.full(shape, np.nan),
        costs=np.full(shape, cost),
    )


def row(question="q", name="q1", **other):
    return Row(id=name, dataset="d", task="", category="", question=question, **other)


TEXTS = st.text(st.one_of(st.sampled_from('\r\n",\0 \ud800\udc00\ufeff\x85\u2028'), st.characters(codec=None)))
ANSWERS = st.recursive(st.none() | st.booleans() | st.integers() | TEXTS, lambda inner: st.lists(inner, max_size=3))
ROWS = st.builds(
    Row,
    id=TEXTS,
    dataset=TEXTS,
    task=TEXTS,
    category=TEXTS,
    question=TEXTS,
    choices=st.lists(TEXTS, max_size=3).map(tuple),
    answer=ANSWERS,
)
MODELS_OF = st.builds(Recorded, agent=TEXTS, base_model=TEXTS, workflow=TEXTS, params=TEXTS, note=TEXTS)


@settings(max_examples=200, deadline=None)
@given(st.lists(ROWS, max_size=3), st.lists(MODELS_OF, min_size=1, max_size=2))
def test_what_is_written_is_read_again_or_refused_whole(items, models):
    """Line ends, quotes, NUL, halves of characters: equal records come back, or nothing is written."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, refusal = Path(scratch) / "table", ""
        try:
            save_table(folder, of_rows(*items, models=tuple(models)))
        except DataError as error:
            refusal = str(error)
        if refusal:
            assert not folder.exists()
            assert len(refusal.splitlines()) == 1
            return
        table = read_table(folder)
        assert (table.items, table.models) == (tuple(items), tuple(models))
        assert (table.scores == 1).all()


@pytest.mark.parametrize("question", ["q1\rz", "\r", "a\r\nb\n\rc", '"\r"', "x" * 200_000, "a\0b", "\ufeffq"])
def test_a_question_of_one_kind_of_line_end_or_of_any_length_comes_back(tmp_path, question):
    """A lone carriage return ends a row where it stands bare; Python's own bound on a field is 131,072."""
    items = (row(f"?{question}"), row("next", name="q2"))
    save_table(tmp_path, of_rows(*items))
    bound = csv.field_size_limit()
    assert read_table(tmp_path).items == items
    assert bound >= 131_072
    assert b"\r\n" not in gzip.decompress((tmp_path / "outcomes.csv.gz").read_bytes())


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (of_rows(row("a\ud800")), r"queries\.csv\.gz: row 1: .*\\ud800 is half"),
        (of_rows(row(), row(" ", name="q2")), r"queries\.csv\.gz: row 2: .*must be given"),
        (of_rows(row(), row("again")), "'q1' is there twice"),
        (of_rows(row(answer=b"bytes")), "row 1: cannot be written"),
        (of_rows(row(answer=float("inf"), choices=("x",) * 27)), "at most 26 texts"),
        (of_rows(row(), models=(Recorded(agent=""),)), r"models\.csv: row 1: .*agent must be given"),
        (of_rows(row(), models=(Recorded(agent="a", price=Price(prompt=1e300)),)), r"models\.csv: row 1"),
        (of_rows(row(), score=1.5), "not within 0 and 1"),
        (of_rows(row(), cost=np.inf), r"outcomes\.csv\.gz: .*amount"),
        (of_rows(row(), cost=1e12), r"outcomes\.csv\.gz: .*amount"),
        (of_rows(row(), cost=-1.0), r"outcomes\.csv\.gz: .*amount"),
    ],
)
def test_what_could_not_be_read_is_not_written(tmp_path, table, says):
    with pytest.raises(DataError, match=says) as caught:
        save_table(tmp_path / "new", table)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("fails", ["write_bytes", "replace", "mkdir"])
@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_full_disk_is_one_line_and_leaves_no_draft(tmp_path, monkeypatch, fails, times):
    """R17: an older table stays whole while the drafts of a new one do not fit."""
    folder, calls, real = tmp_path / "t", [], getattr(Path, fails)
    save_table(folder, of_rows(row("old")))

    def full(path, *arguments, **options):
        calls.append(path)
        if len(calls) > times or fails == "mkdir":
            raise OSError(28, "No space left on device")
        return real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, fails, full)
        with pytest.raises(ConfigError, match=r"t: the table cannot be written \(No space left on device\)"):
            save_table(folder, of_rows(row("new")))
    assert sorted(os.listdir(folder)) == ["models.csv", "outcomes.csv.gz", "queries.csv.gz"]
    if fails != "replace":
        assert read_table(folder).items[0].question == "old"


def test_a_table_is_not_written_where_a_file_or_folder_is_in_the_way(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "t" / "outcomes.csv.gz").mkdir(parents=True)
    for name in ("file", "t"):
        with pytest.raises(ConfigError):
            save_table(tmp_path / name, of_rows(row()))
    assert os.listdir(tmp_path / "t") == ["outcomes.csv.gz"]


@pytest.mark.parametrize("field", ["[" * 100_000 + "]" * 100_000, '["\\ud800"]'])
def test_a_field_that_could_not_be_written_again_is_named_by_line(write, field):
    quoted = field.replace('"', '""')
    for cells in (f'"{quoted}",', f',"{quoted}"'):
        with pytest.raises(DataError, match=r"queries\.csv\.gz:6: "):
            read_table(write(queries=f"{QUERIES}q4,quiz,choice,,Which?,{cells}\n"))


@pytest.mark.parametrize("cost", ["1e12", "1" * 400])
def test_a_cost_whose_sums_overflow_is_refused(write, cost):
    with pytest.raises(DataError, match=r"outcomes\.csv\.gz:6: .*amount"):
        read_table(write(outcomes=f"{OUTCOMES}q2,small,1,1,1,{cost}\n"))


# --- the kind `recorded` -----------------------------------------------------------------------------


@pytest.mark.parametrize(("score", "verdict"), [(1.0, "pass"), (0.0, "fail"), (0.1 + 0.2, "fail")])
def test_a_stated_score_is_read_back_exactly(score, verdict):
    text = Verdict(query='q"1', agent="big|cot é", score=score).text()
    found = verify_recorded(text, text, {"query_id": 'q"1'})
    assert (found.verdict, found.value) == (verdict, score)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The score is 1",
        "1",
        "[]",
        '{"recorded": 1}',
        '{"recorded": {"query": "q1", "agent": "a"}}',
        '{"recorded": {"query": "q1", "agent": "a", "score": "1"}}',
        '{"recorded": {"query": "q1", "agent": "a", "score": 2}}',
        '{"recorded": {"query": "q1", "agent": "a", "score": NaN}}',
        '{"recorded": {"query": "q2", "agent": "a", "score": 1}}',
        "[" * 100_000,
    ],
)
def test_anything_else_cannot_be_judged(text):
    """R23: a text that states no outcome of this query is an error, not a wrong answer."""
    found = verify_recorded(text, text, {"query_id": "q1"})
    assert (found.verdict, found.value) == ("error", None)
    assert found.reason


# --- the published tables ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size", "best", "figures"),
    [
        ("gsm8k_2021", (999, 4), "gpt3-175b|verification", (0.5686, 0.3794, 0.6757)),
        ("workflows_code", (904, 16), "gpt-4-1106-preview|mapcoder", (0.7013, 0.5990, 0.7732)),
    ],
)
def test_the_figures_of_a_published_table(data, name, size, best, figures):
    """Best single agent, mean agent and oracle over the agents of full coverage, as the tables' page has them."""
    table = read_table(data / "outcomes" / name)
    full = covered(to_outcomes(table))
    means = full.means()
    assert table.scores.shape == size
    assert max(means, key=means.get) == best
    found = (means[best], np.mean(list(means.values())), full.scores.max(axis=1).mean())
    np.testing.assert_allclose(found, figures, atol=5e-5)


def test_the_cost_of_a_published_table_is_tokens_times_price(data):
    """So that the cost of a turn, worked out from the agent's price, is the recorded one."""
    table = read_table(data / "outcomes" / "workflows_code")
    agents = agents_of(table)
    rows, columns = np.nonzero(~np.isnan(table.costs))
    assert len(rows) > 5000
    for row, column in zip(rows[::50], columns[::50], strict=True):
        used = table.prompt_tokens[row, column], table.completion_tokens[row, column]
        assert agents[column].price.of(*used) == pytest.approx(table.costs[row, column], rel=1e-9)
