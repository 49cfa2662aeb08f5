"""Rows on traces small enough to be counted by hand."""

import json
import math

import pytest
from samples import plain

from coterie.errors import ConfigError
from coterie.evaluation.metrics import crossing, oracle, outcome, rows, to_json
from coterie.evaluation.table import COLUMNS, count, dollars, percent, probability, seconds, table
from coterie.types import Failure, Query, Score, Trace

PASS = Score(verdict="pass", value=1.0, answer="1")
FAIL = Score(verdict="fail", value=0.0, answer="2")
HALF = Score(verdict="fail", value=0.5, answer="3")
BROKEN = Score(verdict="error", value=None, reason="the sandbox died")


def turn(agent="a", score=PASS, cost=0.5, answer="1", tokens=(10, 5), index=0):
    return plain(tokens=tokens, index=index, agent=agent, answer=answer, cost=cost, score=score)


def trace(query="q", *turns, score=None, domain="d", final=0, **parts):
    turns = tuple(turns)
    return Trace(
        query=Query(id=query, messages=(), metadata={"domain": domain}),
        turns=turns,
        final=final if turns else None,
        score=score if score is not None else (turns[final].score if turns else None),
        **parts,
    )


def one(*traces):
    (row,) = rows({"recipe": traces}, None)
    return row


def down(query="q", **parts):
    failure = Failure(agent="a", kind="Overloaded", message="503")
    return trace(query, failures=(failure,), stopped="failed", **parts)


def test_a_row_counts_what_happened():
    row = one(
        trace("1", turn(), seconds=1.0),
        trace("2", turn(score=FAIL), turn("b", score=PASS, index=1), seconds=3.0),
        trace("3", turn(), turn(index=1), seconds=2.0, failures=(Failure(agent="c", kind="k", message="m"),)),
    )
    assert (row.n, row.judged, row.errors, row.abstained) == (3, 3, 0, 0)
    assert row.accuracy == pytest.approx(2 / 3)
    assert row.tokens == pytest.approx(15 * 5 / 3)
    assert row.cost_usd == pytest.approx(0.5 * 5 / 3)
    assert row.calls == pytest.approx(6 / 3)
    assert row.agents == pytest.approx((1 + 2 + 2) / 3)
    assert (row.p50_s, row.p95_s) == (2.0, pytest.approx(2.9))
    assert row.p_value is None
    assert row.ci[0] <= row.accuracy <= row.ci[1]


def test_errors_are_neither_right_nor_wrong():
    """R23, G18: an outage and a verifier that could not judge are counted apart from wrong answers."""
    row = one(trace("1", turn()), trace("2", turn(score=FAIL)), trace("3", turn(score=BROKEN)), down("4"))
    assert (row.accuracy, row.errors, row.n, row.judged) == (0.5, 2, 4, 2)
    assert row.score == 0.5


def test_an_outage_that_was_graded_as_wrong_is_still_an_error():
    """R23: the text of a failed call is empty, which a verifier calls wrong."""
    assert outcome(down(score=FAIL)) == "error"
    lost = trace("q", failures=(Failure(agent="a", kind="k", message="m"),), score=FAIL)
    assert outcome(lost) == "error"


def test_somebody_answered_without_an_answer_is_an_abstention():
    """G4, G17: no answer is never right, and it is counted."""
    silent = trace("1", turn(score=FAIL, answer=None), failures=(Failure(agent="b", kind="k", message="m"),))
    row = one(silent, trace("2", turn()))
    assert (row.abstained, row.errors, row.accuracy) == (1, 0, 0.5)


def test_only_a_pass_counts_as_accuracy():
    row = one(trace("1", turn(score=HALF)), trace("2", turn()))
    assert row.accuracy == 0.5
    assert row.score == 0.75


def test_traces_without_a_verdict_are_left_out():
    row = one(trace("1", turn(score=None)), trace("2", turn()))
    assert (row.unscored, row.errors, row.accuracy) == (1, 0, 1.0)


def test_a_price_of_zero_is_a_price_and_an_unknown_one_is_none():
    """B79, W31."""
    assert one(trace("1", turn(cost=0)), trace("2", turn(cost=0))).cost_usd == 0.0
    assert one(trace("1", turn(cost=0.2)), trace("2", turn(cost=None))).cost_usd is None


def test_the_oracle_takes_any_right_turn_of_any_recipe():
    traces = {
        "one": [trace("1", turn(score=FAIL)), trace("2", turn(score=FAIL))],
        "two": [trace("1", turn(score=FAIL), turn("b", index=1)), trace("2", turn(score=FAIL))],
    }
    first, second = rows(traces, None)
    assert first.oracle_gap == second.oracle_gap == 0.5
    assert oracle(traces) == 0.5


def test_the_oracle_gap_is_over_the_judged_queries():
    row = one(trace("1", turn()), down("2"))
    assert row.oracle_gap == 0.0
    assert oracle({"recipe": [trace("1", turn()), down("2")]}) == 0.5


def test_no_turn_scores_no_oracle():
    blind = [trace("1", turn(score=None), score=PASS)]
    assert rows({"r": blind}, None)[0].oracle_gap is None
    assert oracle({"r": blind}) is None


def test_recipes_are_paired_by_query_not_by_position():
    ours = [trace(str(i), turn()) for i in range(10)]
    theirs = [trace(str(i), turn(score=PASS if i < 2 else FAIL)) for i in reversed(range(10))]
    base, row = rows({"base": theirs, "ours": ours}, "base")
    assert base.p_value is None
    assert row.p_value == pytest.approx(2 / 2**8)
    assert row.dropped == 0


def test_pairs_with_an_error_are_dropped_from_the_test():
    ours = [trace("1", turn()), down("2"), trace("3", turn())]
    theirs = [trace("1", turn(score=FAIL)), trace("2", turn()), trace("4", turn())]
    row = rows({"base": theirs, "ours": ours}, "base")[1]
    assert (row.p_value, row.dropped) == (1.0, 3)


def test_samples_of_one_query_are_one_piece_of_evidence():
    right = [trace("1", turn(), sample=i) for i in range(50)]
    wrong = [trace("2", turn(score=FAIL), sample=i) for i in range(10)]
    row = one(*right, *wrong)
    assert row.accuracy == 0.5
    assert row.ci == (0.0, 1.0)


def test_an_unknown_baseline_is_the_callers_mistake():
    with pytest.raises(ConfigError, match=r"'best'.*one, two"):
        rows({"one": [], "two": []}, "best")


def test_a_recipe_without_traces_is_defined():
    row = one()
    assert row.n == 0
    assert math.isnan(row.accuracy)
    assert row.cost_usd is None


def test_json_has_the_promised_keys_first_and_no_nan():
    found = to_json("task", rows({"none": [], "one": [trace("1", turn())]}, "one"))
    text = json.dumps(found, allow_nan=False)
    assert list(json.loads(text)) == ["task", "n", "rows"]
    assert found["n"] == 1
    promised = ["name", "accuracy", "ci", "p_value", "tokens", "cost_usd", "calls", "agents", "errors"]
    assert [list(row)[:11] for row in found["rows"]] == [[*promised, "p50_s", "p95_s"]] * 2
    assert found["rows"][0]["accuracy"] is None
    assert found["rows"][0]["ci"] == [None, None]


def test_crossing_counts_asked_and_right_by_domain():
    traces = [
        trace("1", turn("a"), turn("b", score=FAIL, index=1), domain="x"),
        trace("2", turn("a", score=FAIL), turn("a", index=1), domain="x"),
        trace("3", turn("b", score=BROKEN), domain="y"),
        trace("4", domain="y", failures=(Failure(agent="a", kind="k", message="m"),)),
    ]
    cells = {(c.domain, c.agent): (c.queries, c.asked, c.scored, c.right) for c in crossing(traces)}
    assert cells == {
        ("x", "a"): (2, 2, 3, 2),
        ("x", "b"): (2, 1, 1, 0),
        ("y", "a"): (2, 1, 0, 0),
        ("y", "b"): (2, 1, 0, 0),
    }
    assert crossing([]) == []


def test_the_table_words_every_row_and_leaves_empty_columns_out():
    found = rows({"base": [trace("1", turn(cost=None))], "other": [trace("1", turn(cost=None))]}, "base")
    titles, cells = table(found)
    assert "$ / 1k" not in titles
    assert [len(line) for line in cells] == [len(titles)] * 2
    assert dict(zip(titles, cells[1], strict=True))["p"] == "1.000"
    full = table(rows({"r": [trace("1", turn(), seconds=1.0)]}, None))[0]
    assert full == [c.title for c in COLUMNS if c.title != "p"]


def test_numbers_are_worded_without_exponents():
    assert [dollars(v) for v in (None, 0.0, 0.00013, 0.5, 12.345)] == ["–", "$0.00", "$0.00013", "$0.50", "$12.35"]
    assert [count(v) for v in (2.0, 2.2222, 92.03, 1234.6, math.nan)] == ["2", "2.22", "92.0", "1,235", "–"]
    assert [percent(v) for v in (0.6333, None)] == ["63.3 %", "–"]
    assert [probability(v) for v in (0.00001, 0.0312, None)] == ["<0.001", "0.031", "–"]


def test_numbers_beyond_all_digits_are_a_word_or_a_bound():
    """No wording raises or fills a line, whatever a recorded price made of a cost."""
    for huge in (float("inf"), 1e308, 1e15):
        assert dollars(huge) == count(huge) == seconds(huge) == "immense"
        assert dollars(-huge) == "-immense"
    assert dollars(1e-300) == "<$0.000000000001"
    assert dollars(-1e-300) == ">-$0.000000000001"
    assert dollars(-0.5) == "-$0.50"
    assert dollars(1e-12) == "$0.0000000000010"
    every = (float("inf"), -float("inf"), 5e-324, 1e308, float("nan"), 0.0, -0.0)
    assert all(len(word(value)) < 25 for word in (dollars, count, seconds) for value in every)
