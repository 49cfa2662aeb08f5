"""The closed loop without files: who practises, what the router hears, what is counted, what ends a run."""

import copy
import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from tiny_team import digest, flag_table, queries, recipe, save_base, team

from coterie.backends.base_model import base_model
from coterie.errors import ConfigError, Diverged, NoVerdicts
from coterie.learning import engine as engine_module
from coterie.learning.coevolve import Coevolution
from coterie.learning.course import prepared
from coterie.learning.cursor import Cursor
from coterie.learning.losses import Terms
from coterie.learning.training import opened, queries_of, settings_of
from coterie.tasks import catalog
from coterie.tasks.catalog import find_kind
from coterie.types import Agent, Sampling, Score


@pytest.fixture
def closed():
    """Closes what was opened: adapters leave the shared base."""
    made = []
    yield made
    for one in made:
        for each in set(one.engines.values()):
            each.close()


@pytest.fixture
def run(tmp_path, tiny, base, closed):
    """Makes a loop over the tiny base; keyword arguments are keys of the learner."""
    count = itertools.count()

    def make(names=("ann", "bob", "cyd"), wanted=None, sampling=None, models=None, **learner):
        made = team(tmp_path / str(next(count)), tiny, names, models, sampling, **learner)
        settings = settings_of(made)
        found = opened(settings, made, wanted or queries_of(settings, made))
        closed.append(found)
        return found

    return make


def parts(one):
    """The whole state, to be compared with ==."""
    return {
        name: (copy.deepcopy(facts), {k: (v.dtype.str, v.tobytes()) for k, v in arrays.items()})
        for name, (facts, arrays) in one.state().parts.items()
    }


def told(row):
    return {key: value for key, value in row.items() if key != "seconds"}


def erring(monkeypatch, wrong):
    """Lets the first kind's verifier fail where `wrong(text)` says so, as a plugin of an entry point is found."""
    kind = replace(
        find_kind("qa"),
        verify=lambda answer, text, gold: wrong(text) or catalog.KINDS["qa"].verify(answer, text, gold),
    )
    original = catalog.find_kind
    monkeypatch.setattr(catalog, "find_kind", lambda name: kind if name == "mine" else original(name))
    return tuple(replace(query, task="mine") for query in queries())


# --- rounds -------------------------------------------------------------------------------------------


def test_a_run_leaves_the_base_as_it_was(run, base):
    """#11: nothing is ever merged; digest and flags before and after."""
    bits, flags = digest(base), flag_table(base)
    one = run()
    while not one.finished:
        one.round()
    assert digest(base) == bits
    assert flag_table(base) == flags
    assert one.updates > 8
    assert one.exchange.allocator.routed == 12


def test_equal_runs_are_equal(run):
    """Bit for bit, with the same agents in another order; another seed is another run."""
    one, two = run(), run(names=("cyd", "ann", "bob"))
    for _ in range(2):
        assert told(one.round()) == told(two.round())
    assert parts(one) == parts(two)
    other = run()
    other.seed = 99
    other.round()
    assert parts(other)["agent.ann"] != parts(one)["agent.ann"]


def test_rows_are_complete_and_plain_json(run):
    """#63, #64: one global round, keys by agent, counters as values; none is averaged with another's."""
    one = run()
    rows = [one.round() for _ in range(3)]
    for number, row in enumerate(rows, 1):
        assert row["round"] == number
        assert json.loads(json.dumps(row, allow_nan=False)) == row
        assert set(row["agents"]) == {"ann", "bob", "cyd"}
        assert set(row["seconds"]) >= {"route", "sample", "verify", "learn", "router"}
        for name, figures in row["agents"].items():
            assert figures["updates"] <= one.engines[name].learners[name].updates
            assert {"familiarity", "depth", "oldest_age", "evicted", "share", "entropy", "skipped"} <= set(figures)
    last = rows[-1]
    assert sum(figures["updates"] for figures in last["agents"].values()) == last["updates"]
    assert len({figures["reward"] for figures in last["agents"].values()}) > 1
    assert [row["tokens"] for row in rows] == sorted(row["tokens"] for row in rows)


def test_dashboards_are_not_imported(run):
    """#63: the record needs none of them."""
    import sys

    one = run()
    one.round()
    assert not {"wandb", "trackio", "tensorboard"} & set(sys.modules)


def test_the_budget_of_updates_ends_a_run(run):
    """C22; what is left in the buffers stays there, and its tickets stay open."""
    one = run(updates=4)
    while not one.finished:
        one.round()
    assert one.updates == 4
    assert one.exchange.allocator.routed < 12


def test_several_updates_a_batch_do_not_overshoot_the_budget(run):
    one = run(updates=5, practice={"updates": 2})
    while not one.finished:
        one.round()
    assert one.updates == 5


def test_the_last_round_takes_what_is_left_of_the_budget(run):
    one = run(queries=7)
    sizes = []
    while not one.finished:
        before = one.exchange.allocator.routed
        one.round()
        sizes.append(one.exchange.allocator.routed - before)
    assert sizes == [3, 3, 1]


def test_rewards_reach_the_router(run):
    """It steps on settled tickets, and its familiarities move."""
    one = run()
    features = one._features(list(one.queries))
    before = one.exchange.router.familiarity(features)
    heard = [one.round()["router"] for _ in range(4)]
    assert sum(h["stepped"] for h in heard) >= 2
    assert np.abs(one.exchange.router.familiarity(features) - before).max() > 1e-3


@pytest.mark.parametrize("encoder", ["hashed", "hidden"])
def test_familiarity_does_not_drift_with_adapters(
    run, tiny, encoder
):  # hidden: states of the very base that learns
    """Features come from the frozen base: training alone, without the router's step, moves no score."""
    one = run(
        router={"encoder": {"use": "hidden", "model": str(tiny), "remember": 1}} if encoder == "hidden" else {}
    )
    one.exchange.router.step = lambda *given: {"pairs": 0.0, "stepped": 0.0}
    features = one._features(list(one.queries))
    before = one.exchange.router.familiarity(features)
    for _ in range(3):
        one.round()
    assert one.updates
    assert np.array_equal(one._features(list(one.queries)), features)
    assert np.array_equal(one.exchange.router.familiarity(features), before)


# --- groups and refills -------------------------------------------------------------------------------


def always(verdict):
    return lambda text: Score(verdict=verdict, value=1.0 if verdict == "pass" else 0.0)


@pytest.mark.parametrize("verdict", ["pass", "fail"])
@pytest.mark.parametrize("refill", [0, 1, 50])
def test_the_refill_budget_ends(run, monkeypatch, verdict, refill):
    """#29, all right or all wrong for ever; each round ends, nothing is learned, all is counted."""
    wanted = erring(monkeypatch, always(verdict))
    practice = {"filter_groups": True, "refill": refill}
    one = run(wanted=wanted, practice=practice, rewards={"eta": 0.0}, batch=6, allocation={"micro_batch": 4})
    rows = [one.round() for _ in range(2)]
    assert one.updates == 0
    assert rows[-1]["zero_variance"] == 1.0
    load = rows[-1]["agents"]
    taken = sum(figures["taken"] for figures in load.values())
    assert one.spent["completions"] == 4 * taken
    assert all(figures["depth"] == figures["allocated"] - figures["taken"] for figures in load.values())
    assert one.exchange.ledger.metrics()["resolved"] > 0


def test_groups_that_are_dropped_have_cost_their_tokens_and_reach_the_router(run, monkeypatch):
    """Equal tokens for every method are counted from all that was sampled, refills among them."""
    sampled = []
    one = run(practice={"filter_groups": True, "refill": 4}, batch=6, allocation={"micro_batch": 4})
    for each in set(one.engines.values()):
        original = each.sample

        def counting(name, asks, original=original):
            found = original(name, asks)
            sampled.extend(len(s.ids) for s in found)
            return found

        monkeypatch.setattr(each, "sample", counting)
    for _ in range(3):
        one.round()
    assert one.spent["completions"] == len(sampled)
    assert one.spent["tokens"] == sum(sampled)
    asked = sum(desk.taken for desk in one.exchange.allocator.desks.values())
    assert one.spent["completions"] == one.settings.practice.group * asked
    waiting = sum(len(entry.ticket.agents) - len(entry.reports) for entry in one.exchange.ledger.entries.values())
    assert waiting == sum(
        len(desk.buffer) for desk in one.exchange.allocator.desks.values()
    )  # all others have reported


def test_all_truncated(run, monkeypatch):
    """Nobody ever ends: where truncated completions are left out nothing is learned, and the run goes on."""
    one = run(loss={"mask_truncated": True})
    for each in set(one.engines.values()):
        monkeypatch.setattr(each.base, "eos_ids", frozenset())
    before = [one.engines[name].state(name)[1] for name in one.names]
    while not one.finished:
        row = one.round()
    assert row["agents"]["ann"]["truncated"] == 1.0
    assert one.updates == 0
    for name, arrays in zip(one.names, before, strict=True):
        now = one.engines[name].state(name)[1]
        assert all(np.array_equal(now[key], array) for key, array in arrays.items())


def test_all_wrong(run, monkeypatch):
    """The policy has no direction, the router hears of every failure."""
    wanted = erring(monkeypatch, always("fail"))
    one = run(wanted=wanted, rewards={"eta": 0.0}, loss={"beta": 0.0})
    while not one.finished:
        row = one.round()
    assert one.updates == 0
    assert row["solved"] == 0
    assert row["ledger"]["resolved"] > 0


# --- verdicts that are missing ------------------------------------------------------------------------


def test_injected_errors_leave_their_groups_and_are_counted(run, monkeypatch):
    """#54 to #62: a verifier that fails on some answers; they are neither wrong nor the end of the run."""

    def sometimes(text):
        if "4" in text:
            raise RuntimeError("the sandbox is gone")

    wanted = erring(monkeypatch, sometimes)
    one = run(wanted=wanted, practice={"errors": 0.9})
    while not one.finished:
        row = one.round()
    assert 0 < row["errors"] == one.errors < one.spent["completions"]
    assert one.updates > 0
    for name in one.names:
        facts, arrays = one.engines[name].state(name)
        assert facts["skipped"] == 0
        assert all(np.isfinite(array).all() for array in arrays.values())


def test_a_group_without_any_verdict_reaches_nobody(run, monkeypatch):
    """#32: neither the agent nor the router takes it for a 0."""
    wanted = erring(monkeypatch, lambda text: Score(verdict="error", value=None, reason="no sandbox"))
    one = run(wanted=wanted, practice={"errors": 0.99999})
    one.settings = replace(one.settings, practice=replace(one.settings.practice, errors=1.0))
    for _ in range(3):
        row = one.round()
    assert row["errors"] == one.spent["completions"] > 0
    assert one.updates == 0
    assert row["reward"] is None
    assert row["solved"] is None
    assert row["ledger"]["resolved"] == 0
    assert row["ledger"]["empty"] > 0
    assert row["router"]["stepped"] == 0


def test_verifiers_that_mostly_fail_end_the_run(run, monkeypatch):
    """#56: above the allowed share, with the agent, the counts and a reason; the round is whole all the same."""
    wanted = erring(monkeypatch, lambda text: 1 / 0)
    one = run(wanted=wanted)
    with pytest.raises(NoVerdicts, match=r"agent \w+: 8 of 8 completions had no verdict: .*ZeroDivision") as caught:
        one.round()
    assert caught.value.row["errors"] == one.errors > 0
    assert one.rounds == caught.value.row["round"] == 1
    one.state()


# --- numbers that are none ----------------------------------------------------------------------------


def _to_the_end(one):
    while not one.finished:
        assert one.round()["agents"]["bob"]["skipped"] < 5


def broken_for(monkeypatch, one, name):
    """NaN losses for one agent."""
    original, now = engine_module.terms, []
    for each in set(one.engines.values()):
        verb = each._one_pass

        def noting(learner, agent, *rest, verb=verb):
            now[:] = [agent]
            return verb(learner, agent, *rest)

        monkeypatch.setattr(each, "_one_pass", noting)

    def broken(*given):
        found = original(*given)
        if now != [name]:
            return found
        return Terms(numerator=found.numerator * math.nan, weight=found.weight, metrics=found.metrics)

    monkeypatch.setattr(engine_module, "terms", broken)


def test_a_nan_loss_is_skipped_counted_and_after_some_in_a_row_the_end(run, monkeypatch):
    """The agent is named; the others have learned, its adapter is as it began."""
    one = run(patience=5, practice={"updates": 2})
    before = one.engines["bob"].state("bob")[1]
    broken_for(monkeypatch, one, "bob")
    with pytest.raises(Diverged, match=r"agent bob: loss or gradient was no number [5-9] times in a row"):
        _to_the_end(one)
    facts, after = one.engines["bob"].state("bob")
    assert facts["updates"] == 0
    assert 5 <= facts["skipped"] <= 9
    assert all(np.array_equal(after[key], before[key]) for key in before)
    assert one.engines["ann"].learners["ann"].updates > 0
    assert not one.finished


def test_one_good_update_ends_the_row_of_bad_ones(run, monkeypatch):
    one = run(patience=100)
    with monkeypatch.context() as patch:
        broken_for(patch, one, "bob")
        one.round()
        one.round()
    assert one.in_a_row["bob"] > 0
    assert one.in_a_row["ann"] == 0
    one.round()
    one.round()
    assert one.in_a_row["bob"] == 0


def test_a_model_that_gives_no_numbers_names_its_agent(run, tiny, tmp_path):
    """NaN in the base's own logits."""
    found = base_model(save_base(tmp_path / "broken"))
    one = run(names=("ann",), models={"ann": found.name})
    found.model.get_output_embeddings().weight.fill_(math.nan)
    with pytest.raises(Diverged, match=r"agent ann: .*not finite"):
        one.round()


# --- agents -------------------------------------------------------------------------------------------


def test_an_agent_that_leaves_in_mid_run(run):
    """The others and the router go on; what it owed counts as no outcome; a resume knows that it is gone."""
    one, resumed = run(), run()
    one.round()
    one.round()
    others = {name: parts(one)[f"agent.{name}"] for name in ("ann", "cyd")}
    one.without("bob")
    assert {name: parts(one)[f"agent.{name}"] for name in ("ann", "cyd")} == others
    resumed.load(one.state())
    assert resumed.names == one.names == ["ann", "cyd"]
    while not one.finished:
        a, b = one.round(), resumed.round()
        assert told(a) == told(b)
        assert set(a["agents"]) == {"ann", "cyd"}
    assert parts(one) == parts(resumed)
    assert all(
        "bob" not in entry.ticket.agents or "bob" in entry.reports for entry in one.exchange.ledger.entries.values()
    )


def test_the_last_agent_stays(run):
    one = run(names=("ann",))
    with pytest.raises(ConfigError, match="last"):
        one.without("ann")
    one.round()


def test_bases_of_two_families_side_by_side(run, tmp_path, tiny):
    """#24: an adapter each on its own base, one router over both."""
    other = save_base(tmp_path / "qwen", "Qwen3", hidden_size=48)
    one = run(models={"bob": other}, cluster="here")
    assert one.engines["ann"] is one.engines["cyd"] is not one.engines["bob"]
    bits = {name: digest(each.base) for name, each in one.engines.items()}
    while not one.finished:
        row = one.round()
    assert {name: digest(each.base) for name, each in one.engines.items()} == bits
    assert all(figures["updates"] > 0 for figures in row["agents"].values())


def test_a_query_longer_than_the_context_is_cut_and_counted(run):
    """Shows 7."""
    long = replace(queries()[0], id="long", messages=(replace(queries()[0].messages[0], content="odd " * 400),))
    one = run(wanted=(long, *queries()[1:4]))
    while not one.finished:
        row = one.round()
        if any(figures.get("cut") for figures in row["agents"].values()):
            break
    else:
        pytest.fail("the long query was never counted")


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1e-5}, {"top_k": 1}])
def test_greedy_agents_are_refused(sampling):
    """Groups of equal answers have no direction: all ways of being greedy."""
    agent = Agent(name="ann", model="local:x", sampling=Sampling(**sampling))
    with pytest.raises(ConfigError, match=r"agent ann: .*nothing to learn"):
        prepared(agent)


def test_queries_have_ids_of_their_own(run):
    with pytest.raises(ConfigError, match="two training queries have one id"):
        run(wanted=queries() + queries()[:1])


# --- the order of queries -----------------------------------------------------------------------------


def test_every_query_comes_once_an_epoch():
    ids = [f"q{i}" for i in range(12)]
    cursor = Cursor(ids, seed=1)
    epochs = [[key for _ in range(3) for key in cursor.take(4)] for _ in range(3)]
    assert all(sorted(epoch) == sorted(ids) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert Cursor(ids, seed=2).take(12) != epochs[0]


@pytest.mark.parametrize("batch", [1, 3, 4, 5])
def test_queries_go_on_where_they_stopped_in_every_epoch(batch):
    """#33, #35: the list of ids straight and after a resume at each position, second and third epoch among them."""
    ids = [f"q{i}" for i in range(12)]
    straight, places = Cursor(ids, 3, batch), []
    found = []
    for _ in range(12):
        places.append(straight.position)
        found.append(straight.take(batch))
    for place, rest in zip(places, range(12), strict=True):
        resumed = Cursor(ids, 3, batch)
        resumed.position = place
        assert [resumed.take(batch) for _ in range(12 - rest)] == found[rest:]
    assert all(len(set(part)) == batch for part in found)


@pytest.mark.parametrize("batch", [3, 4, 7])
def test_no_query_is_left_out_where_a_batch_spans_two_epochs(batch):
    """#33: over many epochs every query comes as often as every other, give or take one."""
    ids = [f"q{i}" for i in range(30)]
    cursor = Cursor(ids, 5, batch)
    taken = [key for _ in range(210) for key in cursor.take(batch)]
    counts = {key: taken.count(key) for key in ids}
    assert max(counts.values()) - min(counts.values()) <= 1
    assert len(taken) == cursor.position


def test_fewer_queries_than_a_batch():
    cursor = Cursor(["a", "b"], seed=0)
    assert sorted(cursor.take(4)) == ["a", "a", "b", "b"]


def test_a_loop_needs_its_own_recipe(tmp_path, tiny):
    """The table of the tests is a recipe as users write them."""
    assert recipe(tmp_path, tiny)["learner"]["use"] == "coevolve"
    assert Coevolution.__doc__
