"""Our adapters against PEFT: the same function, the same gradients, folders that PEFT reads and writes."""

import json
import math

import pytest
import torch
from tiny_team import LORA, OPTIMISER, TARGETS, digest, engine, groups, save_base, shaken, snapshot

from coterie.backends.base_model import base_model
from coterie.errors import ConfigError, UserError
from coterie.learning import adapters
from coterie.learning.adapters import Lora, count, fresh, read
from coterie.learning.engine import Engine
from coterie.learning.losses import Loss

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

NAMES = [
    *("mlp", "self_attn", "q_proj", "layers", "model", "lm_head", "base_model", "default", "lora_A", "weight"),
    *("a.b", "0", "A", "a", "naïve", "数学", "with space", "tab\there", "line\nbreak", "quote'\"", "percent%s"),
    *("slash/inside", "../up", "/root", ".", "..", ".hidden", "star*", "[x]", "q?", "back\\slash", "colon:x"),
    *("{brace}", "~home", "$HOME", "-dash", "x" * 200, "now", "first", "adapter"),
]
"""Forty names, each with a catch: of modules, of PEFT, of paths, of patterns, of case."""


def peft_model(path, lora=LORA, **changes):
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    options = {"r": lora.rank, "lora_alpha": lora.alpha, "target_modules": list(lora.targets)}
    config = peft.LoraConfig(**(options | changes), lora_dropout=0.0, bias="none", task_type="CAUSAL_LM")
    return peft.get_peft_model(model, config).eval()


def put(model, weights):
    """Our tensors in PEFT's layers."""
    named = dict(model.named_parameters())
    for name, tensor in weights.items():
        module, _, half = name.rpartition(".")
        named[f"base_model.model.{module}.lora_{half}.default.weight"].data.copy_(tensor.detach())


def ids(seed=0, length=14):
    return torch.randint(0, 20, (2, length), generator=torch.Generator().manual_seed(seed))


def logits(made, name, tokens):
    with torch.no_grad(), made._over(made._live(name)):
        return made.base.model(input_ids=tokens).logits


# --- the same function --------------------------------------------------------------------------------


def test_same_logits_as_peft(base, tiny):
    made = engine(base, "a")
    shaken(made, "a")
    theirs = peft_model(tiny)
    put(theirs, made.learners["a"].weights)
    expected = theirs(input_ids=ids()).logits
    assert torch.allclose(logits(made, "a", ids()), expected, atol=1e-5)
    assert (base.model(input_ids=ids()).logits - expected).abs().max() > 0.1


def test_same_gradients_as_peft(base, tiny):
    """The loss of a batch through our forward (a prompt once a group) and through PEFT's (every row whole)."""
    made = engine(base, "a")
    shaken(made, "a")
    theirs = peft_model(tiny)
    put(theirs, made.learners["a"].weights)
    batch = groups(3)
    made.forward_backward("a", batch, 0.7)
    total = 0.0
    for group in batch:
        for completion, gain in zip(group.completions, group.advantages, strict=True):
            whole = torch.tensor([[*group.prompt, *completion]])
            logs = (theirs(input_ids=whole).logits / 0.7).log_softmax(-1)[0, len(group.prompt) - 1 : -1]
            chosen = logs.gather(1, torch.tensor(completion)[:, None])[:, 0]
            # at ratio 1: the mean over the sequence's tokens in the ratio, times its tokens in the sum
            total = total - gain * chosen.sum()
    total.backward()
    expected = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    largest = max(float(g.abs().max()) for g in expected.values())
    assert len(expected) == len(made.learners["a"].weights) == 20
    for name, tensor in made.learners["a"].weights.items():
        module, _, half = name.rpartition(".")
        other = expected[f"base_model.model.{module}.lora_{half}.default.weight"]
        assert torch.allclose(tensor.grad, other, atol=1e-5 * largest, rtol=1e-4), name


def test_a_fresh_adapter_changes_nothing_and_is_drawn_as_peft_draws(base, tiny):
    """B is zero, A uniform in +-1/sqrt(in): exactly the base's own logits."""
    made = engine(base, "a")
    assert torch.equal(logits(made, "a", ids()), base.model(input_ids=ids()).logits)
    theirs = dict(peft_model(tiny).named_parameters())
    for name, tensor in made.learners["a"].weights.items():
        module, _, half = name.rpartition(".")
        other = theirs[f"base_model.model.{module}.lora_{half}.default.weight"]
        assert tensor.shape == other.shape
        bound = 1 / math.sqrt(tensor.shape[1]) if half == "A" else 0.0
        assert float(tensor.detach().abs().max()) <= bound
        assert float(other.detach().abs().max()) <= bound * 1.0001
        if half == "A":
            assert float(tensor.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.2)


def test_as_many_trainable_numbers_as_peft(base, tiny):
    """#65."""
    for lora in (LORA, Lora(rank=3, alpha=6.0)):
        theirs = peft_model(tiny, lora)
        assert count(base, lora) == sum(p.numel() for p in theirs.parameters() if p.requires_grad)


# --- folders ------------------------------------------------------------------------------------------


def test_a_written_folder_is_a_plain_peft_folder(base, tiny, tmp_path):
    """#20, #22: every tensor is there, PEFT reads it, the logits are the same; the base is as it was."""
    made = engine(base, "a", "b")
    for number, name in enumerate(("a", "b")):
        shaken(made, name, seed=number)
        made.write(name, tmp_path / name)
    for name in ("a", "b"):
        fresh_model = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
        loaded = peft.PeftModel.from_pretrained(fresh_model, tmp_path / name).eval()
        assert sum("lora_" in n for n, _ in loaded.named_parameters()) == 20
        assert torch.allclose(loaded(input_ids=ids()).logits, logits(made, name, ids()), atol=1e-5)
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_a_written_folder_is_served_as_it_was_learned(base, tmp_path):
    """The backend that serves teams reads it too."""
    made = engine(base, "a")
    shaken(made, "a")
    made.write("a", tmp_path / "a")
    key = base.adapters.load(tmp_path / "a")
    with torch.no_grad(), base.adapters.rows([key]):
        served = base.model(input_ids=ids()).logits
    base.adapters.drop(key)
    assert torch.equal(served, logits(made, "a", ids()))


def test_what_peft_wrote_goes_on_learning(base, tiny, tmp_path):
    """#21c: a warm start has the weights and fresh moments."""
    theirs = peft_model(tiny)
    for name, parameter in theirs.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    theirs.save_pretrained(tmp_path / "a")
    made = engine(base, "a", folder=tmp_path / "a")
    assert torch.allclose(logits(made, "a", ids()), theirs(input_ids=ids()).logits, atol=1e-5)
    assert made.state("a")[0] == {"updates": 0, "skipped": 0, "steps": {}}
    made.forward_backward("a", groups(), 0.7)
    assert made.optim_step("a").outcome == "done"


def test_write_and_read_are_exact(base, tmp_path):
    made = engine(base, "a")
    shaken(made, "a")
    made.write("a", tmp_path / "a")
    again = engine(base, "a", folder=tmp_path / "a")
    assert snapshot(again, "a") == snapshot(made, "a")


def test_forty_awkward_agent_names_round_trip_with_every_tensor(base, tmp_path):
    """#8: in PEFT a name such as `mlp` damages the save of others. Here names are no names of modules."""
    assert len(NAMES) == len(set(NAMES)) == 40
    made = engine(base, *NAMES)
    for number, name in enumerate(NAMES):
        shaken(made, name, seed=number)
    before = {name: snapshot(made, name) for name in NAMES}
    made.forward_backward("mlp", groups(), 0.7)
    made.optim_step("mlp")
    for number, name in enumerate(NAMES):
        assert (snapshot(made, name) == before[name]) == (name != "mlp")
        made.write(name, tmp_path / str(number))
        found = read(tmp_path / str(number), base, LORA)
        assert len(found) == 20
        assert all(torch.equal(found[key], made.learners[name].weights[key]) for key in found)
    made.close()
    assert not [key for key in base.adapters.loaded() if made._key in key]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"r": 8}, "'r': 8"),
        ({"lora_alpha": 32}, "'lora_alpha': 32"),
        ({"use_rslora": True}, "use_rslora"),
        ({"use_dora": True}, "use_dora"),
        ({"target_modules": ["q_proj", "v_proj"]}, "layers or rank"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 2}}, "alpha_pattern"),
    ],
)
def test_a_folder_of_another_function_is_refused(base, tiny, tmp_path, changes, complaint):
    """Tensors that fit under another scale are another adapter: never taken without a word."""
    peft_model(tiny, **changes).save_pretrained(tmp_path / "a")
    with pytest.raises(UserError, match=complaint) as caught:
        engine(base, "a", folder=tmp_path / "a")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "damage", ["no weights", "half the weights", "no config", "no json", "other json", "nothing"]
)
def test_a_damaged_folder_is_refused_in_one_line(base, tmp_path, damage):
    made = engine(base, "a")
    folder = tmp_path / "a"
    made.write("a", folder)
    weights, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    match damage:
        case "no weights":
            weights.unlink()
        case "half the weights":
            weights.write_bytes(weights.read_bytes()[:-1000])
        case "no config":
            config.unlink()
        case "no json":
            config.write_text("{")
        case "other json":
            config.write_text("[1]")
        case "nothing":
            folder = tmp_path / "elsewhere"
    with pytest.raises(UserError, match="adapter") as caught:
        made.add("b", 0, folder)
    assert "\n" not in str(caught.value)
    assert list(made.learners) == ["a"]


def test_a_write_that_fails_leaves_the_older_folder_whole(base, tmp_path, monkeypatch):
    made = engine(base, "a")
    made.write("a", tmp_path / "a")
    before = (tmp_path / "a" / "adapter_model.safetensors").read_bytes()
    shaken(made, "a")

    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(adapters, "save_file", full)
    with pytest.raises(ConfigError, match="cannot be written \\(No space left on device\\)"):
        made.write("a", tmp_path / "a")
    assert (tmp_path / "a" / "adapter_model.safetensors").read_bytes() == before
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_a_reader_never_sees_half_a_file(base, tmp_path):
    """#18: the weights appear by renaming; while they are written the old ones are there."""
    made = engine(base, "a")
    made.write("a", tmp_path / "a")
    seen = []
    original = adapters.save_file

    def watched(tensors, path, metadata):
        original(tensors, path, metadata)
        seen.append(len(read(tmp_path / "a", base, LORA)))

    adapters.save_file = watched
    try:
        made.write("a", tmp_path / "a")
    finally:
        adapters.save_file = original
    assert seen == [20]


# --- settings -----------------------------------------------------------------------------------------


def test_targets_that_the_base_lacks_are_named(base):
    with pytest.raises(ConfigError, match="no linear layer 'qkv_proj'"):
        fresh(base, Lora(targets=("q_proj", "qkv_proj")), 0)


def test_the_head_is_no_target(base):
    """Log-probabilities come from the head's own weight: an adapter there would be ignored in learning."""
    with pytest.raises(ConfigError, match="head cannot be adapted"):
        fresh(base, Lora(targets=("q_proj", "lm_head")), 0)


def test_there_is_no_dropout_to_set():
    """#51: a recipe that asks for it is refused, naming the key."""
    from coterie.config import validate

    with pytest.raises(ConfigError, match="dropout"):
        validate(Lora, {"dropout": 0.05}, "recipe: learner.lora")


def test_two_bases_of_different_size_keep_their_own_agents(base, tmp_path):
    """#24: another architecture, width and depth in the same process."""
    other = base_model(save_base(tmp_path / "qwen", "Qwen3", hidden_size=48, num_hidden_layers=3))
    assert other.model is not base.model
    mine = engine(base, "a")
    theirs = Engine(other, LORA, OPTIMISER, Loss(beta=0.1))
    theirs.add("a", 100)
    before, bits = snapshot(mine, "a"), digest(other)
    theirs.forward_backward("a", groups(), 0.7)
    assert theirs.optim_step("a").outcome == "done"
    assert snapshot(mine, "a") == before
    assert digest(other) == bits
    assert len(theirs.learners["a"].weights) == 2 * 3 * len(TARGETS)
    theirs.write("a", tmp_path / "adapter")
    with pytest.raises(UserError, match="layers or rank"):
        mine.add("b", 0, tmp_path / "adapter")


def test_learning_patches_no_library():
    """#25: PEFT's and torch's own classes are what they were: what trains agents does not even import PEFT.

    `sft` hands TRL's trainer a copy of the model and PEFT's settings.
    """
    import ast
    from pathlib import Path

    for file in sorted(
        set(Path(adapters.__file__).parent.glob("*.py")) - {Path(adapters.__file__).with_name("sft.py")}
    ):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [n for n in names if n.partition(".")[0] == "peft"], file.name


def test_the_configuration_says_what_was_learned(base, tmp_path):
    made = engine(base, "a")
    made.write("a", tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (4, 8.0, 0.0)
    assert config["target_modules"] == list(TARGETS)
