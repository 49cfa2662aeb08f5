"""Geometry and drawing: fronts, ticks, labels that stay apart, SVG that is well formed whatever the names are."""

import math
from xml.etree import ElementTree

import numpy as np
import pytest

from coterie.evaluation.labels import Box, Spot, place, text_width
from coterie.evaluation.plots import (
    PLOT,
    Axis,
    Mark,
    bins,
    compact,
    cost_quality,
    interval_bar,
    pareto,
    shorten,
    spanning,
)

HOSTILE = '</text><script>alert(1)</script>" onload="x'


def mark(name="m", x=100.0, y=0.5, **parts):
    return Mark(name=name, x=x, y=y, lo=max(0.0, y - 0.1), hi=min(1.0, y + 0.1), **parts)


def parsed(svg):
    return ElementTree.fromstring(svg)


def css(node):
    return node.get("class", "").split()


def test_pareto_keeps_what_nothing_beats():
    assert pareto([(3, 0.9), (1, 0.5), (2, 0.4), (2, 0.6), (4, 0.9)]) == [1, 3, 0]
    assert pareto([]) == []


def test_pareto_keeps_equals_and_drops_the_dearer_of_two_equally_good():
    assert pareto([(1, 0.5), (1, 0.5), (2, 0.5)]) == [0, 1]


def test_pareto_agrees_with_its_definition():
    rng = np.random.default_rng(0)
    points = [(float(x), float(y)) for x, y in rng.integers(0, 6, size=(40, 2))]
    beaten = [any(a <= x and b >= y and (a, b) != (x, y) for a, b in points) for x, y in points]
    assert sorted(pareto(points)) == [i for i, lost in enumerate(beaten) if not lost]


def test_axes_are_logarithmic_only_where_wide_and_positive():
    assert spanning([10, 100]).log
    assert not spanning([10, 20]).log
    assert not spanning([0, 1000]).log
    for axis, value in ((spanning([10, 1000]), 100), (spanning([5, 5]), 5), (spanning([0, 0]), 0)):
        assert 0 < axis.share(value) < 1 or value == 0


@pytest.mark.parametrize(
    ("lo", "hi", "log"), [(0, 1, False), (0.2, 0.9, False), (3, 40_000, True), (1e-7, 2e-3, True)]
)
def test_ticks_are_round_few_and_inside(lo, hi, log):
    ticks = Axis(lo=lo, hi=hi, log=log).ticks()
    assert 2 <= len(ticks) <= 7
    assert all(lo * 0.99 <= t <= hi * 1.01 for t in ticks)
    assert all(float(f"{t:.2g}") == pytest.approx(t) for t in ticks)


def test_tick_numbers_are_short():
    assert [compact(v) for v in (0, 0.5, 200, 1500, 2e6)] == ["0", "0.5", "200", "1.5k", "2M"]
    assert compact(0.0002, "$") == "$0.0002"


def test_bins_are_single_while_few_and_cover_everything():
    assert bins([1, 2, 4]) == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert bins([]) == [(0, 0)]
    wide = bins(list(range(1, 25)))
    assert wide[:4] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert [n for low, high in wide for n in range(low, high + 1)] == list(range(1, 25))


@pytest.mark.parametrize("seed", range(6))
def test_labels_overlap_neither_each_other_nor_points(seed):
    rng = np.random.default_rng(seed)
    spots = [
        Spot(x=float(x), y=float(y), text=f"recipe-{i}-long-name"[: 6 + i], top=float(y) - 30, bottom=float(y) + 30)
        for i, (x, y) in enumerate(zip(rng.uniform(150, 760, 12), rng.uniform(60, 330, 12), strict=True))
    ]
    boxes = place(spots, PLOT)
    assert all(a.overlap(b) == 0 for i, a in enumerate(boxes) for b in boxes[:i])
    assert all(box.overlap(Box(x=s.x - 6, y=s.y - 6, width=12, height=12)) == 0 for box in boxes for s in spots)
    assert all(box.overlap(PLOT) == pytest.approx(box.area) for box in boxes)


def test_labels_of_ten_equal_points_stay_apart():
    spots = [Spot(x=400, y=200, text=f"recipe {i}", top=150, bottom=250) for i in range(10)]
    boxes = place(spots, PLOT)
    assert all(a.overlap(b) == 0 for i, a in enumerate(boxes) for b in boxes[:i])


def test_wide_scripts_are_measured_wide():
    assert text_width("漢字") == 2 * text_width("ab")


def test_the_plot_has_a_point_a_recipe_and_marks_front_and_baseline():
    marks = [mark("cheap", 10, 0.3), mark("base", 100, 0.6, baseline=True), mark("poor", 200, 0.4)]
    root = parsed(cost_quality(marks, "Tokens a query", oracle=0.9))
    points = {g.get("data-recipe"): css(node) for g in root for node in g if "point" in css(node)}
    assert points == {"cheap": ["point", "best"], "base": ["point", "best", "base"], "poor": ["point"]}
    assert [node for node in root.iter("line") if css(node) == ["oracle"]]
    assert "logarithmic" in "".join(root.itertext())


def test_a_better_point_is_drawn_higher_and_a_dearer_one_further_right():
    root = parsed(cost_quality([mark("a", 10, 0.3), mark("b", 90, 0.8)], "Tokens"))
    a, b = (next(n for n in root.iter("circle")) for root in [g for g in root if g.find("circle") is not None])
    assert float(b.get("cy")) < float(a.get("cy"))
    assert float(b.get("cx")) > float(a.get("cx"))


def test_drawing_is_deterministic_and_defined_for_little_data():
    marks = [mark("a", 10, 0.3), mark("b", 30, 0.8)]
    assert cost_quality(marks, "Tokens") == cost_quality(list(marks), "Tokens")
    assert cost_quality([], "Tokens") == ""
    parsed(cost_quality([mark("zero", 0.0, 0.0)], "Tokens"))
    parsed(cost_quality([mark("full", 5.0, 1.0)], "Tokens", oracle=1.0))


def test_hostile_names_stay_text():
    root = parsed(cost_quality([mark(HOSTILE), mark("other", 300, 0.2)], HOSTILE))
    assert not list(root.iter("script"))
    assert all(not key.startswith("on") for node in root.iter() for key in node.attrib)
    assert HOSTILE in [g.get("data-recipe") for g in root.iter("g")]


def test_the_interval_bar_is_in_proportion():
    root = parsed(interval_bar(0.5, (0.25, 0.75)))
    span = next(root.iter("rect"))
    assert float(span.get("width")) == pytest.approx(112 * 0.5)
    assert float(next(root.iter("circle")).get("cx")) == pytest.approx(60)
    assert interval_bar(math.nan, (math.nan, math.nan)) == ""


def test_long_names_are_shortened_visibly():
    assert shorten("short") == "short"
    assert shorten("x" * 40) == "x" * 25 + "…"
