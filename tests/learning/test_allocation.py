"""Who practises on what: Eqs. 18 and 19 by hand, buffers, fairness, agents that come and go, exact resume."""

import json
import math

import numpy as np
import pytest

from coterie.config import validate
from coterie.errors import ConfigError
from coterie.learning.allocation import Allocation, Allocator
from coterie.learning.load import Window, load_entropy

QUIET = {"ucb": 0.0, "entropy": 0.0}


def allocator(names="abc", seed=0, **settings):
    return Allocator(list(names), Allocation(**settings), seed)


def resumed(source, settings):
    about, arrays = source.state()
    found = Allocator(["someone"], settings, source.seed)
    found.load(json.loads(json.dumps(about)), {k: v.copy() for k, v in arrays.items()})
    return found


# --- order and prefix ---------------------------------------------------------------------------------


def test_prefix_is_the_shortest_that_reaches_tau():
    found = allocator(**QUIET)
    assert found.allocate("q", {"a": 0.3, "b": 0.5, "c": 0.1}, 0).agents == ("b", "a")  # .5, .8
    assert found.allocate("q", {"a": 0.3, "b": 0.71, "c": 0.1}, 0).agents == ("b",)
    assert found.allocate("q", {"a": 0.6, "b": 0.1, "c": 0.05}, 0).agents == ("a", "b")  # .6 + .1 is .7


def test_all_are_asked_where_all_fall_short():
    assert set(allocator(**QUIET).allocate("q", {"a": 0.06, "b": 0.06, "c": 0.06}, 0).agents) == {"a", "b", "c"}


def test_exploration_orders_and_raw_familiarity_counts():
    """c's memory of 0.4 nats gives it .1 + 2 * .4 = .9 and the first place, but only .1 towards tau."""
    found = allocator(ucb=0.0, entropy=2.0)
    found.observe_entropy("c", 0.4, 8)
    assert found.allocate("q", {"a": 0.5, "b": 0.3, "c": 0.1}, 0).agents == ("c", "a", "b")  # .1, .6, .9


def test_bonus_is_zero_at_first_and_counts_pushes():
    """C7: log max(T, 1), T the queries routed before; n counts pushes, not practice."""
    found = allocator("ab", ucb=2.0, entropy=0.0)
    f = {"a": 0.9, "b": 0.2}
    raw = np.array([0.9, 0.2])
    assert found.scores(raw).tolist() == [0.9, 0.2]
    assert found.allocate("q0", f, 0).agents == ("a",)
    assert found.scores(raw).tolist() == [0.9, 0.2]  # log 1 = 0
    assert found.allocate("q1", f, 0).agents == ("a",)
    scores = found.scores(raw)  # T = 2, n = (2, 0)
    assert scores[0] == pytest.approx(0.9 + 2 * math.sqrt(math.log(2) / 3))  # 1.861
    assert scores[1] == pytest.approx(0.2 + 2 * math.sqrt(math.log(2) / 1))  # 1.865
    assert found.allocate("q2", f, 1).agents == ("b", "a")


def test_fixed_k_ignores_the_threshold():
    found = allocator("abcd", top_k=3, **QUIET)
    assert found.allocate("q", {"a": 0.9, "b": 0.5, "c": 0.3, "d": 0.1}, 0).agents == ("a", "b", "c")


def test_ties_are_drawn_from_the_seed_and_not_by_position():
    even = dict.fromkeys("abcd", 0.8)
    firsts = [allocator("abcd", seed, **QUIET).allocate("q", even, 0).agents for seed in range(60)]
    assert {agents[0] for agents in firsts} == set("abcd")
    again = [allocator("dcba", seed, **QUIET).allocate("q", even, 0).agents for seed in range(60)]
    assert again == firsts


def test_some_queries_go_to_one_more_agent_where_asked():
    found = allocator("abcd", probe=0.25, **QUIET)
    sizes = [len(found.allocate("q", {"a": 0.9, "b": 0.1, "c": 0.1, "d": 0.1}, 0).agents) for _ in range(400)]
    assert set(sizes) == {1, 2}
    assert 60 <= sizes.count(2) <= 140
    assert all(desk["allocated"] > 10 for desk in found.metrics()["agents"].values())


def test_familiarity_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="not finite"):
        allocator().allocate("q", {"a": math.nan, "b": 0.1, "c": 0.1}, 0)
    with pytest.raises(KeyError):
        allocator().allocate("q", {"a": 0.3}, 0)


# --- entropy memory -----------------------------------------------------------------------------------


def test_entropy_memory_is_the_mean_over_completions():
    """C8: 0 before any data; 8 at 1.0 and 24 at 0.2 give (8 + 4.8) / 32 = 0.4."""
    found = allocator()
    assert found.metrics()["agents"]["a"]["entropy"] == 0.0
    found.observe_entropy("a", 1.0, 8)
    found.observe_entropy("a", 0.2, 24)
    found.observe_entropy("a", math.nan, 8)  # a group without a completion says nothing
    found.observe_entropy("a", 9.0, 0)
    assert found.metrics()["agents"]["a"]["entropy"] == pytest.approx(0.4)


def test_entropy_memory_that_forgets():
    found = allocator(entropy_decay=0.5)
    found.observe_entropy("a", 1.0, 4)
    found.observe_entropy("a", 0.0, 2)  # two completions at .5 each leave a quarter
    assert found.metrics()["agents"]["a"]["entropy"] == pytest.approx(0.25)


# --- buffers ------------------------------------------------------------------------------------------


def filled(count, **settings):
    found = allocator("a", **QUIET, **settings)
    for i in range(count):
        found.allocate(f"q{i}", {"a": 0.9}, i)
    return found


def test_the_most_recent_come_first_until_less_than_a_micro_batch_is_left():
    found = filled(10, micro_batch=4)
    batches = [[ticket.query for ticket in batch] for batch in found.ready("a")]
    assert batches == [["q9", "q8", "q7", "q6"], ["q5", "q4", "q3", "q2"]]
    assert found.ready("a") == []
    assert found.metrics()["agents"]["a"]["depth"] == 2


def test_some_can_be_taken_beside_the_micro_batches():
    found = filled(5, micro_batch=4)
    assert [ticket.query for ticket in found.take("a", 2)] == ["q4", "q3"]
    assert found.ready("a") == []
    assert [ticket.query for ticket in found.take("a", 9)] == ["q2", "q1", "q0"]
    assert found.take("a", 1) == ()
    assert found.metrics()["agents"]["a"]["taken"] == 5


def test_one_pop_a_round_as_a_setting():
    found = filled(10, micro_batch=4, drain=False)
    assert [len(batch) for batch in found.ready("a")] == [4]
    assert found.metrics()["agents"]["a"]["depth"] == 6


@pytest.mark.parametrize(("drain", "left", "oldest"), [(True, 0, 4), (False, 300, 299)])
def test_one_pop_starves_old_queries_and_draining_does_not(drain, left, oldest):
    """Trap 38: five queries a round and micro-batches of four. One pop leaves one query a round for ever."""
    found = allocator("a", micro_batch=4, capacity=10_000, drain=drain, **QUIET)
    for now in range(300):
        for i in range(5):
            found.allocate(f"{now}-{i}", {"a": 0.9}, now)
        found.ready("a")
    about = found.metrics()["agents"]["a"]
    assert about["depth"] == left
    assert about["oldest_age"] == (oldest if left else 0)
    assert about["oldest_taken"] <= oldest
    assert about["evicted"] == 0


def test_a_full_buffer_evicts_its_oldest_and_says_so():
    """C15: nothing is lost in silence."""
    found = filled(7, micro_batch=4, capacity=5)
    assert [(agent, ticket.query) for agent, ticket in found.evictions()] == [("a", "q0"), ("a", "q1")]
    assert found.evictions() == []
    about = found.metrics()["agents"]["a"]
    assert (about["allocated"], about["evicted"], about["depth"]) == (7, 2, 5)


def test_overdue_queries_are_taken_first_and_none_is_dropped():
    found = filled(9, micro_batch=3, drain=False, max_age=5)  # rounds 0 to 8: q0, q1, q2 are older than 5
    taken = [ticket.query for _ in range(3) for batch in found.ready("a") for ticket in batch]
    assert taken == ["q0", "q1", "q2", "q8", "q7", "q6", "q5", "q4", "q3"]


def test_overdue_queries_stay_in_order_over_several_batches_and_pushes():
    """Rounds 0 to 9, older than 4 are overdue: two batches of them, then one arrives, then the rest."""
    found = filled(10, micro_batch=2, drain=False, max_age=4, capacity=11)
    taken = [ticket.query for _ in range(2) for batch in found.ready("a") for ticket in batch]
    assert taken == ["q0", "q1", "q2", "q3"]
    found.allocate("q10", {"a": 1.0}, 9)
    assert [ticket.query for ticket in found.take("a", 3)] == ["q4", "q10", "q9"]


def test_more_agents_than_there_are_cannot_be_asked_for():
    with pytest.raises(ConfigError, match="top_k"):
        allocator("ab", top_k=3)


def test_a_capacity_below_a_micro_batch_is_refused():
    with pytest.raises(ConfigError, match="capacity"):
        allocator(micro_batch=16, capacity=8)


@pytest.mark.parametrize("key", ["tau", "ucb", "micro_batch", "top_k", "probe"])
def test_settings_are_bounded(key):
    with pytest.raises(ConfigError, match=key):
        validate(Allocation, {key: -1}, "allocation")


# --- balance ------------------------------------------------------------------------------------------


def test_equal_agents_get_equal_parts():
    """Trap 67: a bandit with equal agents; the smallest share stays near a fourth."""
    found = allocator("abcd", window=2000)
    for i in range(2000):
        found.allocate(f"q{i}", dict.fromkeys("abcd", 0.75), i // 16)
    about = found.metrics()
    assert min(desk["share"] for desk in about["agents"].values()) > 0.22
    assert about["load_entropy"] > 0.99
    assert not about["collapsed"]


def test_exploration_never_ends():
    """An agent that is never first by familiarity is still asked now and then, late as well as early."""
    found = allocator("ab", ucb=2.0, entropy=0.0)
    asked = [i for i in range(4000) if "b" in found.allocate(f"q{i}", {"a": 0.8, "b": 0.06}, i // 16).agents]
    assert any(i > 3500 for i in asked)


def test_collapse_is_told_once_the_window_is_full():
    found = allocator("ab", window=100, **QUIET)
    for i in range(99):
        found.allocate(f"q{i}", {"a": 0.9, "b": 0.1}, i)
    assert not found.metrics()["collapsed"]
    found.allocate("last", {"a": 0.9, "b": 0.1}, 99)
    about = found.metrics()
    assert about["collapsed"]
    assert about["load_entropy"] == 0.0
    assert about["agents"]["b"]["starved"]
    assert not about["agents"]["a"]["starved"]


def test_a_window_forgets():
    window = Window(2)
    for group in (["a"], ["b"], ["b", "c"]):
        window.push(group)
    assert window.shares("abc") == {"a": 0.0, "b": 2 / 3, "c": 1 / 3}
    assert window.mean_size() == 1.5
    assert load_entropy([0.5, 0.5]) == 1.0
    assert load_entropy([1.0]) == 1.0


# --- agents that leave --------------------------------------------------------------------------------


def test_an_agent_leaves_mid_run_and_the_others_keep_theirs():
    found = allocator("abc", **QUIET)
    for i in range(3):
        found.allocate(f"q{i}", {"a": 0.5, "b": 0.4, "c": 0.1}, i)
    before = found.metrics()["agents"]["b"]
    found.without("a")
    assert [(agent, ticket.query) for agent, ticket in found.evictions()] == [("a", f"q{i}") for i in range(3)]
    assert found.agents == ("b", "c")
    assert found.metrics()["agents"]["b"] | {"share": 0} == before | {"share": 0}
    assert found.allocate("q3", {"b": 0.9, "c": 0.1}, 3).agents == ("b",)
    found.without("b")
    with pytest.raises(ConfigError, match="last agent"):
        found.without("c")


# --- exact resume -------------------------------------------------------------------------------------


def story(found, rounds):
    """Some rounds in full: what was decided, taken and evicted."""
    log = []
    for now in rounds:
        for i in range(5):
            f = {name: ((now * 7 + i * 3 + ord(name)) % 10) / 20 for name in found.agents}
            log.append(found.allocate(f"{now}-{i}", f, now))
        log += [found.ready(name) for name in found.agents]
        log += [found.evictions() if now % 3 == 0 else None]
        found.observe_entropy(found.agents[now % len(found.agents)], now / 7, 8)
    return [*log, found.metrics()]


@pytest.mark.parametrize("at", range(7))
def test_straight_equals_resumed(at):
    """Traps 33, 34 and 37: counters, memories, half-filled buffers and waiting evictions survive."""
    settings = Allocation(micro_batch=4, capacity=6, drain=False, window=9, probe=0.2, max_age=3)
    straight = Allocator("abc", settings, 5)
    expected = story(straight, range(at)) and story(straight, range(at, 9))
    first = Allocator("abc", settings, 5)
    story(first, range(at))
    second = resumed(first, settings)
    assert story(second, range(at, 9)) == expected
    assert second.state()[0] == straight.state()[0]
    cold = Allocator("abc", settings, 5)
    assert at == 0 or story(cold, range(at, 9)) != expected
