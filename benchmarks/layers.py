"""How close each mixture comes to its critical path, over HTTP: wall time, requests in flight, upstream calls.

A mixture is a row of steps that follow each other, and the calls of a step are made at once (`STEPS`, from the
graph of each method). Where an answer takes 200 ms and nothing else takes time, a query takes 200 ms a step:
(L + 1) t for MoA, (2L + 1) t for ReM-MoA. Target: at most 1.05 times that for one query, 1.10 for eight at once; at
most a step's calls in flight for each query; exactly the plan's calls upstream. Every query goes through
`Team.solve` and the `http` backend; the server does as little as one can, in a process of its own. Beside it the
same steps by the client library alone, interleaved: the floor, here and now.
`python benchmarks/layers.py [--width 3] [--layers 3] [--rounds 5] [--only NAME] [--json]`.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import aiohttp
from counts import count

from coterie.backends.endpoint import Endpoint
from coterie.backends.http import Http
from coterie.config import build
from coterie.pool import pool_of, revise
from coterie.rollout import Limits
from coterie.team import Backends, Team
from coterie.types import Agent

LATENCY, AT_ONCE = 0.2, 8
TARGETS = {1: 1.05, AT_ONCE: 1.10}
Steps = Callable[[int, int], list[int]]
STEPS: dict[str, tuple[Steps, Callable[[int, int], dict[str, object]]]] = {
    "moa": (lambda n, depth: [n] * depth + [1], lambda n, depth: {"layers": depth}),
    "rem_moa": (lambda n, depth: [n, 1] * depth + [1], lambda n, depth: {"layers": depth}),
    "rmoa": (lambda n, depth: [n] + [n, 1] * (depth - 1) + [1], lambda n, depth: {"layers": depth}),
    "attention_moa": (
        lambda n, depth: [n, n * n, n, 1] + [n, n * n, n, 1, 1] * (depth - 1),
        lambda n, depth: {"layers": depth},
    ),
    "smoa": (lambda n, depth: [n, 1] * depth + [1], lambda n, depth: {"layers": depth}),
    "self_moa": (lambda n, depth: [n, 1], lambda n, depth: {"samples": n}),
    "self_refine": (lambda n, depth: [1] + [1, 1] * depth, lambda n, depth: {"rounds": depth}),
    "debate": (lambda n, depth: [n] * depth, lambda n, depth: {"rounds": depth}),
    "rank_and_fuse": (lambda n, depth: [n, n * (n - 1), 1], lambda n, depth: {}),
}
"""Calls of each step and settings, by seats and depth (layers or rounds)."""


def team(name: str, url: str, options: argparse.Namespace) -> Team:
    solvers = [Agent(name=f"a{seat}", model=f"http:e/a{seat}") for seat in range(options.width)]
    judge = Agent(name="judge", model="http:e/judge", role="reviewer")
    merger = Agent(name="merger", model="http:e/merger", role="aggregator")
    backend = Http(endpoints={"e": Endpoint(base_url=url, concurrency=AT_ONCE * options.width**2)})
    settings = STEPS[name][1](options.width, options.layers)
    return Team(
        pool=pool_of([revise(agent) for agent in (*solvers, judge, merger)]),
        router=build("router", "uniform"),
        strategy=build("strategy", {"use": name, **settings}),
        backends=Backends(opened={"http": backend}),
        limits=Limits(calls=1000),
        contracts={"qa": "boxed"},
    )


async def solved(solver: Team, queries: int) -> float:
    """Wall seconds of so many queries at once."""
    asked = [solver.query(f"What is the number {n}?", "qa") for n in range(queries)]
    start = time.perf_counter()
    traces = await asyncio.gather(*(solver.solve(query) for query in asked))
    wall = time.perf_counter() - start
    assert all(trace.stopped == "done" and not trace.degraded for trace in traces)
    return wall


async def bare(client: aiohttp.ClientSession, url: str, steps: Sequence[int], queries: int) -> float:
    """Wall seconds of the same steps by the client library alone."""
    body = json.dumps({"model": "a0", "messages": [{"role": "user", "content": "x" * 2000}]}).encode()

    async def call() -> None:
        async with client.post(f"{url}/chat/completions", data=body) as reply:
            assert (await reply.json())["choices"]

    async def query() -> None:
        for width in steps:
            await asyncio.gather(*(call() for _ in range(width)))

    start = time.perf_counter()
    await asyncio.gather(*(query() for _ in range(queries)))
    return time.perf_counter() - start


async def seen(client: aiohttp.ClientSession, url: str) -> dict[str, int]:
    """Calls since the last look, and how many were in flight at the most."""
    async with client.get(f"{url}/seen") as reply:
        return json.loads(await reply.read())


async def measure(url: str, options: argparse.Namespace) -> dict[str, object]:
    names = [name for name in STEPS if options.only in (None, name)]
    teams = {name: team(name, url, options) for name in names}
    found: dict[str, list[dict]] = {name: [] for name in names}
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
    async with aiohttp.ClientSession(connector=connector) as client:
        for _ in range(options.rounds):
            for name in names:
                steps = STEPS[name][0](options.width, options.layers)
                for queries in TARGETS:
                    await asyncio.gather(*(seen(client, url) for _ in range(queries * max(steps))))
                    alone = await bare(client, url, steps, queries)
                    await solved(teams[name], queries) if not found[name] else None  # opens the connections
                    await seen(client, url)
                    worked = time.process_time()
                    wall = await solved(teams[name], queries)
                    worked = time.process_time() - worked
                    ideal = LATENCY * len(steps)
                    row = {"queries": queries, "wall": wall / ideal, "bare": alone / ideal}
                    found[name].append(row | {"cpu_s": worked} | await seen(client, url))
        for solver in teams.values():
            await solver.backends.aclose()
    rows = [row_of(name, found[name], queries, options) for queries in TARGETS for name in names]
    return {
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
        "latency_s": LATENCY,
        "width": options.width,
        "layers": options.layers,
        "rows": rows,
    }


def row_of(name: str, tries: Sequence[dict], queries: int, options: argparse.Namespace) -> dict[str, object]:
    """The best of a member's rounds. `exact`: every round made the plan's calls, and no step's were exceeded."""
    steps = STEPS[name][0](options.width, options.layers)
    mine = [one for one in tries if one["queries"] == queries]
    best = min(mine, key=lambda one: one["wall"])
    calls, peak = queries * sum(steps), queries * max(steps)
    return {
        "name": name,
        "queries": queries,
        "steps": len(steps),
        "ideal_s": round(LATENCY * len(steps), 2),
        "best": round(best["wall"], 3),
        "walls": [round(one["wall"], 3) for one in mine],
        "bare": round(min(one["bare"] for one in mine), 3),
        "cpu_ms_a_call": round(1000 * best["cpu_s"] / calls, 2),
        "calls": best["calls"],
        "plan": calls,
        "peak": max(one["peak"] for one in mine),
        "most": peak,
        "exact": all(one["calls"] == calls and one["peak"] <= peak for one in mine),
        "target": TARGETS[queries],
    }


# --- the server ----------------------------------------------------------------------------------------


def reply(text: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 700, "completion_tokens": 150, "total_tokens": 850}
    return framed({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage})


def framed(value: object) -> bytes:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Server(asyncio.Protocol):
    """Answers each request `LATENCY` seconds after it came, by the model's name and, for the judge, by what it is
    asked for. `GET /seen` gives the calls and the most of them in flight since the last look.
    """

    calls = inside = peak = 0
    said: dict[bytes, bytes] = {}

    def connection_made(self, transport):
        self.transport, self.got = transport, b""

    def data_received(self, data):
        self.got += data
        head, sign, body = self.got.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
        if not sign or len(body) < int(length or 0):
            return
        self.got = b""
        if head.startswith(b"GET"):
            self.transport.write(framed({"calls": Server.calls, "peak": Server.peak}))
            Server.calls = Server.peak = 0
            return
        Server.calls += 1
        Server.inside += 1
        Server.peak = max(Server.peak, Server.inside)
        asyncio.get_running_loop().call_later(LATENCY, self.answer, answer_to(body))

    def answer(self, said):
        Server.inside -= 1
        self.transport.write(said)


def answer_to(body: bytes) -> bytes:
    model = body.partition(b'"model": "')[2].partition(b'"')[0]
    if model != b"judge":
        return Server.said[model]
    return Server.said[next((word for word in (b"better", b"keep") if b'{\\"%s\\"' % word in body), b"reviews")]


async def serve(width: int) -> None:
    """Be the upstream: print its address, answer until the process is ended."""
    reviews = [
        {"trace": n, "score": 10 - n % 9, "rationale": "Its steps hold; checked twice."}
        for n in range(1, width + 1)
    ]
    Server.said = {
        f"a{n}".encode(): reply(f"{'A step of the work. ' * 25}\nAnswer: \\boxed{{{n}}}") for n in range(width)
    }
    Server.said |= {b"merger": reply("All of it in one.\nAnswer: \\boxed{1}"), b"better": reply('{"better": 1}')}
    Server.said |= {
        b"keep": reply('{"keep": [1, 2], "settled": false}'),
        b"reviews": reply(json.dumps({"reviews": reviews})),
    }
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=count, default=3)
    parser.add_argument("--layers", type=count, default=3)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--only", choices=tuple(STEPS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help="be the upstream (the benchmark starts this itself)")
    options = parser.parse_args()
    if options.serve:
        return asyncio.run(serve(options.width))
    command = [sys.executable, __file__, "--serve", "--width", str(options.width)]
    served = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert served.stdout is not None
        found = asyncio.run(measure(served.stdout.readline().strip(), options))
    finally:
        served.terminate()
        served.wait()
    print(json.dumps(found) if options.json else page(found))
    return None


def page(found: dict) -> str:
    """The rows as Markdown."""
    head = (
        "| mixture | queries at once | steps | ideal | wall / ideal | target | client alone | in flight | calls |"
    )
    lines = [f"load {found['load']}, width {found['width']}, layers {found['layers']}", "", head, "|" + "---|" * 9]
    for row in found["rows"]:
        flight, calls = f"{row['peak']} of {row['most']}", f"{row['calls']} of {row['plan']}"
        best = f"{row['best']}{'' if row['best'] <= row['target'] else ' (missed)'}"
        cells = (
            row["name"],
            row["queries"],
            row["steps"],
            f"{row['ideal_s']:g} s",
            best,
            row["target"],
            row["bare"],
        )
        lines.append(f"| {' | '.join(map(str, (*cells, flight, calls)))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
