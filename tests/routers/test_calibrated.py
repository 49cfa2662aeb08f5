"""Scores as chances: a planted miscalibration is undone, order within an agent stays, few labels change little."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from planted import outcomes_of, pool_of, query, state_of

from coterie.config import build
from coterie.errors import ConfigError
from coterie.evaluation.curves import calibration_error, reliability_bins
from coterie.routers.calibrated import Calibrated, isotonic, logit, scaled, sigmoid
from coterie.routers.supervised import KNN
from coterie.types import draw

AGENTS = ("ada", "bob")
POOL = pool_of(*AGENTS)
NAN = float("nan")
METHODS = pytest.mark.parametrize("method", ["temperature", "isotonic"])


@dataclass(frozen=True)
class Known:
    """What an artefact says of whom it knows."""

    names: tuple[str, ...] = AGENTS
    keys: tuple[str, ...] = ("rev-ada", "rev-bob")


@dataclass(frozen=True)
class Said:
    """A router that says of each query a score that is far too sure: odds three times too large, and shifted."""

    weights: str | None = None
    _known: Known = Known()

    def predict(self, queries, pool):
        true = chances(queries)
        columns = {"ada": sigmoid(3 * logit(true) + 1), "bob": sigmoid(3 * logit(1 - true) - 1)}
        return np.stack([columns.get(name, np.zeros(len(true))) for name in pool.names()], axis=1)

    def fit(self, outcomes):
        return self


def chances(queries):
    """The chance that ada is right, by the query's number."""
    return np.array([0.05 + 0.9 * draw(3, q.id) / 2**63 for q in queries])


def labelled(size, start=0):
    queries = [query("sum", i) for i in range(start, start + size)]
    right = chances(queries)
    drawn = np.random.default_rng(start).uniform(size=(size, 2))
    return outcomes_of(queries, drawn < np.stack([right, 1 - right], axis=1), AGENTS)


def error(predicted, scores):
    return calibration_error(reliability_bins(predicted.ravel().tolist(), scores.ravel().tolist()))


TEST = labelled(1500, 50_000)


@METHODS
def test_a_planted_miscalibration_is_undone_on_queries_it_never_saw(method):
    before = error(Said().predict(TEST.queries, POOL), TEST.scores)
    found = Calibrated(router=Said(), method=method).on(Said(), labelled(1500)).predict(TEST.queries, POOL)
    assert before > 0.1
    assert error(found, TEST.scores) < 0.3 * before
    assert np.abs(found[:, 0] - chances(TEST.queries)).mean() < 0.05


@METHODS
def test_order_within_an_agent_is_never_turned_round(method):
    labels = labelled(300)
    for turned in (labels, replace(labels, scores=1 - labels.scores)):
        made = Calibrated(router=Said(), method=method).on(Said(), turned)
        raw, found = Said().predict(TEST.queries, POOL), made.predict(TEST.queries, POOL)
        for column in range(2):
            steps = np.diff(found[np.argsort(raw[:, column]), column])
            assert (steps >= -1e-12).all()
        assert found.min() >= 0
        assert found.max() <= 1


def test_few_labels_change_little_and_more_change_more():
    """The prior: three labels are no ground for another slope."""
    raw = Said().predict(TEST.queries, POOL)
    moved = [
        np.abs(Calibrated(router=Said()).on(Said(), labelled(n)).predict(TEST.queries, POOL) - raw).mean()
        for n in (3, 40, 1500)
    ]
    assert moved[0] < 0.5 * moved[2]
    assert moved[0] < moved[1] < 1.5 * moved[2]


@METHODS
def test_an_agent_without_labels_keeps_its_scores(method):
    labels = labelled(200)
    scores = labels.scores.copy()
    scores[:, 1] = NAN
    made = Calibrated(router=Said(), method=method).on(Said(), replace(labels, scores=scores))
    raw, found = Said().predict(TEST.queries, POOL), made.predict(TEST.queries, POOL)
    assert np.allclose(found[:, 1], raw[:, 1], atol=1e-12)
    assert np.abs(found[:, 0] - raw[:, 0]).max() > 0.05


@METHODS
def test_no_labels_at_all_keep_all_scores(method):
    labels = labelled(20)
    blank = replace(labels, scores=np.full_like(labels.scores, NAN))
    for none in (labels.take([]), blank):
        found = Calibrated(router=Said(), method=method).on(Said(), none).predict(TEST.queries, POOL)
        assert np.allclose(found, Said().predict(TEST.queries, POOL), atol=1e-12)


@METHODS
def test_labels_of_another_revision_are_not_taken(method):
    labels = replace(labelled(200), revisions={"ada": "older", "bob": "rev-bob"})
    made = Calibrated(router=Said(), method=method).on(Said(), labels)
    raw, found = Said().predict(TEST.queries, POOL), made.predict(TEST.queries, POOL)
    assert np.allclose(found[:, 0], raw[:, 0], atol=1e-12)


@METHODS
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_labels_that_are_all_the_same_give_finite_chances(method, value):
    labels = labelled(60)
    labels = replace(labels, scores=np.full_like(labels.scores, value))
    found = Calibrated(router=Said(), method=method).on(Said(), labels).predict(TEST.queries, POOL)
    assert np.isfinite(found).all()
    assert abs(found.mean() - value) < 0.2


def test_isotonic_by_hand():
    """Pool-adjacent-violators: 0.2 and 0.4 violate and share 1/2; between steps it is read by interpolation."""
    x, y = np.array([0.1, 0.2, 0.4, 0.9]), np.array([0.0, 1.0, 0.0, 1.0])
    assert np.interp([0.0, 0.1, 0.3, 0.6, 0.9, 1.0], *isotonic(x, y)).tolist() == pytest.approx(
        [0, 0, 0.5, 0.75, 1, 1]
    )


def test_isotonic_gives_equal_scores_the_mean_of_their_outcomes():
    x, y = np.array([0.5, 0.5, 0.5, 0.5]), np.array([0.0, 1.0, 1.0, 1.0])
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 2, 3]):
        assert np.interp([0.2, 0.5, 0.8], *isotonic(x, y[order])).tolist() == pytest.approx([0.75] * 3)


def test_scaled_keeps_scores_that_are_right_already():
    x = np.repeat([0.2, 0.5, 0.8], 500)
    y = np.concatenate([np.arange(500) < 500 * p for p in (0.2, 0.5, 0.8)]).astype(float)
    grid = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
    assert scaled(x, y, grid) == pytest.approx(grid, abs=0.01)


def test_fit_keeps_a_part_from_the_router_for_the_maps():
    """A router that knows its queries by heart seems right on all of them; only held-out labels say more."""

    @dataclass(frozen=True)
    class ByHeart(Said):
        seen: frozenset = frozenset()

        def fit(self, outcomes):
            return replace(self, seen=frozenset(q.id for q in outcomes.queries))

    made = Calibrated(router=ByHeart(), held=0.25).fit(labelled(200))
    outer, inner = made._parts
    assert len(inner.seen) == 150
    assert outer.notes["method"] == "temperature"
    assert Calibrated(router=ByHeart(), held=0.0).fit(labelled(200))._parts[1].seen.__len__() == 200


def test_held_zero_maps_nothing():
    made = Calibrated(router=Said(), held=0.0).fit(labelled(100))
    assert np.allclose(made.predict(TEST.queries, POOL), Said().predict(TEST.queries, POOL))


def test_one_query_fits():
    assert np.isfinite(Calibrated(router=Said()).fit(labelled(1)).predict(TEST.queries[:3], POOL)).all()


def test_what_was_saved_predicts_the_same_bit_for_bit(tmp_path):
    table = {"use": "calibrated", "router": {"use": "knn", "encoder": "hashed", "k": 10}, "method": "isotonic"}
    made = build("router", table).fit(labelled(120))
    made.save(tmp_path / "both.safetensors")
    loaded = build("router", {**table, "weights": "both.safetensors"}, base=tmp_path)
    asked = TEST.queries[:40]
    assert np.array_equal(loaded.predict(asked, POOL), made.predict(asked, POOL))
    assert loaded.route(state_of(asked[0], POOL)) == made.route(state_of(asked[0], POOL))


def test_a_partner_that_is_absent_or_anothers_is_refused(tmp_path):
    table = {"use": "calibrated", "router": {"use": "knn", "encoder": "hashed", "k": 10}}
    for name, labels in (("one", labelled(60)), ("two", labelled(60, 1000))):
        build("router", table).fit(labels).save(tmp_path / f"{name}.safetensors")
    path, other = tmp_path / "one.inner.safetensors", tmp_path / "two.inner.safetensors"
    loaded = {**table, "weights": str(tmp_path / "one.safetensors")}
    path.write_bytes(other.read_bytes())
    with pytest.raises(ConfigError, match="is not the file that it was written with") as caught:
        build("router", loaded).predict(TEST.queries[:1], POOL)
    assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(ConfigError, match=r"its partner one\.inner\.safetensors is not beside it"):
        build("router", loaded).predict(TEST.queries[:1], POOL)
    with pytest.raises(ConfigError, match="not fitted"):
        build("router", table).predict(TEST.queries[:1], POOL)


def test_only_routers_that_predict_can_be_calibrated():
    for inner in ("uniform", {"use": "random"}):
        with pytest.raises(ConfigError, match="expected a router that predicts scores") as caught:
            build("router", {"use": "calibrated", "router": inner})
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="did you mean 'knn'"):
        build("router", {"use": "calibrated", "router": "kn"})
    assert Calibrated(router=KNN()).method == "temperature"


def test_isotonic_keeps_a_step_where_it_is():
    """4,000 labels of a step at 0.7: 0.23 below it, 0.77 above."""
    random = np.random.default_rng(0)
    x = random.uniform(0.5, 0.9, 4000)
    y = (random.uniform(size=4000) < np.where(x < 0.7, 0.23, 0.77)).astype(float)
    assert np.interp([0.6, 0.68, 0.72, 0.85], *isotonic(x, y)) == pytest.approx([0.23, 0.23, 0.77, 0.77], abs=0.06)


def test_scores_that_say_the_opposite_become_one_chance():
    """Labels fall with the score: the map is flat at the base rate, not at the offset of a falling line."""
    x = np.linspace(0.85, 0.95, 200)
    y = (x < 0.894).astype(float)
    assert scaled(x, y, np.array([0.86, 0.94])) == pytest.approx([y.mean()] * 2, abs=0.01)
