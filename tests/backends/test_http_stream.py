"""Streams: events from bytes cut anywhere, choices from events, and the public `stream` of the backend."""

import asyncio
import json
from itertools import pairwise

import pytest
from http_parts import agent, http, outcome, user
from hypothesis import given
from hypothesis import strategies as st
from upstream import DONE, answer, chunk, event, running, stream

from coterie.backends.chat_stream import ChatStream
from coterie.backends.sse import Event, EventDecoder
from coterie.errors import BrokenStream, MalformedAnswer, Overloaded, ServerFault
from coterie.types import Completion

HELLO = "你好🌍, é\u2028 naïve"


def events(pieces, limit=10_000):
    decoder = EventDecoder(limit)
    return [found for piece in pieces for found in decoder.feed(piece)]


def data(*values):
    return [Event(name="message", data=value) for value in values]


# --- events -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_every_line_end_every_field_and_comments(end):
    lines = [b"\xef\xbb\xbf: hello", b"data: one", b"", b"event: error", b"data:two", b"data:  three", b"id: 7"]
    lines += [b"retry: 10", b"", b": keep-alive", b"", b"data", b"", b"data: never ended"]
    found = events([end.join(lines)])
    assert found == [
        Event(name="message", data=b"one"),
        Event(name="error", data=b"two\n three"),
        Event(name="message", data=b""),
    ]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_b46_a_cut_at_any_byte_changes_nothing(end):
    """B46: not in a character, not in a line end, not in a field name."""
    text = f"data: {HELLO}\n: note\n\ndata: b\ndata: c\n\n".encode().replace(b"\n", end)
    whole = events([text])
    assert whole == data(HELLO.encode(), b"b\nc")
    for cut in range(len(text) + 1):
        assert events([text[:cut], text[cut:]]) == whole
    assert events([text[i : i + 1] for i in range(len(text))]) == whole


@given(st.lists(st.text(max_size=8), min_size=1, max_size=5), st.lists(st.integers(0, 200), max_size=12))
def test_b46_any_text_in_any_pieces_comes_out_whole(texts, cuts):
    """B46 as a property: JSON of any text, cut at any bytes, decodes to that text."""
    raw = b"".join(event(json.dumps(text, ensure_ascii=False).encode(errors="surrogatepass")) for text in texts)
    places = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    found = events([raw[a:b] for a, b in pairwise(places)])
    assert [json.loads(e.data) for e in found] == texts


def test_an_event_without_an_end_is_bounded():
    for pieces in ([b"data: " + b"x" * 50] * 10, [b"data: xxxx\n"] * 60):
        with pytest.raises(MalformedAnswer, match="longer than 100"):
            events(pieces, limit=100)


# --- choices ------------------------------------------------------------------------------------------


def gathered(*raw, samples=1, limit=1000):
    found = ChatStream(limit, samples)
    for one in events(raw):
        found.take(one)
    return found.answer()


def texts(found):
    return {index: draft.content for index, draft in found.drafts.items()}


def test_b3_b12_b43_usage_only_and_null_pieces_are_data():
    """B3, B12, B43: usage first, on every chunk and last; null deltas; `[DONE]` late: one answer, one usage."""
    null = event({"choices": [{"index": 0, "delta": None, "finish_reason": None}], "usage": None})
    found = gathered(
        chunk(usage=(5, 0)), chunk("", role="assistant"), null, chunk("fo", usage=(5, 1)),
        chunk("ur", usage=(5, 2)), event({"choices": [{"index": 0, "delta": None, "finish_reason": "length"}]}),
        chunk(usage=(5, 3)), DONE,
    )  # fmt: skip
    assert texts(found) == {0: "four"}
    assert found.drafts[0].finish == "length"
    assert found.usage == (5, 3)


def test_b41_choices_keep_apart_with_their_own_ends():
    """B41."""
    found = gathered(
        chunk("a", index=1), chunk("b", index=0), chunk("c", index=1), chunk(index=1, finish="length"),
        chunk("d", index=0), chunk(index=0, finish="stop"), DONE, samples=2,
    )  # fmt: skip
    assert texts(found) == {0: "bd", 1: "ac"}
    assert {i: d.finish for i, d in found.drafts.items()} == {0: "stop", 1: "length"}


@pytest.mark.parametrize("second", ["late", ""])
def test_b41_choices_under_one_index_are_no_answer(second):
    """B41: mixed texts are noticed where a second end, or text after the first one, shows them."""
    with pytest.raises(MalformedAnswer, match="mixes choices"):
        gathered(chunk("a"), chunk("b"), chunk(finish="stop"), chunk(second, finish="stop"), DONE, samples=2)


def test_halves_of_a_character_in_two_pieces_are_one():
    found = gathered(chunk("\ud83c"), chunk("\udf0d"), chunk(finish="stop"), DONE)
    from coterie.backends.chat_answer import whole

    assert whole(found.drafts[0].content) == "🌍"
    assert whole("\ud83c") == "\N{REPLACEMENT CHARACTER}"


def test_b43_b49_the_end_is_done_or_a_finish_reason_and_nothing_else():
    """B43, B49: an end that nobody stated is a broken stream, never an invented `stop`."""
    assert texts(gathered(chunk("four"), chunk(finish="stop"))) == {0: "four"}
    for raw in ([chunk("four")], [chunk("four"), DONE], [chunk("a"), chunk("b", index=1, finish="stop"), DONE], []):
        with pytest.raises(BrokenStream):
            gathered(*raw)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (event({"error": {"message": "boom", "type": "server_error"}}), ServerFault),
        (event({"error": "boom"}), ServerFault),
        (event({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}), Overloaded),
        (event({"error": {"message": "slow down", "code": 429}}), Overloaded),
        (event({"object": "error", "message": "boom", "code": 500}), ServerFault),
        (b"event: error\n" + event({"message": "boom"}), ServerFault),
        (event(b"[1]"), ServerFault),
        (event(b"{bad"), MalformedAnswer),
        (event({"choices": [{"index": 10**9, "delta": {"content": "x"}}]}), MalformedAnswer),
    ],
)
def test_b48_an_error_in_the_stream_is_that_error(raw, kind):
    """B48."""
    with pytest.raises(kind) as caught:
        gathered(chunk("fo"), raw, chunk(finish="stop"), DONE)
    assert type(caught.value) is kind


def test_a_text_without_end_is_bounded():
    with pytest.raises(MalformedAnswer, match="longer than 100"):
        gathered(*[chunk("x" * 40)] * 3, limit=100)
    with pytest.raises(MalformedAnswer, match="longer than 100"):
        gathered(*[chunk("", reasoning_content="x" * 40)] * 3, limit=100)


# --- the backend's stream -----------------------------------------------------------------------------


async def read(backend, into=None):
    pieces = [] if into is None else into
    async for piece in backend.stream(agent(), user(), seed=1):
        pieces.append(piece)
    return pieces


async def test_b46_pieces_come_as_they_are_written_and_the_completion_last():
    """B46 end to end: every cut of the bytes on the wire gives the same text."""
    raw = chunk(HELLO) + chunk("!") + chunk(finish="stop") + chunk(usage=(7, 5)) + DONE
    async with running() as upstream:
        backend = http(upstream)
        for cut in range(1, len(raw), 7):
            upstream.scripts["m"] = [stream(raw[:cut], 0.0, raw[cut:])]
            *pieces, last = await read(backend)
            assert "".join(pieces) == HELLO + "!"
            assert isinstance(last, Completion)
            assert (last.text, last.finish, last.prompt_tokens, last.completion_tokens) == (
                HELLO + "!",
                "stop",
                7,
                5,
            )
        await backend.aclose()
        asked = upstream.chats()[0].body
        assert asked["stream"] is True
        assert asked["stream_options"] == {"include_usage": True}


async def test_the_first_piece_is_there_before_the_last_is_written():
    release = asyncio.Event()
    async with running() as upstream:
        upstream.scripts["m"] = [stream(chunk("one"), 0.3, chunk(" two"), chunk(finish="stop"), DONE)]
        backend = http(upstream)
        async for piece in backend.stream(agent(), user(), seed=1):
            if piece == "one":
                assert upstream.chats()[0].end == "pending"
                release.set()
        await backend.aclose()
    assert release.is_set()


async def test_b45_a_server_that_answers_a_stream_in_one_piece_is_read():
    """B45, the other way round: what comes back counts, not what was asked for."""
    async with running() as upstream:
        upstream.scripts |= {"m": [answer("four")], "p": [stream(chunk("five"), chunk(finish="stop"), DONE)]}
        backend = http(upstream)
        [last] = await read(backend)
        assert last.text == "four"
        assert (await outcome(backend, agent("p"))).text == "five"
        await backend.aclose()


async def test_b49_a_stream_that_breaks_is_begun_again_only_while_nothing_was_given():
    """B49: exact calls; the text before the break is never repeated."""
    good = stream(chunk("four"), chunk(finish="stop"), DONE)
    async with running() as upstream:
        backend = http(upstream, retries=2)
        upstream.scripts["m"] = [stream(event({"error": {"message": "busy"}})), good]
        assert (await read(backend))[0] == "four"
        assert upstream.total() == 2

        for end in ("reset", "close", "whole"):
            upstream.seen.clear()
            upstream.scripts["m"] = [stream(chunk("fo"), chunk("u"), end=end), good]
            pieces = []
            with pytest.raises(BrokenStream):
                await read(backend, into=pieces)
            assert "".join(pieces) == "fou"
            assert upstream.total() == 1

            upstream.seen.clear()
            upstream.scripts["m"] = [stream(chunk("fo"), end=end), good]
            streamed = http(upstream, retries=2, stream=True)
            assert (await outcome(streamed, agent())).text == "four"  # nobody saw the first try
            assert upstream.total() == 2
            await streamed.aclose()
        await backend.aclose()


async def test_leaving_a_stream_closes_its_connection():
    """B50's kind: the upstream sees the client go, and nobody waits for it."""
    async with running() as upstream:
        upstream.scripts["m"] = [stream(chunk("one"), 30.0, chunk(" two"))]
        backend = http(upstream)
        pieces = backend.stream(agent(), user(), seed=1)
        assert await anext(pieces) == "one"
        await pieces.aclose()
        await gone(upstream)
        await backend.aclose()


async def gone(upstream):
    for _ in range(400):
        if upstream.seen[-1].end == "client left":
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the connection stayed open")


async def test_silence_within_a_stream_ends_it():
    from coterie.backends.retries import Deadlines

    async with running() as upstream:
        upstream.scripts["m"] = [stream(chunk("one"), end="hang")]
        backend = http(upstream, stream=True, deadlines=Deadlines(idle=0.1, total=20))
        error = await outcome(backend, agent())
        assert str(error) == "silence in the answer, no more of it within 0.1 s"
        await gone(upstream)
        await backend.aclose()


async def test_a_finished_stream_leaves_its_connection_for_the_next():
    async with running() as upstream:
        backend = http(upstream, stream=True)
        for _ in range(5):
            assert isinstance(await outcome(backend, agent()), Completion)
        assert upstream.connections == 1
        await backend.aclose()
