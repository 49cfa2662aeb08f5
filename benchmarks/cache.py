"""Rates of the call cache: keys, puts and hits a second, alone and with several processes on one file.

    python benchmarks/cache.py [entries] [processes]

Prints one JSON object; the file lies in a throw-away folder. What a whole cached solve takes is not measured here.
"""

import json
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from coterie.storage.cache import Cache, call_key
from coterie.types import Agent, Completion, Message, Tokens

AGENT = Agent(name="ada", model="scripted:model", revision="0123456789abcdef", instruction="Think step by step.")
TEXT = "Let me think about this. " * 40
TRACED = Tokens(prompt=tuple(range(200)), completion=tuple(range(256)), logprobs=tuple(-i / 7 for i in range(256)))


def asked(i: int) -> tuple[Message, ...]:
    return (Message(role="system", content=AGENT.instruction), Message(role="user", content=f"{i}: {TEXT}"))


def rate(count: int, work) -> float:
    """How often a second `work(i)` runs, over `count` of them."""
    start = time.perf_counter()
    for i in range(count):
        work(i)
    return round(count / (time.perf_counter() - start))


def worker(path: str, first: int, count: int) -> tuple[float, float]:
    """Put and hit rates of one process."""
    cache = Cache(path)
    said = Completion(text=TEXT, completion_tokens=200)
    keys = [call_key(AGENT, asked(i), i) for i in range(first, first + count)]
    puts = rate(count, lambda i: cache.put(keys[i], said))
    hits = rate(count, lambda i: cache.get(keys[i]))
    assert cache.stats().hits == count
    cache.close()
    return puts, hits


def measure(entries: int, processes: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "calls.sqlite")
        keys = rate(entries, lambda i: call_key(AGENT, asked(i), i))
        puts, hits = worker(path, 0, entries)
        cache = Cache(path)
        said = Completion(text=TEXT, tokens=TRACED)
        traced = [call_key(AGENT, asked(i), -1 - i) for i in range(entries // 4)]
        traced_puts = rate(len(traced), lambda i: cache.put(traced[i], said))
        traced_hits = rate(len(traced), lambda i: cache.get(traced[i]))
        cache.close()
        start = time.perf_counter()
        with ProcessPoolExecutor(processes) as pool:
            firsts = [entries * (k + 1) for k in range(processes)]
            list(pool.map(worker, [path] * processes, firsts, [entries] * processes))
        together = 2 * entries * processes / (time.perf_counter() - start)
    return {
        "entries": entries,
        "keys_per_s": keys,
        "puts_per_s": puts,
        "hits_per_s": hits,
        "hit_ms": round(1000 / hits, 4),
        "traced_puts_per_s": traced_puts,
        "traced_hits_per_s": traced_hits,
        "processes": processes,
        "puts_and_hits_per_s_of_all_processes": round(together),
    }


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:3]]
    print(json.dumps(measure(*(numbers + [4000, 4][len(numbers) :])), indent=1))
