"""A team small enough to train in a test: tiny random models with a real tokenizer, saved as folders, three agents
over one of them, and questions of the real kinds that a random model answers rightly now and then."""

import copy
import hashlib
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from coterie.learning.adapters import Lora  # noqa: E402
from coterie.learning.engine import Engine, Group  # noqa: E402
from coterie.learning.learner import Optimiser  # noqa: E402
from coterie.learning.losses import Loss  # noqa: E402
from coterie.tasks.items import Item  # noqa: E402
from coterie.tasks.prompts import to_query  # noqa: E402
from coterie.team import Team  # noqa: E402

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LETTERS = "0123456789 \nadeginorstvwy.:?"
END, TURN_END = len(LETTERS), len(LETTERS) + 2
TARGETS = ("q_proj", "v_proj", "o_proj", "up_proj", "down_proj")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES = {
    "vocab_size": len(LETTERS) + len(SPECIAL),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": END,
    "pad_token_id": END,
    "tie_word_embeddings": False,
}
LORA = Lora(rank=4, alpha=8.0, targets=TARGETS)
OPTIMISER = Optimiser(lr=1e-2, floor=1e-3, warmup=0, horizon=50)


# --- models -------------------------------------------------------------------------------------------


def tokenizer():
    """One token a character, digits first; all that has none is `?`."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    words = {c: i for i, c in enumerate(LETTERS)}
    inner = Tokenizer(models.WordLevel(vocab=words, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    whole = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=SPECIAL[0], pad_token=SPECIAL[0], model_max_length=512
    )
    whole.chat_template = CHATML
    return whole


def model(kind="Llama", seed=2, **changes):
    """Mostly says digits and often ends; two ids end a turn."""
    torch.manual_seed(seed)
    config_class = getattr(transformers, f"{kind}TextConfig", None) or getattr(transformers, f"{kind}Config")
    made = getattr(transformers, f"{kind}ForCausalLM")(config_class(**(SIZES | changes))).eval()
    if (head := made.get_output_embeddings()) is not made.get_input_embeddings():
        head.weight.data[10:END] = 0
        head.weight.data[END + 1] = 0
        head.weight.data *= 3
    made.generation_config.eos_token_id = [END, TURN_END]
    return made


def save_base(folder, kind="Llama", seed=2, **changes):
    """The folder of a base as a user has it; its path."""
    model(kind, seed, **changes).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def digest(base):
    """Of every parameter and buffer."""
    total = hashlib.sha256()
    for name, tensor in sorted(base.model.state_dict().items()):
        total.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    return total.hexdigest()


def flag_table(base):
    return {name: parameter.requires_grad for name, parameter in base.model.named_parameters()}


# --- learning without a team --------------------------------------------------------------------------


def engine(base, *names, loss=None, optimiser=OPTIMISER, lora=LORA, **options):
    """An engine with agents; each starts from its own seed."""
    made = Engine(base, lora, optimiser, loss or Loss(beta=0.0))
    for number, name in enumerate(names):
        made.add(name, 100 + number, **options)
    return made


def shaken(engine, name, seed=0, size=0.3):
    """The agent with random B halves, so that its adapter does something."""
    source = torch.Generator().manual_seed(seed)
    facts, arrays = engine.state(name)
    for key in sorted(arrays):
        if key.startswith("weights/") and key.endswith(".B"):
            arrays[key] = (torch.randn(arrays[key].shape, generator=source) * size).numpy()
    engine.load(name, facts, arrays)


def groups(count=2, size=4, seed=0, longest=5, prompt=9):
    """Made-up groups whose advantages sum to 0, prompts and completions of different lengths."""
    source = torch.Generator().manual_seed(seed)

    def ids(length):
        return tuple(torch.randint(0, TURN_END, (length,), generator=source).tolist())

    found = []
    for g in range(count):
        lengths = torch.randint(1, longest + 1, (size,), generator=source).tolist()
        gains = torch.randn(size, generator=source).double()
        found.append(
            Group(
                prompt=ids(prompt + 3 * g),
                completions=tuple(ids(n) for n in lengths),
                advantages=(gains - gains.mean()).numpy(),
                truncated=(False,) * size,
            )
        )
    return found


def snapshot(engine, name):
    """All that an agent is, to be compared with ==."""
    facts, arrays = engine.state(name)
    return copy.deepcopy(facts), {key: (value.dtype.str, value.tobytes()) for key, value in arrays.items()}


def probe(made, name, asks):
    """By how much, in nats a token at most, sampling and learning differ about the same tokens.

    Rounding where both use the agent's adapter; far more where one of them does not.
    """
    samples = made.sample(name, asks)
    said = [
        Group(prompt=ask.prompt, completions=(one.ids,), advantages=np.zeros(1), truncated=(False,))
        for ask, one in zip(asks, samples, strict=True)
    ]
    learnt = made.log_probs(name, said, temperature=1.0)
    gaps = [np.abs(np.array(one.logprobs) - row) for one, (row,) in zip(samples, learnt, strict=True)]
    return float(np.concatenate(gaps).max())


# --- a team -------------------------------------------------------------------------------------------


def item(number, question, answer, task="qa", **more):
    return Item(id=f"{task}-{number}", source="tiny", task=task, question=question, answer=answer, **more)


def parity(odd):
    return [f"{n:0{width}}" for width in (1, 2, 3) for n in range(odd, 10**width, 2)]


EXACT = {"metric": "exact"}
ITEMS = [
    item(0, "Say an odd number.", parity(1), meta=EXACT),
    item(1, "Say an even number.", parity(0), meta=EXACT),
    item(2, "Say a digit.", [str(n) for n in range(10)]),
    item(3, "Say two digits, no more.", [f"{n:02}" for n in range(100)]),
    item(4, "odd", parity(1), meta=EXACT),
    item(5, "even", parity(0), meta=EXACT),
    item(6, "seven or one as digits", ["7", "1", "71", "17"], meta={"metric": "f1"}),
    item(7, "a number as a literal", [str(n) for n in range(90, 100)], meta={"metric": "python_literal"}),
]
"""A random model hits most of them in every third completion, some now and then."""


def write_items(folder):
    """The questions as a data file; its path."""
    path = Path(folder) / "items.jsonl"
    path.write_text("".join(one.model_dump_json(exclude_none=True) + "\n" for one in ITEMS))
    return str(path)


def queries():
    return tuple(to_query(one, "answer") for one in ITEMS)


LEARNER = {
    "use": "coevolve",
    "batch": 3,
    "queries": 12,
    "updates": 1000,
    "checkpoint_every": 1,
    "keep": 100,
    "lora": {"rank": 4, "alpha": 8.0, "targets": list(TARGETS)},
    "optimiser": {"lr": 3e-3, "floor": 1e-3, "warmup": 2, "horizon": 50},
    "rewards": {"eta": 0.1},
    "allocation": {"micro_batch": 2, "capacity": 8, "tau": 0.3},
    "practice": {"group": 4, "updates": 1},
    "routing": {"hidden": 16, "width": 8, "standardise": 8, "lr": 1e-2},
    "ttl": 4,
}


def recipe(folder, tiny, names=("ann", "bob", "cyd"), models=None, sampling=None, router=None, **learner):
    """A recipe's table; `learner` keys replace those of LEARNER, tables key by key."""
    table = {key: dict(value) if isinstance(value, dict) else value for key, value in LEARNER.items()}
    for key, value in learner.items():
        table[key] = table[key] | value if isinstance(table.get(key), dict) else value
    given = {"temperature": 0.7, "max_tokens": 3} | (sampling or {})
    models = models or {}
    return {
        "name": "tiny",
        "agents": [
            {"name": name, "model": f"local:{models.get(name, tiny)}", "sampling": dict(given)} for name in names
        ],
        "router": {"use": "familiarity", "encoder": {"use": "hashed", "width": 64}, "hidden": 16, "width": 8}
        | (router or {}),
        "strategy": "vote",
        "learner": {**table, "tasks": {write_items(folder): None}},
        "seed": 3,
    }


def team(folder, tiny, *args, **options):
    """The team of `recipe`, loaded from a file."""
    folder.mkdir(parents=True, exist_ok=True)
    return loaded(folder, recipe(folder, tiny, *args, **options))


def company(folder, tiny, use, strategy, top=None, **learner):
    """A team that learns by turns; `top` is its aggregator."""
    folder.mkdir(parents=True, exist_ok=True)
    table = recipe(folder, tiny)
    kept = {key: value for key, value in table["learner"].items() if key not in ("allocation", "routing", "ttl")}
    agents = [agent | {"role": "aggregator"} if agent["name"] == top else agent for agent in table["agents"]]
    settings = {**kept, "use": use, **learner}
    return loaded(
        folder, {**table, "agents": agents, "router": "uniform", "strategy": strategy, "learner": settings}
    )


def loaded(folder, table):
    """The team of a recipe's table, by way of a file."""
    import yaml

    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(table))
    return Team.load(path)


def ids_of():
    """Of all questions."""
    return [one.id for one in ITEMS]
