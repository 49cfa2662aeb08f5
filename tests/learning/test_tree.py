"""AT-GRPO: who is shown what in the tree, which answer goes on, what is compared with what."""

import math

import numpy as np
import pytest
from test_peers import course  # noqa: F401 - a fixture

from coterie.learning.practice import Rollouts
from coterie.learning.rewards import Graded
from coterie.learning.sampler import Sample
from coterie.learning.tree import _best
from coterie.tasks.items import Item
from coterie.tasks.prompts import to_query


def rollouts(rewards, raw=None):
    values = np.array(rewards, dtype=float)
    samples = tuple(Sample(ids=(1,), text=str(i), finish="stop", entropy=0.0) for i in range(len(values)))
    query = to_query(Item(id="x", source="x", task="qa", question="?", answer="1"), "answer")
    graded = Graded(raw=values if raw is None else np.array(raw, dtype=float), shaped=values, solved=values)
    return Rollouts(query=query, prompt=(1,), samples=samples, graded=graded)


def test_the_best_answer_goes_on():
    assert _best(rollouts([0, 1, 1])) == 1
    assert _best(rollouts([math.nan, -0.5, math.nan])) == 1
    assert _best(rollouts([math.nan, math.nan])) == 0


def test_the_best_of_each_layer_is_all_that_the_next_one_reads(course, monkeypatch):  # noqa: F811
    one = course("tree")
    shown = {}
    original = one._say

    def say(name, asked, turn, clock, group=1):
        found = original(name, asked, turn, clock, group)
        shown[turn, name] = ([query.messages for query in asked], found)
        return found

    monkeypatch.setattr(one, "_say", say)
    one.round()
    assert set(shown) == {(0, "ann"), (0, "bob"), (1, "ann"), (1, "bob"), (2, "cyd")}
    assert all(len(each.samples) == 3 for _, found in shown.values() for each in found)
    for (turn, _), (asked, _) in shown.items():
        for q, messages in enumerate(asked):
            text = "\n".join(message.content for message in messages)
            before = [shown[turn - 1, name][1][q] for name in ("ann", "bob")] if turn else []
            best = [each.samples[_best(each)].text.strip() for each in before]
            assert text.count("</attempt") == len([said for said in best if said])
            assert all(f">\n{said}\n</attempt" in text for said in best if said)


def test_an_aggregators_answer_is_the_teams_and_a_reasoners_group_shares_the_teams(course):  # noqa: F811
    one = course("tree", team=2.0)
    ones = [rollouts([0.5, -0.5, 0.0], raw=[1, 0, 0])]
    assert one._rewards("cyd", ones, np.array([1.0])).tolist() == [[2.5, -0.5, 0.0]]
    assert one._rewards("ann", ones, np.array([1.0])).tolist() == [[2.5, 1.5, 2.0]]
    assert one._rewards("ann", ones, np.array([math.nan])).tolist() == [[0.5, -0.5, 0.0]]


def test_advantages_are_within_an_agents_answers_to_one_prompt(course, monkeypatch):  # noqa: F811
    """Turn- and agent-wise groups: no sum over another turn's, another query's or another agent's answers."""
    one = course("tree")
    taught = {}

    def teach(said, gains, clock):
        taught.update({name: (said[name], gains[name]) for name in one.names})
        return {name: [] for name in one.names}

    monkeypatch.setattr(one, "_teach", teach)
    one.round()
    assert {name: len(found) for name, (found, _) in taught.items()} == {"ann": 4, "bob": 4, "cyd": 2}
    for found, gains in taught.values():
        assert gains.shape == (len(found), 3)
        assert np.nansum(gains, axis=1) == pytest.approx(np.zeros(len(found)), abs=1e-6)
        for each, gain in zip(found, gains, strict=True):
            assert (gain.argmax() == _best(each)) or not gain.any()
