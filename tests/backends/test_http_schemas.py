"""A call's schema over HTTP: sent where the endpoint takes one, left out once it was refused."""

import json
import logging

import pytest
from http_parts import agent, http, outcome, user
from upstream import answer, chunk, refusal, running, stream

from coterie.errors import BadRequest, UnknownModel
from coterie.types import Completion

SCHEMA = json.dumps({"type": "object", "properties": {"answer": {"type": "integer"}}})
OTHER = json.dumps({"type": "integer"})
REFUSED = "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model."
UNKNOWN = "This model's engine: response_format json_schema is not supported"


def formats(upstream):
    """The schema of each chat request, None where there was none."""
    asked = [chat.body.get("response_format") for chat in upstream.chats()]
    return [one and one["json_schema"]["schema"] for one in asked]


async def test_a_schema_is_sent_where_the_endpoint_is_said_to_take_one():
    async with running() as upstream:
        for options in ({}, {"schemas": True}, {"json_schema": {"type": "array"}}):
            backend = http(upstream, **options)
            for asked in (agent(schema=SCHEMA), agent()):
                await outcome(backend, asked)
            await backend.aclose()
        assert formats(upstream) == [None, None, json.loads(SCHEMA), None, {"type": "array"}, {"type": "array"}]


async def test_the_calls_own_schema_goes_before_the_endpoints_and_nothing_is_thrown_away():
    """A reply that does not fit is for the reader to mend: the call has not failed."""
    async with running({"m": [answer("no JSON")]}) as upstream:
        backend = http(upstream, schemas=True)
        found = await outcome(backend, agent(schema=SCHEMA))
        await backend.aclose()
        assert found.text == "no JSON"
        [sent] = [chat.body["response_format"] for chat in upstream.chats()]
        assert sent == {
            "type": "json_schema",
            "json_schema": {"name": "answer", "strict": True, "schema": json.loads(SCHEMA)},
        }


@pytest.mark.parametrize(("status", "words"), [(400, REFUSED), (422, REFUSED), (400, UNKNOWN)])
async def test_a_schema_that_the_server_refuses_is_asked_without_and_not_sent_again(status, words, caplog):
    script = [refusal(status, None, words), answer("one"), answer("two"), answer("three")]
    async with running({"m": script}) as upstream:
        backend = http(upstream, schemas=True)
        with caplog.at_level(logging.WARNING):
            found = [await outcome(backend, agent(schema=schema)) for schema in (SCHEMA, SCHEMA, OTHER)]
        await backend.aclose()
        assert [one.text for one in found] == ["one", "two", "three"]
        assert formats(upstream) == [json.loads(SCHEMA), None, None, json.loads(OTHER)]
    assert len([r for r in caplog.records if "refuses a JSON schema" in r.message]) == 1


async def test_a_request_that_is_bad_in_itself_fails_as_such_and_blames_no_schema():
    bad = refusal(400, None, "temperature is out of range")
    async with running({"m": [bad, bad, answer("fine")]}) as upstream:
        backend = http(upstream, schemas=True)
        failed, fine = [await outcome(backend, agent(schema=SCHEMA)) for _ in range(2)]
        await backend.aclose()
        assert isinstance(failed, BadRequest)
        assert fine.text == "fine"
        assert formats(upstream) == [json.loads(SCHEMA), None, json.loads(SCHEMA)]


async def test_an_unknown_model_stays_one():
    gone = refusal(404, "model_not_found", "no such model")
    async with running({"m": [gone, gone]}) as upstream:
        backend = http(upstream, schemas=True)
        assert isinstance(await outcome(backend, agent(schema=SCHEMA)), UnknownModel)
        await backend.aclose()


async def test_a_refused_schema_leaves_streams_and_samples_whole():
    script = [
        refusal(400, None, REFUSED),
        stream(chunk("fo"), chunk("ur"), chunk(finish="stop", usage=(3, 2))),
    ]
    async with running({"m": script}) as upstream:
        backend = http(upstream, schemas=True, samples="together")
        pieces = [piece async for piece in backend.stream(agent(schema=SCHEMA), user(), seed=0)]
        await backend.aclose()
        assert "".join(piece for piece in pieces[:-1]) == "four"
        assert isinstance(pieces[-1], Completion)
        assert pieces[-1].text == "four"
