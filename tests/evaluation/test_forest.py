"""The comparison on a page: the forest plot is true to the numbers, cards come and go with what there is."""

from xml.etree import ElementTree

import pytest
from samples import sample_run

from coterie.evaluation.compare import compare
from coterie.evaluation.forest import Stripe, comparison_cards, comparison_sheet, forest
from coterie.evaluation.lineup import of_traces
from coterie.evaluation.sheet import Card, Sheet, cards, plain_table, sheet


def stripe(name, at, half, **parts):
    return Stripe(name=name, at=at, lo=at - half, hi=at + half, note="n 9", **parts)


def drawn(*stripes):
    return ElementTree.fromstring(forest(stripes, "Difference in percentage points"))


def of(root, css):
    return [node for node in root.iter() if css in node.get("class", "").split()]


def test_differences_lie_on_their_side_of_zero():
    root = drawn(stripe("better", 5, 3), stripe("worse", -5, 3), stripe("even", 0, 2))
    [zero] = of(root, "zero")
    at = [float(node.get("cx")) - float(zero.get("x1")) for node in of(root, "middle")]
    assert at[0] > 0 > at[1]
    assert at[0] == pytest.approx(-at[1], abs=0.1)
    assert at[2] == pytest.approx(0, abs=0.1)
    kinds = [g.get("class").split()[1] for g in root.iter("g")]
    assert kinds == ["better", "worse", "even"]


def test_only_what_is_clear_after_holm_is_filled():
    root = drawn(stripe("a", 5, 3, clear=True), stripe("b", 5, 30))
    assert [g.get("data-recipe") for g in of(root, "clear")] == ["a"]


def test_zero_is_shown_also_where_all_are_better_and_nothing_is_drawn_of_nothing():
    [zero] = of(drawn(stripe("a", 50, 1), stripe("b", 40, 2)), "zero")
    assert 220 <= float(zero.get("x1")) < 300
    drawn(Stripe(name="flat", at=0, lo=0, hi=0, note=""))
    assert forest([], "x") == ""


def compared(**options):
    found = of_traces(sample_run())
    baseline = next(e for e in found if e.name == "best-single")
    return compare(found, baseline, **options), found


def test_the_cards_hold_differences_domains_and_samples():
    rows, found = compared(by="domain", ks=(1,))
    differences, domains, seeds, several = comparison_cards(rows)
    assert all(row.name in differences.markup for row in rows)
    assert "arithmetic" in domains.markup
    assert not seeds.markup
    assert "pass@" in several.markup
    text = sheet(3, comparison_sheet(rows, found))
    assert 'id="run-3"' in text
    assert "against best-single" in text
    assert comparison_cards([]) == []


def test_without_domains_there_is_no_domain_card():
    rows, _ = compared()
    text = cards(comparison_cards(rows))
    assert "Effects by domain" not in text
    assert "Differences from the baseline" in text


def test_what_others_wrote_stays_text():
    hostile = "<script>alert(1)</script>"
    text = sheet(
        0, Sheet(name=hostile, about=hostile, cards=(Card(title=hostile, markup="<p>x</p>", note=hostile),))
    )
    text += plain_table((hostile, "b"), [[hostile, hostile]], [hostile])
    assert "<script" not in text
    assert plain_table(("a",), []) == ""
    assert forest([stripe(hostile, 1, 1)], hostile).count("<script") == 0
