"""The made agents of the memory's mechanism: they read what prompts show and do what their assumptions say."""

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from random import Random

import numpy as np
import pytest

from coterie.strategies import prompts
from coterie.strategies.quoting import Quote
from coterie.types import Agent, Message

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
made, mechanism = import_module("made_agents"), import_module("memory_mechanism")
WORLD = made.World()
QUESTION, QUESTIONS = made.questions(WORLD, 2)[0], made.questions(WORLD, 5)
RIGHT, WRONG, RARE = QUESTION.right, QUESTION.mistakes[0], QUESTION.mistakes[3]
PROPOSER = Agent(name="p0", model="scripted:made")


def seen(answer, score=None, argued=False):
    return made.Seen(answer=answer, score=score, argued=argued)


def boxed(answer):
    return f"Step 7 leads there.\nAnswer: \\boxed{{{answer}}}"


def worth(*shown, **moved):
    return made.chance(replace(WORLD, **moved), QUESTION, shown)


def test_agents_read_attempts_scores_and_rationales_from_the_real_prompts():
    quotes = [
        Quote(text=boxed("A"), answer="A", facts={"score": "9/10"}, note="Its step holds."),
        Quote(text=boxed("B"), answer="B", facts={"score": "2/10"}),
    ]
    wanted = [seen("A", 9, True), seen("B", 2)]
    for messages in (
        prompts.proposer(QUESTION.query, quotes, 9000),
        prompts.aggregator(QUESTION.query, {"positive": [1], "failure": [2]}, quotes, 9000),
    ):
        assert made.attempts(messages[-1].content) == wanted
    plain = [Quote(text=boxed(answer)) for answer in "AB"]
    said = prompts.synthesis(QUESTION.query, plain, 9000, "New: \\boxed{C} \\boxed{D}")
    assert made.attempts(said[-1].content) == [seen(answer) for answer in "ABCD"]
    assert made.attempts(prompts.reviewer(QUESTION.query, plain, 9000)[-1].content) == [seen("A"), seen("B")]
    assert made.attempts(QUESTION.query.text) == []


def test_a_residual_names_new_answers_only():
    agents = made.Agents(world=WORLD, questions=made.questions(WORLD, 2))
    before, now = ([Quote(text=boxed(answer)) for answer in answers] for answers in ("AB", "BC"))
    asked = prompts.residual(QUESTION.query, before, now, 9000)
    assert agents.said(PROPOSER, asked, 1) == "New: \\boxed{C}"
    assert prompts.nothing_new(agents.said(PROPOSER, prompts.residual(QUESTION.query, before, before, 9000), 1))


@pytest.mark.parametrize(
    "shown",
    [
        (),
        (seen(WRONG), seen(WRONG), seen(RIGHT)),
        (seen(RIGHT, 8, True), seen(WRONG, 3, True), seen(RARE, 4)),
        (seen(RIGHT, 2), seen(WRONG, 10)),
    ],
)
def test_the_stated_chance_is_how_often_agents_are_right(shown):
    world, rng = replace(WORLD, slip=0.1), Random(0)
    share = np.mean([made.settled(world, QUESTION, shown, rng) == RIGHT for _ in range(5000)])
    assert made.chance(world, QUESTION, shown) == pytest.approx(share, abs=0.025)


def test_alone_an_agent_is_right_by_the_questions_chance():
    assert worth() == pytest.approx(QUESTION.chance)


def test_a_reader_is_misled_by_the_share_of_wrong_attempts():
    """With an eye that sees nothing, the answer is one of those at hand, its own among them, by lot."""
    for wrong in range(4):
        shown = [seen(WRONG)] * wrong + [seen(RIGHT)] * (3 - wrong)
        assert worth(*shown, eye=1.0) == pytest.approx((QUESTION.chance + 3 - wrong) / 4)


def test_scores_warn_and_rationales_make_the_warning_work_better():
    def pair(good, bad, argued):
        return worth(seen(RIGHT, good, argued), seen(WRONG, bad, argued))

    blind = worth(seen(RIGHT), seen(WRONG))
    assert blind < pair(9, 2, False) < pair(9, 2, True)
    assert blind > pair(2, 9, False) > pair(2, 9, True), "a wrong warning misleads as well"
    assert worth(seen(WRONG, 2, True)) > worth(), "a known mistake is avoided"
    assert worth(seen(WRONG, 2, True), warned=0.0) < worth()
    assert pair(5, 5, True) == pytest.approx(pair(5, 5, False), abs=0.02), "a score that says little changes little"


def test_agents_with_one_prompt_have_errors_correlated_as_stated():
    question = QUESTIONS[2]
    assert question.chance == 0.5
    right = {"one prompt": [], "two prompts": []}
    for seed in range(1500):
        agents = made.Agents(world=WORLD, questions=QUESTIONS, seed=seed)
        other = (*question.query.messages[:-1], Message(role="user", content=f"{question.query.text} Again."))
        for name, second in (("one prompt", question.query.messages), ("two prompts", other)):
            pair = (
                agents.said(PROPOSER, question.query.messages, 2 * seed),
                agents.said(PROPOSER, second, 2 * seed + 1),
            )
            right[name].append([f"{{{question.right}}}" in text for text in pair])
    found = {name: np.corrcoef(np.array(pairs, dtype=float).T)[0, 1] for name, pairs in right.items()}
    assert found["one prompt"] == pytest.approx(WORLD.likeness, abs=0.08)
    assert found["two prompts"] == pytest.approx(0.0, abs=0.08)


def test_reviewers_score_as_stated():
    def scores(kind, answer, **moved):
        agents = made.Agents(world=replace(WORLD, **moved), questions=QUESTIONS, reviewer=kind)
        return np.array([agents.score(QUESTION, answer, Random(n)) for n in range(800)], dtype=float)

    assert set(scores("oracle", RIGHT)) == {9}
    assert set(scores("oracle", WRONG)) == {2}
    assert set(scores("blank", RIGHT)) == set(scores("blank", WRONG)) == {5}
    good, bad = scores("noisy", RIGHT), scores("noisy", WRONG)
    truth = np.repeat([1.0, 0.0], 800)
    assert np.corrcoef(np.concatenate([good, bad]), truth)[0, 1] == pytest.approx(WORLD.skill, abs=0.06)
    assert len(set(scores("noisy", WRONG, stubborn=1.0))) == 1, "the same mistake is misjudged alike each time"


def test_mixtures_are_those_of_the_recipes():
    found = mechanism.mixtures()
    assert found["adjacent-only"]["adjacent"]
    assert found["shared-set"]["shared"]
    assert found["no-rationales"]["rationales"] is False
    assert all(table["use"] == "rem_moa" for name, table in found.items() if name not in mechanism.PLAIN)


def cells(seed, names, sweep=True):
    agents = mechanism.made(WORLD, 6, "noisy", seed)
    return {name: mechanism.cell(agents, mechanism.mixtures()[name], 3, 3, sweep) for name in names}


def test_a_rerun_gives_the_same_figures_and_another_seed_others():
    names = ("MoA", "RMoA", "ReM-MoA")
    first, again, other = cells(0, names), cells(0, names), cells(1, names)
    for name, one in first.items():
        assert one.chances.shape == (6, 3)
        assert np.array_equal(one.chances, again[name].chances)
        assert np.array_equal(one.right, again[name].right)
        assert not np.array_equal(one.chances, other[name].chances)


def test_a_sweep_gives_what_the_last_depth_alone_gives():
    names = ("MoA", "ReM-MoA")
    swept, alone = cells(0, names), cells(0, names, sweep=False)
    for name in names:
        assert alone[name].chances.shape == (6, 1)
        assert np.array_equal(swept[name].chances[:, -1], alone[name].chances[:, -1])


def test_with_a_reviewer_that_knows_a_deeper_memory_is_worth_more():
    agents = mechanism.made(WORLD, 12, "oracle", 0)
    found = mechanism.cell(agents, mechanism.mixtures()["ReM-MoA"], 3, 3, True)
    first, last = found.chances.mean(axis=0)[[0, -1]]
    assert last > first + 0.05
    assert found.rank == pytest.approx(1.0)


def test_signs_say_plainly_what_differs():
    """An ablation that is better than the whole in each seed differs; one that is worse in two of three says so."""

    def cell(*values):
        return mechanism.Cell(chances=np.tile(np.array(values), (4, 1)), right=np.ones(4, dtype=bool), rank=None)

    rising, flat = cell(0.5, 0.6, 0.7, 0.8), cell(0.5, 0.5, 0.5, 0.5)
    found = {(name, "oracle", width): [flat] * 3 for name in mechanism.PLAIN for width in (0, *mechanism.WIDTHS)}
    found |= {("ReM-MoA", "oracle", width): [rising] * 3 for width in (0, *mechanism.WIDTHS)}
    found |= {("adjacent-only", "oracle", 0): [cell(0.9, 0.9, 0.9, 0.9)] * 3}
    found |= {("shared-set", "oracle", 0): [flat, flat, cell(0.9, 0.9, 0.9, 0.9)]}
    found |= {("no-rationales", "oracle", 0): [flat] * 3}
    said = {sign.name: sign.verdict for sign in mechanism.signs(found, "oracle")}
    assert said["MoA"] == said["ReM-MoA"] == said["no-rationales"] == "as in the paper"
    assert said["adjacent-only"] == said["order of losses"] == "differs"
    assert said["shared-set"] == "in 2 of 3 seeds"
