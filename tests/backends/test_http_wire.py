"""Requests as they are sent and replies as they are read: fields, usage, ends, log-probabilities, cuts."""

import json

import pytest
from http_parts import agent, http, outcome, user
from hypothesis import given
from hypothesis import strategies as st
from upstream import DONE, Reply, answer, chunk, reply_body, running, stream

from coterie.backends.chat_answer import read_answer
from coterie.backends.chat_request import about, cut_left
from coterie.errors import BackendError, ContentFiltered, EmptyAnswer, MalformedAnswer, Overloaded, ServerFault
from coterie.tasks.extract import CONTRACTS
from coterie.types import Completion, Message

SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}}


async def sent(asked, messages=None, drawn=5, **options):
    """The body that the server got."""
    async with running() as upstream:
        backend = http(upstream, **options)
        await outcome(backend, asked, messages, drawn)
        await backend.aclose()
        return upstream.chats()[-1].body


async def got(reply, *, stops=(), messages=None, **options):
    """The completion or failure that a reply becomes."""
    async with running({"m": [reply]}) as upstream:
        backend = http(upstream, **options)
        try:
            return await outcome(backend, agent(stop=stops, max_tokens=16), messages)
        finally:
            await backend.aclose()


# --- asking -------------------------------------------------------------------------------------------


async def test_b26_b29_every_sampling_setting_is_sent():
    """B26, B29: nothing is dropped in silence; what is off is left out."""
    found = await sent(
        agent("org/model:7b", temperature=0.3, top_p=0.9, top_k=4, max_tokens=32, stop=("a", "b")), top_k=True
    )
    assert found == {
        "model": "org/model:7b",
        "messages": [{"role": "user", "content": "What is 2 + 2?"}],
        "temperature": 0.3,
        "top_p": 0.9,
        "top_k": 4,
        "max_tokens": 32,
        "stop": ["a", "b"],
        "seed": 5,
    }
    assert set(await sent(agent(temperature=0.0))) == {"model", "messages", "temperature", "max_tokens", "seed"}


async def test_an_endpoint_says_what_it_takes():
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "min_p": 0.1}
    found = await sent(
        agent(top_p=0.5, max_tokens=9),
        max_tokens_field="max_completion_tokens",
        seed=False,
        omit=("temperature", "top_p"),
        extra=extra,
        logprobs=True,
        json_schema=SCHEMA,
    )
    assert found.keys() == {
        "model", "messages", "max_completion_tokens", "logprobs", "response_format", *extra
    }  # fmt: skip
    assert found["response_format"]["json_schema"]["schema"] == SCHEMA
    assert found["max_completion_tokens"] == 9


async def test_seeds_differ_and_fit_what_servers_take():
    seeds = [(await sent(agent(), drawn=s))["seed"] for s in (2**62 + 1, 2**62 + 2)]
    assert seeds[0] != seeds[1]
    assert all(0 <= s < 2**31 for s in seeds)


PREFILLED = user("Add 2 and 2.", prefill="Answer:")


async def test_a_prefill_goes_as_the_endpoint_takes_it():
    plain = await sent(agent(), PREFILLED)
    assert [m["role"] for m in plain["messages"]] == ["user", "assistant"]
    gone_on = await sent(agent(), PREFILLED, prefill="continue")
    assert (gone_on["continue_final_message"], gone_on["add_generation_prompt"]) == (True, False)
    assert "continue_final_message" not in await sent(agent(), prefill="continue")
    dropped = await sent(agent(), PREFILLED, prefill="drop")
    assert [m["role"] for m in dropped["messages"]] == ["user"]
    assert "Answer:" in dropped["messages"][0]["content"]


@pytest.mark.parametrize("said", ["4", " 4\nand so on", "Answer: 4", " Answer: 4.", "Answer: 4\nthat is it"])
@pytest.mark.parametrize("prefill", ["message", "continue", "drop"])
async def test_an_answer_to_a_prefill_is_read_whether_it_is_repeated_or_not(prefill, said):
    found = await got(answer(said), messages=PREFILLED, prefill=prefill, stops=("\n",))
    assert "Answer" not in found.text
    assert CONTRACTS["answer"].extract(found.text) == "4"


LONG = (
    Message(role="system", content="s" * 400),
    Message(role="user", content="é" * 300),
    Message(role="user", content="q" * 40),
)


def test_a_long_prompt_is_cut_at_the_left():
    assert cut_left(LONG, 10_000) == LONG
    assert [m.content for m in cut_left(LONG, 14)] == ["q" * 40]
    assert cut_left(LONG, 3)[0].content == "q" * 4
    middle = cut_left(LONG, 100)
    assert [m.role for m in middle] == ["user", "user"]
    assert middle[1] == LONG[2]
    assert set(middle[0].content) == {"é"}


@given(st.lists(st.text(max_size=60), min_size=1, max_size=4), st.integers(1, 80))
def test_a_cut_prompt_is_an_end_of_the_prompt_and_fits(contents, limit):
    messages = tuple(Message(role="user", content=text) for text in contents)
    kept = cut_left(messages, limit)
    assert kept
    assert messages[-len(kept) :][1:] == kept[1:]
    assert messages[-len(kept)].content.endswith(kept[0].content)
    assert len(kept) == 1 or sum(about(m.content) for m in kept) <= limit


async def test_the_cut_is_asked_for_by_the_agent():
    body = await sent(agent(max_prompt_tokens=14), LONG)
    assert [m["content"] for m in body["messages"]] == ["q" * 40]


# --- reading ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", "stop"), ("length", "length"), ("max_tokens", "length"), ("tool_calls", "tool_calls"),
        ("function_call", "tool_calls"), ("content_filter", "content_filter"), ("eos", "stop"), (None, "stop"),
    ],
)  # fmt: skip
async def test_b17_the_end_is_told_as_it_was(reason, finish):
    """B17."""
    found = await got(answer("four", finish=reason))
    assert (found.text, found.finish) == ("four", finish)


async def test_an_answer_as_long_as_allowed_without_a_reason_was_cut():
    assert (await got(answer("four", finish=None, usage=(7, 16)))).finish == "length"


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (answer(None), MalformedAnswer, "content is null"),
        (answer(" \n"), EmptyAnswer, "blank"),
        (answer(None, tool_calls=[{"id": "t"}], finish="tool_calls"), EmptyAnswer, "tools"),
        (answer("", reasoning_content="so long", finish="length"), EmptyAnswer, "cut at max_tokens"),
        (answer(None, reasoning="hm", finish="stop"), EmptyAnswer, "only reasoning and no answer"),
        (answer("<think>and so on", finish="length"), EmptyAnswer, "only reasoning"),
        (answer("<think>hm</think>\n ", finish="length"), EmptyAnswer, "only reasoning"),
        (answer(None, finish="content_filter"), ContentFiltered, "filter"),
        (answer(None, refusal="I cannot help"), ContentFiltered, "I cannot help"),
        (answer("fo", finish="error"), ServerFault, "gave up"),
        (Reply(body=reply_body([])), MalformedAnswer, "no choices"),
        (Reply(body=reply_body([None])), MalformedAnswer, "no choice of index 0"),
        (Reply(body={"choices": {"0": "four"}}), MalformedAnswer, "no choices"),
        (Reply(body=[]), MalformedAnswer, "no choices"),
        (Reply(body=b"null"), MalformedAnswer, "no choices"),
        (Reply(body=b""), MalformedAnswer, "nothing"),
        (Reply(body=b"[" * 100_000), MalformedAnswer, "no JSON"),
        (Reply(body=b"\xff\xfe"), MalformedAnswer, "no JSON"),
        (Reply(body={"error": {"message": "overloaded", "type": "overloaded_error"}}), Overloaded, "overloaded"),
        (Reply(body={"error": "boom"}), ServerFault, "boom"),
        (Reply(body=b"", status=204), MalformedAnswer, "204"),
    ],
)
async def test_b1_b3_b5_b15_b48_an_unusable_answer_is_a_failure_of_its_kind(reply, kind, words):
    """B1, B3, B5, B15, B48: never a text, never an exception of another kind."""
    found = await got(reply)
    assert type(found) is kind
    assert words in str(found)


async def test_content_in_parts_and_thoughts_before_an_answer_are_read():
    assert (await got(answer([{"type": "text", "text": "fo"}, {"type": "text", "text": "ur"}]))).text == "four"
    assert (await got(answer("<think>hm</think>four"))).text == "<think>hm</think>four"
    assert (await got(answer("four", tool_calls=[{"id": "t"}], finish="tool_calls"))).finish == "tool_calls"


USAGES = [
    ((7, 3), (7, 3, False)),
    ({"prompt_tokens": 7, "completion_tokens": 3, "cost": 0.5, "cost_details": {"upstream": 1}}, (7, 3, False)),
    ({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 40}, (7, 33, False)),
    ({"prompt_tokens": 7}, (7, 5, True)),
    ({"completion_tokens": 3}, (8, 3, True)),
    ({"prompt_tokens": "7", "completion_tokens": -3}, (8, 5, True)),
    ((0, 0), (8, 5, True)),
    (None, (8, 5, True)),
    ("many", (8, 5, True)),
]


@pytest.mark.parametrize(("usage", "wanted"), USAGES)
@pytest.mark.parametrize("streamed", [False, True])
async def test_b12_b13_b43_b82_b83_usage_is_read_once_or_estimated_and_flagged(usage, wanted, streamed):
    """B12, B13, B43, B82, B83: prompt of 14 bytes and its frame, answer of 18 bytes."""
    text = "four, or 2 times 2"
    pieces = [chunk(text[:5], usage=usage), chunk(text[5:], usage=usage), chunk(finish="stop"), chunk(usage=usage)]
    found = await got(stream(*pieces, DONE) if streamed else answer(text, usage=usage))
    assert (found.prompt_tokens, found.completion_tokens, found.estimated) == wanted


async def test_a_paid_answer_without_use_keeps_its_tokens():
    found = await got(answer("", reasoning_content="hm", usage=(7, 99)))
    assert (found.prompt_tokens, found.completion_tokens) == (7, 99)


async def test_log_probabilities_come_where_the_server_has_them():
    rows = [{"token": "four", "logprob": -0.5}, {"token": "!", "logprob": -1.5}, {"token": "?", "logprob": None}]
    choice = {"index": 0, "message": {"content": "four!"}, "finish_reason": "stop", "logprobs": {"content": rows}}
    found = await got(Reply(body=reply_body([choice])), logprobs=True)
    assert found.logprobs == (-0.5, -1.5)
    assert (await got(answer("four"))).logprobs is None


async def test_json_that_was_asked_for_is_looked_at():
    assert (await got(answer('{"answer": 4}'), json_schema=SCHEMA)).text == '{"answer": 4}'
    found = await got(answer('{"answer": ', finish="length"), json_schema=SCHEMA)
    assert type(found) is MalformedAnswer


async def test_stop_texts_hold_where_the_server_ignores_them():
    found = await got(answer("4\nQ: next", finish="length"), stops=("\nQ:", "Q"))
    assert (found.text, found.finish) == ("4", "stop")
    many = ("u", "v", "w", "x", "y")
    assert (await got(answer("fo y ur"), stops=many)).text == "fo "
    assert (await sent(agent(stop=many)))["stop"] == list(many[:4])


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["choices", "message", "content", "usage", "error", "delta", "index", "logprobs", "finish_reason", "code"]
    ), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(JSON)
def test_no_json_at_all_is_an_exception_of_another_kind(value):
    try:
        found = read_answer(json.dumps(value).encode())
    except BackendError:
        return
    assert found.drafts or value["choices"]


async def test_equal_calls_give_equal_completions():
    async with running() as upstream:
        backend = http(upstream)
        found = [await outcome(backend, agent(), seed=seed) for seed in (1, 1, 2)]
        await backend.aclose()
    assert all(isinstance(one, Completion) for one in found)
    assert found[0].text == found[1].text != found[2].text
