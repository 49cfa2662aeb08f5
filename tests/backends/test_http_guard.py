"""What must not leave the HTTP backend: secrets, long or untyped errors; and what recipes must not hold."""

import datetime
import json
import re

import pytest
from http_parts import FakeClock, agent, http, outcome, user
from upstream import Reply, answer, reply_body, running

from coterie.backends.endpoint import Endpoint, proxy_for
from coterie.backends.http import Http
from coterie.backends.refusals import redacted
from coterie.backends.retries import retry_after
from coterie.config import like_key, override, parse_yaml, shown, validate
from coterie.errors import BackendError, ConfigError, MalformedAnswer
from coterie.types import Completion

KEY = "sk-test-SECRET12345abcdef"
PLAIN = "Zu9/oPq+7b SECRET"
"""A key of no known kind, which only its own value gives away."""


def said(text):
    """An error in the answer's own words: HTTP 500 and a page or a bare text."""
    return Reply(status=500, body=text.encode(), kind="text/plain")


def echoes(key):
    """Replies that give a key back, by where in the backend they fail."""
    return {
        "not json": Reply(body=f"bad {key}".encode()),
        "not json, cut": Reply(body=("x" * 52 + key).encode()),
        "blanks, cut": said(" " * 4090 + key),
        "long, cut": said("y " * 32760 + key + " z" * 40000),
        "page": said("<html><title>" + "q" * 4075 + key + "</title>"),
        "refusal": answer(None, refusal=f"line one\nline two {key} " + "z" * 100_000),
        "schema": answer("x" * 50 + key),
        "escaped": said("bad " + key.replace("S", "\\u0053")),
        "unseen": said(f"bad {key[:9]}\u200b{key[9:]}"),
        "event": Reply(
            body=b'event: error\ndata: ["' + b"y" * 180 + key.encode() + b'"]\n\n', kind="text/event-stream"
        ),
        "index": Reply(
            body=b'data: {"error": {"message": "' + b"y" * 280 + key.encode() + b'"}}\n\n', kind="text/event-stream"
        ),
        "code": Reply(status=400, body={"error": {"message": ["a", {"b": key}], "code": key}}),
    }


async def streamed(backend):
    """What a stream of the agent ends with."""
    try:
        return [piece async for piece in backend.stream(agent(), user(), seed=0)][-1]
    except BackendError as error:
        return error


@pytest.mark.parametrize("key", [KEY, PLAIN])
@pytest.mark.parametrize("how", echoes(KEY))
@pytest.mark.parametrize("asked", ["generate", "stream"])
async def test_no_failure_gives_a_key_away_or_is_long(asked, how, key, monkeypatch):
    """Wherever in a call an error is made, it leaves in one short line without any half of a key."""
    monkeypatch.setenv("MY_KEY", key)
    async with running({"m": [echoes(key)[how]]}) as upstream:
        schema = {"type": "object"} if how == "schema" else None
        backend = http(upstream, FakeClock().clock(), key_env="MY_KEY", retries=0, json_schema=schema)
        failure = await (outcome(backend, agent()) if asked == "generate" else streamed(backend))
        await backend.aclose()
    assert isinstance(failure, BackendError)
    text = str(failure)
    assert 0 < len(text) <= 300
    assert len(text.splitlines()) == 1
    pieces = {key[start : start + 6] for start in range(len(key) - 5)}
    assert not [piece for piece in pieces if piece in text], text


async def test_probe_and_prepare_go_through_the_same_door(monkeypatch):
    monkeypatch.setenv("MY_KEY", PLAIN)
    echo = Reply(body=reply_body([]) | {"choices": PLAIN * 900})
    async with running({"m": [echo]}) as upstream:
        backend = http(upstream, FakeClock().clock(), key_env="MY_KEY", retries=0)
        with pytest.raises(MalformedAnswer) as caught:
            await backend.probe(agent())
        await backend.aclose()
    assert "SECRET" not in str(caught.value)
    assert len(str(caught.value)) <= 300


def test_short_keys_are_hidden_where_they_stand_alone():
    assert str(redacted(BackendError("key abc of abcd; (ab) x"), ["abc", "ab"])) == "key *** of abcd; (***) x"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("Mon, 01 Jan 99999999999 00:00:00 GMT", None),
        ("Mon, 01 Jan 0001 00:00:00 +1400", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 -2300", ...),
        ("Thu, 01 Jan 1970 00:00:00 +9999", ...),
        ("9" * 400, None),
        ("1e308", None),
        ("nan", None),
        ("-1", None),
        ("1_0", None),
        ("\uff11", None),
        ("", None),
        (" 2.5 ", 2.5),
    ],
)
def test_no_retry_after_breaks_a_call(value, seconds):
    found = retry_after(value, 1.7e9)
    assert found is None or found >= 0
    assert seconds is ... or found == seconds or (seconds == 0.0 and found is None)


@pytest.mark.parametrize("number", ["9" * 400, "9" * 25, "1e400", "-5", "true", '"7"'])
async def test_numbers_beyond_all_sense_are_unknown(number):
    """Logprobs and token counts that no float or bill holds: the answer stands, its usage is estimated."""
    body = (
        '{"choices":[{"message":{"content":"B"},"finish_reason":"stop","logprobs":{"content":[{"logprob":%s}]}}],'
        '"usage":{"prompt_tokens":%s,"completion_tokens":%s,"total_tokens":%s}}' % ((number,) * 4)
    )
    async with running({"m": [Reply(body=body.encode())]}) as upstream:
        backend = http(upstream, logprobs=True)
        found = await outcome(backend, agent())
        await backend.aclose()
    assert isinstance(found, Completion)
    assert found.estimated
    assert 0 < found.prompt_tokens + found.completion_tokens < 1000


@pytest.mark.parametrize("fault", [ValueError, OverflowError, TypeError, UnicodeError, RecursionError])
@pytest.mark.parametrize("place", ["read_answer", "completions"])
async def test_nothing_untyped_leaves_a_call(fault, place, monkeypatch):
    def trip(*_):
        raise fault("tripped over " + PLAIN)

    monkeypatch.setenv("MY_KEY", PLAIN)
    module = {"read_answer": "line", "completions": "http"}[place]
    monkeypatch.setattr(f"coterie.backends.{module}.{place}", trip)
    async with running() as upstream:
        backend = http(upstream, key_env="MY_KEY", retries=0)
        failure = await outcome(backend, agent())
        await backend.aclose()
    assert type(failure) is MalformedAnswer
    assert "tripped" in str(failure)
    assert PLAIN not in str(failure)


# --- recipes ------------------------------------------------------------------------------------------

HEX = "0123456789abcdef0123456789abcdef"
SECRETS = [
    {"base_url": f"http://host/v1?apikey={KEY}"},
    {"base_url": "http://host/v1?code=SECRET"},
    {"base_url": "http://host/v1?api_key=SECRET"},
    {"base_url": f"http://host/v1?user={HEX}"},
    {"base_url": f"http://host/{KEY}/v1"},
    {"base_url": f"http://host/{HEX}/v1"},
    {"base_url": f"http://host/v1#{KEY}"},
    {"base_url": "http://SECRET@host/v1"},
    {"base_url": "me:SECRET@host/v1"},
    {"base_url": f"ftp://host/{KEY}"},
    {"headers": {"X-Foo": KEY}},
    {"headers": {"X-Foo": HEX}},
    {"headers": {"X-Foo": f"a {HEX} ${{X}}"}},
    {"headers": {KEY: "a"}},
    {"headers": {f"{KEY} ": "a"}},
    {"headers": {"Authorization": "Bearer SECRET${X}"}},
    {"headers": {"Authorization": "SECRET ${X}"}},
    {"headers": {"Cookie": "SECRET; a=${X}"}},
    {"extra": {"api_key": "SECRET"}},
    {"extra": {"a": [{"b": {"accessToken": "SECRET"}}]}},
    {"extra": {"a": [KEY]}},
    {"extra": {"a": {KEY: 1}}},
    {"key_env": HEX},
    {"key_env": "f" + HEX},
    {"key_env": "c2VjcmV0IGtleSBvZiBtaW5lMTIz"},
    {KEY: 1},
    {"deadlines": {KEY: 1}},
]


def made(options):
    """An endpoint as a recipe makes it."""
    table = {"endpoints": {"e": {"base_url": "http://localhost:1/v1", **options}}}
    return validate(Http, table, "team.yaml: backends.http").endpoints["e"]


@pytest.mark.parametrize("options", SECRETS, ids=range(len(SECRETS)))
def test_a_secret_in_a_recipe_is_refused_and_not_repeated(options):
    with pytest.raises(ConfigError) as caught:
        made(options)
    text = str(caught.value)
    assert not re.search(r"SECRET|0123456789|c2VjcmV0", text), text
    assert len(text.splitlines()) == 1
    assert KEY in options or "deadlines" in options or re.search("environment variable|name|address", text), text


@pytest.mark.parametrize(
    "options",
    [
        {"key_env": "sk_x"},
        {"key_env": "hf_token_1"},
        {"key_env": "OPENAI_API_KEY_OF_TEAM_2"},
        {"base_url": "https://h.example/openai/deployments/gpt-4o-mini-2024-07-18?api-version=2024-10-21"},
        {"base_url": f"https://h.example/client/v4/accounts/{HEX}/ai/v1"},
        {"base_url": "http://[::1]:8000/v1"},
        {"headers": {"Authorization": "Basic ${X}", "Cookie": "session=${X}; b=${Y}", "X-Api-Key": "${X}"}},
        {"headers": {"User-Agent": "python-requests/2.31.0", "HTTP-Referer": "https://example.com/app2/v1"}},
        {"extra": {"logit_bias": {50256: -100}, "truncate_prompt_tokens": 5, "prompt_cache_key": "team"}},
        {"extra": {"guided_json": {"properties": {"token": {"type": "string"}, "key": {}}}}},
        {
            "extra": {
                "lora": "Qwen2.5-7B-Instruct-sales-adapter",
                "chat_template_kwargs": {"enable_thinking": False},
            }
        },
    ],
)
def test_what_only_resembles_a_secret_is_taken(options):
    assert made(options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base_url": "http://.../v1"}, "no address"),
        ({"base_url": "http://" + "a" * 300 + "/v1"}, "no address"),
        ({"base_url": "http://" + "a" * 64 + ".example/v1"}, "no address"),
        ({"base_url": "http://host/v1#part"}, "fragment"),
        ({"headers": {"X": "a\x7f"}}, "control character"),
        ({"headers": {"X": "a\tb"}}, "control character"),
        ({"headers": {"": "x"}}, "no name"),
        ({"headers": {"a b": "x"}}, "no name"),
        ({"headers": {"a:b": "x"}}, "no name"),
        ({"headers": {"é": "x"}}, "no name"),
        ({"headers": {"host": "x"}}, "set by coterie"),
        ({"headers": {"Content-Length": "5"}}, "set by coterie"),
        ({"headers": {"Transfer-Encoding": "chunked"}}, "set by coterie"),
        ({"headers": {"Connection": "close"}}, "set by coterie"),
        ({"extra": {"d": datetime.date(2024, 1, 1)}}, r"extra\.d: JSON has no date"),
        ({"extra": {"a": [{"x": float("nan")}]}}, r"extra\.a\.x: JSON has no float"),
        ({"extra": {"x": float("inf")}}, "finite"),
        ({"extra": {"x": b"a"}}, "no bytes"),
        ({"extra": {"x": {datetime.date(2024, 1, 1): 1}}}, "no name that is a date"),
        ({"json_schema": {"d": datetime.datetime(2024, 1, 1)}}, r"json_schema\.d: JSON has no datetime"),
        ({"json_schema": {"minimum": float("-inf")}}, "finite"),
    ],
)
def test_what_cannot_be_sent_is_refused_at_load(options, words):
    with pytest.raises(ConfigError, match=words) as caught:
        made(options)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 400


def test_what_is_taken_can_be_written_as_json():
    extra = {"a": [1, 2.5, None, True, "x", {"b": ()}]}
    assert json.loads(json.dumps(dict(made({"extra": extra}).extra))) == {"a": [1, 2.5, None, True, "x", {"b": []}]}


@pytest.mark.parametrize(
    "proxy",
    [
        "127.0.0.1:1",
        "socks5://SECRET@127.0.0.1:1",
        "garbage SECRET",
        "http://",
        "http://...:1",
        "http://us\u00e9r:SECRETp\u20ac@127.0.0.1:1",
        "http://u:SECRET@127.0.0.1:99999",
        "http://a%3Ab:SECRET@127.0.0.1:1",
    ],
)
@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy"])
async def test_a_malformed_proxy_is_a_setting_to_mend(name, proxy, monkeypatch):
    for other in ("HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, proxy)
    backend = Http(endpoints={"e": Endpoint(base_url="http://far.example/v1")})
    with pytest.raises(ConfigError, match=f"variable {name} ") as caught:
        await backend.generate(agent(), user(), seed=0)
    assert "SECRET" not in str(caught.value)
    assert "127.0.0.1" not in str(caught.value)
    await backend.aclose()


def test_a_proxy_that_works_is_taken_as_it_is(monkeypatch):
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("http_proxy", "http://user:p%C3%A9@proxy.example:3128")
    assert (
        proxy_for(Endpoint(base_url="http://far.example/v1").url("x")) == "http://user:p%C3%A9@proxy.example:3128"
    )


def test_messages_about_settings_hide_what_looks_like_a_key():
    for text in (f"a: b: {KEY}\n", f"{KEY}: 1\n{KEY}: 2\n", f'a: "{KEY}'):
        with pytest.raises(ConfigError) as caught:
            parse_yaml(text, "")
        assert "SECRET" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        override({"a": [1]}, [f"a.{KEY}={KEY}"])
    assert "SECRET" not in str(caught.value)
    assert shown(f"see {KEY} there") == "'see *** there'"
    assert not like_key("Qwen2.5-7B-Instruct-GPTQ-Int4")
