"""`kill -9` of `coterie eval` in layer 6 of 9, over HTTP: resumed, the layers before it are not paid again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "backends"))
from upstream import Reply, answer, in_thread

RECIPE = """
name: layered
agents:
  - {{name: a, model: "http:e/a"}}
  - {{name: b, model: "http:e/b"}}
  - {{name: c, model: "http:e/c"}}
  - {{name: r, model: "http:e/r", role: reviewer}}
  - {{name: m, model: "http:e/m", role: aggregator}}
router: uniform
strategy: {{use: rem_moa, layers: 9}}
backends: {{http: {{endpoints: {{e: {{base_url: "{url}"}}}}}}}}
"""
REVIEWS = json.dumps({"reviews": [{"trace": n, "score": 9 - n, "rationale": "so"} for n in (1, 2, 3)]})


def says(seen):
    return answer(f"Answer: \\boxed{{{seen.body['seed'] % 97}}}")


def test_a_run_killed_in_layer_six_pays_for_no_layer_twice(tmp_path):
    (tmp_path / "mine.jsonl").write_text('{"question": "What is 3 + 4?", "answer": 7}\n')
    task = ["--task", str(tmp_path / "mine.jsonl"), "--out", str(tmp_path / "run"), "--json"]
    command = [sys.executable, "-m", "coterie", "eval", str(tmp_path / "layered.yaml"), *task]
    environment = {**os.environ, "COTERIE_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    with in_thread() as upstream:
        (tmp_path / "layered.yaml").write_text(RECIPE.format(url=upstream.base_url))
        upstream.scripts |= {name: [says] for name in "abcm"} | {"r": [answer(REVIEWS)]}
        upstream.scripts["a"] = [says] * 5 + [Reply(end="hang"), says]  # its sixth call is that of layer 6
        running = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        until = time.monotonic() + 120
        while upstream.total("a") < 6:
            assert running.poll() is None, running.stderr.read().decode()
            assert time.monotonic() < until
            time.sleep(0.02)
        running.send_signal(signal.SIGKILL)
        running.wait()
        running.stderr.close()
        assert (upstream.total("a"), upstream.total("r"), upstream.total("m")) == (6, 5, 0)
        done = subprocess.run(command, env=environment, check=True, capture_output=True)
        assert json.loads(done.stdout)["rows"][0]["calls"] == 9 * 3 + 9 + 1
        assert (upstream.total("a"), upstream.total("r"), upstream.total("m")) == (9 + 1, 9, 1)
        assert all(upstream.total(name) in (9, 10) for name in "bc")  # their sixth answer may have been on its way
