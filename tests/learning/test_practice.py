"""One agent's practice: groups of real completions, graded, learned from."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tiny_team import engine, queries, save_base, snapshot

from coterie.backends.base_model import base_model
from coterie.errors import ConfigError
from coterie.learning import practice as module
from coterie.learning.losses import Loss
from coterie.learning.practice import (
    Clock,
    Practice,
    Rollouts,
    figures,
    groups_of,
    learn,
    practised,
    prompt_limit,
    roll_out,
    telling_ones,
    within,
)
from coterie.learning.rewards import Graded, Rewards
from coterie.learning.sampler import Sample
from coterie.types import Agent, Message, Sampling

ANN = Agent(name="ann", model="local:tiny", sampling=Sampling(temperature=0.7, max_tokens=3))
REWARDS = Rewards(eta=0.1)


def rolled(made, agent=ANN, wanted=None, seed=0, group=8):
    wanted = queries() if wanted is None else wanted
    by_seed = {seed + i: query for i, query in enumerate(wanted)}
    return roll_out(made, agent, by_seed, Practice(group=group), REWARDS, Clock())


def graded(made, raw, shaped=None, ids=(1, 2)):
    """A group of made-up completions with these scores."""
    raw = np.array(raw, dtype=float)
    shaped = raw if shaped is None else np.array(shaped, dtype=float)
    samples = tuple(Sample(ids=ids, text="x", finish="stop", entropy=1.0) for _ in raw)
    verdicts = Graded(raw=raw, shaped=shaped, solved=(raw > 0).astype(float))
    return Rollouts(query=queries()[0], prompt=(1, 2, 3), samples=samples, graded=verdicts)


# --- rollouts -----------------------------------------------------------------------------------------


def test_groups_are_the_queries_in_their_order(base):
    made = engine(base, "ann")
    found = rolled(made)
    assert [one.query for one in found] == list(queries())
    for one in found:
        assert len(one.samples) == len(one.graded.raw) == 8
        assert base.tokenizer.decode(one.prompt).endswith("?nswer:")
        for text, right in zip((s.text for s in one.samples), one.graded.solved, strict=True):
            accepted = one.query.reference["answers"]
            if one.query.reference["metric"] == "exact":
                assert (text.strip() in accepted) == right, text
    solved = np.mean([one.graded.solved.mean() for one in found])
    assert 0.05 < solved < 0.95


def test_a_query_draws_from_its_own_seed_whoever_shares_the_batch(base):
    made = engine(base, "ann")
    together, alone = rolled(made), rolled(made, wanted=queries()[:1])
    assert [s.ids for s in together[0].samples] == [s.ids for s in alone[0].samples]
    again = rolled(made, seed=50)
    assert [s.ids for s in together[0].samples] != [s.ids for s in again[0].samples]


def test_a_query_longer_than_the_limit_is_cut_and_counted(base):
    """The left part goes; whatever is left and the completion fit the context."""
    made = engine(base, "ann")
    query = queries()[0]
    long = replace(query, messages=(Message(role="user", content="odd " * 400), query.messages[-1]))
    found = rolled(made, wanted=[long, query])
    assert [one.cut for one in found] == [True, False]
    assert len(found[0].prompt) == base.context - 3
    assert base.tokenizer.decode(found[0].prompt).endswith("?nswer:")
    done = practised(found, learn(made, ANN, found, 1, Clock()))
    assert done.cut == figures(done)["cut"] == 1
    short = replace(ANN, sampling=replace(ANN.sampling, max_prompt_tokens=5))
    assert [len(one.prompt) for one in rolled(made, short)] == [5] * 8


def test_completions_that_fill_the_context_are_refused(base):
    """A limit of none or less would take the prompt's other end."""
    for tokens in (base.context, base.context + 5):
        with pytest.raises(ConfigError, match=f"agent ann: sampling.max_tokens {tokens} fills the context"):
            prompt_limit(replace(ANN, sampling=replace(ANN.sampling, max_tokens=tokens)), base.context)
    assert prompt_limit(replace(ANN, sampling=replace(ANN.sampling, max_tokens=511)), 512) == 1


# --- advantages ---------------------------------------------------------------------------------------


def test_advantages_are_taken_within_a_group(base):
    made = engine(base, "ann")
    found = [graded(made, [1, 0, 0, 1]), graded(made, [0, math.nan, 1, 1]), graded(made, [0.5] * 4)]
    a, b, c = groups_of(found, within(np.stack([one.graded.shaped for one in found]), True))
    assert a.advantages.tolist() == pytest.approx([0.866, -0.866, -0.866, 0.866], abs=1e-3)
    assert np.isnan(b.advantages).tolist() == [False, True, False, False]
    assert b.advantages[[0, 2, 3]].sum() == pytest.approx(0, abs=1e-9)
    assert not c.advantages.any()


def test_groups_are_told_by_the_verifiers_own_score(base):
    """#26, #28: eight 0.5 are dropped, and so is a group that is wrong throughout but of different lengths."""
    made = engine(base, "ann")
    mixed = graded(made, [1] + [0] * 7)
    same, wrong = graded(made, [0.5] * 8), graded(made, [0] * 8, shaped=[0, -0.1] * 4)
    none, one = graded(made, [math.nan] * 8), graded(made, [1] + [math.nan] * 7)
    assert telling_ones([same, mixed, wrong, none, one]) == [mixed]


def test_a_shaped_reward_pulls_where_groups_are_not_filtered(base):
    """The paper's setting (C4): length alone has a direction."""
    made = engine(base, "ann")
    steps = learn(made, ANN, [graded(made, [0, 0], shaped=[0, -0.1])], 1, Clock())
    assert steps[0].outcome == "done"


# --- learning -----------------------------------------------------------------------------------------


def test_practice_makes_better(base):
    """The closed loop on one question: sampled, graded by the real verifier, learned from."""
    made = engine(base, "ann")
    wanted = [queries()[0]]
    first = np.mean([rolled(made, wanted=wanted, seed=s)[0].graded.solved.mean() for s in range(900, 903)])
    for seed in range(12):
        learn(made, ANN, rolled(made, wanted=wanted * 2, seed=10 * seed), 1, Clock())
    last = np.mean([rolled(made, wanted=wanted, seed=s)[0].graded.solved.mean() for s in range(900, 903)])
    assert last > first + 0.2


def test_several_updates_measure_against_the_policy_that_sampled(base):
    """#34, #47: the first has ratio 1, the next ones not, and the old numbers are not worked out anew."""
    made = engine(base, "ann")
    steps = learn(made, ANN, rolled(made), 3, Clock())
    assert [step.outcome for step in steps] == ["done"] * 3
    assert steps[0].metrics["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert abs(steps[1].metrics["ratio_max"] - 1.0) > 1e-3
    spread = [abs(step.metrics["ratio_mean"] - 1.0) for step in steps]
    assert spread[0] < spread[1] < spread[2]


def test_one_update_needs_no_pass_for_old_log_probabilities(base, monkeypatch):
    made = engine(base, "ann")
    monkeypatch.setattr(made, "log_probs", lambda *given: pytest.fail("a pass that nothing needs"))
    assert learn(made, ANN, rolled(made), 1, Clock())[0].outcome == "done"


def test_equal_groups_are_not_run(base, monkeypatch):
    """What cannot change the loss costs no forward, and no update either."""
    made = engine(base, "ann")
    before = snapshot(made, "ann")
    monkeypatch.setattr(made, "_one_pass", lambda *given: pytest.fail("a pass that cannot change the loss"))
    assert [step.outcome for step in learn(made, ANN, [graded(made, [1] * 4)], 2, Clock())] == ["empty"] * 2
    assert snapshot(made, "ann") == before


def test_equal_groups_are_run_where_the_kl_term_has_weight(base):
    made = engine(base, "ann", loss=Loss(beta=0.1))
    assert learn(made, ANN, [graded(made, [1] * 4)], 1, Clock())[0].outcome == "done"


# --- figures ------------------------------------------------------------------------------------------


def test_figures_count_what_was_done(base):
    made = engine(base, "ann")
    found = rolled(made)
    done = practised(found, learn(made, ANN, found, 1, Clock()))
    assert done.completions == 64
    assert done.tokens == sum(len(s.ids) for one in found for s in one.samples)
    assert done.prompt_tokens == sum(len(one.prompt) for one in found)
    assert done.rewards == tuple(one.graded.mean for one in found)
    assert done.silent == 1 - len(telling_ones(found)) / 8
    row = figures(done)
    assert {"reward", "solved", "entropy", "truncated", "lr", "norm", "kl_mean", "ratio_max"} - set(row) == {
        "kl_mean"
    }
    assert all(math.isfinite(value) for value in row.values())


def test_figures_of_groups_without_verdict_are_no_numbers_and_no_zeros(base):
    """#32."""
    made = engine(base, "ann")
    done = practised([graded(made, [math.nan] * 4)], ())
    assert done.errors == done.completions == 4
    row = figures(done)
    assert math.isnan(row["reward"])
    assert math.isnan(row["solved"])


def test_two_agents_have_logs_of_their_own(base):
    """#36: different rewards, different figures, whichever was looked at last."""
    made = engine(base, "ann", "bob")
    rows = {}
    for name, raw in (("ann", [1, 0, 0, 0]), ("bob", [1, 1, 1, 0])):
        found = [graded(made, raw)]
        rows[name] = figures(practised(found, learn(made, replace(ANN, name=name), found, 1, Clock())))
    assert (rows["ann"]["reward"], rows["bob"]["reward"]) == (0.25, 0.75)


def test_a_clock_counts_a_phase_that_raises():
    clock = Clock()
    with pytest.raises(KeyError), clock.phase("learn"):
        raise KeyError
    assert clock.seconds["learn"] > 0


def test_other_tokenizer_and_architecture(tmp_path):
    """The same loop over another family."""
    found = base_model(save_base(tmp_path / "qwen", "Qwen3", hidden_size=48))
    made = engine(found, "ann")
    rollouts = rolled(made)
    assert learn(made, ANN, rollouts, 2, Clock())[-1].outcome == "done"
    assert module.groups_of(rollouts, np.zeros((len(rollouts), 4)))[0].prompt == rollouts[0].prompt
    made.close()
