"""Which rewards are compared: C14 case by case, both kinds of sync, agents that go, exact resume."""

import json
import math

import pytest

from coterie.learning.allocation import Ticket
from coterie.learning.ledger import Ledger


def ticket(id, agents, round=0):
    return Ticket(id=id, query=f"q{id}", agents=tuple(agents), round=round)


def opened(*tickets, **settings):
    found = Ledger(**settings)
    for one in tickets:
        found.open(one)
    return found


def told(resolved):
    return [(one.ticket.id, one.rewards, one.solo) for one in resolved]


def test_a_ticket_waits_for_all_of_its_agents():
    ledger = opened(ticket(0, "ab"))
    ledger.report(0, "a", 1.0)
    assert ledger.settle(0) == []
    ledger.report(0, "b", 0.25)
    assert told(ledger.settle(3)) == [(0, {"a": 1.0, "b": 0.25}, False)]
    assert ledger.settle(4) == []
    assert ledger.metrics() | {"open": 0, "resolved": 1, "solo": 0, "partial": 0} == ledger.metrics()


def test_a_solo_ticket_is_resolved_at_once():
    ledger = opened(ticket(0, "a"))
    ledger.report(0, "a", 0.5)
    assert told(ledger.settle(0)) == [(0, {"a": 0.5}, True)]
    assert ledger.metrics()["solo"] == 1


def test_one_reward_of_several_routed_is_never_a_solo():
    """C14: the solo rule follows the routing decision, not whose buffer filled first."""
    ledger = opened(ticket(0, "ab"), ttl=5)
    ledger.report(0, "a", 1.0)
    assert ledger.settle(4) == []
    assert ledger.settle(5) == []
    about = ledger.metrics()
    assert (about["alone"], about["expired"], about["resolved"], about["open"]) == (1, 1, 0, 0)


def test_after_its_time_the_ones_that_reported_are_compared():
    ledger = opened(ticket(0, "abc", round=10), ttl=5)
    ledger.report(0, "c", 0.0)
    ledger.report(0, "a", 1.0)
    assert ledger.settle(14) == []
    assert told(ledger.settle(15)) == [(0, {"a": 1.0, "c": 0.0}, False)]
    assert ledger.metrics()["partial"] == 1
    assert ledger.report(0, "b", 1.0) is False
    assert ledger.metrics()["late"] == 1


def test_an_eviction_or_error_is_no_outcome_and_no_zero():
    ledger = opened(ticket(0, "ab"), ticket(1, "abc"), ticket(2, "a"), ticket(3, "ab"))
    for key, agent, reward in [
        (0, "a", 1.0),
        (0, "b", None),
        (1, "a", 1.0),
        (1, "b", None),
        (1, "c", 0.5),
        (2, "a", None),
        (3, "a", None),
        (3, "b", None),
    ]:
        ledger.report(key, agent, reward)
    assert told(ledger.settle(0)) == [(1, {"a": 1.0, "c": 0.5}, False)]
    about = ledger.metrics()
    assert (about["alone"], about["empty"], about["open"]) == (1, 2, 0)


def test_an_expired_ticket_without_any_reward_is_counted():
    ledger = opened(ticket(0, "ab"), ttl=2)
    assert ledger.settle(2) == []
    about = ledger.metrics()
    assert (about["expired"], about["empty"], about["open"]) == (1, 1, 0)


def test_step_compares_those_that_report_together():
    ledger = opened(ticket(0, "abcd"), sync="step")
    ledger.report(0, "a", 1.0)
    ledger.report(0, "b", 0.0)
    assert told(ledger.settle(0)) == [(0, {"a": 1.0, "b": 0.0}, False)]
    ledger.report(0, "c", 1.0)
    assert ledger.settle(1) == []
    ledger.report(0, "d", 0.5)
    assert ledger.settle(2) == []
    about = ledger.metrics()
    assert (about["alone"], about["resolved"], about["open"], about["empty"]) == (2, 1, 0, 0)


def test_an_agent_that_leaves_holds_nobody_up():
    ledger = opened(ticket(0, "abc"), ticket(1, "ac"))
    for key, agent, reward in [(0, "a", 1.0), (0, "b", 0.0), (1, "a", 1.0)]:
        ledger.report(key, agent, reward)
    ledger.without("c")
    assert ledger.report(0, "c", None)  # its buffer says so, too
    assert told(ledger.settle(0)) == [(0, {"a": 1.0, "b": 0.0}, False)]
    assert ledger.metrics()["alone"] == 1


def test_mistakes_are_told():
    ledger = opened(ticket(0, "ab"))
    ledger.report(0, "a", 1.0)
    with pytest.raises(ValueError, match="already"):
        ledger.report(0, "a", 1.0)
    with pytest.raises(KeyError):
        ledger.report(0, "z", 1.0)
    with pytest.raises(ValueError, match="no outcome is None"):
        ledger.report(0, "b", math.nan)
    with pytest.raises(ValueError, match="open already"):
        ledger.open(ticket(0, "ab"))


def story(ledger, rounds):
    log = []
    for now in rounds:
        for i in range(4):
            agents = "abc"[: 1 + (now + i) % 3]
            ledger.open(ticket(now * 4 + i, agents, now))
        for key in range(now * 4 + 4):
            agent = "abc"[(key + now) % 3]
            entry = ledger.entries.get(key)
            if entry and agent in entry.ticket.agents and agent not in entry.reports:
                ledger.report(key, agent, None if (key + now) % 5 == 0 else 0.1 * ((key * now) % 11))
        log += [told(ledger.settle(now)), ledger.metrics()]
    return log


@pytest.mark.parametrize("sync", ["join", "step"])
@pytest.mark.parametrize("at", range(6))
def test_straight_equals_resumed(at, sync):
    """Traps 33 and 37: half-reported tickets are part of the state."""
    straight = Ledger(ttl=3, sync=sync)
    story(straight, range(at))
    expected = story(straight, range(at, 10))
    first = Ledger(ttl=3, sync=sync)
    story(first, range(at))
    about, arrays = first.state()
    second = Ledger(ttl=3, sync=sync)
    second.load(json.loads(json.dumps(about)), {k: v.copy() for k, v in arrays.items()})
    assert story(second, range(at, 10)) == expected


def test_reports_of_this_step_are_still_new_after_a_resume():
    first = opened(ticket(0, "ab"), sync="step")
    first.report(0, "a", 0.0)
    second = Ledger(sync="step")
    second.load(*first.state())
    second.report(0, "b", 1.0)
    assert told(second.settle(0)) == [(0, {"a": 0.0, "b": 1.0}, False)]
