"""The page of a training run: true to its record, whole for odd ones; before and after on the same questions."""

import json
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from samples import query, routing, turn, verdict, voted

from coterie.errors import ConfigError, DataError, MissingExtra
from coterie.evaluation.report import page
from coterie.evaluation.training import POINTS, agents_of, course_cards, is_training, rows_of, training_sheet
from coterie.evaluation.training_skill import TEAM, skill_card, skills
from coterie.evaluation.training_states import States, chart, flattened, mark, states_card

HOSTILE = "</text><script>alert(1)</script>"


def row(number, agents=("ann", "bob"), **parts):
    own = {
        name: {
            "familiarity": 0.1 * (i + 1),
            "updates": number * (i + 1),
            "skipped": 0,
            "depth": i,
            "allocated": number,
            "evicted": 0,
            "share": 1 / len(agents),
            "reward": 0.25,
            "solved": 0.5,
        }
        for i, name in enumerate(agents)
    }
    whole = {
        "round": number,
        "queries": 4 * number,
        "updates": sum(one["updates"] for one in own.values()),
        "tokens": 100 * number,
        "active": 1.5,
        "reward": -0.5,
        "solved": 0.25,
        "zero_variance": 0.5,
        "errors": 0,
        "load_entropy": 1.0,
        "agents": own,
        "seconds": {"sample": 3.0, "learn": 1.0},
    }
    return {**whole, **parts}


def write(folder, rows, tail=""):
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"task": "co-evolution of tiny"}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows) + tail)
    return folder


def figures(card):
    """The drawings of a card, parsed."""
    found, rest = [], card.markup
    while "<svg" in rest:
        start, end = rest.index("<svg"), rest.index("</svg>") + 6
        found.append(ElementTree.fromstring(rest[start:end]))
        rest = rest[end:]
    return found


def names_in(figure):
    return [node.text for node in figure.iter("text") if node.get("class") == "label"]


def ends(figure):
    """What the lines' titles say: the last value of each."""
    return {text.partition(":")[0]: float(text.split(": ")[1].split()[0]) for text in _titles(figure)}


def _titles(figure):
    return [node.text for node in figure.iter("title")]


# --- the course ---------------------------------------------------------------------------------------


def test_every_curve_of_the_paper_is_there_and_says_where_it_ended(tmp_path):
    rows = rows_of(write(tmp_path / "run", [row(n) for n in range(1, 8)]))
    cards = {card.title: card for card in course_cards(rows)}
    assert ends(figures(cards["Reward"])[0]) == {"all agents": -0.5}
    assert ends(figures(cards["Familiarity by agent"])[0]) == {"ann": 0.1, "bob": 0.2}
    assert ends(figures(cards["Updates by agent"])[0]) == {"ann": 7, "bob": 14}
    assert ends(figures(cards["Buffer depth by agent"])[0]) == {"ann": 0, "bob": 1}
    assert ends(figures(cards["Share of the load by agent"])[0]) == {"ann": 0.5, "bob": 0.5}
    assert ends(figures(cards["Agents a query"])[0]) == {"agents": 1.5}
    assert ends(figures(cards["Groups without variance"])[0]) == {"all agents": 0.5}
    assert all(figures(card)[0].get("aria-label") for card in cards.values())


def test_a_long_run_is_drawn_by_few_points_with_the_spread_of_their_rounds():
    rows = [row(n, reward=float(n % 2)) for n in range(1, 1001)]
    [drawn] = figures(next(card for card in course_cards(rows) if card.title == "Reward"))
    line = next(node for node in drawn.iter("path") if "line" in node.get("class").split())
    assert len(line.get("d").split("L")) == POINTS
    assert "0.5 (0 to 1)" in _titles(drawn)[0]
    [updates] = figures(next(card for card in course_cards(rows) if card.title == "Updates by agent"))
    assert ends(updates) == {"ann": 1000, "bob": 2000}  # a count is never a mean of rounds


def test_what_an_agent_did_not_do_in_a_round_is_no_point():
    rows = [row(1), row(2), row(3)]
    rows[2]["agents"]["ann"] |= {"reward": None}
    rows[1]["reward"] = None
    cards = {card.title: card for card in course_cards(rows)}
    assert "at 8" in next(t for t in _titles(figures(cards["Reward by agent"])[0]) if t.startswith("ann"))
    assert "at 12" in next(t for t in _titles(figures(cards["Reward by agent"])[0]) if t.startswith("bob"))


def test_of_many_agents_those_are_drawn_that_practised_most():
    rows = [row(n, tuple(f"a{i:02d}" for i in range(12))) for n in (1, 2)]
    card = next(card for card in course_cards(rows) if card.title == "Familiarity by agent")
    assert names_in(figures(card)[0]) == [f"a{i:02d}" for i in range(4, 12)]
    assert "8 of 12" in card.note


def test_an_agent_that_left_keeps_its_line_and_its_row(tmp_path):
    rows = [row(1), row(2, ("ann",))]
    assert agents_of(rows) == ["ann", "bob"]
    sheet = training_sheet(write(tmp_path / "run", rows))
    assert ">bob<" in next(card for card in sheet.cards if card.title == "Where the agents ended").markup


def test_the_sheet_makes_a_page_that_loads_nothing_and_keeps_names_inert(tmp_path):
    text = page([], [training_sheet(write(tmp_path / "run", [row(n, (HOSTILE, "bob")) for n in (1, 2)]))])
    assert "<script>alert" not in text
    assert "src=" not in text
    parser = HTMLParser()
    parser.feed(text)
    assert "2 rounds, 8 queries" in text
    assert "75.0 %" in text  # of the time was sampling


def test_a_record_that_is_being_written_is_read_up_to_its_last_whole_round(tmp_path):
    folder = write(tmp_path / "run", [row(1)], tail='{"round": 2, "quer')
    assert is_training(folder)
    assert [one["round"] for one in rows_of(folder)] == [1]


STRANGE = [{"agents": None}, {"agents": {"ann": 3}}, {"reward": "x"}, {"agents": {"ann": {"reward": "x"}}}]


@pytest.mark.parametrize("lines", [[], [{"round": 1}], *([{**row(1), **parts}] for parts in STRANGE)])
def test_a_run_without_rounds_and_a_foreign_record_are_named(tmp_path, lines):
    with pytest.raises(DataError, match="run"):
        rows_of(write(tmp_path / "run", lines))


# --- before and after ---------------------------------------------------------------------------------


def answered(number, right, agents=("careful", "coder"), sample=0):
    """A trace of a query in which every agent is right or wrong as told."""
    asked = query(number)
    gold = asked.reference["answer"]
    turns = []
    for i, name in enumerate(agents):
        said = gold if right[name] else "0"
        turns.append(replace(turn(asked, name, i), answer=said, score=verdict(said, gold)))
    return replace(voted(asked, turns, routing(asked)), sample=sample)


def run_of(right, numbers=range(8), name="team", agents=("careful", "coder")):
    return {name: [answered(n, right, agents) for n in numbers]}


WORSE, BETTER = {"careful": False, "coder": True}, {"careful": True, "coder": True}


def test_an_agent_is_compared_on_questions_that_it_answered_before_and_after():
    found = {one.name: one for one in skills(run_of(WORSE), run_of(BETTER, range(4, 12)))}
    assert list(found) == [TEAM, "careful", "coder"]
    careful = found["careful"]
    assert (careful.whole.effect.n, careful.whole.effect.theirs, careful.whole.effect.ours) == (4, 0.0, 1.0)
    assert careful.dropped == 8
    assert {part.name for part in careful.parts} == {"arithmetic", "code", "logic", "reading"}
    assert found["coder"].whole.effect.difference == 0.0


def test_an_answer_counts_once_whichever_recipe_asked_for_it():
    """`--alone` asks every agent again, from the cache: the same answers are no more evidence."""
    before = {**run_of(WORSE), **run_of(WORSE, name="careful", agents=("careful",))}
    after = run_of(BETTER)
    found = {one.name: one for one in skills(before, after)}
    assert found["careful"].whole.effect.n == 8
    assert found[TEAM].whole.effect.n == 8


def test_samples_of_a_question_are_one_question():
    several = {"team": [answered(n, WORSE if s else BETTER, sample=s) for n in range(8) for s in range(2)]}
    careful = next(one for one in skills(several, run_of(BETTER)) if one.name == "careful")
    assert (careful.whole.effect.n, careful.whole.effect.theirs) == (8, 0.5)


def test_a_question_that_was_changed_meanwhile_is_another_one():
    changed = run_of(BETTER)
    changed["team"] = [
        replace(t, query=replace(t.query, reference={"answer": "1"}), turns=t.turns) for t in changed["team"]
    ]
    assert skills(run_of(WORSE), changed) == []
    assert skill_card(run_of(WORSE), changed).markup == ""


def test_the_card_draws_the_changes_and_says_what_is_left_out():
    card = skill_card(run_of(WORSE), run_of(BETTER, range(4, 12)))
    drawn = figures(card)
    assert len(drawn) == 3
    assert any("+100 points" in text for text in _titles(drawn[1]))
    assert "16 answers have no counterpart" in card.note
    assert ">After<" in card.markup


# --- routed states ------------------------------------------------------------------------------------


def states(count=24, agents=("ann", "bob")):
    """Two clouds of features, far apart; each agent is first in one of them."""
    random = np.random.default_rng(0)
    place = np.arange(count) % 2
    features = random.standard_normal((count, 16)) + 20 * place[:, None]
    return States(
        features=features.astype(np.float32),
        agents=tuple(agents[i] for i in place),
        domains=tuple(("sums", "words")[i] for i in place),
        texts=tuple(f"question {i} {HOSTILE}" for i in range(count)),
    )


def test_what_the_router_sees_as_alike_lies_together():
    pytest.importorskip("sklearn")
    found = states()
    flat = flattened(found.features)
    assert flat.shape == (24, 2)
    assert np.array_equal(flat, flattened(found.features))
    gaps = np.linalg.norm(flat[:, None] - flat[None], axis=-1)
    np.fill_diagonal(gaps, np.inf)
    assert all(gaps[i].argmin() % 2 == i % 2 for i in range(24))


def test_the_map_is_drawn_by_agent_and_by_domain_with_a_table_beside_it():
    pytest.importorskip("sklearn")
    card = states_card(states())
    by_agent, by_domain = figures(card)
    assert names_in(by_agent) == ["ann (12)", "bob (12)"]
    assert names_in(by_domain) == ["sums (12)", "words (12)"]
    assert len(_titles(by_agent)) == 24
    assert "<script>" not in card.markup
    assert ">12<" in card.markup
    assert states_card(states(6)).markup == ""


def test_equal_features_and_many_kinds_are_drawn_too():
    kinds = [f"k{i:02d}" for i in range(20)]
    drawn = ElementTree.fromstring(chart(np.zeros((20, 2)), kinds, kinds, "agent"))
    assert len(names_in(drawn)) == 8
    assert names_in(drawn)[-1] == "others"
    assert "NaN" not in ElementTree.tostring(drawn, encoding="unicode")


def test_kinds_differ_in_shape_or_turn_and_not_in_colour_alone():
    shapes = {ElementTree.fromstring(mark(0, 0, kind)).get("points") for kind in range(8)}
    assert len(shapes) == 8


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    with pytest.raises(MissingExtra, match=r"coterie\[routers\]"):
        flattened(states().features)


# --- what the command asks for ------------------------------------------------------------------------


def test_extras_are_about_one_training_run(tmp_path):
    from coterie.cli.trained import Extras, of_one_run, sheets_of

    folder = write(tmp_path / "run", [row(1)])
    assert [sheet.name for sheet in sheets_of([folder, folder], Extras())] == ["run", "run"]
    for folders, extras in (
        ([folder, folder], Extras(states=8)),
        ([], Extras(states=8)),
        ([folder], Extras(before=run_of(WORSE))),
        ([folder], Extras(states=8)),  # it has written no team
    ):
        with pytest.raises(ConfigError):
            sheets_of(folders, extras)
    first, second = of_one_run({**run_of(WORSE), **run_of(BETTER, name="trained")})
    assert (list(first), list(second)) == (["team"], ["trained"])
    with pytest.raises(ConfigError, match="one recipe"):
        of_one_run(run_of(WORSE))
