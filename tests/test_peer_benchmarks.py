"""The comparison with other packages' routers: what their process is given, how it labels, what its twins learn."""

import importlib.util
import json
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from coterie.outcomes import Outcomes
from coterie.types import Message, Query

pytest.importorskip("sklearn")
FOLDER = Path(__file__).parents[1] / "benchmarks"


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


peers, routers = loaded("peers"), loaded("peer_routers")


@pytest.fixture
def split():
    """Two kinds of queries, three agents: the first is never right, each of the others on one kind."""
    rng = np.random.default_rng(0)
    found = {}
    for part in ("train", "validation", "test"):
        kind = rng.integers(0, 2, 150)
        x = rng.normal(size=(150, 8)) * 0.1
        x[:, 0] += 2.0 * kind - 1
        found[part] = x.astype(np.float32)
        found[f"{part}_scores"] = np.stack([np.zeros(150), kind == 0, kind == 1], axis=1).astype(float)
    return found


def test_every_twin_learns_which_agent_is_right_where(split):
    test_scores = split.pop("test_scores")
    rows = routers.rows_of(split, 0, "asked for", True)
    assert [row["name"] for row in rows] == [f"{name}, published" for name in ("kNN", "SVM", "MLP", "MF")]
    for row in rows:
        assert test_scores[np.arange(150), row["picks"]].mean() > 0.95, row["name"]
        assert row["twin"] == "asked for"


def test_selection_looks_at_validation_alone(split):
    """Ties given to an agent that is never right alone cost score: validation must notice, on its own rows."""
    split["train_scores"][:100] = 1.0
    del split["test_scores"]
    given = (split, 0, "asked for")
    rows = routers.rows_for("kNN", {o: routers.Part(split, o, Path(o)) for o in routers.ORDERS}, given)
    published, selected = rows
    assert published["setting"] == {"ties": "listed"}
    assert published["tried"] == 1
    assert selected["tried"] == 12
    assert selected["setting"]["ties"] != "listed"
    assert selected["validation"] > published["validation"]
    assert selected["seconds"] > published["seconds"]


def test_order_of_rows_breaks_ties_and_missing_outcomes_never_win(tmp_path):
    nan = np.nan
    scores = np.array([[1, 1, 1], [0, 0, 1], [nan, 0, 0], [nan, 1, 1], [0, 1, 1]], dtype=float)
    split = {"train": np.zeros((5, 2), np.float32), "train_scores": scores}
    assert routers.Part(split, "listed", tmp_path).labels.tolist() == [0, 2, 1, 1, 1]
    assert routers.Part(split, "best first", tmp_path).labels.tolist() == [2, 2, 2, 2, 2]


def test_rows_for_the_package_leave_missing_outcomes_out(split, tmp_path):
    pytest.importorskip("torch")
    split["train_scores"][0, 1] = np.nan
    routers.Part(split, "best first", tmp_path).write()
    rows = [json.loads(line) for line in (tmp_path / "routing.jsonl").read_text().splitlines()]
    assert len(rows) == 3 * 150 - 1
    assert [row["model_name"] for row in rows if row["embedding_id"] == 0] == ["2", "0"]


def task_of(split):
    queries = [Query(id=str(i), messages=(Message(role="user", content=str(i)),)) for i in range(150)]
    unknown = np.full((150, 3), np.nan)
    made = {
        part: Outcomes(
            queries=tuple(queries),
            agents=("a", "b", "c"),
            scores=split[f"{part}_scores"],
            tokens=unknown,
            costs=unknown,
            revisions={},
        )
        for part in ("train", "validation", "test")
    }
    return peers.Task(seed=3, **made)


class Vectors:
    def encode(self, prompts):
        return np.zeros((len(prompts), 2), np.float32)


def test_test_outcomes_are_not_given_to_the_peers(split):
    features = peers.Features(words=Vectors(), sentence=Vectors())
    given = peers.arrays(task_of(split), features)
    assert set(given) == {"train", "validation", "test", "train_scores", "validation_scores"}


def test_a_whole_round_through_the_child(split, tmp_path):
    task = task_of(split)
    np.savez(tmp_path / "split-3.npz", **{k: v for k, v in split.items() if k != "test_scores"})
    peers.run_child(tmp_path, Namespace(peers_python=None, published=True))
    decisions = peers.read(tmp_path, task)
    assert decisions[0].contender == "LLMRouter kNN, published"
    assert all(one.seed == 3 and len(one.picks[""]) == 150 for one in decisions)


def test_decisions_on_other_agents_are_refused(split, tmp_path):
    rows = [{"name": "kNN, published", "setting": {}, "validation": 1.0, "seconds": 0.1, "tried": 1}]
    np.savez(tmp_path / "picks-3.npz", **{"kNN, published": np.full(150, 3)})
    (tmp_path / "picks-3.json").write_text(json.dumps({"rows": rows, "versions": {}}))
    with pytest.raises(SystemExit, match="other queries or agents"):
        peers.read(tmp_path, task_of(split))


def test_an_interpreter_that_does_not_start_is_one_line(tmp_path):
    with pytest.raises(SystemExit, match="cannot be started"):
        peers.run_child(tmp_path, Namespace(peers_python=str(tmp_path / "none"), published=True))


def test_an_environment_without_the_package_gets_twins_that_say_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "llmrouter", None)
    assert "llmrouter" in routers.why_twins()
