"""Rewards: the verifier's score less what length costs; what goes wrong with a verifier is no reward, never 0."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from tiny_team import queries

from coterie.errors import SandboxError
from coterie.learning.rewards import Graded, Rewards, Said, grade
from coterie.tasks import catalog
from coterie.tasks.catalog import find_kind, query_of
from coterie.types import Score

ODD = queries()[0]


def said(*texts, query=ODD, lengths=None, limit=10):
    return Said(query=query, texts=list(texts), lengths=lengths or [1] * len(texts), limit=limit)


@pytest.fixture
def plugin(monkeypatch):
    """Lets the odd-number question be graded by a function, as a plugin of an entry point is."""

    def install(verify):
        kind = replace(find_kind("qa"), verify=verify)

        def found(name):
            return kind if name == "mine" else find_kind(name)

        monkeypatch.setattr(catalog, "find_kind", found)
        return replace(ODD, task="mine")

    return install


def test_real_verdicts():
    (one, two) = grade([said("7", "8", "", "9 or so"), said("4", "x", query=queries()[1])], Rewards())
    assert one.raw.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert one.solved.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert two.raw.tolist() == [1.0, 0.0]
    assert (one.errors, one.reasons, one.mean) == (0, (), 0.25)


def test_length_costs_from_gamma_on():
    """Eq. 28: nothing up to 0.8 of the limit, eta at the limit; the verifier's own score stays apart (#28)."""
    (one,) = grade([said(*["7"] * 4, lengths=[8, 9, 10, 10])], Rewards())
    assert one.shaped.tolist() == pytest.approx([1.0, 0.5, 0.0, 0.0])
    assert one.raw.tolist() == [1.0] * 4
    (wrong,) = grade([said("8", "8", lengths=[8, 10])], Rewards(eta=0.5))
    assert wrong.shaped.tolist() == [0.0, -0.5]
    assert wrong.raw.tolist() == [0.0, 0.0]


def test_strict_takes_solved_items_only():
    query = query_of("?", "qa", gold="new york city")
    query = replace(query, reference={"answers": ["new york city"], "metric": "f1"})
    texts = ["new york", "new york city"]
    assert grade([said(*texts, query=query)], Rewards())[0].raw.tolist() == pytest.approx([0.8, 1.0])
    assert grade([said(*texts, query=query)], Rewards(strict=True))[0].raw.tolist() == [0.0, 1.0]


def test_a_readable_answer_may_count_a_little():
    (one,) = grade([said("8", "", "7")], Rewards(parsable=0.1))
    assert one.shaped.tolist() == pytest.approx([0.1, 0.0, 1.0])
    assert one.raw.tolist() == [0.0, 0.0, 1.0]  # what is filtered by: two wrong answers tell nothing
    assert one.solved.tolist() == [0.0, 0.0, 1.0]


# --- verifiers that fail ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [RuntimeError("boom"), ZeroDivisionError(), SandboxError("no sandbox"), AssertionError("x"), SystemExit(3)],
    ids=lambda e: type(e).__name__,
)
def test_a_verifier_that_raises_gives_no_verdict(plugin, error):
    """#54, #56, #62: neither 0 nor an end of the run; the others of the group keep theirs."""

    def verify(answer, text, reference):
        if text == "9":
            raise error
        return catalog.KINDS["qa"].verify(answer, text, reference)

    (one,) = grade([said("7", "9", "8", query=plugin(verify))], Rewards())
    assert np.isnan(one.raw).tolist() == np.isnan(one.shaped).tolist() == [False, True, False]
    assert np.isnan(one.solved).tolist() == [False, True, False]
    assert one.errors == 1
    assert one.mean == 0.5
    assert len(one.reasons) == 1
    assert one.reasons[0]


@pytest.mark.parametrize(
    "answer",
    [None, True, 1.0, Score(verdict="pass", value=float("nan")), Score(verdict="pass", value=float("inf")),
     Score(verdict="pass", value=7.0), Score(verdict="fail", value=-1.0), Score(verdict="pass", value="0.5"),
     Score(verdict="pass", value=None), Score(verdict="zzz", value=1.0), Score(verdict=["pass"], value=1.0),
     Score(verdict="error", value=0.0), Score(verdict="pass", value=1.0, answer=7)],
)  # fmt: skip
def test_what_is_no_verdict_is_an_error(plugin, answer):
    """A plugin that returns something else, or a reward that would ruin every mean."""
    (one,) = grade([said("7", query=plugin(lambda *given: answer))], Rewards())
    assert one.errors == 1
    assert np.isnan(one.shaped).all()
    assert one.reasons[0].startswith("the verifier")


def test_an_error_with_parsable_bonus_stays_an_error(plugin):
    verify = lambda answer, *rest: Score(verdict="error", value=None, answer=answer, reason="timeout")  # noqa: E731
    (one,) = grade([said("7", query=plugin(verify))], Rewards(parsable=0.5))
    assert np.isnan(one.shaped).all()
    assert one.reasons == ("timeout",)


def test_a_group_without_any_verdict_has_no_mean(plugin):
    """#32: not 0, and no warning about an empty mean."""
    (one,) = grade([said("7", "8", query=plugin(lambda *given: 1 / 0))], Rewards())
    assert np.isnan(one.mean)


def test_a_verifier_that_hangs_is_given_up(plugin):
    """#55, #58: what had a verdict keeps it, the rest has none; nobody waits for the thread."""
    stop = threading.Event()

    def verify(answer, text, reference):
        if text == "9":
            stop.wait(60)
        return catalog.KINDS["qa"].verify(answer, text, reference)

    began = time.monotonic()
    try:
        (one,) = grade([said("7", "9", "8", "1", query=plugin(verify))], Rewards(patience=1.0))
    finally:
        stop.set()
    assert time.monotonic() - began < 30
    assert np.isnan(one.raw).tolist() == [False, True, False, False]
    assert one.reasons == ("the verifier gave no verdict in 1 seconds",)


def test_verdicts_do_not_depend_on_their_order(plugin):
    """Several at a time, the slow ones first."""

    def verify(answer, text, reference):
        time.sleep(0.02 if text == "7" else 0.0)
        return catalog.KINDS["qa"].verify(answer, text, reference)

    query = plugin(verify)
    (one,) = grade([said(*["7", "8"] * 10, query=query)], Rewards())
    assert one.raw.tolist() == [1.0, 0.0] * 10


def test_verifying_from_a_thread_gives_the_right_verdict():
    """#54: alarms work in the main thread only; answers that need the prover are judged all the same."""
    found = []
    query = query_of("?", "math", contract="answer", gold="\\frac{1}{2}")
    worker = threading.Thread(target=lambda: found.extend(grade([said("0.5", "0.4", query=query)], Rewards())))
    worker.start()
    worker.join(60)
    assert found[0].raw.tolist() == [1.0, 0.0]


def test_a_query_without_reference_has_no_reward():
    (one,) = grade([said("7", query=replace(ODD, reference=None))], Rewards())
    assert one.errors == 1


def test_nothing_to_grade():
    assert grade([], Rewards()) == []
    assert Graded(raw=np.array([1.0]), shaped=np.array([0.5]), solved=np.array([1.0])).mean == 0.5
