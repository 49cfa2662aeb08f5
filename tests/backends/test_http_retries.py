"""Tries and waits on a clock that only sleeping moves: one budget a request, nothing past its deadline."""

from email.utils import formatdate

import pytest
from http_parts import FakeClock, agent, http, outcome
from upstream import answer, refusal, running

from coterie.backends.retries import Budget, Deadlines, Retries, retried, retry_after
from coterie.errors import AccessDenied, BackendError, ConfigError, Overloaded, ServerFault, TimedOut

TODAY = 1_700_000_000.0


def policy(retries=3, backoff=1.0, total=100.0, attempt=None):
    return Retries.of(Deadlines(total=total, attempt=attempt), retries, backoff)


async def run(rules, errors, seed=0, spends=0.0):
    """Tries until `errors` are used up; (result or error, tries, waits)."""
    clock, tries = FakeClock(), []

    async def attempt(seconds):
        tries.append(seconds)
        clock.time += spends
        if len(tries) <= len(errors):
            raise errors[len(tries) - 1]
        return "done"

    try:
        return await retried(attempt, rules, seed, Budget(clock.clock(), rules.total)), tries, clock.slept
    except BackendError as error:
        return error, tries, clock.slept


async def test_b59_so_many_tries_and_no_more():
    """B59."""
    faults = [ServerFault(str(i)) for i in range(9)]
    found, tries, slept = await run(policy(retries=3), faults)
    assert (str(found), len(tries), len(slept)) == ("3", 4, 3)
    found, tries, slept = await run(policy(retries=0), faults)
    assert (str(found), len(tries), slept) == ("0", 1, [])


async def test_what_trying_cannot_mend_is_tried_once():
    found, tries, _ = await run(policy(), [AccessDenied("no")])
    assert (type(found), len(tries)) == (AccessDenied, 1)


async def test_b57_waits_are_drawn_below_a_doubling_bound_and_the_same_again():
    """B57: requests of different seeds do not come back at one moment."""
    faults = [ServerFault("x")] * 3
    waits = {seed: (await run(policy(), faults, seed))[2] for seed in range(200)}
    assert waits[7] == (await run(policy(), faults, 7))[2]
    for nth, bound in enumerate((1.0, 2.0, 4.0)):
        drawn = sorted(row[nth] for row in waits.values())
        assert 0 <= drawn[0] < 0.1 * bound
        assert 0.9 * bound < drawn[-1] <= bound
        assert len(set(drawn)) == 200


async def test_backoff_has_a_longest_wait():
    _, _, slept = await run(policy(retries=12, backoff=4.0, total=4000), [ServerFault("x")] * 12)
    assert max(slept) <= 16


async def test_b55_b57_a_time_that_the_server_names_is_waited_for_with_jitter():
    """B55, B57."""
    found, tries, [wait] = await run(policy(), [Overloaded("busy", retry_after=20.0)])
    assert (found, len(tries)) == ("done", 2)
    assert 20 <= wait <= 21


async def test_b55_b58_a_time_beyond_the_deadline_ends_the_request_at_once():
    """B55, B58: the error says when to come back."""
    found, tries, slept = await run(policy(total=100), [Overloaded("busy", retry_after=100.0)])
    assert (type(found), found.retry_after, len(tries), slept) == (Overloaded, 100.0, 1, [])


async def test_b60_no_try_begins_after_the_deadline_and_the_last_one_is_cut_to_it():
    """B60: a hung try leaves room for a whole other one, by default too."""
    hung = [TimedOut("hang")] * 9
    rules = Retries.of(Deadlines(), 5, 0.5)
    found, tries, _ = await run(rules, hung, spends=rules.attempt)
    assert type(found) is TimedOut
    assert len(tries) == 2
    assert tries[0] == rules.attempt
    assert tries[1] >= rules.attempt - 0.5
    found, tries, _ = await run(policy(retries=9, total=100, attempt=40), hung, spends=40)
    assert [t <= 40 for t in tries] == [True] * 3
    assert tries[2] < 20


@pytest.mark.parametrize(
    ("deadlines", "retries"),
    [
        (Deadlines(total=60, attempt=60), 1),
        (Deadlines(total=60, attempt=30), 1),
        (Deadlines(total=10, attempt=11), 0),
        (Deadlines(total=0.4), 1),
    ],
)
def test_b60_b65_deadlines_without_room_for_a_second_try_are_refused(deadlines, retries):
    """B60, B65: found when the settings are read, not when a server hangs."""
    with pytest.raises(ConfigError, match="set attempt to at most"):
        Retries.of(deadlines, retries, 1.0)


def test_deadlines_fit_where_only_the_total_is_given():
    for total in (2.0, 60.0, 1000.0):
        rules = Retries.of(Deadlines(total=total), 3, 1.0)
        assert 2 * rules.attempt + 1.0 <= total
    assert Retries.of(Deadlines(total=10), 0, 1.0).attempt == 10


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0), ("7", 7.0), ("1.5", 1.5), (formatdate(TODAY + 90, usegmt=True), 90.0),
        (formatdate(TODAY - 90, usegmt=True), 0.0), (formatdate(TODAY + 5), 5.0), ("-1", None), ("soon", None),
        ("inf", None), ("nan", None), ("", None), (None, None),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date(value, seconds):
    assert retry_after(value, TODAY) == seconds


async def test_b55_b57_a_busy_server_is_asked_again_when_it_said():
    """B55, B57: header in seconds and as a date, through the whole backend, to exact calls."""
    for value in ("20", formatdate(TODAY + 20, usegmt=True)):
        async with running() as upstream:
            busy = refusal(429, "rate_limit_exceeded", "slow down", Retry_After=value)
            upstream.scripts["m"] = [busy, answer("four")]
            clock = FakeClock(TODAY)
            backend = http(upstream, clock.clock(), retries=2, deadlines=Deadlines(total=60))
            assert (await outcome(backend, agent())).text == "four"
            assert [20 <= wait <= 20.01 for wait in clock.slept] == [True]
            upstream.scripts["m"] = [busy, answer("four")]
            short = http(upstream, FakeClock(TODAY).clock(), retries=2, deadlines=Deadlines(total=15))
            error = await outcome(short, agent())
            assert (type(error), error.retry_after, upstream.total()) == (Overloaded, 20.0, 3)
            await backend.aclose()
            await short.aclose()
