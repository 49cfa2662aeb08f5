"""How close 2,000 queries over 8 HTTP endpoints of 200 ms, 16 requests at a time each, come to the ideal.

Target: wall time at most 1.10 times the ideal, memory flat. The ideal is what it takes where asking costs nothing:
250 queries an endpoint, 16 at a time, are 16 rounds of 200 ms, 3.2 s. The last round is not full, so that no client
reaches the bare quotient, queries x latency / (endpoints x limit) = 3.125 s; the ratio to it is told beside.
Each query goes through `Team.solve` to one agent; the endpoints do as little as a server can, in a process of
their own. `python benchmarks/http_backend.py [--rounds 5] [--json]`.
"""

import argparse
import asyncio
import json
import math
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
from counts import count

from coterie.backends.endpoint import Endpoint
from coterie.backends.http import Http
from coterie.pool import pool_of, revise
from coterie.strategies.single import Single
from coterie.team import Backends, Team
from coterie.types import Agent, Price, Routing

QUERIES, ENDPOINTS, LIMIT, LATENCY = 2000, 8, 16, 0.2
IDEAL = math.ceil(QUERIES / ENDPOINTS / LIMIT) * LATENCY
QUOTIENT = QUERIES * LATENCY / (ENDPOINTS * LIMIT)
CHOICE = {"index": 0, "message": {"role": "assistant", "content": "four"}, "finish_reason": "stop"}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
BODY = json.dumps({"id": "c", "object": "chat.completion", "choices": [CHOICE], "usage": USAGE}).encode()
HEAD = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
ANSWER = HEAD.encode() + BODY


class InTurn:
    """The n-th query goes to the n-th agent, so that all endpoints have the same to do."""

    instant = True

    def route(self, state):
        names = state.pool.names()
        chosen = names[int(state.query.text.split()[-1]) % len(names)]
        return Routing(weights={name: float(name == chosen) for name in names}, seed=state.seed)


def team(urls) -> Team:
    price = Price(prompt=1.0, completion=1.0)
    agents = [revise(Agent(name=f"a{n}", model=f"http:e{n}/m", price=price)) for n in range(len(urls))]
    backend = Http(endpoints={f"e{n}": Endpoint(base_url=url, concurrency=LIMIT) for n, url in enumerate(urls)})
    return Team(
        pool=pool_of(agents), router=InTurn(), strategy=Single(), backends=Backends(opened={"http": backend})
    )


async def solve_all(solver: Team) -> tuple[float, float]:
    """Wall and processor seconds of all queries."""
    queries = [solver.query(f"What is the number {n}") for n in range(QUERIES)]
    start, worked = time.perf_counter(), time.process_time()
    answered = 0
    async for trace in solver.solve_all(queries, concurrency=2 * ENDPOINTS * LIMIT):
        answered += trace.final is not None
    assert answered == QUERIES
    return time.perf_counter() - start, time.process_time() - worked


async def bare(urls) -> tuple[float, float]:
    """Wall and processor seconds of the same requests by the client library alone: the floor, here and now."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "What is the number 7"}]}).encode()
    left = dict.fromkeys(urls, QUERIES // len(urls))

    async def work(client, url) -> None:
        while left[url]:
            left[url] -= 1
            async with client.post(f"{url}/chat/completions", data=body) as reply:
                assert (await reply.json())["choices"]

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        start, worked = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work(client, url) for url in urls for _ in range(LIMIT)))
        return time.perf_counter() - start, time.process_time() - worked


def resident() -> float:
    """MiB of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def measure(urls, rounds: int) -> dict[str, object]:
    solver = team(urls)
    await solve_all(solver)  # opens the connections
    alone, ours, memory = [], [], [resident()]
    for _ in range(rounds):
        alone.append(await bare(urls))
        ours.append(await solve_all(solver))
        memory.append(resident())
    await solver.backends.aclose()
    return {
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
        "ideal_s": IDEAL,
        "quotient_s": QUOTIENT,
        "walls_over_ideal": [round(wall / IDEAL, 3) for wall, _ in ours],
        "best": round(min(ours)[0] / IDEAL, 3),
        "best_over_quotient": round(min(ours)[0] / QUOTIENT, 3),
        "client_alone_over_ideal": [round(wall / IDEAL, 3) for wall, _ in alone],
        "cpu_ms_a_query": [round(1000 * worked / QUERIES, 3) for _, worked in ours],
        "client_alone_cpu_ms_a_query": [round(1000 * worked / QUERIES, 3) for _, worked in alone],
        "rss_mib": [round(size, 1) for size in memory],
        "target": 1.10,
    }


class Endpoints(asyncio.Protocol):
    """The least that a server can do: an answer `LATENCY` seconds after each request."""

    def connection_made(self, transport):
        self.transport, self.got = transport, b""
        self.loop = asyncio.get_running_loop()

    def data_received(self, data):
        self.got += data
        head, sign, body = self.got.partition(b"\r\n\r\n")
        if sign and len(body) >= int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]):
            self.got = b""
            self.loop.call_later(LATENCY, self.transport.write, ANSWER)


async def serve() -> None:
    """Be the endpoints: print their addresses, answer until the process is ended."""
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Endpoints, "127.0.0.1", 0) for _ in range(ENDPOINTS)]
    print(json.dumps([f"http://127.0.0.1:{s.sockets[0].getsockname()[1]}/v1" for s in servers]), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help="be the endpoints (the benchmark starts this itself)")
    chosen = parser.parse_args()
    if chosen.serve:
        return asyncio.run(serve())
    served = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert served.stdout is not None
        found = asyncio.run(measure(json.loads(served.stdout.readline()), chosen.rounds))
    finally:
        served.terminate()
        served.wait()
    if chosen.json:
        print(json.dumps(found))
    else:
        print(
            f"{QUERIES} queries over {ENDPOINTS} endpoints: {found['best']}x the ideal {IDEAL:.2f} s (target 1.10),"
            f" {found['best_over_quotient']}x the quotient {QUOTIENT:.3f} s"
        )
        print(found)
    return None


if __name__ == "__main__":
    main()
