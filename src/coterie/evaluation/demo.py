"""The demonstration: reasoning-gym queries of four kinds that the embedded model can sometimes solve."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from coterie.errors import ConfigError
from coterie.storage.runs import write_atomically
from coterie.tasks.generated import disjoint_split
from coterie.tasks.task import Task

TRAIN, TEST = 96, 120
SEED = 7
LEARNS = "cera/smollm2"
COMPLETIONS = 1536  # of the training run, all agents together: 48 batches
KINDS: Mapping[str, Mapping[str, int]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "products": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "letter_counting": {"min_words": 2, "max_words": 4},
    "isomorphic_strings": {"max_string_length": 5},
}


def tasks(train: int, test: int, contracts: Mapping[str, str]) -> tuple[Task, Task]:
    """Training and test queries in equal parts of each kind; no question is in both."""
    share = len(KINDS)
    if train < share or test < share:
        raise ConfigError(f"--train and --test must be at least {share}, one query of each kind")
    contract = contracts.get("reasoning_gym", "answer")
    pairs = [
        disjoint_split(name, train // share, test // share, SEED, config, contract)
        for name, config in KINDS.items()
    ]
    first, second = (tuple(query for pair in pairs for query in pair[side]) for side in (0, 1))
    return Task(name="demo/train", queries=first), Task(name="demo", queries=second)


def write_recipe(path: Path, config: Mapping[str, Any]) -> None:
    """The team's recipe again, with the fitted `router.safetensors` beside it."""
    router = config["router"] if isinstance(config["router"], Mapping) else {"use": config["router"]}
    table = {**config, "name": "demo", "router": {**router, "weights": "router.safetensors"}}
    write_atomically(path, yaml.safe_dump(table, sort_keys=False, allow_unicode=True))
