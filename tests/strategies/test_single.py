"""Strategies around one agent."""

from dataclasses import replace

import pytest

from coterie.errors import BackendError, ConfigError
from coterie.strategies.single import BestOfN, SelfConsistency, Single
from coterie.types import Completion, Message, Query, Tokens

QUERY = Query(id="q", messages=(Message(role="user", content="?"),), task="math", contract="answer")


async def test_single_falls_back_to_the_next_choice(scripted_team):
    team = scripted_team(
        {"a": BackendError("down"), "b": BackendError("down"), "c": "3"}, strategy=Single(fallbacks=2)
    )
    trace = await team.solve(QUERY)
    assert trace.answer == "3"
    assert len(trace.failures) <= 2
    alone = replace(team, strategy=Single(fallbacks=0))
    assert len((await alone.solve(QUERY)).turns) <= 1


async def test_self_consistency_votes_over_samples_of_one_agent(scripted_team):
    def reply(agent, messages, seed):
        assert agent.sampling.temperature == 0.7
        return "1" if seed % 3 else "2"

    team = scripted_team({"a": reply}, strategy=SelfConsistency(samples=9))
    trace = await team.solve(QUERY)
    answers = [t.answer for t in trace.turns]
    assert len(answers) == 9
    assert trace.answer == max(set(answers), key=answers.count)
    assert trace.turns[0].revision.endswith("+t0.7") == (team.pool["a"].sampling.temperature != 0.7)


async def test_best_of_n_takes_the_likeliest_sample_that_has_an_answer(scripted_team):
    def reply(agent, messages, seed):
        logprob = -(seed % 100) / 10
        return Completion(text=str(seed % 100), tokens=Tokens(prompt=(1,), completion=(2,), logprobs=(logprob,)))

    team = scripted_team({"a": reply}, strategy=BestOfN(samples=6))
    trace = await team.solve(QUERY)
    assert trace.answer == str(min(int(t.answer) for t in trace.turns))


async def test_best_of_n_without_log_probabilities_says_what_to_set(scripted_team):
    with pytest.raises(ConfigError, match="return_tokens: true"):
        await scripted_team({"a": "1"}, strategy=BestOfN()).solve(QUERY)
