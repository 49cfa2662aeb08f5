"""The order of the memory, its routes, and the shipped table."""

from itertools import product

import pytest

from coterie.errors import ConfigError
from coterie.strategies.memory import Route, check_routes, pool_of, ranked, routes_for, routes_in, shipped
from coterie.types import Review


def entries(*scores, layer=1, first=0):
    return [Review(turn=first + n, layer=layer, score=s) for n, s in enumerate(scores)]


def turns(found):
    return [entry.turn for entry in found]


def test_one_total_order_by_score_then_later_layer_then_seat():
    """R1."""
    memory = entries(5, 9, 5) + entries(5, 5, 1, layer=2, first=3)
    assert turns(ranked(memory)) == [1, 3, 4, 0, 2, 5]
    assert turns(ranked(memory[::-1])) == [1, 3, 4, 0, 2, 5]


@pytest.mark.parametrize(("size", "route"), product(range(1, 30), range(8)))
def test_ends_are_disjoint_as_long_as_the_pool_lasts_and_never_filled_up(size, route):
    """R1, R2: at every size of the pool, for every route of a layer of eight."""
    route = shipped()[8][route]
    memory = ranked(entries(*(n % 10 + 1 for n in range(size))))
    found = turns(route.of(memory))
    assert len(found) == len(set(found)) == min(size, route.top + route.bottom)
    order = turns(memory)
    assert set(found) == set(order[: route.top]) | set(order[max(size - route.bottom, 0) :])
    assert found == [turn for turn in order if turn in found]


def test_the_routes_of_three_seats_are_the_papers():
    """Eq. 7."""
    con, top, bottom = shipped()[3]
    memory = ranked(entries(9, 7, 3, 1))
    assert [turns(r.of(memory)) for r in (con, top, bottom)] == [[0, 3], [0, 1], [2, 3]]
    assert [r.family for r in (con, top, bottom)] == ["contrastive", "positive", "failure"]


def test_every_shipped_row_has_its_seats_all_families_and_no_route_twice():
    assert sorted(shipped()) == list(range(1, 9))
    for width, row in shipped().items():
        assert len(row) == width == len(set(row))
        assert len({route.family for route in row}) == 3 or width < 3
    assert Route(top=2, bottom=2) in shipped()[4]  # Con_4 exists


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("3: [{top: 1}, {bottom: 1}, {top: 1}]", "the same"),
        ("3: [{top: 1}, {bottom: 1}, {top: 2}]", "contrastive"),
        ("4: [{top: 1, bottom: 1}, {bottom: 1}, {top: 2}]", "has 3 routes"),
        ("1: [{}]", "at least one"),
        ("1: [{tpo: 1}]", "did you mean 'top'"),
        ("1: [{top: -1}]", "greater than or equal"),
    ],
)
def test_a_table_that_breaks_a_rule_is_refused_in_one_line(text, word):
    with pytest.raises(ConfigError, match=word):
        routes_in(text, "x")


def test_a_layer_without_routes_says_what_to_set():
    with pytest.raises(ConfigError, match="9 proposers has no routes: routes are shipped up to 8; set"):
        routes_for(9, None)
    own = (Route(top=1), Route(bottom=1))
    assert routes_for(1, own) == own[:1]
    with pytest.raises(ConfigError, match="2 routes are given"):
        routes_for(3, own)
    check_routes(own, "x")


def test_a_layer_reads_all_earlier_ones_or_the_one_before_it():
    memory = entries(9, 1) + entries(5, 6, layer=2, first=2) + entries(8, layer=3, first=4)
    assert turns(pool_of(memory, 3, adjacent=False)) == [0, 3, 2, 1]
    assert turns(pool_of(memory, 3, adjacent=True)) == [3, 2]
    assert pool_of(memory, 1, adjacent=False) == []
