"""Agents that a fitted router never saw: recovered from a few labels, nobody else's scores moved."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from planted import AGENTS, KINDS, POOL, Planted, outcomes_of, planted, pool_of, query, state_of

from coterie.config import build
from coterie.errors import ConfigError, DataError
from coterie.routers.extended import Extended, line
from coterie.routers.supervised import KNN

FRESH = [query(KINDS[i % 3], i) for i in range(2000, 2090)]
LABELLED = [query(KINDS[i % 3], i) for i in range(5000, 5064)]
NAN = float("nan")
SKILL = np.eye(3)


@cache
def inner():
    """Fitted once: no test changes a router."""
    return KNN(encoder=Planted(), k=15).fit(planted())


def skilled(queries, skill, name="new", revision="rev-new", noise=0.0):
    """Outcomes of one agent that solves each kind with its own chance."""
    random = np.random.default_rng(1)
    scores = [[float(random.uniform() < skill[KINDS.index(q.domain)])] for q in queries]
    return outcomes_of(queries, scores, (name,), {name: revision})


def wider(*names):
    return pool_of(*AGENTS, *names)


def column(router, name, pool=None):
    pool = pool or wider(name)
    return router.predict(FRESH, pool)[:, pool.names().index(name)]


def truth(skill):
    return np.array([skill[KINDS.index(q.domain)] for q in FRESH])


@pytest.mark.parametrize("skill", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_a_newcomer_that_copies_an_old_agent_is_recovered_from_64_labels(skill):
    made = Extended(router=inner()).fit(skilled(LABELLED, skill))
    copied = inner().predict(FRESH, POOL)[:, skill.index(1)]
    assert np.abs(column(made, "new") - truth(skill)).mean() < 0.1
    assert np.corrcoef(column(made, "new"), copied)[0, 1] > 0.9


def test_a_newcomer_with_a_skill_of_its_own_is_learnt():
    """Good at two kinds, which no old agent is; half right on the third."""
    skill = (1.0, 0.5, 1.0)
    made = Extended(router=inner()).fit(skilled(LABELLED, skill))
    assert np.abs(column(made, "new") - truth(skill)).mean() < 0.15


def test_nobody_elses_scores_move():
    made = Extended(router=inner()).fit(skilled(LABELLED, (1, 1, 1)))
    both = made.predict(FRESH, wider("new"))
    old = [wider("new").names().index(name) for name in AGENTS]
    assert np.array_equal(both[:, old], inner().predict(FRESH, POOL))
    assert np.array_equal(made.predict(FRESH, POOL), inner().predict(FRESH, POOL))


def test_labels_of_agents_that_it_knows_tell_of_the_new_one_alone():
    """Outcomes of the whole pool: the new agent is learnt from them, the others stay as they are."""
    table = skilled(LABELLED, (1, 0, 1))
    everybody = outcomes_of(LABELLED, np.concatenate([table.scores, np.zeros((64, 3))], axis=1), ("new", *AGENTS))
    made = Extended(router=inner()).fit(everybody)
    assert made._parts[0].names == ("new",)
    assert np.array_equal(made.predict(FRESH, POOL), inner().predict(FRESH, POOL))
    assert column(made, "new").min() >= 0
    assert not np.array_equal(column(made, "new"), column(Extended(router=inner()).fit(table), "new"))
    unseen = outcomes_of(
        LABELLED, np.concatenate([table.scores, np.full((64, 3), np.nan)], axis=1), ("new", *AGENTS)
    )
    bare = Extended(router=inner()).fit(unseen)
    assert np.array_equal(column(bare, "new"), column(Extended(router=inner()).fit(table), "new"))


def test_a_replaced_agent_is_judged_by_its_own_labels_and_the_old_one_still_places_queries():
    """Same name, another revision: what was known of the old one places queries, and is not the new one's score."""
    made = Extended(router=inner()).fit(skilled(LABELLED, (0, 0, 1), "ada", "rev-ada-2"))
    pool = pool_of("ada", "bob", revisions={"ada": "rev-ada-2"})
    found = made.predict(FRESH, pool)
    assert np.abs(found[:, 0] - truth((0, 0, 1))).mean() < 0.1
    assert np.array_equal(found[:, 1], inner().predict(FRESH, POOL)[:, 1])


def test_agents_that_left_the_pool_still_serve_as_features():
    """Two of three swapped out: the pool has newcomers and bob alone, scores are as in the full one."""
    table = outcomes_of(
        LABELLED,
        np.concatenate([skilled(LABELLED, s).scores for s in ((1, 0, 0), (0, 0, 1))], axis=1),
        ("new", "newer"),
    )
    made = Extended(router=inner()).fit(table)
    pool = pool_of("bob", "new", "newer")
    found = made.predict(FRESH, pool)
    best = [pool.names()[i] for i in found.argmax(axis=1)]
    wanted = {"sum": "new", "poem": "bob", "code": "newer"}
    assert np.mean([b == wanted[q.domain] for b, q in zip(best, FRESH, strict=True)]) > 0.9
    assert np.array_equal(found[:, 1], column(made, "new", wider("new", "newer")))


def test_missing_labels_are_left_out():
    """An outage is no incompetence: with half of the labels missing it is as if they had not been asked."""
    table = skilled(LABELLED, (1, 0, 1))
    holed = table.scores.copy()
    holed[::2] = NAN
    made = Extended(router=inner()).fit(replace(table, scores=holed))
    fewer = Extended(router=inner()).fit(table.take(range(1, 64, 2)))
    assert np.allclose(column(made, "new"), column(fewer, "new"), atol=1e-9)


def test_an_agent_without_a_label_stays_unknown():
    table = outcomes_of(
        LABELLED,
        np.concatenate([skilled(LABELLED, (1, 0, 0)).scores, np.full((64, 1), NAN)], axis=1),
        ("new", "mute"),
    )
    made = Extended(router=inner()).fit(table)
    assert made._parts[0].names == ("new",)
    assert (column(made, "mute", wider("new", "mute")) == 0).all()
    with pytest.raises(DataError, match="no outcomes"):
        Extended(router=inner()).fit(replace(table, scores=np.full((64, 2), NAN)))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_one_label_gives_its_value_everywhere(value):
    made = Extended(router=inner()).fit(skilled(LABELLED[:1], (value,) * 3))
    assert np.allclose(column(made, "new"), value)


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_constant_labels_give_that_constant(value):
    table = outcomes_of(LABELLED, np.full((64, 1), value), ("new",), {"new": "rev-new"})
    assert np.allclose(column(Extended(router=inner()).fit(table), "new"), value)


@pytest.mark.parametrize("labels", [2, 3, 5])
def test_a_handful_of_labels_gives_scores_in_range(labels):
    found = column(Extended(router=inner()).fit(skilled(LABELLED[:labels], (1, 0, 1))), "new")
    assert np.isfinite(found).all()
    assert found.min() >= 0
    assert found.max() <= 1


def test_labels_that_are_noise_are_shrunk_to_their_mean():
    """Leave-one-out picks a strong ridge where the basis says nothing."""
    scores = np.random.default_rng(8).integers(0, 2, (64, 1)).astype(float)
    found = column(Extended(router=inner()).fit(outcomes_of(LABELLED, scores, ("new",), {"new": "rev-new"})), "new")
    assert found.std() < 0.15
    assert found.mean() == pytest.approx(scores.mean(), abs=0.1)


def test_leave_one_out_by_hand():
    """The chosen line is the one whose errors on left-out queries, each refitted, are least."""
    from coterie.routers.extended import RIDGES

    random = np.random.default_rng(3)
    x = random.uniform(size=(20, 2))
    y = (x @ [0.8, -0.5] + random.normal(0, 0.3, 20)).clip(0, 1)

    def ridge_line(basis, scores, strength):
        middle = basis.mean(axis=0)
        centred = basis - middle
        weights = np.linalg.solve(centred.T @ centred + strength * np.eye(2), centred.T @ (scores - scores.mean()))
        return np.concatenate([weights, [scores.mean() - middle @ weights]])

    errors = []
    for strength in RIDGES:
        rest = [np.delete(np.arange(20), i) for i in range(20)]
        lines = [ridge_line(x[r], y[r], strength) for r in rest]
        errors.append(np.mean([(y[i] - x[i] @ w[:2] - w[2]) ** 2 for i, w in enumerate(lines)]))
    assert line(x, y) == pytest.approx(ridge_line(x, y, RIDGES[int(np.argmin(errors))]))


def test_around_a_router_that_is_not_fitted_it_fits_that_first():
    made = Extended(router=KNN(encoder=Planted(), k=15)).fit(planted())
    assert np.array_equal(made.predict(FRESH, POOL), inner().predict(FRESH, POOL))


def test_a_second_newcomer_is_added_beside_the_first():
    """`fit` around an extended router: what it learnt of the first newcomer is kept."""
    first = Extended(router=inner()).fit(skilled(LABELLED, (1, 0, 0)))
    second = first.fit(skilled(LABELLED, (0, 0, 1), "newer", "rev-newer"))
    pool = wider("new", "newer")
    assert np.allclose(column(second, "new", pool), column(first, "new"), atol=1e-12)
    assert np.abs(column(second, "newer", pool) - truth((0, 0, 1))).mean() < 0.1


def test_a_newcomers_labels_are_replaced_by_a_later_fit():
    first = Extended(router=inner()).fit(skilled(LABELLED, (1, 0, 0)))
    again = first.fit(skilled(LABELLED, (0, 0, 1)))
    assert np.abs(column(again, "new") - truth((0, 0, 1))).mean() < 0.1


def test_what_was_saved_predicts_the_same_bit_for_bit(tmp_path):
    made = Extended(router=inner()).fit(skilled(LABELLED, (1, 0, 1)))
    made.save(tmp_path / "both.safetensors")
    table = {"use": "extended", "router": {"use": "knn", "encoder": Planted(), "k": 15}}
    loaded = build("router", {**table, "weights": "both.safetensors"}, base=tmp_path)
    pool = wider("new")
    assert np.array_equal(loaded.predict(FRESH, pool), made.predict(FRESH, pool))
    assert loaded.route(state_of(FRESH[0], pool)) == made.route(state_of(FRESH[0], pool))
    again = loaded.fit(skilled(LABELLED, (0, 0, 1), "newer", "rev-newer"))
    assert np.allclose(column(again, "new", wider("new", "newer")), column(made, "new"), atol=1e-12)


def test_a_router_from_a_file_is_extended_and_not_fitted_again(tmp_path):
    inner().save(tmp_path / "knn.safetensors")
    table = {"use": "knn", "encoder": Planted(), "k": 15, "weights": "knn.safetensors"}
    made = build("router", {"use": "extended", "router": table}, base=tmp_path).fit(skilled(LABELLED, (1, 0, 0)))
    assert np.array_equal(made.predict(FRESH, POOL), inner().predict(FRESH, POOL))
    assert np.abs(column(made, "new") - truth((1, 0, 0))).mean() < 0.1


def test_a_pool_that_it_does_not_know_is_refused():
    """R4."""
    made = Extended(router=inner()).fit(skilled(LABELLED, (1, 0, 0)))
    with pytest.raises(ConfigError, match="other agents or revisions"):
        made.predict(FRESH, pool_of("zoe"))
    with pytest.raises(ConfigError, match="not fitted"):
        Extended(router=inner()).predict(FRESH, POOL)
    with pytest.raises(ConfigError, match="expected a router that predicts"):
        build("router", {"use": "extended", "router": "uniform"})


@pytest.mark.parametrize(
    "settings",
    [
        {"use": "forest", "trees": 10},
        {"use": "familiarity", "hidden": 32, "width": 16, "epochs": 20},
        {"use": "mlp", "epochs": 60},
        {"use": "calibrated", "router": {"use": "knn", "k": 15, "encoder": Planted()}},
    ],
)
def test_any_router_that_predicts_can_be_extended(settings):
    encoder = {} if "router" in settings else {"encoder": Planted()}
    base = build("router", {**settings, **encoder}).fit(planted())
    made = Extended(router=base).fit(skilled(LABELLED, (0, 1, 0)))
    found = column(made, "new")
    assert found[truth((0, 1, 0)) == 1].mean() > found[truth((0, 1, 0)) == 0].mean() + 0.4
    assert np.array_equal(made.predict(FRESH, POOL), base.predict(FRESH, POOL))
