"""Score against dollars: the trade, what a call is expected to cost, a choice file and when it is refused."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from planted import AGENTS, KINDS, POOL, outcomes_of, planted, pool_of, query, state_of

from coterie.config import build
from coterie.errors import ConfigError, DataError
from coterie.routers.choice import Choice, Sweep, Target, chosen, grid, read_choice, sweep
from coterie.routers.cost_aware import CostAware
from coterie.routers.costs import cost_lines, expected, lengths
from coterie.routers.supervised import KNN
from coterie.types import Message, Query

NAN = float("nan")
INNER = {"use": "knn", "encoder": "hashed", "k": 10}
FRESH = [query(KINDS[i % 3], i) for i in range(2000, 2030)]
DOLLARS = {"ada": 0.001, "bob": 0.002, "cyd": 0.004}
WIDE = pool_of(*AGENTS, "new")


def priced(table=None, dollars=DOLLARS):
    """The planted table with what each agent takes for a call."""
    table = table or planted()
    return replace(table, costs=np.tile([dollars[name] for name in table.agents], (len(table.queries), 1)))


def bare(**more):
    return build("router", {"use": "cost_aware", "router": INNER, **more})


def names_of(scores, pool=POOL):
    return [pool.names()[i] for i in scores.argmax(axis=1)]


# --- the trade ----------------------------------------------------------------------------------------


def test_without_a_trade_it_is_the_router_itself():
    made = bare().fit(priced())
    inner = build("router", INNER).fit(planted())
    assert np.array_equal(made.predict(FRESH, POOL), inner.predict(FRESH, POOL))
    for asked in FRESH[:5]:
        assert made.route(state_of(asked)).weights == inner.route(state_of(asked)).weights


def test_a_large_trade_asks_the_cheapest_and_one_between_gives_up_the_dear_first():
    assert set(names_of(bare(trade=1e6).fit(priced()).predict(FRESH, POOL))) == {"ada"}
    table = priced(dollars=DOLLARS | {"cyd": 1.0})
    found = names_of(bare(trade=2.0).fit(table).predict(FRESH, POOL))
    assert set(found) == {"ada", "bob"}, "cyd would be right on code, but costs two of score"


def test_what_was_weighed_is_told():
    routing = bare(trade=10.0).fit(priced()).route(state_of(FRESH[0]))
    predicted, dollars = routing.info["predicted"], routing.info["expected_usd"]
    assert dollars == pytest.approx(DOLLARS)
    worth = {name: predicted[name] - 10 * dollars[name] for name in AGENTS}
    least = min(0.0, *worth.values())
    assert dict(routing.scores) == pytest.approx({name: worth[name] - least for name in AGENTS})
    assert sum(routing.weights.values()) == pytest.approx(1)


def test_scores_are_never_negative_and_keep_their_order():
    made = bare(trade=500.0).fit(priced())
    predicted, dollars = made.estimates(FRESH, POOL)
    found = made.predict(FRESH, POOL)
    assert found.min() >= 0
    assert np.array_equal(found.argsort(axis=1), (predicted - 500 * dollars).argsort(axis=1))


def test_an_unknown_cost_is_never_cheapest():
    """Neither of an agent whose costs were not recorded, nor of one that nobody has seen."""
    table = priced()
    costs = table.costs.copy()
    costs[:, 0] = NAN
    made = bare(trade=1e9).fit(replace(table, costs=costs))
    assert set(names_of(made.predict(FRESH, POOL))) == {"bob"}
    assert set(names_of(bare(trade=1e9).fit(table).predict(FRESH, WIDE), WIDE)) == {"ada"}
    _, dollars = bare().fit(table).estimates(FRESH, WIDE)
    assert (dollars[:, WIDE.names().index("new")] == dollars.max(axis=1)).all()


def test_costs_that_nobody_recorded_cannot_be_weighed():
    assert names_of(bare().fit(planted()).predict(FRESH, POOL))
    with pytest.raises(ConfigError, match="without costs") as caught:
        bare(trade=1.0).fit(planted()).predict(FRESH, POOL)
    assert "\n" not in str(caught.value)


# --- expected costs -----------------------------------------------------------------------------------


def sized(*characters):
    return [Query(id=f"q{i}", messages=(Message(role="user", content="x" * n),)) for i, n in enumerate(characters)]


def test_a_line_by_hand():
    """0.001 dollars and 0.003 a thousand characters; a missing cost is left out."""
    queries = sized(0, 1000, 2000, 4000)
    costs = np.array([[0.001, 5.0], [0.004, 5.0], [0.007, NAN], [NAN, 5.0]])
    table = replace(outcomes_of(queries, np.ones((4, 2)), ("ada", "bob")), costs=costs)
    assert lengths(queries).tolist() == [0, 1, 2, 4]
    assert cost_lines(table).tolist() == [pytest.approx([0.001, 0.003]), pytest.approx([5.0, 0.0])]
    assert expected(cost_lines(table), sized(3000)).tolist() == [pytest.approx([0.010, 5.0])]


def test_a_line_never_falls_and_costs_are_never_negative():
    queries = sized(0, 1000, 2000)
    falling = replace(outcomes_of(queries, np.ones((3, 1)), ("ada",)), costs=np.array([[3.0], [2.0], [1.0]]))
    assert cost_lines(falling).tolist() == [[2.0, 0.0]]
    steep = replace(falling, costs=np.array([[0.0], [0.0], [3.0]]))
    assert expected(cost_lines(steep), queries).min() == 0.0


def test_questions_of_one_length_give_their_mean():
    table = replace(outcomes_of(sized(10, 10), np.ones((2, 1)), ("ada",)), costs=np.array([[1.0], [3.0]]))
    assert cost_lines(table).tolist() == [[2.0, 0.0]]


def test_agents_without_a_known_cost_count_as_the_dearest_call():
    costs = np.array([[NAN, 1.0, 2.0], [NAN, 1.0, 9.0]])
    table = replace(outcomes_of(sized(5, 5), np.ones((2, 3))), costs=costs)
    assert cost_lines(table)[0].tolist() == [9.0, 0.0]
    assert np.isnan(cost_lines(replace(table, costs=np.full((2, 3), NAN)))).all()


# --- sweep and choice ---------------------------------------------------------------------------------


def test_a_sweep_goes_from_score_alone_to_cost_alone():
    random = np.random.default_rng(0)
    predicted, dollars = random.uniform(size=(40, 3)), np.tile([0.001, 0.01, 0.1], (40, 1))
    found = sweep(predicted, dollars, predicted, dollars)
    trades = len(found.trades)
    assert found.scores.shape == found.costs.shape == (trades,)
    assert found.picks.shape == (trades, 40)
    assert found.trades[0] == 0
    assert (np.diff(found.trades) > 0).all()
    assert np.array_equal(found.picks[0], predicted.argmax(axis=1))
    assert (found.picks[-1] == 0).all()
    assert (np.diff(found.costs) <= 1e-12).all(), "a higher trade never costs more"
    assert found.scores[0] == pytest.approx(predicted.max(axis=1).mean())


def test_there_is_nothing_to_sweep_over_equal_costs_or_equal_scores():
    scores = np.random.default_rng(0).uniform(size=(5, 2))
    assert grid(scores, np.ones((5, 2))).tolist() == [0.0]
    assert grid(np.ones((5, 2)), np.tile([1.0, 2.0], (5, 1))).tolist() == [0.0]


FOUND = Sweep(
    trades=np.array([0.0, 1.0, 2.0, 3.0]),
    scores=np.array([0.80, 0.82, 0.75, 0.60]),
    costs=np.array([0.010, 0.006, 0.004, 0.001]),
    gains=np.array([0.00, 0.02, -0.05, -0.20]),
    errors=np.zeros(4),
    picks=np.zeros((4, 1), dtype=int),
)


@pytest.mark.parametrize(
    ("kind", "value", "place"),
    [
        ("at_most_cost", 100, 1),
        ("at_most_cost", 6, 1),
        ("at_most_cost", 5.9, 2),
        ("at_most_cost", 1, 3),
        ("within_points", 0, 1),
        ("within_points", 5, 2),
        ("within_points", 20, 3),
        ("within_points", -2, 1),
    ],
)
def test_the_trade_that_meets_the_target(kind, value, place):
    """The best score for the money, or the lowest cost at the score; the best single agent has 0.80."""
    assert chosen(FOUND, Target(kind=kind, value=value)) == place


def test_a_best_score_that_may_be_luck_does_not_decide_how_much_of_the_money_is_spent():
    """Of trades within a standard error of the best score the smallest, which the router thinks best of."""
    unsure = replace(FOUND, errors=np.full(4, 0.03))
    assert chosen(unsure, Target(kind="at_most_cost", value=100)) == 0
    assert chosen(unsure, Target(kind="at_most_cost", value=6)) == 1
    unsure = replace(FOUND, errors=np.full(4, 0.01))
    assert chosen(unsure, Target(kind="at_most_cost", value=100)) == 1
    assert chosen(replace(FOUND, scores=np.full(4, NAN)), Target(kind="at_most_cost", value=5)) == 2


def test_a_score_that_may_be_luck_is_not_counted_on():
    """The paired standard error is put on top of the points that may be lost."""
    unsure = replace(FOUND, errors=np.full(4, 0.03))
    assert chosen(unsure, Target(kind="within_points", value=5)) == 1
    assert chosen(unsure, Target(kind="within_points", value=8)) == 2
    with pytest.raises(DataError, match="within 1 points"):
        chosen(unsure, Target(kind="within_points", value=0))


def test_gains_of_a_sweep_are_paired_with_the_best_single_agent():
    """By hand: the second agent has the best mean; one of four queries is won, a missing outcome is left out."""
    scores = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [NAN, 1.0]])
    predicted, dollars = np.array([[1, 0], [0, 1], [0, 1], [1, 0.0]]), np.ones((4, 2))
    found = sweep(predicted, dollars, scores, dollars)
    assert found.scores.tolist() == [1.0]
    assert found.gains.tolist() == [pytest.approx(1 / 3)]
    assert found.errors.tolist() == [pytest.approx(np.std([1, 0, 0]) / np.sqrt(3))]


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [("at_most_cost", 0.5, r"closest: \$1 a thousand"), ("within_points", -3, "closest: within -2 points")],
)
def test_a_target_that_no_trade_reaches_is_said_with_the_closest(kind, value, said):
    with pytest.raises(DataError, match=said) as caught:
        chosen(FOUND, Target(kind=kind, value=value))
    assert "\n" not in str(caught.value)


# --- the file of a choice -----------------------------------------------------------------------------


def choice(trade=1e6, revisions=None):
    return Choice(
        trade=trade,
        target=Target(kind="within_points", value=1.0),
        score=0.8,
        interval=(0.7, 0.9),
        cost_usd_per_1k=1.5,
        queries=120,
        data="abc",
        pool=revisions or {name: f"rev-{name}" for name in AGENTS},
        date="2025-01-01",
    )


def test_a_choice_survives_the_disk(tmp_path):
    path = tmp_path / "folder" / "choice.json"
    choice().save(path)
    assert read_choice(str(path)) == choice()
    assert [file.name for file in path.parent.iterdir()] == ["choice.json"]


def test_a_choice_takes_the_place_of_the_trade(tmp_path):
    choice().save(tmp_path / "choice.json")
    bare().fit(priced()).save(tmp_path / "both.safetensors")
    table = {"use": "cost_aware", "router": INNER, "choice": "choice.json", "weights": "both.safetensors"}
    assert set(names_of(build("router", table, base=tmp_path).predict(FRESH, POOL))) == {"ada"}
    given = bare(trade=0.0).fit(priced()).with_choice(choice())
    assert set(names_of(given.predict(FRESH, POOL))) == {"ada"}
    assert given.trade == 1e6
    given.save(tmp_path / "again.safetensors")


def test_a_choice_survives_another_fit(tmp_path):
    """A router with a choice file that is fitted again weighs cost as before."""
    choice().save(tmp_path / "choice.json")
    made = bare(choice=str(tmp_path / "choice.json")).fit(priced())
    assert set(names_of(made.predict(FRESH, POOL))) == {"ada"}


CHANGES = {
    "added": WIDE,
    "removed": pool_of("ada", "bob"),
    "replaced": pool_of(*AGENTS, revisions={"bob": "newer"}),
}


@pytest.mark.parametrize(("change", "name"), [("added", "new"), ("removed", "cyd"), ("replaced", "bob")])
def test_a_choice_for_another_pool_is_refused(change, name, tmp_path):
    """R4: also where the router's own weights would still do."""
    path = tmp_path / "choice.json"
    choice().save(path)
    made = bare(choice=str(path)).fit(priced())
    with pytest.raises(ConfigError, match=rf"choice.json: was set for another pool \(differs: {name}\)") as caught:
        made.route(state_of(FRESH[0], CHANGES[change]))
    assert "\n" not in str(caught.value)
    assert "coterie calibrate" in str(caught.value)
    with pytest.raises(ConfigError, match=name):
        bare().fit(priced()).with_choice(choice()).predict(FRESH, CHANGES[change])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "\udcff",
        json.dumps({"trade": 1}),
        json.dumps({"trade": "much"}),
    ],
)
def test_a_damaged_choice_is_one_line(tmp_path, text):
    path = tmp_path / "choice.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=r"choice\.json: ") as caught:
        bare(choice=str(path)).fit(priced()).predict(FRESH, POOL)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [{"trade": -1.0}, {"trade": NAN}, {"format": 2}, {"extra": 1}, {"pool": []}])
def test_a_choice_that_cannot_be_is_refused(tmp_path, change):
    path = tmp_path / "choice.json"
    choice().save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigError, match="was not written by") as caught:
        read_choice(str(path))
    assert "\n" not in str(caught.value)


def test_an_absent_choice_is_one_line(tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read") as caught:
            bare(choice=str(path)).fit(priced()).predict(FRESH, POOL)
        assert "\n" not in str(caught.value)


def test_a_choice_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as caught:
        choice().save(tmp_path / "file" / "choice.json")
    assert "\n" not in str(caught.value)


# --- weights ------------------------------------------------------------------------------------------


def test_what_was_saved_weighs_the_same(tmp_path):
    made = bare(trade=100.0).fit(priced())
    made.save(tmp_path / "both.safetensors")
    assert {file.name for file in tmp_path.iterdir()} == {"both.safetensors", "both.inner.safetensors"}
    loaded = build(
        "router",
        {"use": "cost_aware", "router": INNER, "trade": 100.0, "weights": "both.safetensors"},
        base=tmp_path,
    )
    assert np.array_equal(loaded.predict(FRESH, POOL), made.predict(FRESH, POOL))
    assert loaded.route(state_of(FRESH[0])) == made.route(state_of(FRESH[0]))


def test_costs_that_are_not_known_survive_the_disk(tmp_path):
    bare().fit(planted()).save(tmp_path / "both.safetensors")
    table = {"use": "cost_aware", "router": INNER, "weights": "both.safetensors"}
    assert names_of(build("router", table, base=tmp_path).predict(FRESH, POOL))


def test_a_partner_that_is_absent_or_foreign_is_refused(tmp_path):
    bare().fit(priced()).save(tmp_path / "one.safetensors")
    bare().fit(priced(planted(60, 60))).save(tmp_path / "two.safetensors")
    inner = tmp_path / "one.inner.safetensors"
    inner.write_bytes((tmp_path / "two.inner.safetensors").read_bytes())
    loaded = bare(weights=str(tmp_path / "one.safetensors"))
    with pytest.raises(ConfigError, match="is not the file that it was written with"):
        loaded.predict(FRESH, POOL)
    inner.unlink()
    with pytest.raises(ConfigError, match=r"its partner one\.inner\.safetensors is not beside it"):
        loaded.predict(FRESH, POOL)
    with pytest.raises(ConfigError, match="holds weights of knn"):
        bare(weights=str(tmp_path / "two.inner.safetensors")).predict(FRESH, POOL)


def test_routers_around_routers_are_built_and_kept(tmp_path):
    """Cost-aware choice over calibrated chances over nearest neighbours."""
    table = {"use": "cost_aware", "trade": 50.0, "router": {"use": "calibrated", "router": INNER}}
    made = build("router", table).fit(priced())
    made.save(tmp_path / "all.safetensors")
    loaded = build("router", {**table, "weights": "all.safetensors"}, base=tmp_path)
    assert np.array_equal(loaded.predict(FRESH, POOL), made.predict(FRESH, POOL))


def test_only_routers_that_predict_are_wrapped():
    with pytest.raises(ConfigError, match="expected a router that predicts scores"):
        build("router", {"use": "cost_aware", "router": "uniform"})
    with pytest.raises(ConfigError, match=r"router\.trade"):
        bare(trade=-1)
    assert CostAware(router=KNN()).trade == 0


def test_a_sparse_table_is_swept_without_a_warning():
    """Columns and choices of which nothing is known: means are of what is known, and NaN meets no target."""
    scores = np.array([[1.0, NAN], [0.0, NAN], [NAN, NAN]])
    costs = np.array([[0.001, NAN], [0.002, NAN], [NAN, NAN]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = sweep(np.array([[0.1, 0.9]] * 3), np.array([[0.01, 0.02]] * 3), scores, costs)
        place = chosen(found, Target(kind="at_most_cost", value=10.0))
        with pytest.raises(DataError, match=r"closest: \$1\.5 a thousand"):
            chosen(found, Target(kind="at_most_cost", value=1.0))
    assert found.scores[place] == 0.5
    assert found.costs[place] == pytest.approx(0.0015)
    assert np.isnan(found.scores[0])
    assert np.isnan(found.errors[0])


def test_a_sweep_gives_the_means_that_numpy_gives():
    random = np.random.default_rng(0)
    scores, costs = random.uniform(size=(30, 3)), random.uniform(size=(30, 3))
    scores[random.uniform(size=scores.shape) < 0.2] = np.nan
    found = sweep(random.uniform(size=(30, 3)), random.uniform(size=(30, 3)), scores, costs)
    came = scores[np.arange(30), found.picks]
    gains = came - scores[:, np.nanargmax(np.nanmean(scores, axis=0))]
    assert np.allclose(found.scores, np.nanmean(came, axis=1))
    count = (~np.isnan(gains)).sum(axis=1)
    assert np.allclose(found.errors, np.nanstd(gains, axis=1) / np.sqrt(count))
