"""What a replay works on: disjoint splits by question, rows with missing outcomes, who is routed among."""

import numpy as np
import pytest
from replayed import AGENTS, item, items_of, material_of, table_of, written

from coterie.errors import ConfigError, DataError
from coterie.evaluation.replay.material import Material, picks, plain, pool_of, read_material
from coterie.types import draw

NAN = float("nan")


def parts(material, seed=0):
    split = material.split(seed)
    return split.train, split.validation, split.test


def test_splits_are_disjoint_cover_everything_and_have_their_shares(tmp_path):
    material = material_of(tmp_path, table_of(items_of(300)))
    for seed in range(3):
        found = parts(material, seed)
        assert [len(part) for part in found] == [180, 60, 60]
        assert sorted(row for part in found for row in part) == list(range(300))
    assert parts(material, 0) == parts(material, 0)
    assert parts(material, 0) != parts(material, 1)


def test_a_split_does_not_depend_on_the_order_of_rows(tmp_path):
    table = table_of(items_of(120))
    names = []
    for folder, items in (("a", table.items), ("b", table.items[::-1])):
        material = material_of(tmp_path / folder, table_of(items))
        names.append([{material.queries[row].id for row in part} for part in parts(material)])
    assert names[0] == names[1]


def test_the_same_question_never_straddles_a_split(tmp_path):
    """Another spelling, space, case or order of options is the same question, whatever its id and data set."""
    twice = []
    for i in range(60):
        twice += [
            item(1000 + i, "sum", f"What is {i} plus one?"),
            item(2000 + i, "poem", f"  what IS {i}  plus one"),
            item(3000 + i, "sum", f"Which number comes after {i}?", (f"{i}", f"{i + 1}", "none")),
            item(4000 + i, "code", f"which number comes after {i}", ("None", f"{i + 1}", f"{i}")),
        ]
    material = material_of(tmp_path, table_of(twice))
    assert len(set(material.digests)) == 120
    for seed in range(3):
        for row in range(0, 240, 2):
            assert any(row in part and row + 1 in part for part in parts(material, seed))


def test_rows_with_missing_outcomes_are_fitted_on_and_never_judged(tmp_path):
    table = table_of(items_of(200))
    table.scores[::4, 0] = NAN
    material = material_of(tmp_path, table, AGENTS)
    train, validation, test = parts(material)
    holed = set(range(0, 200, 4))
    assert holed & set(train)
    assert not holed & {*validation, *test}
    assert material.missing == 50
    assert material.complete == frozenset(range(200)) - holed
    assert np.isnan(material.outcomes.scores).sum() == 50


def test_agents_that_answered_too_little_are_left_out_unless_named(tmp_path):
    table = table_of(items_of(100))
    table.scores[:5, 1] = NAN
    table.scores[:2, 2] = NAN
    assert material_of(tmp_path, table).outcomes.agents == ("ada", "cyd")
    assert material_of(tmp_path, table, ("cyd", "bob", "bob")).outcomes.agents == ("bob", "cyd")


def test_queries_that_nobody_answered_are_left_out(tmp_path):
    table = table_of(items_of(100))
    table.scores[7] = NAN
    material = material_of(tmp_path, table)
    assert len(material.queries) == 99
    assert "q7" not in {query.id for query in material.queries}
    assert material.missing == 0


def test_agents_are_in_the_order_of_their_names_with_their_own_columns(tmp_path):
    """R6: the order of a table's columns decides nothing."""
    table = table_of(items_of(30))
    one = material_of(tmp_path / "one", table)
    order = [2, 0, 1]
    turned = table_of(items_of(30))
    turned = type(turned)(
        folder="",
        items=turned.items,
        models=tuple(turned.models[i] for i in order),
        **{
            name: getattr(turned, name)[:, order]
            for name in ("scores", "prompt_tokens", "completion_tokens", "costs")
        },
    )
    two = material_of(tmp_path / "two", turned)
    assert one.outcomes.agents == two.outcomes.agents == AGENTS
    assert np.array_equal(one.outcomes.scores, two.outcomes.scores)
    assert np.array_equal(one.outcomes.costs, two.outcomes.costs)
    assert list(one.pool.names()) == list(AGENTS)


def test_prompts_are_the_bare_questions(tmp_path):
    """B48: nothing of the table's own labels is in what a router reads; also where two items share a question."""
    same = [item(i, kind, "What is it?", ("yes", "no")) for i, kind in enumerate(("sum", "poem"))]
    material = material_of(tmp_path, table_of([*same, *items_of(50, 10)]))
    assert {query.text for query in material.queries[:2]} == {"What is it?\n\nA. yes\nB. no"}
    assert not any(kind in query.text for query in material.queries for kind in ("[sum", "[poem", "q10"))
    assert material.queries[0].domain == "sum"


def test_priced_says_whether_every_cost_is_known(tmp_path):
    table = table_of(items_of(60))
    assert material_of(tmp_path / "a", table).priced
    table.costs[3, 1] = NAN
    assert not material_of(tmp_path / "b", table).priced
    table.scores[3, 1] = NAN
    assert material_of(tmp_path / "c", table, AGENTS).priced, "an outcome that is missing needs no cost"


@pytest.mark.parametrize(
    ("agents", "error", "said"),
    [
        (("ada", "bbo"), ConfigError, "did you mean 'bob'"),
        (("zzz",), ConfigError, "known: ada, bob, cyd"),
        (("ada",), DataError, "two agents"),
    ],
)
def test_agents_that_cannot_be_routed_among_are_one_line(tmp_path, agents, error, said):
    with pytest.raises(error, match=said) as caught:
        material_of(tmp_path, table_of(items_of(30)), agents)
    assert "\n" not in str(caught.value)


def test_tables_that_are_too_small_or_absent_are_one_line(tmp_path):
    with pytest.raises(DataError, match="no such file") as caught:
        read_material(tmp_path / "nowhere")
    assert "\n" not in str(caught.value)
    for size in (1, 2):
        with pytest.raises(DataError, match="too few questions") as caught:
            material_of(tmp_path / str(size), table_of(items_of(size))).split(0)
        assert "\n" not in str(caught.value)
    table = table_of(items_of(40))
    table.scores[::2, 0] = NAN
    table.scores[1::2, 1] = NAN
    with pytest.raises(DataError, match=r"too few questions with all outcomes to split \(0\)"):
        material_of(tmp_path / "holes", table, AGENTS).split(0)
    empty = written(tmp_path / "empty", table_of([]))
    with pytest.raises(DataError) as caught:
        read_material(empty).split(0)
    assert "\n" not in str(caught.value)


def test_picks_are_the_best_and_ties_are_drawn_as_a_routing_draws_them(tmp_path):
    material = material_of(tmp_path, table_of(items_of(60)))
    scores = np.tile([0.2, 0.7, 0.7], (60, 1))
    scores[0] = [0.9, 0.1, 0.2]
    found = picks(scores, material.queries, AGENTS, 4)
    assert found[0] == 0
    assert set(found[1:].tolist()) == {1, 2}, "a tie is no privilege of the first"
    for row, query in enumerate(material.queries[1:], 1):
        seed = draw(4, query.id)
        assert found[row] == min((1, 2), key=lambda i, s=seed: draw(s, AGENTS[i]))


def test_numbers_for_json():
    assert plain(0.5) == 0.5
    assert plain(NAN) is None
    assert pool_of(["b", "a"]).names() == ["a", "b"]
    assert isinstance(Material, type)
