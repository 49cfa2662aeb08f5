"""Every fault mode of an upstream, plain and streamed: the right typed failure, and exactly so many calls.

Runs against the upstream beside this file, and against the script that COTERIE_MOCK_UPSTREAM names.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import asynccontextmanager

import pytest
from http_parts import FakeClock, agent, http, outcome
from upstream import running

from coterie import errors
from coterie.backends.retries import Deadlines
from coterie.types import Completion

# fault: (plain, streamed); each the failure's name ("" is an answer) and the calls that one retry allows.
FAULTS = {
    "ok": (("", 1), ("", 1)),
    "nousage": (("", 1), ("", 1)),
    "f400": (("ContextOverflow", 1), ("ContextOverflow", 1)),
    "f401": (("AccessDenied", 1), ("AccessDenied", 1)),
    "f429": (("Overloaded", 2), ("Overloaded", 2)),
    "f500": (("ServerFault", 2), ("ServerFault", 2)),
    "f503": (("Overloaded", 2), ("Overloaded", 2)),
    "reset": (("MalformedAnswer", 2), ("BrokenStream", 2)),
    "eof": (("MalformedAnswer", 2), ("BrokenStream", 2)),
    "trunc": (("MalformedAnswer", 2), ("BrokenStream", 2)),
    "badjson": (("MalformedAnswer", 2), ("MalformedAnswer", 2)),
    "html": (("MalformedAnswer", 2), ("MalformedAnswer", 2)),
    "nullcontent": (("MalformedAnswer", 1), ("EmptyAnswer", 1)),
    "emptystr": (("EmptyAnswer", 1), ("EmptyAnswer", 1)),
    "nochoices": (("MalformedAnswer", 1), ("MalformedAnswer", 1)),
    "sserr": (("", 1), ("ServerFault", 2)),
    "huge8": (("MalformedAnswer", 1), ("MalformedAnswer", 1)),
    "hang": (("TimedOut", 2), ("TimedOut", 2)),
    "slowfb": (("TimedOut", 2), ("TimedOut", 2)),
}
SLOW = {"hang", "slowfb"}


class External:
    """The script as a process of its own."""

    def __init__(self, script):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.process = subprocess.Popen([sys.executable, script, "--port", str(port)], stdout=subprocess.DEVNULL)
        self.base_url, self.control = f"http://127.0.0.1:{port}/v1", f"http://127.0.0.1:{port}/__mock"
        for _ in range(200):
            try:
                self.total("none")
                break
            except OSError:
                time.sleep(0.05)

    def total(self, model):
        with urllib.request.urlopen(f"{self.control}/stats") as reply:
            return json.load(reply)["per_model"].get(model, 0)


@pytest.fixture(scope="module")
def external():
    script = os.environ.get("COTERIE_MOCK_UPSTREAM")
    if not script:
        pytest.skip("no other upstream; COTERIE_MOCK_UPSTREAM names its script")
    made = External(script)
    yield made
    made.process.terminate()
    made.process.wait()


@asynccontextmanager
async def chosen(where, request):
    """The upstream of that name, running."""
    if where == "external":
        yield request.getfixturevalue("external")
    else:
        async with running() as found:
            yield found


@pytest.mark.parametrize("where", ["own", "external"])
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_b1_b3_b15_b46_b48_b49_b55_b59_b62_fault_is_its_failure_after_its_calls(
    fault, streamed, where, request
):
    """B1, B3, B15, B46, B48, B49, B55, B59, B62: the table above."""
    kind, calls = FAULTS[fault][streamed]
    first_byte = 0.2 if fault in SLOW else 20
    deadlines = Deadlines(first_byte=first_byte, attempt=20, total=60)
    async with chosen(where, request) as found:
        backend = http(found, FakeClock().clock(), retries=1, stream=streamed, deadlines=deadlines)
        model = f"{request.node.callspec.id}.{fault}".replace("-", "_")
        said = await outcome(backend, agent(model))
        await backend.aclose()
        assert found.total(model) == calls
    if not kind:
        assert isinstance(said, Completion)
        assert said.text.strip()
        assert (said.finish, said.estimated) == ("stop", fault == "nousage")
        assert min(said.prompt_tokens, said.completion_tokens) > 0
    else:
        assert type(said) is getattr(errors, kind), repr(said)
        assert 0 < len(str(said)) <= 300
        assert "\n" not in str(said)
        assert said.retry_after == (1.0 if fault == "f429" else None)
