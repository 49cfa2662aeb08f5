"""Runs in folders: exact resume, what every fault leaves behind, export."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_team
import torch
from test_adapters import NAMES
from tiny_team import LORA, digest, engine, ids_of, recipe, save_base, shaken, team

from coterie.backends.base_model import base_model
from coterie.errors import ConfigError, DataError, Diverged, UserError
from coterie.learning import checkpoint as checkpoint_module
from coterie.learning import course as course_module
from coterie.learning import training as training_module
from coterie.learning.checkpoint import newest, rounds
from coterie.learning.training import METRICS, Training, folders_of
from coterie.team import Team
from coterie.types import Pool, Score

ROUNDS = 6
LONG = {"names": ("ann", "cyd"), "queries": 18, "practice": {"updates": 2, "group": 3}, "loss": {"beta": 0.0}}


def always(row):
    return True


def started(folder, tiny, *args, resume=False, **options):
    return Training.open(team(folder, tiny, *args, **options), folder / "run", resume)


def finish(training, watch=always):
    try:
        return training.advance(watch)
    finally:
        training.close()


def rows(folder):
    lines = (folder / "run" / METRICS).read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def last(folder):
    """The bytes of the newest checkpoint."""
    return rounds(folder / "run" / "checkpoints")[-1][1].read_bytes()


def cut_back(source, target, number):
    """A copy of a run as a kill after round `number` leaves it: its later rounds are still in the record."""
    shutil.copytree(source, target)
    for found, path in rounds(target / "run" / "checkpoints"):
        if found > number:
            path.unlink()
    if not number:  # no checkpoint yet: no more than one round was recorded
        record = target / "run" / METRICS
        record.write_text(record.read_text().splitlines(keepends=True)[0])


@pytest.fixture(scope="module")
def straight(tiny, tmp_path_factory):
    """A run of six rounds with two updates a batch that nothing interrupts, every checkpoint kept."""
    folder = tmp_path_factory.mktemp("straight") / "it"
    assert finish(started(folder, tiny, **LONG))
    assert len(rows(folder)) == ROUNDS
    return folder


# --- exact resume -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(ROUNDS + 1))
def test_resumed_after_any_round_is_straight_bit_for_bit(straight, tiny, tmp_path, number):
    """#21, #33 to #37: adapters, moments, heads, buffers, ledger, record, in every epoch."""
    folder = tmp_path / "it"
    cut_back(straight, folder, number)
    training = Training.open(team(folder, tiny, **LONG), folder / "run", resume=True)
    assert training.course.rounds == number
    assert finish(training)
    assert last(folder) == last(straight)
    assert rows(folder) == rows(straight)
    assert (folder / "run" / METRICS).read_text().count("\n") == ROUNDS


def _without_moments(one, cold):
    for name in one.names:
        facts, arrays = one.engines[name].state(name)
        one.engines[name].load(name, facts | {"steps": {}}, arrays)


def _fresh_adapters(one, cold):
    for name in one.names:
        facts, arrays = one.engines[name].state(name)
        one.engines[name].load(name, facts, arrays | cold.engines[name].state(name)[1])


def _router_without_moments(one, cold):
    about, arrays = one.exchange.router.state()
    one.exchange.router.load(about, {k: v for k, v in arrays.items() if k.partition(".")[0] in ("head", "shared")})


def _empty_buffers(one, cold):
    routed = one.exchange.allocator.routed
    one.exchange.allocator.load(*cold.exchange.allocator.state())
    one.exchange.allocator.routed = routed


LOSSES = {
    "moments": _without_moments,
    "adapters": _fresh_adapters,
    "heads": lambda one, cold: one.exchange.router.load(*cold.exchange.router.state()),
    "the router's moments": _router_without_moments,
    "buffers": _empty_buffers,
    "ledger": lambda one, cold: one.exchange.ledger.load(*cold.exchange.ledger.state()),
    "cursor": lambda one, cold: setattr(one.cursor, "position", 0),
}


@pytest.mark.parametrize("part", LOSSES)
def test_every_part_of_a_checkpoint_matters(straight, tiny, tmp_path, part):
    """#21: resumed without one of them is another run, so that the test above tells the two apart."""
    folder = tmp_path / "it"
    cut_back(straight, folder, 4)
    training = Training.open(team(folder, tiny, **LONG), folder / "run", resume=True)
    cold = started(tmp_path / "cold", tiny, **LONG)
    LOSSES[part](training.course, cold.course)
    cold.close()
    finish(training)
    assert last(folder) != last(straight)


def test_the_straight_run_has_something_to_carry_over(straight):
    """Buffers and open tickets lie in its checkpoints, its queries come round a second time, agents differ."""
    depths, opened, routed = [], [], []
    for _, path in rounds(straight / "run" / "checkpoints"):
        parts = newest_of(path).parts
        depths += [len(desk["buffer"]) for desk in parts["allocation"][0]["desks"].values()]
        opened.append(len(parts["ledger"][0]["tickets"]))
        routed.append(parts["run"][0]["cursor"])
    assert any(depths)
    assert any(opened)
    assert routed[-1] > 2 * len(ids_of())
    final = newest(straight / "run" / "checkpoints").parts
    assert final["agent.ann"][0]["updates"] > 3
    assert final["agent.ann"][0] != final["agent.cyd"][0] or not np.array_equal(*(
        next(v for k, v in sorted(final[f"agent.{name}"][1].items())) for name in ("ann", "cyd")
    ))  # fmt: skip


def newest_of(path):
    _, about = checkpoint_module.load_tensors(path)
    return checkpoint_module.Checkpoint(round=about["round"], parts={name: (f, {}) for name, f in about["parts"]})


def test_a_stop_after_a_round_is_a_place_to_go_on_from(straight, tiny, tmp_path):
    """What Ctrl-C does: the round is finished and kept, although no checkpoint was due."""
    folder = tmp_path / "it"
    given = LONG | {"checkpoint_every": 100}
    assert not finish(started(folder, tiny, **given), lambda row: row["round"] < 2)
    assert newest(folder / "run" / "checkpoints").round == 2
    assert finish(started(folder, tiny, resume=True, **given))
    assert rows(folder) == rows(straight)
    assert last(folder) == last(straight)


def test_a_finished_run_goes_on_to_nothing(straight, tiny, tmp_path):
    folder = tmp_path / "it"
    shutil.copytree(straight, folder)
    before = last(folder)
    assert finish(Training.open(team(folder, tiny, **LONG), folder / "run", resume=True))
    assert last(folder) == before
    assert rows(folder) == rows(straight)


SCRIPT = """
import sys
from coterie.team import Team
from coterie.learning.training import Training
training = Training.open(Team.load(sys.argv[1]), __import__("pathlib").Path(sys.argv[2]), False)
training.advance(lambda row: True)
"""


def test_kill_nine_in_the_middle_of_a_run(straight, tiny, tmp_path):
    """A real process, killed while it works; resumed here it ends as if nothing had been."""
    folder = tmp_path / "it"
    team(folder, tiny, **LONG)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder / "recipe.yaml"), str(folder / "run")],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    record = folder / "run" / METRICS
    while child.poll() is None and not (record.exists() and record.read_text().count("\n") >= 2):
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    training = Training.open(team(folder, tiny, **LONG), folder / "run", resume=True)
    assert 1 <= training.course.rounds < ROUNDS
    assert finish(training)
    assert rows(folder) == rows(straight)
    assert last(folder) == last(straight)


# --- folders ------------------------------------------------------------------------------------------


def test_a_folder_holds_one_run(straight, tiny, tmp_path):
    made = team(tmp_path / "it", tiny, **LONG)
    with pytest.raises(ConfigError, match="holds a run already"):
        Training.open(made, straight / "run", resume=False)
    with pytest.raises(ConfigError, match="holds no run to go on with"):
        Training.open(made, tmp_path / "elsewhere", resume=True)


@pytest.mark.parametrize("key", ["optimiser", "batch", "seed", "sampling"])
def test_another_recipe_does_not_go_on_with_it(straight, tiny, tmp_path, key):
    folder = tmp_path / "it"
    shutil.copytree(straight, folder)
    options = {"optimiser": {"lr": 1e-4}, "batch": 2, "sampling": {"temperature": 0.9}}
    if key == "seed":
        made = team(folder, tiny, **LONG)
        made.config = {**made.config, "seed": 4}
    else:
        made = team(folder, tiny, **(LONG | {key: options[key]}))
    with pytest.raises(ConfigError, match="another configuration"):
        Training.open(made, folder / "run", resume=True)
    assert rows(folder) == rows(straight)


@pytest.mark.parametrize("change", [{"question": "Say an odd digit."}, {"answer": ["1"]}, {"meta": {}}])
def test_other_data_under_the_same_ids_does_not_go_on_with_it(straight, tiny, tmp_path, monkeypatch, change):
    """A data file that was edited in between: what was learned so far was learned from something else."""
    folder = tmp_path / "it"
    shutil.copytree(straight, folder)
    changed = [tiny_team.ITEMS[0].model_copy(update=change), *tiny_team.ITEMS[1:]]
    monkeypatch.setattr(tiny_team, "ITEMS", changed)
    with pytest.raises(ConfigError, match="another configuration"):
        Training.open(team(folder, tiny, **LONG), folder / "run", resume=True)
    assert rows(folder) == rows(straight)


def test_a_setting_that_came_later_and_is_unset_tells_no_runs_apart(tiny, tmp_path):
    """Runs from before agents could be held to a schema can be gone on with."""
    config = training_module._config(team(tmp_path / "it", tiny), tiny_team.queries())
    assert "schema" not in config["agents"]["ann"]["sampling"]


@pytest.mark.parametrize("part", ["messages", "reference", "contract", "task"])
def test_the_digest_is_of_all_that_queries_are_asked_and_graded_by(tiny, tmp_path, part):
    made, asked = team(tmp_path / "it", tiny), tiny_team.queries()
    other = {"messages": asked[1].messages, "reference": asked[1].reference, "contract": "json", "task": "chat"}
    changed = (replace(asked[0], **{part: other[part]}), *asked[1:])
    before, after = (training_module._config(made, each)["queries"] for each in (asked, changed))
    assert before["count"] == after["count"]
    assert before["digest"] != after["digest"]


def test_a_record_that_is_shorter_than_the_checkpoint_is_told(straight, tiny, tmp_path):
    folder = tmp_path / "it"
    shutil.copytree(straight, folder)
    record = folder / "run" / METRICS
    record.write_text("".join(record.read_text().splitlines(keepends=True)[:3]))
    with pytest.raises(DataError, match="has 3 rounds where the newest checkpoint is of round 6"):
        Training.open(team(folder, tiny, **LONG), folder / "run", resume=True)


def test_a_torn_last_line_of_the_record_is_no_line(straight, tiny, tmp_path):
    folder = tmp_path / "it"
    cut_back(straight, folder, 5)
    record = folder / "run" / METRICS
    lines = record.read_text().splitlines(keepends=True)
    record.write_text("".join(lines[:5]) + lines[5][:40])
    assert finish(Training.open(team(folder, tiny, **LONG), folder / "run", resume=True))
    assert rows(folder) == rows(straight)


# --- faults -------------------------------------------------------------------------------------------


def test_a_full_disk_while_saving(straight, tiny, tmp_path):
    """Shows 7: one clear line, the older checkpoint is whole; with space the run goes on as if nothing had been."""
    folder = tmp_path / "it"
    cut_back(straight, folder, 5)
    training = Training.open(team(folder, tiny, **LONG), folder / "run", resume=True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, before[1]))
    try:
        with pytest.raises(ConfigError, match=r"round-00000006.safetensors: cannot be written") as caught:
            training.advance(always)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        training.close()
    assert "\n" not in str(caught.value)
    assert newest(folder / "run" / "checkpoints").round == 5
    assert finish(Training.open(team(folder, tiny, **LONG), folder / "run", resume=True))
    assert rows(folder) == rows(straight)
    assert last(folder) == last(straight)


def test_a_full_disk_while_recording(straight, tiny, tmp_path, monkeypatch):
    """Half a line is written; the round counts as not made."""
    folder = tmp_path / "it"
    cut_back(straight, folder, 5)
    training = Training.open(team(folder, tiny, **LONG), folder / "run", resume=True)

    def full(path, row):
        with open(path, "a") as file:
            file.write(json.dumps(row)[:50])
        raise ConfigError(f"{path}: cannot be written (no space left)")

    with monkeypatch.context() as patch:
        patch.setattr(training_module, "append_line", full)
        with pytest.raises(ConfigError, match="no space left"):
            training.advance(always)
    training.close()
    assert finish(Training.open(team(folder, tiny, **LONG), folder / "run", resume=True))
    assert rows(folder) == rows(straight)
    assert last(folder) == last(straight)


def test_a_crash_in_the_middle_of_a_round(straight, tiny, tmp_path, monkeypatch, base):
    """#11: whatever was half done is not kept, and the base is as it was."""
    folder = tmp_path / "it"
    cut_back(straight, folder, 4)
    training = Training.open(team(folder, tiny, **LONG), folder / "run", resume=True)
    bits, calls, original = digest(base), [], course_module.learn

    def broken(*given):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return original(*given)

    with monkeypatch.context() as patch:
        patch.setattr(course_module, "learn", broken)
        with pytest.raises(RuntimeError, match="out of memory"):
            training.advance(always)
    training.close()
    assert digest(base) == bits
    assert finish(Training.open(team(folder, tiny, **LONG), folder / "run", resume=True))
    assert rows(folder) == rows(straight)
    assert last(folder) == last(straight)


def test_a_run_that_diverges_keeps_its_last_round(tiny, tmp_path, monkeypatch):
    """Shows 7: the record shows why, and the state is there to go on from."""
    folder = tmp_path / "it"
    training = started(folder, tiny, checkpoint_every=100, patience=3)
    with monkeypatch.context() as patch:
        patch.setattr("coterie.learning.learner.Learner._scale", lambda *given: float("nan"))
        with pytest.raises(Diverged, match=r"agent \w+: loss or gradient was no number"):
            training.advance(always)
    done = training.course.rounds
    training.close()
    assert len(rows(folder)) == newest(folder / "run" / "checkpoints").round == done
    assert max(agent["skipped"] for agent in rows(folder)[-1]["agents"].values()) >= 3
    assert rows(folder)[-1]["updates"] == 0
    resumed = started(folder, tiny, resume=True, checkpoint_every=100, patience=3)
    assert finish(resumed)
    assert rows(folder)[-1]["updates"] > 0


def test_an_agent_that_left_stays_gone_after_a_resume(tiny, tmp_path):
    folder = tmp_path / "it"
    training = started(folder, tiny)
    training.advance(lambda row: row["round"] < 2)
    training.course.without("bob")
    training.save()
    training.close()
    resumed = started(folder, tiny, resume=True)
    assert resumed.course.names == ["ann", "cyd"]
    assert resumed.advance(always)
    path = resumed.export()
    resumed.close()
    assert Team.load(path).pool.names() == ["ann", "cyd"]
    assert set(rows(folder)[-1]["agents"]) == {"ann", "cyd"}


# --- export -------------------------------------------------------------------------------------------


def logits(base, folder, tokens):
    key = base.adapters.load(Path(folder))
    with torch.no_grad(), base.adapters.rows([key]):
        found = base.model(input_ids=tokens).logits
    base.adapters.drop(key)
    return found


def test_what_comes_out_is_a_team_that_answers_as_it_learned(straight, tiny, tmp_path, base):
    """#20: adapters, router and recipe; nothing in them says where they were made, so that they can be moved."""
    folder = tmp_path / "it"
    shutil.copytree(straight, folder)
    training = Training.open(team(folder, tiny, **LONG), folder / "run", resume=True)
    bits = digest(base)
    training.export()
    assert digest(base) == bits
    tokens = torch.arange(12)[None]
    expected = {}
    for name in ("ann", "cyd"):
        made = training.course.engines[name]
        with torch.no_grad(), made._over(made._live(name)):
            expected[name] = base.model(input_ids=tokens).logits
    scores = training.course.exchange.router.familiarity(training.course._features(list(training.course.queries)))
    queries = list(training.course.queries.values())
    training.close()
    moved = tmp_path / "moved"
    shutil.move(folder / "run" / "team", moved)
    found = Team.load(moved / "team.yaml")
    assert found.pool.names() == ["ann", "cyd"]
    for name, agent in found.pool.items():
        assert torch.equal(logits(base, agent.adapter, tokens), expected[name])
        assert str(tmp_path) not in (moved / "agents" / name / "agent.yaml").read_text()
    assert np.allclose(found.router.predict(queries, found.pool), scores, atol=1e-6)
    assert "learner" not in found.config


def test_awkward_names_come_out_in_folders_of_their_own(tiny, tmp_path):
    """#8: names of modules, of paths, of patterns; case alone does not tell folders apart everywhere."""
    names = [*(name for name in NAMES[:-1] if name.isprintable()), "MLP"]
    places = folders_of(names)
    assert len({place.casefold() for place in places.values()}) == len(names)
    assert all("/" not in place and not set(place) & set("*?[]\\:") for place in places.values())
    assert places["self_attn"] == "self_attn"
    assert places["mlp"] != "mlp"
    training = started(tmp_path / "it", tiny, names=names, queries=3, batch=3)
    for number, name in enumerate(names):
        shaken(training.course.engines[name], name, seed=number)
    training.save()
    path = training.export()
    weights = {n: training.course.engines[n].learners[n].weights for n in names}
    found = Team.load(path)
    assert sorted(found.pool) == sorted(names)
    resumed = started(tmp_path / "it", tiny, resume=True, names=names, queries=3, batch=3)
    for name in names:
        kept = resumed.course.engines[name].learners[name].weights
        assert len(kept) == 20
        assert all(torch.equal(kept[key], weights[name][key]) for key in kept)
        stored = Path(found.pool[name].adapter) / "adapter_model.safetensors"
        assert stored.stat().st_size > 4 * sum(t.numel() for t in kept.values())
    training.close()
    resumed.close()


def test_agents_of_other_roles_come_along(tiny, tmp_path):
    """They do not learn, and the team would not work without them."""
    made = team(tmp_path / "it", tiny)
    judge = replace(made.pool["ann"], name="judge", role="aggregator", instruction="Pick one.")
    made.pool = Pool({**made.pool.agents, "judge": judge})
    training = Training.open(made, tmp_path / "it" / "run", resume=False)
    assert training.course.names == ["ann", "bob", "cyd"]
    found = Team.load(training.export())
    training.close()
    assert found.pool["judge"].role == "aggregator"
    assert found.pool["judge"].adapter is None
    assert found.pool["judge"].instruction == "Pick one."


def test_what_came_out_goes_on_learning_against_its_own_start(tiny, tmp_path, base):
    """#10: agents that bring an adapter along begin with it, and their reference may be it."""
    source = engine(base, "ann")
    shaken(source, "ann", size=0.1)
    source.write("ann", tmp_path / "start")
    source.close()
    made = team(tmp_path / "it", tiny, names=("ann", "bob"), reference="initial", loss={"beta": 0.1})
    made.pool = Pool({**made.pool.agents, "ann": replace(made.pool["ann"], adapter=str(tmp_path / "start"))})
    training = Training.open(made, tmp_path / "it" / "run", resume=False)
    row = training.course.round()
    training.close()
    assert row["agents"]["ann"]["updates"] == 1
    assert row["agents"]["ann"]["kl_mean"] == 0.0
    assert training.course.pool["ann"].adapter is None


# --- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"lora": {"dropout": 0.05}}, "dropout"),
        ({"lora": {"targets": ["lm_head"]}}, "head cannot be adapted"),
        ({"lora": {"targets": ["c_attn"]}}, "no linear layer 'c_attn'"),
        ({"loss": {"ratio": None}}, "ratio"),
        ({"loss": {"aggregation": "sum"}}, "aggregation"),
        ({"allocation": {"micro_batch": 9, "capacity": 8}}, "capacity"),
        ({"curriculum": "easy first"}, "curriculum"),
        ({"practice": {"group": 0}}, "group"),
        ({"practice": {"group": 10**12}}, "practice.group"),
        ({"lora": {"targets": []}}, "lora.targets"),
        ({"lora": {"targets": ["q_proj", "q_proj"]}}, "targets: one is named twice"),
        ({"lora": {"rank": 10**9}}, "lora.rank"),
        ({"lora": {"alpha": 1e30}}, "lora.alpha"),
        ({"optimiser": {"lr": 1e4}}, "optimiser.lr"),
        ({"optimiser": {"weight_decay": 1e30}}, "optimiser.weight_decay"),
        ({"routing": {"lr": 1e30}}, "routing.lr"),
        ({"routing": {"weight_decay": 1e30}}, "routing.weight_decay"),
        ({"rewards": {"patience": 1e10}}, "rewards.patience"),
        ({"rewards": {"eta": 1e308}}, "rewards.eta"),
        ({"loss": {"use": ["dapo"]}}, "no preset"),
        ({"loss": {"use": {"a": 1}}}, "no preset"),
    ],
)
def test_recipes_that_cannot_learn_are_refused_in_one_line(tiny, tmp_path, change, complaint):
    """#39, #51, #52: no setting is ignored; the folder is left free for the mended recipe."""
    folder = tmp_path / "it"
    with pytest.raises(ConfigError, match=complaint) as caught:
        started(folder, tiny, **change)
    assert "\n" not in str(caught.value)
    started(folder, tiny).close()


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"top_k": 1}])
def test_sampling_that_cannot_learn_is_refused_before_the_first_round(tiny, tmp_path, sampling):
    folder = tmp_path / "it"
    with pytest.raises(ConfigError, match="agent ann: "):
        started(folder, tiny, sampling=sampling)
    started(folder, tiny).close()


def test_completions_that_leave_no_room_for_a_prompt_are_refused_before_the_first_round(tmp_path):
    """Nothing stays on the base, and the folder is free for the mended recipe."""
    small = save_base(tmp_path / "small", max_position_embeddings=32)
    held = base_model(small)
    with pytest.raises(ConfigError, match=r"agent ann: sampling.max_tokens 32 fills the context of 32"):
        started(tmp_path / "it", small, sampling={"max_tokens": 32})
    assert not held.adapters.loaded()
    started(tmp_path / "it", small).close()


def test_a_new_run_begins_in_an_empty_folder_alone(straight, tiny, tmp_path):
    """What a run left behind would be gone on with; what is somebody's would be written into."""
    folder = tmp_path / "it"
    shutil.copytree(straight, folder)
    (folder / "run" / "run.json").unlink()
    before = last(folder)
    with pytest.raises(ConfigError, match="holds 'checkpoints', and a run begins in an empty folder"):
        started(folder, tiny, **LONG)
    assert last(folder) == before
    made = team(folder, tiny, **LONG)
    with pytest.raises(ConfigError, match="a run begins in an empty folder"):
        Training.open(made, Path(tiny), resume=False)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / ".lock").touch()  # a process was killed here before it had written anything
    Training.open(made, tmp_path / "begun", resume=False).close()


def _reshaped(about, arrays):
    name = next(key for key in sorted(arrays) if "/weights/" in key and key.endswith(".A"))
    arrays[name] = arrays[name][:1]  # could be broadcast


def _recast(about, arrays):
    name = next(key for key in sorted(arrays) if "/exp_avg/" in key)
    arrays[name] = arrays[name].astype(np.float16)


def _no_number(about, arrays):
    name = next(key for key in sorted(arrays) if "/head." in key)
    arrays[name] = arrays[name] * np.nan


def _stated(**facts):
    def change(about, arrays):
        own = next(told for name, told in about["parts"] if name == "run")
        own.update(facts)

    return change


DAMAGES = {
    "shape": _reshaped,
    "type": _recast,
    "no number": _no_number,
    "missing array": lambda about, arrays: arrays.pop(sorted(arrays)[0]),
    "no parts": lambda about, arrays: about.update(parts=[]),
    "rounds": _stated(rounds="x"),
    "another round": _stated(rounds=77),
    "updates": _stated(updates=None),
    "cursor": _stated(cursor=-5),
    "agents": _stated(agents=["ann"]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_parses_and_is_damaged_gives_way_to_the_one_before(
    straight, tiny, tmp_path, damage, caplog
):
    """As one of an older version, whose header has no digest, could be."""
    folder = tmp_path / "it"
    cut_back(straight, folder, 5)
    path = rounds(folder / "run" / "checkpoints")[-1][1]
    arrays, about = checkpoint_module.load_tensors(path)
    del about["digest"]
    DAMAGES[damage](about, arrays)
    checkpoint_module.save_tensors(path, arrays, about)
    training = started(folder, tiny, resume=True, **LONG)
    assert training.course.rounds == 4
    assert "going on from the checkpoint before" in caplog.text
    assert finish(training)
    assert rows(folder) == rows(straight)
    assert last(folder) == last(straight)


def test_weights_that_are_no_numbers_are_never_kept(tiny, tmp_path):
    """The run ends in the line that names agent and setting; what was kept before can be gone on from."""
    folder = tmp_path / "it"
    training = started(folder, tiny)
    whole = training.course.engines["ann"].learners["ann"]

    def infinite(row):
        with torch.no_grad():
            next(iter(whole.weights.values())).fill_(float("inf"))
        return True

    with pytest.raises(Diverged, match=r"agent ann: .*learner.optimiser.lr") as caught:
        finish(training, infinite)
    assert caught.value.row is None
    assert finish(started(folder, tiny, resume=True))
    kept = newest(folder / "run" / "checkpoints").parts
    assert all(np.isfinite(array).all() for array in kept["agent.ann"][1].values())


def test_a_router_without_numbers_ends_the_run_unsaved(tiny, tmp_path):
    folder = tmp_path / "it"
    training = started(folder, tiny)

    def infinite(row):
        with torch.no_grad():
            next(iter(training.course.exchange.router.parameters.values())).fill_(float("inf"))
        return True

    with pytest.raises(Diverged, match=r"router.*routing.lr"):
        finish(training, infinite)
    assert newest(folder / "run" / "checkpoints").round == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (SystemExit(3), "SystemExit"),
        (None, "a NoneType"),
        ("slow", "no verdict in 0.2 seconds"),
        (Score(verdict="pass", value="1"), "'1'"),
    ],
)
def test_a_verifier_that_cannot_work_is_told_before_a_folder_is_made(tiny, tmp_path, monkeypatch, answer, words):
    def verify(text, query):
        if answer == "slow":
            time.sleep(1)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr("coterie.learning.rewards.verify", verify)
    with pytest.raises(DataError, match=f"qa-0: cannot be graded: .*{words}"):
        started(tmp_path / "it", tiny, rewards={"patience": 0.2})
    assert not (tmp_path / "it" / "run").exists()


def test_every_kind_of_item_is_tried_before_the_first_round(tiny, tmp_path, monkeypatch):
    odd = tiny_team.ITEMS[3].model_copy(update={"meta": {"metric": "zzz"}})
    monkeypatch.setattr(tiny_team, "ITEMS", [*tiny_team.ITEMS[:3], odd])
    with pytest.raises(DataError, match=f"query {odd.id}: cannot be graded: .*zzz"):
        started(tmp_path / "it", tiny)


def test_an_adapter_without_numbers_is_refused(tiny, tmp_path, base):
    source = engine(base, "ann")
    next(iter(source.learners["ann"].weights.values())).data.fill_(float("nan"))
    source.write("ann", tmp_path / "start")
    source.close()
    made = team(tmp_path / "it", tiny)
    made.pool = Pool({**made.pool.agents, "ann": replace(made.pool["ann"], adapter=str(tmp_path / "start"))})
    with pytest.raises(UserError, match="holds numbers that are none"):
        Training.open(made, tmp_path / "it" / "run", resume=False)


def test_the_tables_of_the_tests_are_recipes(tiny, tmp_path):
    assert recipe(tmp_path, tiny)["learner"]["lora"]["rank"] == LORA.rank


# --- records and recipes that cannot be trusted -------------------------------------------------------


@pytest.mark.parametrize("change", ["rename", "text", "null", "twice", "true"])
def test_a_record_that_was_changed_is_refused_by_its_line(straight, tiny, tmp_path, change):
    folder = tmp_path / "it"
    cut_back(straight, folder, 3)
    record = folder / "run" / METRICS
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    number = lines[1].pop("round")
    lines[1] |= {"rename": {"rounds": number}, "text": {"round": "2"}, "null": {"round": None}}.get(
        change, {"round": True if change == "true" else number + 1}
    )
    record.write_text("".join(json.dumps(one) + "\n" for one in lines))
    before = record.read_bytes()
    with pytest.raises(DataError, match=r"metrics.jsonl:2: is not round 2"):
        started(folder, tiny, resume=True, **LONG)
    assert record.read_bytes() == before


def test_a_record_without_its_checkpoints_is_not_begun_again(straight, tiny, tmp_path):
    """It would be wiped without a word."""
    folder = tmp_path / "it"
    cut_back(straight, folder, 3)
    shutil.rmtree(folder / "run" / "checkpoints")
    before = (folder / "run" / METRICS).read_bytes()
    with pytest.raises(DataError, match="no checkpoint to go on from"):
        started(folder, tiny, resume=True, **LONG)
    assert (folder / "run" / METRICS).read_bytes() == before


def test_no_task_and_old_weights_are_refused_before_a_folder_is_made(tiny, tmp_path):
    made = team(tmp_path / "none", tiny)
    empty = replace(made, config={**made.config, "learner": {**made.config["learner"], "tasks": {}}})
    with pytest.raises(ConfigError, match="names no task"):
        Training.open(empty, tmp_path / "run", resume=False)
    old = replace(made, router=replace(made.router, weights="router.safetensors"))
    with pytest.raises(ConfigError, match="leave them out"):
        Training.open(old, tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()
