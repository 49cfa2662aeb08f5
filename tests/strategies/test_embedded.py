"""One query through the embedded model: prompts that a real template takes, replies that a real model gives."""

import pytest

from coterie.storage.cache import Cache
from coterie.team import Team


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize(("name", "calls"), [("rem_moa/smollm2", 9), ("moa/attention-moa", 33)])
async def test_a_mixture_over_the_embedded_model(name, calls, tmp_path):
    """Calls as planned, but for reviews that had to be asked for again; nothing failed; a second run is free."""
    cache = Cache(tmp_path / "calls.sqlite")
    team = Team.load(name, cache=cache)
    query = team.query("What is 3 + 4?", "math")
    try:
        trace = await team.solve(query)
        again = await team.solve(query)
    finally:
        await team.backends.aclose()
    assert (trace.stopped, trace.failures, trace.degraded) == ("done", (), "")
    assert calls <= len(trace.turns) <= calls + 2
    assert [turn.completion.text for turn in again.turns] == [turn.completion.text for turn in trace.turns]
    assert all(turn.completion.prompt_tokens <= 1200 for turn in trace.turns)
    for turn in trace.turns:
        assert turn.messages[-1].content == "Answer:" or not turn.answers
    assert trace.turns[trace.final].part == "aggregator"
