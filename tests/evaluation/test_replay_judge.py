"""What decisions scored and cost, by hand: oracle, majority, rows over several seeds, the frontier and its area."""

from dataclasses import replace

import numpy as np
import pytest

from coterie.evaluation.replay import judge
from coterie.evaluation.replay.decide import Decision
from coterie.evaluation.replay.judge import (
    area,
    by_query,
    frontier,
    majority,
    oracle,
    result,
    rows_of,
)
from coterie.outcomes import Outcomes
from coterie.types import Message, Query

NAN = float("nan")


def judged(scores, costs, seed=0, ids=None):
    scores, costs = np.array(scores, dtype=float), np.array(costs, dtype=float)
    names = ids or [f"q{i}" for i in range(len(scores))]
    queries = tuple(Query(id=name, messages=(Message(role="user", content=name),)) for name in names)
    agents = tuple("abcdef"[: scores.shape[1]])
    return judge.Tested(
        seed=seed,
        outcomes=Outcomes(queries=queries, agents=agents, scores=scores, tokens=costs, costs=costs, revisions={}),
    )


def decision(name, *picks, seed=0, validation=0.0, chances=(), **variants):
    found = {"": tuple(picks), **{key.replace("_", " "): tuple(value) for key, value in variants.items()}}
    return Decision(contender=name, seed=seed, setting={}, validation=validation, picks=found, chances=chances)


THREE = judged([[1, 0, 1], [0, 0.6, 0.4], [0, 0, 0], [1, 1, 0]], [[3, 2, 1], [3, 2, 1], [3, 2, 1], [2, 3, 1]])


def test_the_oracle_takes_the_best_agent_and_the_cheapest_of_equal_ones():
    found = oracle(THREE)
    assert found.scores.tolist() == [1, 0.6, 0, 1]
    assert found.costs.tolist() == [1, 2, 1, 2]


def test_the_majority_is_right_where_more_than_half_are_and_costs_all_of_them():
    found = majority(THREE)
    assert found.scores.tolist() == [1, 0, 0, 1]
    assert found.costs.tolist() == [6, 6, 6, 6]
    assert majority(judged([[1, 0], [1, 1]], [[1, 1], [1, 1]])).scores.tolist() == [0, 1], "half is no majority"


def test_a_result_is_what_the_chosen_agents_scored_and_cost():
    found = result(THREE, (2, 1, 0, 1))
    assert found.scores.tolist() == [1, 0.6, 0, 1]
    assert found.costs.tolist() == [1, 2, 3, 3]
    assert found.ids == ("q0", "q1", "q2", "q3")


def test_a_query_that_several_seeds_test_counts_once():
    one, two = judged([[1, 0]], [[1, 1]], 0, ["q"]), judged([[0, 1], [1, 1]], [[1, 1]] * 2, 1, ["q", "r"])
    assert by_query([result(one, [0]), result(two, [0, 0])]) == {"q": 0.5, "r": 1.0}


def rows(decisions, tests=(THREE,), variants=()):
    return {one.name: one for one in rows_of(decisions, tests, variants)}


BASE = [decision("best single", 0, 0, 0, 0)]


def test_rows_by_hand():
    found = rows([*BASE, decision("mine", 0, 1, 1, 1)])
    assert list(found) == ["best single", "majority", "oracle", "mine", "selected on validation: mine"]
    assert found["mine"].gain_ci[0] <= 15 <= found["mine"].gain_ci[1]
    assert found["mine"].p_holm == found["mine"].p_value, "one router is a family of one"
    assert found["best single"].score == 0.5
    assert found["best single"].gain == 0
    assert found["best single"].p_value is None
    assert found["mine"].score == pytest.approx(0.65)
    assert found["mine"].gain == pytest.approx(15)
    assert found["mine"].cost_usd_per_1k == pytest.approx(1000 * (3 + 2 + 2 + 3) / 4)
    assert found["mine"].seeds == (pytest.approx(0.65),)
    assert found["majority"].calls == 3


def test_costs_that_are_not_known_are_none_in_a_row():
    unknown = judged(THREE.outcomes.scores, [[1, NAN, 1]] * 4)
    found = rows([*BASE, decision("mine", 0, 1, 0, 0)], (unknown,))
    assert found["best single"].cost_usd_per_1k == 1000
    assert found["mine"].cost_usd_per_1k is None
    assert found["majority"].cost_usd_per_1k is None


def test_seeds_are_averaged_and_paired_by_query():
    other = judged([[0, 1, 1], [0, 1, 1]], [[1, 1, 1]] * 2, seed=1, ids=["q0", "q9"])
    both = [decision("best single", 0, 0, 0, 0), decision("best single", 0, 0, seed=1)]
    mine = [decision("mine", 1, 1, 1, 1), decision("mine", 1, 1, seed=1)]
    found = rows([*both, *mine], (THREE, other))
    assert found["mine"].seeds == (pytest.approx(0.4), 1.0)
    assert found["mine"].score == pytest.approx(0.7)
    assert found["best single"].seeds == (0.5, 0.0)
    assert found["mine"].ci[0] <= 0.7 <= found["mine"].ci[1]


def test_a_routers_predicted_scores_are_held_against_what_came():
    sure = decision("sure", 0, 0, 0, 0, chances=(1.0, 1.0, 1.0, 1.0))
    right = decision("right", 0, 0, 0, 0, chances=(0.5, 0.5, 0.5, 0.5))
    found = rows([*BASE, sure, right])
    assert found["sure"].ece == pytest.approx(0.5)
    assert found["right"].ece == pytest.approx(0.0)
    assert found["best single"].ece is None


def test_variants_are_rows_of_their_own():
    found = rows(
        [*BASE, decision("mine", 0, 1, 1, 1, chances=(1, 1, 1, 1), cheap=(2, 2, 2, 2))], variants=("cheap",)
    )
    assert found["mine, cheap"].score == pytest.approx(0.35)
    assert found["mine, cheap"].cost_usd_per_1k == pytest.approx(1000)
    assert found["mine, cheap"].ece is None
    assert list(found)[-3:] == ["mine", "mine, cheap", "selected on validation: mine"]
    low, high = sorted(found[name].p_value for name in ("mine", "mine, cheap"))
    holms = sorted(found[name].p_holm for name in ("mine", "mine, cheap"))
    assert holms == pytest.approx([min(1, 2 * low), max(min(1, 2 * low), high)])


# --- frontier -----------------------------------------------------------------------------------------


def test_an_area_by_hand():
    """0 below the first point at 1 $, 0.5 from there to 3 $, then 0.8; up to 4 $."""
    front = [(1.0, 0.5), (3.0, 0.8)]
    assert area(front, 4.0) == pytest.approx((0 * 1 + 0.5 * 2 + 0.8 * 1) / 4)
    assert area(front, 2.0) == pytest.approx(0.5 * 1 / 2)
    assert area(front, 0.5) == 0
    assert area([(0.0, 0.7)], 3.0) == pytest.approx(0.7)
    assert area(front, 0.0) is None


def test_a_front_is_that_of_the_router_that_did_best_on_validation():
    weak = replace(decision("weak", 0, 0, 0, 0, validation=0.3, trade_0=(0, 0, 0, 0)), swept=((1.0, 0.9),))
    strong = decision(
        "strong", 0, 1, 0, 1, validation=0.6, trade_0=(0, 1, 0, 1), trade_1=(2, 1, 2, 0), trade_2=(2, 2, 2, 2)
    )
    strong = replace(strong, swept=((2.75, 0.6), (1.5, 0.7), (1.0, 0.4)))
    decisions = [*BASE, weak, strong]
    single = rows(decisions)["best single"]
    found = frontier(decisions, (THREE,), single)
    assert found.router == "strong"
    assert found.points == (
        (pytest.approx(1000), pytest.approx(0.35)),
        (pytest.approx(1500), pytest.approx(0.65)),
    ), "on validation trade 0 costs more than trade 1 and is no better"
    assert found.area == pytest.approx((0.35 * 500 + 0.65 * (2750 - 1500)) / 2750)


def test_there_is_no_front_without_a_sweep_or_without_costs():
    assert frontier(BASE, (THREE,), rows(BASE)["best single"]) is None
    unknown = judged(THREE.outcomes.scores, np.full((4, 3), NAN))
    swept = replace(decision("mine", 0, 0, 0, 0, trade_0=(0, 0, 0, 0)), swept=((1.0, 0.5),))
    assert frontier([*BASE, swept], (unknown,), rows(BASE, (unknown,))["best single"]) is None
