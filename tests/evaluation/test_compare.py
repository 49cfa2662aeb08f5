"""Comparisons on traces small enough to be counted by hand, and on simulated ones with a known effect."""

import json
from dataclasses import replace

import numpy as np
import pytest

from coterie.errors import ConfigError
from coterie.evaluation.compare import compare, to_json
from coterie.evaluation.lineup import Member, chosen, entrants, of_traces, question_digest, run_names
from coterie.tasks.catalog import query_of
from coterie.types import Completion, Failure, Message, Query, Score, Trace, Turn


def asked(number, domain="d", text="how many?", answer="1"):
    return Query(
        id=f"q{number}",
        messages=(Message(role="user", content=f"{number}: {text}"),),
        task="math",
        contract="text",
        reference={"answer": answer},
        metadata={"domain": domain, "source": "made"},
    )


def trace(query, right, *, sample=0, cost=1.0, value=None):
    verdict = Score(verdict="pass" if right else "fail", value=float(right) if value is None else value, answer="1")
    said = Completion(text="1", prompt_tokens=3, completion_tokens=2)
    turn = Turn(
        index=0, agent="a", role="solver", revision="r", messages=(), completion=said, cost=cost, score=verdict
    )
    return Trace(query=query, sample=sample, turns=(turn,), final=0, score=verdict)


def outage(query, sample=0):
    failure = Failure(agent="a", kind="Overloaded", message="503")
    score = Score(verdict="error", value=None, reason="down")
    return Trace(query=query, sample=sample, failures=(failure,), stopped="failed", score=score)


def run(outcomes, **parts):
    """A trace a query; "x" is an outage."""
    return [outage(asked(i)) if o == "x" else trace(asked(i), o == "1", **parts) for i, o in enumerate(outcomes)]


def against(theirs, ours, **options):
    found = of_traces({"base": theirs, "ours": ours})
    [row] = compare(found, found[0], **options)
    return row


def test_differences_are_counted_query_by_query():
    row = against(run("1100000000"), run("1111111000"))
    e = row.effect
    assert (e.n, e.wins, e.losses, e.ties) == (10, 5, 0, 5)
    assert (e.ours, e.theirs, e.difference) == pytest.approx((0.7, 0.2, 0.5))
    assert e.test == "mcnemar"
    assert e.p_value == pytest.approx(2 / 2**5)
    assert e.mid_p == pytest.approx(1 / 2**5)
    assert 0.1 <= e.ci[0] < 0.5 < e.ci[1] <= 0.8
    assert e.odds is None


def test_a_query_that_failed_on_a_side_is_dropped_and_never_wrong():
    """R23, G18: three outages of ours and one of theirs leave six pairs, all won."""
    row = against(run("000000000x"), run("111xxx1110"))
    assert (row.effect.n, row.effect.wins, row.effect.losses) == (6, 6, 0)
    assert (row.dropped.no_verdict, row.dropped.total) == (4, 4)
    assert row.errors == (3, 1)
    assert row.effect.ours == 1.0


def test_queries_that_one_side_lacks_are_dropped_and_counted():
    row = against(run("00000"), run("11111111")[2:])
    assert row.effect.n == 3
    assert row.dropped.one_side == 5


def test_the_same_id_with_another_question_is_no_pair():
    theirs = [trace(asked(1), False), trace(asked(2, text="other words"), False), trace(asked(3), False)]
    ours = [trace(asked(1), True), trace(asked(2), True), trace(asked(3, answer="7"), True)]
    row = against(theirs, ours)
    assert (row.effect.n, row.dropped.other_question, row.dropped.one_side) == (1, 2, 0)


def test_another_answer_contract_is_the_same_question():
    one, two = (query_of("1 + 1?", "math", gold="2", contract=c, id="q") for c in ("boxed", "answer"))
    assert one.text != two.text
    assert question_digest(one) == question_digest(two)
    assert question_digest(one) != question_digest(replace(two, reference={"answer": "3"}))


def test_holm_covers_all_comparisons_and_domains_of_each():
    found = of_traces({"base": run("0" * 12), "a": run("1" * 6 + "0" * 6), "b": run("1" * 7 + "0" * 5)})
    a, b = compare(found, found[0], by="domain")
    assert (a.effect.p_value, b.effect.p_value) == pytest.approx((2 / 2**6, 2 / 2**7))
    assert b.p_holm == pytest.approx(2 * 2 / 2**7)
    assert a.p_holm == pytest.approx(max(2 / 2**6, b.p_holm))
    [part] = a.parts
    assert part.p_holm == part.effect.p_value


def test_effects_by_domain_are_over_that_domain_only():
    domains = ["x", "y"] * 4
    theirs = [trace(asked(i, d), d == "y") for i, d in enumerate(domains)]
    ours = [trace(asked(i, d), d == "x") for i, d in enumerate(domains)]
    row = against(theirs, ours, by="domain")
    assert [(p.name, p.effect.n, p.effect.difference) for p in row.parts] == [("x", 4, 1.0), ("y", 4, -1.0)]
    assert row.effect.difference == 0
    assert [p.p_holm for p in row.parts] == pytest.approx([2 * 2 / 2**4] * 2)
    [source] = against(theirs, ours, by="source").parts
    assert source.name == "made"


def test_cost_is_compared_on_the_same_queries_and_words_both_ways():
    """W32: points for each extra dollar, only where quality and cost go the same way."""
    row = against(run("0000"), run("1100", cost=3.0))
    assert row.cost.difference == pytest.approx(2.0)
    assert row.cost.verdict == "better, dearer"
    assert row.cost.points_per_dollar == pytest.approx(50 / 2000)
    cheaper = against(run("0000"), run("1100", cost=0.5))
    assert (cheaper.cost.verdict, cheaper.cost.points_per_dollar) == ("better, cheaper", None)


def test_an_unknown_price_makes_no_cost_and_a_price_of_zero_does():
    """B79, W31."""
    unknown = against(run("00"), run("11", cost=None)).cost
    assert (unknown.difference, unknown.verdict, unknown.points_per_dollar) == (None, None, None)
    assert against(run("00", cost=0), run("11")).cost.difference == 1.0


def test_samples_of_a_query_are_one_piece_of_evidence():
    """Two queries, fifty samples each: the interval is that of two queries, and the test that of two pairs."""
    theirs = [trace(asked(i), False, sample=s) for i in range(2) for s in range(50)]
    ours = [trace(asked(0), True, sample=s) for s in range(50)]
    ours += [trace(asked(1), s < 25, sample=s) for s in range(50)]
    row = against(theirs, ours, ks=(1, 50))
    assert row.effect.n == 2
    assert row.effect.difference == pytest.approx(0.75)
    assert row.effect.test == "sign-flip"
    assert row.effect.p_value == pytest.approx(0.5)
    assert row.effect.ci == pytest.approx((0.5, 1.0))
    one, all_of_them = row.pass_at
    assert one.ours == pytest.approx(0.75)
    assert all_of_them.ours == 1.0


def test_pass_at_k_leaves_out_queries_with_too_few_judged_samples():
    theirs = [trace(asked(i), False, sample=s) for i in range(3) for s in range(2)]
    ours = [trace(asked(0), True), outage(asked(0), 1), *(trace(asked(1), s == 0, sample=s) for s in range(2))]
    row = against(theirs, ours, ks=(2,))
    assert [(p.k, p.n, p.ours, p.theirs) for p in row.pass_at] == [(2, 1, 1.0, 0.0)]
    assert row.effect.n == 2
    with pytest.raises(ConfigError, match="pass@3 needs 3"):
        against(theirs, ours, ks=(1, 3))


def test_scores_are_compared_where_partial_marks_count():
    theirs, ours = run("00", value=0.25), run("00", value=0.75)
    found = of_traces({"base": theirs, "ours": ours}, "score")
    [row] = compare(found, found[0])
    assert row.effect.difference == pytest.approx(0.5)
    assert row.effect.test == "sign-flip"
    assert against(theirs, ours).effect.difference == 0


# --- several runs -------------------------------------------------------------------------------------


def noisy(share, seed, n=200):
    rng = np.random.default_rng(seed)
    return [trace(asked(i), bool(right)) for i, right in enumerate(rng.random(n) < share)]


def member(name, seed, traces, *, run="run", identity="same"):
    return Member(run=run, recipe=name, traces=traces, identity=identity, seed=str(seed))


def test_runs_that_differ_in_the_seed_are_one_row_with_a_t_test():
    members = [
        member(name, seed, noisy(share, 10 * seed + extra), run=f"run {seed}", identity=name)
        for seed in range(5)
        for name, share, extra in (("base", 0.5, 0), ("ours", 0.7, 1))
    ]
    base, ours = entrants(members)
    assert ours.replicates == ("0", "1", "2", "3", "4")
    [row] = compare([base, ours], base)
    test = row.seeds.test
    assert test.test == "paired t"
    assert (row.seeds.n, test.df) == (200, 4)
    assert len(row.seeds.ours) == 5
    assert test.ci[0] < 0.2 < test.ci[1]
    assert test.p_value < 0.01
    assert row.seeds.p_holm == test.p_value
    assert row.effect.difference == pytest.approx(test.difference)
    fewer = entrants([m for m in members if m.recipe == "ours" or m.seed in "01"])
    [row] = compare(fewer, fewer[0])
    assert row.seeds.test.test == "welch t"


def test_the_t_test_is_over_queries_that_every_seed_answered():
    broken = [outage(asked(i)) if i < 50 else t for i, t in enumerate(noisy(0.5, 9))]
    members = [member("base", s, noisy(0.5, s)) for s in range(2)]
    members += [member("ours", 0, noisy(0.5, 7)), member("ours", 1, broken)]
    found = entrants(members)
    [row] = compare(found, found[0])
    assert row.seeds.n == 150
    assert row.effect.n == 200


def test_one_seed_has_no_t_test():
    assert against(run("01"), run("11")).seeds is None


def test_the_same_recipe_and_seed_in_two_runs_is_counted_once():
    members = [member("base", 0, run("0101"), run=name) for name in ("monday", "tuesday")]
    [base] = entrants(members)
    assert base.replicates == ("0",)
    assert base.runs == ("monday", "tuesday")
    assert {len(v) for answers in base.answers.values() for v in answers.values.values()} == {1}


def test_a_sample_that_failed_in_one_run_is_taken_from_the_other():
    members = [member("base", 0, run("x1"), run="monday"), member("base", 0, run("11"), run="tuesday")]
    [base] = entrants(members)
    assert [answers.errors for answers in base.answers.values()] == [0, 0]


def test_one_name_for_two_recipes_is_told_apart_by_the_run():
    members = [member("vote", 0, run("01"), run=name, identity=name) for name in ("monday", "tuesday")]
    found = entrants(members)
    assert [e.name for e in found] == ["vote @ monday", "vote @ tuesday"]
    assert chosen(found, "vote @ tuesday") is found[1]
    with pytest.raises(ConfigError, match="several recipes; choose one: vote @ monday; vote @ tuesday"):
        chosen(found, "vote")
    with pytest.raises(ConfigError, match="none of the recipes"):
        chosen(found, "jury")
    [together] = entrants(members, by_name=True)
    assert together.name == "vote"
    assert together.replicates == ("monday", "tuesday")


def test_run_folders_of_one_name_are_told_apart_by_their_parents(tmp_path):
    paths = [tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "c"]
    assert run_names(paths) == ["a/run", "b/run", f"{tmp_path.name}/c"]
    assert run_names(paths[1:]) == ["run", "c"]


# --- for machines, and against the truth --------------------------------------------------------------


def test_json_has_no_nan_and_every_documented_key():
    found = of_traces({"base": run("0x10"), "ours": run("1x11"), "empty": run("xxxx")})
    rows = compare(found, found[0], by="domain", ks=(1,))
    data = json.loads(json.dumps(to_json(rows, found, "base", "accuracy"), allow_nan=False))
    assert list(data) == ["baseline", "measure", "recipes", "comparisons"]
    first, empty = data["comparisons"]
    assert first["points"] == pytest.approx(200 / 3)
    assert first["dropped"] == {"one_side": 0, "other_question": 0, "no_verdict": 1}
    assert (empty["n"], empty["points"], empty["ci"], empty["p_value"], empty["p_holm"]) == (0, *[None] * 4)
    assert empty["errors"] == {"ours": 4, "baseline": 1}
    documented = set(filter(str.isidentifier, (to_json.__doc__ or "").replace('"', " ").split()))
    for part in (data, first, first["cost"], first["domains"][0], first["pass_at_k"][0], data["recipes"][0]):
        assert set(part) <= documented


def test_recipes_that_are_equally_good_are_seldom_called_different():
    """Of 200 comparisons without a difference at most about 5 % may be called significant."""
    called = 0
    for seed in range(200):
        row = against(noisy(0.6, seed, 60), noisy(0.6, 1000 + seed, 60))
        called += row.effect.p_value < 0.05
    assert called <= 18
