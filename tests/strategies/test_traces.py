"""What others read of a mixture's trace: runs on disk, grading, fitting, the terminal, the page."""

import json
from dataclasses import replace

import pytest
from mixtures import QUERY, boxed, reviews, team_of

from coterie.cli import show
from coterie.errors import BackendError
from coterie.evaluation.drilldown import embedded
from coterie.evaluation.evaluate import grade_all
from coterie.evaluation.report import RunView, page
from coterie.outcomes import Outcomes
from coterie.storage.runs import TRACE, Run
from coterie.types import Score

ASKED = replace(QUERY, reference={"answers": ["7"]})
CONFIG = {"task": "t", "baseline": None, "recipes": {"rem": {}}}


@pytest.fixture
def team():
    replies = {"a": boxed("7"), "b": boxed("8"), "reviewer:r": reviews(9, 2), "aggregator:m": BackendError("down")}
    return team_of(replies, {"use": "rem_moa", "layers": 2, "every_layer": True, "agreement": 1.0, "shadow": True})


@pytest.fixture
async def trace(team):
    return await team.solve(ASKED)


async def test_a_trace_comes_back_from_disk_as_it_was(trace, tmp_path):
    run = Run.open(tmp_path, CONFIG)
    run.append("rem", trace)
    assert run.traces()["rem"] == [trace]
    assert trace.reviews
    assert trace.exits
    assert trace.degraded


async def test_a_trace_from_before_there_were_layers_is_still_read(trace):
    """Runs of earlier versions have none of these keys."""
    old = TRACE.dump_python(trace, mode="json")
    for key in ("reviews", "exits", "degraded"):
        del old[key]
    for turn in old["turns"]:
        del turn["part"], turn["layer"]
    found = TRACE.validate_python(json.loads(json.dumps(old)))
    assert (found.reviews, found.exits, found.degraded) == ((), (), "")
    assert {(turn.part, turn.layer) for turn in found.turns} == {("", 0)}
    assert all(turn.answers for turn in found.turns)


async def test_reviews_are_never_graded_and_answers_are(trace, tmp_path):
    run = Run.open(tmp_path, CONFIG)
    run.append("rem", trace)
    await grade_all({"rem": [trace]}, run, lambda progress: None)
    [scored] = run.traces()["rem"]
    assert {turn.part for turn in scored.turns if turn.score is None} == {"reviewer"}
    assert {turn.part for turn in scored.turns if turn.score is not None} == {"proposer", "aggregator"}
    assert len(run.scores) == 2


async def test_routers_are_fitted_from_answers_to_the_query_alone(trace):
    """An answer with others' answers beside it says nothing of what its agent can do; nor does a review."""
    graded = replace(trace, turns=tuple(replace(t, score=Score(verdict="pass", value=1.0)) for t in trace.turns))
    found = Outcomes.from_traces([graded])
    assert found.agents == ("a", "b")
    bare = [t for t in trace.turns if t.part == "proposer" and t.layer == 1]
    used = [t.completion.prompt_tokens + t.completion.completion_tokens for t in bare]
    assert found.tokens.tolist() == [used]


async def test_the_terminal_says_who_did_what_in_which_layer(team, trace, capsys):
    show.explain(trace, team)
    said = " ".join(capsys.readouterr().out.split())
    assert "#0 layer 1, proposer: a said" in said
    assert "layer 1, reviewer: r said" in said
    assert "helps the others; read #0, #1" in said
    assert "degraded: a aggregated in place of m" in said
    assert "m failed: down" in said


async def test_the_page_has_layers_and_what_its_picture_is_drawn_from(trace):
    data = embedded({"rem": [trace]})
    [kept] = data["traces"][0]
    assert [(t["part"], t["layer"]) for t in kept["turns"][:3]] == [
        ("proposer", 1),
        ("proposer", 1),
        ("reviewer", 1),
    ]
    assert [[turn, score, data["texts"][why], mended] for turn, score, why, mended in kept["reviews"][:2]] == [
        [0, 9, "because 1", ""],
        [1, 2, "because 2", ""],
    ]
    assert kept["exits"][0] == [1, 3, "depth"]
    assert data["texts"][kept["degraded"]].startswith("a aggregated in place of m")
    text = page([RunView(name="r", task="t", baseline=None, traces={"rem <b>": [trace]})])
    assert "Layers of rem &lt;b&gt;" in text
    assert "1 of 1 answers degraded" in text
    plain = page([RunView(name="r", task="t", baseline=None, traces={})])
    assert "Layers of" not in plain
