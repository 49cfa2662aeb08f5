"""Supervised training of an adapter by TRL's SFTTrainer, gone on with bit for bit where it was stopped on a CPU.

The trainer's own checkpoints are pickles; here it writes and reads `checkpoint`s instead. Imports torch and trl.
"""

import copy
import json
import logging
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.errors import ConfigError, DataError, MissingExtra
from coterie.learning import checkpoint
from coterie.learning.examples import Distill
from coterie.storage.runs import write_atomically
from coterie.types import Agent, draw

try:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import PrinterCallback
    from trl import SFTConfig, SFTTrainer

    from coterie.backends.base_model import Base, base_model
    from coterie.learning.adapters import Lora, Weights
    from coterie.learning.adapters import write as write_adapter
    from coterie.learning.practice import prompt_limit
except ImportError as error:
    raise MissingExtra(str(error.name or "trl"), "distill") from error

if TYPE_CHECKING:
    from coterie.learning.distillation import Lesson, Watch

log = logging.getLogger(__name__)
STATE, METRICS, CHECKPOINTS = "trainer_state.json", "metrics.jsonl", "checkpoints"
NOTHING = -100
Row = dict[str, list[int]]


def trained(
    agent: Agent, settings: Distill, lessons: Sequence["Lesson"], folder: Path, seed: int, watch: "Watch"
) -> Weights | None:
    """The adapter, or None where `watch` stopped it; it goes on from the newest checkpoint below `folder`.

    Raises: ConfigError where a review is longer than the agent may reply, a prompt would be cut, or the loss is no
    number; DataError for checkpoints of another set.
    """
    base = base_model(agent.model.removeprefix("local:"))
    rows = [row(base, agent, lesson) for lesson in lessons]
    model, tokenizer = copy.deepcopy(base.model), copy.deepcopy(base.tokenizer)
    del base  # what the trainer changes is its own copy, and the only one from here on
    mark = sha256(json.dumps([rows, asdict(settings), seed]).encode()).hexdigest()[:16]
    number = draw(seed, "sft") % 2**31
    trainer = _Resumable(
        model=model,
        args=_arguments(settings, number, folder),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            r=settings.rank,
            lora_alpha=settings.alpha,
            lora_dropout=settings.dropout,
            target_modules=list(settings.targets),
            task_type="CAUSAL_LM",
        ),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer.learn(folder, settings.keep, mark, watch)


def write(folder: Path, weights: Weights, settings: Distill, agent: Agent) -> None:
    """The adapter as a plain PEFT folder."""
    lora = Lora(rank=settings.rank, alpha=settings.alpha, targets=settings.targets)
    write_adapter(folder, weights, lora, agent.model)


def row(base: Base, agent: Agent, lesson: "Lesson") -> Row:
    """Token ids of a lesson, the prompt's as they are served, and labels: the review's ids and one end of turn.

    By position, not by id: where padding and end are one token, the end is still learned.
    """
    asked = base.prompt_ids(lesson.prompt, base.context)
    if len(asked) > prompt_limit(agent, base.context):
        raise ConfigError(
            f"example {lesson.id}: its prompt has {len(asked)} tokens, more than {agent.name!r} is shown: lower"
            " strategy.panel.context, or raise the agent's max_prompt_tokens"
        )
    words = base.tokenizer(lesson.completion, add_special_tokens=False, split_special_tokens=True).input_ids
    said = [*words, turn_end(base)]
    if len(said) > agent.sampling.max_tokens:
        raise ConfigError(
            f"example {lesson.id}: the review has {len(said)} tokens, and {agent.name!r} replies with at most"
            f" {agent.sampling.max_tokens}: raise its sampling.max_tokens"
        )
    return {"input_ids": [*asked, *said], "labels": [NOTHING] * len(asked) + said}


def turn_end(base: Base) -> int:
    """The id by which the model's template ends a turn; the tokenizer's own end where it writes none."""
    probe = "probe"
    if base.tokenizer.chat_template:
        chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": probe}]
        tail = base.tokenizer.apply_chat_template(chat, tokenize=False).rpartition(probe)[2]
        ends = {str(base.tokenizer.convert_ids_to_tokens(one)): one for one in base.eos_ids}
        near = sorted((place, text) for text in ends if (place := tail.find(text)) >= 0)
        if near:
            return ends[near[0][1]]
    return int(base.tokenizer.eos_token_id)


def _arguments(settings: Distill, seed: int, folder: Path) -> Any:
    return SFTConfig(
        output_dir=str(folder),
        seed=seed,
        per_device_train_batch_size=settings.micro_batch,
        gradient_accumulation_steps=settings.batch // settings.micro_batch,
        num_train_epochs=settings.epochs,
        learning_rate=settings.lr,
        lr_scheduler_type="cosine",
        warmup_steps=settings.warmup,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.clip,
        gradient_checkpointing=settings.recompute,
        save_strategy="steps",
        save_steps=settings.checkpoint_every,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        max_length=None,
        packing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        bf16=torch.cuda.is_available(),
        use_cpu=not torch.cuda.is_available(),
    )


class _Resumable(SFTTrainer):  # type: ignore[misc]
    """An SFTTrainer whose checkpoints are safetensors files with all that it goes on from."""

    def learn(self, folder: Path, keep: int, mark: str, watch: "Watch") -> Weights | None:
        """Train from the newest checkpoint in `folder`; the adapter where that came to its end."""
        self._folder, self._keep, self._mark, self._watch = folder, keep, mark, watch
        self._found = checkpoint.newest(folder / CHECKPOINTS)
        if self._found is not None and self._found.parts["trainer"][0]["mark"] != mark:
            raise DataError(f"{folder / CHECKPOINTS}: holds checkpoints of another set or other settings")
        with TemporaryDirectory() as scratch:
            if self._found is not None:  # the one file of a checkpoint that is read past the methods below
                (Path(scratch) / STATE).write_text(json.dumps(self._found.parts["trainer"][0]["state"]))
            self.train(resume_from_checkpoint=None if self._found is None else scratch)
        return self._adapter() if self.state.global_step >= self.state.max_steps else None

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Keep metrics.jsonl, tell of every update, and end where that is asked for, with a checkpoint."""
        super().log(logs, start_time)
        if "loss" not in logs:
            return
        if not math.isfinite(logs["loss"]):
            raise ConfigError(f"the loss is no number after {self.state.global_step} updates: lower learner.lr")
        rows = [row for row in self.state.log_history if "loss" in row]
        write_atomically(self._folder / METRICS, "".join(json.dumps(row) + "\n" for row in rows))
        if not self._watch({"update": self.state.global_step, "of": self.state.max_steps, "loss": logs["loss"]}):
            self.control.should_save = self.control.should_training_stop = True

    def _adapter(self) -> Weights:
        found = {}
        for name, tensor in self.model.named_parameters():
            if ".lora_" in name:
                module, _, half = name.removesuffix(".default.weight").rpartition(".lora_")
                found[f"{module.removeprefix('base_model.model.')}.{half}"] = tensor
        return found

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        facts = {"mark": self._mark, "state": json.loads(json.dumps(asdict(self.state)))}
        parts = {
            "adapter": ({}, {name: _array(tensor) for name, tensor in self._adapter().items()}),
            "optimiser": _optimiser_state(self.optimizer.state_dict()),
            "schedule": (json.loads(json.dumps(self.lr_scheduler.state_dict())), {}),
            "random": _random_state(),
            "trainer": (facts, {}),
        }
        checkpoint.save(
            self._folder / CHECKPOINTS, checkpoint.Checkpoint(round=self.state.global_step, parts=parts), self._keep
        )

    def _load_from_checkpoint(self, resume_from_checkpoint: Any, model: Any = None) -> None:
        arrays = self._part("adapter")[1]
        with torch.no_grad():
            for name, tensor in self._adapter().items():
                tensor.copy_(torch.from_numpy(arrays[name]))

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        if checkpoint is not None:
            self.optimizer.load_state_dict(_optimiser_table(*self._part("optimiser")))
            self.lr_scheduler.load_state_dict(self._part("schedule")[0])

    def _load_rng_state(self, checkpoint: Any) -> None:
        if checkpoint is not None:
            _restore(*self._part("random"))

    def _part(self, name: str) -> checkpoint.State:
        assert self._found is not None
        return self._found.parts[name]


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy().copy()


def _optimiser_state(table: Mapping[str, Any]) -> checkpoint.State:
    arrays = {f"{i}/{key}": _array(value) for i, kept in table["state"].items() for key, value in kept.items()}
    return json.loads(json.dumps({"groups": table["param_groups"]})), arrays


def _optimiser_table(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, array in arrays.items():
        place, _, key = name.partition("/")
        state.setdefault(int(place), {})[key] = torch.from_numpy(array.copy())
    return {"state": state, "param_groups": facts["groups"]}


def _random_state() -> checkpoint.State:
    """The generators that dropout and the order of batches draw from."""
    name, keys, *rest = np.random.get_state()
    arrays = {"numpy": np.asarray(keys), "torch": torch.random.get_rng_state().numpy()}
    if torch.cuda.is_available():
        arrays["cuda"] = torch.cuda.get_rng_state().numpy()
    return {"python": random.getstate(), "numpy": [str(name), *rest]}, arrays


def _restore(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    version, inner, gauss = facts["python"]
    random.setstate((version, tuple(inner), gauss))
    name, *rest = facts["numpy"]
    np.random.set_state((name, arrays["numpy"], *rest))
    torch.random.set_rng_state(torch.from_numpy(arrays["torch"].copy()))
    if "cuda" in arrays and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.from_numpy(arrays["cuda"].copy()))
