"""What a reviewer is taught from: layers of recorded runs, in a drawn order, and never the gold side of a query."""

import json
from dataclasses import replace

import pytest
from recorded_layers import questions, recorded, team, traces

from coterie.errors import DataError
from coterie.learning.examples import Distill, completion, digest, gathered, prompt
from coterie.strategies import prompts
from coterie.strategies.reviewer import read
from coterie.types import Agent, Score

SETTINGS = Distill(least=1)
AGENT = Agent(name="judge", model="local:x", role="reviewer")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return traces(recorded(tmp_path_factory.mktemp("run")))


def test_every_reviewed_layer_is_one_example(found):
    made = gathered(found, SETTINGS, 0)
    assert len(made.examples) == 12
    assert {(e.query.id, e.layer) for e in made.examples} == {(f"q{n}", k) for n in range(1, 7) for k in (1, 2)}
    assert all(len(example.attempts) == 2 for example in made.examples)


def test_the_prompt_is_the_one_that_was_served(found):
    """Of an unshuffled layer it equals, to the character, what the recorded reviewer was sent."""
    settings = replace(SETTINGS, shuffle=False)
    served = {(t.query.id, turn.layer): turn.messages for t in found for turn in t.turns if turn.part == "reviewer"}
    for example in gathered(found, settings, 0).examples:
        assert prompt(example, AGENT, 24_000) == served[example.query.id, example.layer]


def test_an_instruction_leads_the_prompt_as_it_does_when_served(found):
    [example, *_] = gathered(found, SETTINGS, 0).examples
    made = prompt(example, replace(AGENT, instruction="Be strict."), 24_000)
    assert made[0].content.startswith("Be strict.\n\nYou review attempts")


def test_no_gold_side_reaches_the_student(found):
    """Whatever the gold side holds, the prompt is the same: another gold, none, more of it in the metadata."""
    for example in gathered(found, SETTINGS, 0).examples:
        secret = {"answers": ["SECRET"], "solution": "SECRET"}
        other = replace(example.query, reference=secret, metadata={"gold": "SECRET"}, id="SECRET")
        made = prompt(replace(example, query=other), AGENT, 24_000)
        assert made == prompt(example, AGENT, 24_000)
        assert "SECRET" not in str(made)


def test_a_prompt_that_gold_would_reach_is_refused(found, monkeypatch):
    [example, *_] = gathered(found, SETTINGS, 0).examples
    honest = prompts.reviewer

    def leaking(query, quotes, room, missing=()):
        made = honest(query, quotes, room, missing)
        return (*made[:-1], replace(made[-1], content=f"{made[-1].content}{query.reference or ''}"))

    monkeypatch.setattr(prompts, "reviewer", leaking)
    with pytest.raises(DataError, match="gold side reaches the prompt"):
        prompt(example, AGENT, 24_000)


def test_verdicts_do_not_reach_the_student(found):
    [example, *_] = gathered(found, SETTINGS, 0).examples
    turned = [replace(a, score=Score(verdict="error", value=None, reason="SECRET")) for a in example.attempts]
    made = prompt(replace(example, attempts=tuple(turned)), AGENT, 24_000)
    assert made == prompt(example, AGENT, 24_000)


def test_the_order_is_drawn_so_that_a_place_says_nothing(tmp_path):
    found = traces(recorded(tmp_path, questions(60)))
    firsts = [e.attempts[0].score.correct for e in gathered(found, SETTINGS, 0).examples]
    assert 0.35 < sum(firsts) / len(firsts) < 0.65
    assert [e.attempts for e in gathered(found, SETTINGS, 0).examples] == [
        e.attempts for e in gathered(found[::-1], SETTINGS, 0).examples
    ]
    kept = [e.attempts[0].score.correct for e in gathered(found, replace(SETTINGS, shuffle=False), 0).examples]
    assert len(set(kept)) == 1


def test_a_domain_is_left_out(found):
    made = gathered(found, SETTINGS, 0, ["sums"])
    assert {example.query.domain for example in made.examples} == {"products"}
    assert made.left_out["layers of a domain left out"] == 6


def test_proposals_of_another_length_are_left_out_and_counted(found):
    assert gathered(found, Distill(), 0).examples == ()
    assert gathered(found, Distill(), 0).left_out["proposals too short or too long"] == 24
    assert gathered(found, replace(SETTINGS, most=11), 0).examples == ()


def test_a_layer_without_a_verdict_is_left_out(found):
    [first, *rest] = found
    turns = tuple(replace(t, score=Score(verdict="error", value=None)) for t in first.turns)
    made = gathered([replace(first, turns=turns), *rest], SETTINGS, 0)
    assert len(made.examples) == 10
    assert made.left_out["layers without a verdict"] == 2


def test_the_same_layer_in_two_runs_counts_once(found):
    assert len(gathered([*found, *found], SETTINGS, 0).examples) == 12


def test_a_limit_draws_and_says_so(found):
    made = gathered(found, replace(SETTINGS, limit=5), 0)
    assert len(made.examples) == 5
    assert made.left_out["layers over the limit"] == 7


def test_the_digest_tells_other_verdicts_apart(found):
    examples = gathered(found, SETTINGS, 0).examples
    worse = replace(examples[0].attempts[0], score=Score(verdict="fail", value=0.25))
    changed = replace(examples[0], attempts=(worse, *examples[0].attempts[1:]))
    assert digest(examples) != digest([changed, *examples[1:]])


def test_a_completion_is_what_the_reviewer_is_asked_for():
    """It is read without any mending."""
    text = completion([9, 2], ['says "so"', "ü\nx"])
    reading = read(text, 2)
    assert reading.exact
    assert [reading.said[n].score for n in (1, 2)] == [9, 2]
    assert json.loads(text)["reviews"][1]["rationale"] == "ü\nx"


def test_a_layer_with_one_proposal_compares_nothing(tmp_path):
    alone = team()
    alone = replace(alone, strategy=replace(alone.strategy, panel=replace(alone.strategy.panel, width=1)))
    made = gathered(traces(recorded(tmp_path, made=alone)), SETTINGS, 0)
    assert made.examples == ()
    assert made.left_out["layers with fewer than two proposals"]
