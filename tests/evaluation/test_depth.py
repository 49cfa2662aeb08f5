"""Layers of a mixture, measured: values worked out by hand, then on traces of scripted teams."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from samples import plain

from coterie.cli.main import run
from coterie.evaluation.depth import depths, early, layers, proposals, spearman, trend, vendi
from coterie.storage.runs import Run
from coterie.strategies.prompts import NOTHING_NEW
from coterie.types import Exit, Message, Query, Review, Score, Trace

sys.path.insert(0, str(Path(__file__).parents[1] / "strategies"))
from mixtures import QUERY, boxed, knowing, team_of


def turn(index, part, layer, answer=None, reads=(), agent="a", right=None):
    score = None if right is None else Score(verdict="pass" if right else "fail", value=float(right))
    parts = {"index": index, "agent": agent, "part": part, "layer": layer, "reads": reads}
    return plain(answer or "x", (10, 2), answer=answer, score=score, **parts)


QA = Query(id="q", messages=(Message(role="user", content="?"),), task="qa", contract="boxed")


def trace(*turns, exits=(), reviews=(), final=None):
    last = len(turns) - 1 if final is None else final
    return Trace(query=QA, turns=turns, exits=exits, reviews=reviews, final=last, score=turns[last].score)


def test_the_vendi_score_counts_what_differs():
    """All alike 1, all different n, two of three alike: entropy of (2/3, 1/3)."""
    assert vendi(np.ones((4, 4))) == pytest.approx(1.0)
    assert vendi(np.eye(4)) == pytest.approx(4.0)
    pair = np.array([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]])
    assert vendi(pair) == pytest.approx(math.exp(-(2 / 3) * math.log(2 / 3) - (1 / 3) * math.log(1 / 3)))
    assert vendi(np.array([[1, 0.5], [0.5, 1]])) == pytest.approx(
        math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    )
    assert vendi(np.zeros((0, 0))) is None


def test_rank_correlation_shares_ranks_and_is_undefined_where_nothing_varies():
    """Ranks of (9, 2, 2) are 3, 1.5, 1.5, of (1, 0, 1) 2.5, 1, 2.5: by hand 0.75 / sqrt(1.5 * 1.5) = 0.5."""
    assert spearman([1, 2, 3], [10, 20, 90]) == pytest.approx(1.0)
    assert spearman([3, 2, 1], [1, 2, 3]) == pytest.approx(-1.0)
    assert spearman([9, 2, 2], [1, 0, 1]) == pytest.approx(0.5)
    assert spearman([5, 5, 5], [1, 0, 1]) is None
    assert spearman([], []) is None


@pytest.mark.parametrize(
    ("accuracies", "name"),
    [
        ([0.5, 0.52, 0.54, 0.56], "sustained"),
        ([0.5, 0.559, 0.5595, 0.56], "sustained"),
        ([0.5, 0.5590, 0.5591, 0.5595, 0.56], "saturating"),
        ([0.5, 0.561, 0.56, 0.56, 0.56], "plateau"),
        ([0.5, 0.6, 0.55, 0.5], "degrading"),
        ([0.6, 0.6, 0.6, 0.6], "plateau"),
        ([0.5, 0.6, 0.7], None),
    ],
)
def test_trends_are_named_by_their_last_three_steps(accuracies, name):
    """R18; the third gains 0.1 points at its end, which is less than 0.2."""
    assert trend(accuracies) == name


def two_layers():
    return trace(
        turn(0, "proposer", 1, "7", right=True),
        turn(1, "proposer", 1, "8", right=False),
        turn(2, "reviewer", 1),
        turn(3, "proposer", 2, "7", reads=(0, 1), right=True),
        turn(4, "proposer", 2, "7", reads=(0,), right=True),
        turn(5, "reviewer", 2),
        turn(6, "aggregator", 2, "7", reads=(3, 1), right=True),
        reviews=(
            Review(turn=0, layer=1, score=9),
            Review(turn=1, layer=1, score=2, mended="form"),
            Review(turn=3, layer=2, score=5, mended="neutral"),
            Review(turn=4, layer=2, score=6),
        ),
    )


def test_each_layer_by_quality_diversity_reviews_and_cost():
    first, second = layers([two_layers()])
    assert (first.quality, second.quality) == (0.5, 1.0)
    assert (first.answers, second.answers) == (pytest.approx(2.0), pytest.approx(1.0))
    assert (first.worse, second.worse) == (None, 0.0)
    assert (first.reviewed, first.mended, first.neutral) == (2, 1, 0)
    assert (second.reviewed, second.mended, second.neutral) == (2, 0, 1)
    assert (first.rank, second.rank) == (pytest.approx(1.0), None)
    assert (first.calls, first.tokens, second.calls) == (3, 36, 4)
    assert second.texts == pytest.approx(1.0)
    assert 1 < first.texts <= 2


def test_a_layer_that_falls_got_worse_and_layers_may_be_missing():
    fell = trace(turn(0, "proposer", 1, "7", right=True), turn(1, "proposer", 2, "8", reads=(0,), right=False))
    short = trace(turn(0, "proposer", 1, "7", right=True))
    first, second = layers([fell, short])
    assert (first.traces, second.traces) == (2, 1)
    assert second.worse == 1.0


def test_revisions_within_a_layer_take_the_place_of_what_they_revise():
    found = trace(
        turn(0, "proposer", 1, "8", right=False),
        turn(1, "critic", 1, reads=(0,)),
        turn(2, "proposer", 1, "7", reads=(0, 1), right=True),
    )
    assert [t.index for t in proposals(found, 1)] == [2]
    assert layers([found])[0].quality == 1.0


def test_unscored_traces_have_layers_without_quality():
    [layer] = layers([trace(turn(0, "proposer", 1, "7"))])
    assert (layer.quality, layer.worse, layer.rank) == (None, None, None)


def swept():
    return trace(
        turn(0, "proposer", 1, "8", right=False),
        turn(1, "aggregator", 1, "8", reads=(0,), right=False),
        turn(2, "proposer", 2, "7", reads=(0,), right=True),
        turn(3, "aggregator", 2, "7", reads=(2,), right=True),
        exits=(Exit(layer=1, turn=1, why="depth"), Exit(layer=2, turn=3, why="depth")),
    )


def test_a_sweep_is_read_depth_by_depth_without_the_aggregations_of_other_depths():
    one, two = depths([swept()])
    assert (one.accuracy, two.accuracy) == (0.0, 1.0)
    assert (one.calls, two.calls) == (2, 3)  # two proposals and one aggregation, as a run of two layers would make
    assert (one.tokens, two.tokens) == (24, 36)
    assert depths([two_layers()]) == []


def test_a_rollout_that_ended_earlier_keeps_its_answer_at_greater_depths():
    short = trace(
        turn(0, "proposer", 1, "7", right=True),
        turn(1, "aggregator", 1, "7", reads=(0,), right=True),
        exits=(Exit(layer=1, turn=1, why="depth"),),
    )
    assert [row.accuracy for row in depths([swept(), short])] == [0.5, 1.0]
    assert [row.judged for row in depths([swept(), short])] == [2, 2]


def test_ends_that_an_agent_declared_are_no_sweep():
    """SMoA's moderator says that a query is settled: the picked proposal is not what the depth would answer."""
    said = replace(two_layers(), exits=(Exit(layer=1, turn=0, why="said"),))
    assert depths([said]) == []
    assert [row.judged for row in depths([swept(), said])] == [2, 2]


def test_a_query_that_an_agreement_ended_keeps_that_answer_at_greater_depths():
    """Without it a sweep would be judged on the hard queries alone; a shadow's agreement is no answer."""
    agreed = trace(
        turn(0, "proposer", 1, "7", right=True),
        turn(1, "proposer", 1, "7", right=True),
        exits=(Exit(layer=1, turn=0, why="agreement"),),
        final=0,
    )
    one, two = depths([swept(), agreed])
    assert (one.judged, one.accuracy, two.judged, two.accuracy) == (2, 0.5, 2, 1.0)
    assert (one.calls, two.calls) == (2, 2.5)
    late = replace(agreed, exits=(Exit(layer=3, turn=0, why="agreement"),))
    assert len(depths([swept(), late])) == 3
    shadow = replace(swept(), exits=(Exit(layer=1, turn=0, why="agreement"), *swept().exits))
    assert [row.accuracy for row in depths([shadow])] == [0.0, 1.0]
    assert depths([agreed]) == []


def test_outputs_that_a_later_one_was_made_from_are_part_of_it():
    """AttentionMoA: the merge of layer 2 reads the fusion of layer 1, which therefore counts."""
    found = trace(
        turn(0, "proposer", 1, "7", right=True),
        turn(1, "aggregator", 1, "7", reads=(0,), right=True),
        turn(2, "proposer", 2, "7", reads=(1,), right=True),
        turn(3, "aggregator", 2, "7", reads=(2,), right=True),
        turn(4, "aggregator", 2, "7", reads=(1, 3), right=True),
        exits=(Exit(layer=1, turn=1, why="depth"), Exit(layer=2, turn=4, why="depth")),
    )
    assert [row.calls for row in depths([found])] == [2, 5]


def test_the_shadow_says_what_stopping_would_have_saved_and_lost():
    """W9: after the agreement of layer 1 came a review, a layer, its review, the aggregation: 5 calls, 4 steps."""
    right_first = replace(two_layers(), exits=(Exit(layer=1, turn=0, why="agreement"),))
    wrong_first = replace(two_layers(), exits=(Exit(layer=1, turn=1, why="agreement"),))
    found = early([right_first, wrong_first, two_layers(), two_layers()])
    assert (found.traces, found.stopped, found.lost, found.gained) == (4, 2, 1, 0)
    assert (found.calls, found.tokens, found.seconds) == (2.5, 30.0, 2.0)
    stopped = trace(turn(0, "proposer", 1, "7"), exits=(Exit(layer=1, turn=0, why="agreement"),))
    assert early([stopped]) is None
    assert early([two_layers()]) is None


def test_what_a_sweep_adds_is_not_saved_by_stopping():
    """After the agreement come the sweep's aggregation of layer 1, a layer, and the answer: two are saved."""
    found = early([replace(swept(), exits=(Exit(layer=1, turn=0, why="agreement"), *swept().exits))])
    assert (found.calls, found.tokens, found.seconds) == (2, 24, 2.0)


def test_an_aggregator_that_gave_way_is_part_of_its_depth_and_of_no_other():
    """A blank try of layer 1 is paid by depth 1, by depth 2 not; an agreement before it saves neither of them."""
    blank = turn(1, "aggregator", 1, reads=(0,))
    rest = [replace(t, index=t.index + 1, reads=tuple(n + (n > 0) for n in t.reads)) for t in swept().turns[1:]]
    exits = tuple(replace(e, turn=e.turn + 1) for e in swept().exits)
    found = trace(swept().turns[0], blank, *rest, exits=exits)
    assert [row.calls for row in depths([found])] == [3, 3]
    agreed = replace(found, exits=(Exit(layer=1, turn=0, why="agreement"), *exits))
    assert (early([agreed]).calls, early([agreed]).seconds) == (2, 2.0)


async def test_a_call_that_says_nothing_is_new_is_no_answer_and_is_paid_by_its_depth():
    """It is neither graded nor counted as a wrong aggregation."""
    said = {
        "aggregator:m": lambda a, m, s: NOTHING_NEW if "latest needs no change" in m[-1].content else boxed("7")
    }
    settings = {"use": "attention_moa", "layers": 2, "stop": False}
    found = await team_of(dict.fromkeys("ab", boxed("7")) | said, settings).solve(QUERY)
    assert found.turns[-1].completion.text == NOTHING_NEW
    assert (found.turns[-1].part, found.turns[-1].answers, found.turns[-1].answer) == ("critic", False, None)
    layer = 2 + 2 * 2 + 2 + 1
    assert [row.calls for row in depths([found])] == [layer, 2 * layer + 1]
    assert layers([found])[1].calls == layer + 1


async def test_layers_of_a_run_are_shown_and_given_as_json(tmp_path, capsys):
    replies = {
        "a": boxed("7"),
        "b": boxed("8"),
        "c": boxed("7"),
        "reviewer:r": knowing("7"),
        "aggregator:m": boxed("7"),
    }
    settings = {"use": "rem_moa", "layers": 2, "every_layer": True}
    folder = Run.open(tmp_path / "run", {"task": "t", "baseline": None, "recipes": {"rem": {}, "vote": {}}})
    asked = replace(QUERY, reference={"answers": ["7"]})
    mixed = await team_of(replies, settings).solve(asked)
    plain = await team_of({"a": boxed("7")}, {"use": "top_k"}).solve(asked)
    found = {"rem": [mixed], "vote": [plain]}
    for name, traces in found.items():
        folder.append(name, traces[0])
    from coterie.evaluation.evaluate import grade_all

    folder.seal(found)
    await grade_all(found, folder, lambda progress: None)
    assert run(["layers", str(tmp_path / "run"), "--json"]) == 0
    [(name, report)] = json.loads(capsys.readouterr().out)["recipes"].items()
    assert name == "rem"
    assert [layer["quality"] for layer in report["layers"]] == [pytest.approx(2 / 3)] * 2
    assert [layer["rank"] for layer in report["layers"]] == [pytest.approx(1.0)] * 2
    assert [row["accuracy"] for row in report["depths"]] == [1.0, 1.0]
    assert (report["early"], report["trend"], report["degraded"]) == (None, None, 0)
    assert run(["layers", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "66.7 %" in said
    assert "answers by depth" in said


def test_a_run_without_layers_says_so(tmp_path, capsys):
    folder = Run.open(tmp_path / "run", {"task": "t", "baseline": None, "recipes": {"vote": {}}})
    folder.seal({})
    assert run(["layers", str(tmp_path / "run")]) == 2
    assert "layers" in capsys.readouterr().err
