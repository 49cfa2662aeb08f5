"""The drawings of router studies: well formed whatever the names, true to the numbers, defined for little data."""

from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

from coterie.evaluation import curves
from coterie.evaluation.curves import (
    At,
    Bin,
    Level,
    Series,
    calibration_error,
    frontier,
    learning_curve,
    regret_curve,
    reliability,
    reliability_bins,
    spread,
)
from coterie.evaluation.plots import Mark

HOSTILE = '</text><script>alert(1)</script>" onload="x'


def parsed(svg):
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert root.get("aria-label")
    return root


def of(root, css):
    return [node for node in root.iter() if css in node.get("class", "").split()]


def points(path):
    return [tuple(map(float, pair.split())) for pair in path.get("d").strip("MZ").split("L")]


def mark(name, x, y, **parts):
    return Mark(name=name, x=x, y=y, lo=y - 0.02, hi=y + 0.02, **parts)


def series(name, *values, band=0.0, start=100):
    return Series(
        name=name, points=tuple(At(x=start * 2**i, y=y, lo=y - band, hi=y + band) for i, y in enumerate(values))
    )


def test_the_frontier_marks_baseline_and_oracle_and_keeps_the_oracle_off_the_front():
    marks = [
        mark("knn", 1.0, 0.6),
        mark("best single", 2.0, 0.55, baseline=True),
        mark("oracle", 0.9, 0.8, oracle=True),
    ]
    root = parsed(frontier(marks))
    kinds = {
        g.get("data-recipe"): n.get("class").split()
        for g in root.iter("g")
        for n in g
        if "point" in n.get("class", "")
    }
    assert kinds == {"knn": ["point", "best"], "best single": ["point", "base"], "oracle": ["point", "ideal"]}
    [front] = of(root, "front")
    assert len({y for _, y in points(front)}) == 1


def test_a_given_frontier_is_drawn_as_steps_through_its_points():
    root = parsed(frontier([mark("knn", 1.0, 0.6)], [(0.5, 0.4), (1.0, 0.6), (1.5, 0.7)]))
    [front] = of(root, "front")
    drawn = points(front)
    assert len(drawn) == 6
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(drawn))
    assert drawn[-1][1] < drawn[0][1]


def test_free_routers_are_drawn_on_a_linear_scale():
    """B79: a price of 0 is a price."""
    root = parsed(frontier([mark("local", 0.0, 0.5), mark("api", 90.0, 0.6)]))
    assert "logarithmic" not in "".join(root.itertext())


def test_the_learning_curve_is_logarithmic_and_has_bands_and_levels():
    root = parsed(learning_curve([series("ours", 0.5, 0.6, 0.65, band=0.02)], [Level(name="best single", y=0.62)]))
    [drawn] = of(root, "line")
    xs = [x for x, _ in points(drawn)]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.1)
    [band] = of(root, "band")
    assert len(points(band)) == 6
    assert "best single: 62.0 %" in "".join(root.itertext())
    assert len(of(root, "oracle")) == 1


def test_without_seeds_there_is_no_band_and_zero_labels_make_it_linear():
    root = parsed(learning_curve([series("ours", 0.5, 0.6, start=0)]))
    assert not of(root, "band")
    assert "logarithmic" not in "".join(root.itertext())


def test_regret_starts_at_zero_and_a_worse_router_is_higher():
    root = parsed(regret_curve([series("ucb", 1, 2, 3), series("random", 5, 20, 60)]))
    ucb, worse = (points(node)[-1][1] for node in of(root, "line"))
    assert worse < ucb
    assert "0" in [node.text for node in of(root, "tick")]


def test_lines_differ_by_more_than_colour_and_are_named():
    root = parsed(regret_curve([series(f"router {i}", 1 + i, 2 + i) for i in range(8)]))
    looks = {tuple(sorted(node.get("class").split())) for node in of(root, "line")}
    assert len(looks) == 8
    assert {f"router {i}" for i in range(8)} <= {node.text for node in of(root, "label")}


@pytest.mark.parametrize("seed", range(4))
def test_names_at_the_ends_keep_apart(seed):
    wanted = np.random.default_rng(seed).uniform(100, 140, size=8).tolist()
    placed = spread(wanted, 0, 400)
    ordered = sorted(placed)
    assert all(b - a >= curves.APART - 1e-9 for a, b in pairwise(ordered))
    assert [placed[i] for i in sorted(range(8), key=lambda i: wanted[i])] == ordered
    assert max(spread([390.0] * 5, 0, 400)) <= 400


def test_calibration_by_hand():
    """0.1, 0.3 with one of two right: gap 0.3; 0.9 and 0.9 both right: gap 0.1; half each: 0.2."""
    bins = reliability_bins([0.1, 0.3, 0.9, 0.9], [0, 1, 1, 1], most=2)
    assert [(one.chance, one.share, one.n) for one in bins] == [
        (pytest.approx(0.2), 0.5, 2),
        (pytest.approx(0.9), 1.0, 2),
    ]
    assert calibration_error(bins) == pytest.approx(0.2)
    assert calibration_error([]) is None
    assert reliability_bins([1.0, 0.0], [1, 0])[-1].chance == 1.0


def test_true_chances_are_well_calibrated_and_sure_ones_are_not():
    rng = np.random.default_rng(0)
    chances = rng.random(20_000)
    came = (rng.random(20_000) < chances).astype(float)
    assert calibration_error(reliability_bins(chances.tolist(), came.tolist())) < 0.02
    assert calibration_error(reliability_bins([1.0] * 20_000, came.tolist())) == pytest.approx(0.5, abs=0.02)


def test_the_reliability_diagram_says_the_error_and_has_a_point_a_bin():
    root = parsed(reliability([Bin(chance=0.2, share=0.1, n=30), Bin(chance=0.8, share=0.9, n=10)]))
    small, large = sorted(of(root, "bubble"), key=lambda node: float(node.get("r")))
    assert float(large.get("cx")) < float(small.get("cx"))
    assert "ECE 10.0 %" in "".join(root.itertext())


@pytest.mark.parametrize(("chances", "came"), [([1.2], [1]), ([-0.1], [1]), ([0.5], [])])
def test_what_is_no_chance_is_refused(chances, came):
    with pytest.raises(ValueError, match=r"no chance|zip"):
        reliability_bins(chances, came)


def test_nothing_to_draw_is_nothing():
    empty = Series(name="none", points=())
    assert frontier([]) == learning_curve([]) == learning_curve([empty]) == regret_curve([empty]) == ""
    assert reliability([]) == ""


def test_one_point_and_equal_points_are_drawn():
    parsed(learning_curve([series("one", 0.5)]))
    parsed(learning_curve([series("zero", 0.0, 0.0)], [Level(name="full", y=1.0)]))
    parsed(regret_curve([series("none", 0.0)]))
    parsed(frontier([mark("one", 1.0, 0.5)]))


def test_hostile_names_stay_text_and_drawing_is_deterministic():
    for draw in (
        lambda: frontier([mark(HOSTILE, 1.0, 0.5)], label=HOSTILE),
        lambda: learning_curve([series(HOSTILE, 0.1, 0.2)], [Level(name=HOSTILE, y=0.3)], label=HOSTILE),
        lambda: regret_curve([series(HOSTILE, 1, 2)], label=HOSTILE),
        lambda: reliability([Bin(chance=0.2, share=0.1, n=30)], HOSTILE),
    ):
        root = parsed(draw())
        assert not list(root.iter("script"))
        assert all(not key.startswith("on") for node in root.iter() for key in node.attrib)
        assert draw() == draw()
