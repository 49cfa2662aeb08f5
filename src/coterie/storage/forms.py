"""The forms that others write their routing rows in: LLMRouter, LLMRouterBench, RouterArena. Each reads one file.

A call that failed or that nobody could grade is a cell without score, never a 0.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from coterie.errors import DataError
from coterie.storage.cells import (
    FAILED,
    NO_SCORE,
    NOT_RUN,
    Cell,
    amount,
    counts,
    needed,
    number,
    options,
    plain,
    share,
    text,
)
from coterie.storage.rowfiles import json_rows, rows_of

Cells = Callable[[Path], Iterator[Cell]]
ERROR = re.compile(r"\s*ERROR\b")


def llmrouter(path: Path) -> Iterator[Cell]:
    """LLMRouter's routing rows, one outcome a row. Its outages stand there as score 0 in no time (R23)."""
    for where, row in rows_of(path):
        score = share(needed(row, where, "performance"), where, "performance")
        reason = "" if score is not None else NO_SCORE
        if score is not None and _outage(row, where, score):
            score, reason = None, FAILED
        prompt, completion = counts(row, where, ("input_tokens", "output_tokens", "token_num"))
        yield Cell(
            dataset=text(row, where, "task_name"),
            question=text(row, where, "query"),
            agent=text(row, where, "model_name"),
            score=score,
            reason=reason,
            task=str(row.get("metric") or ""),
            choices=options(row.get("choices"), where),
            answer=plain(row.get("gt", row.get("ground_truth"))),
            prompt_tokens=prompt,
            completion_tokens=completion,
        )


def _outage(row: Mapping[str, Any], where: str, score: float) -> bool:
    """A call that gave no answer: nothing, or an `ERROR` text, in no time.

    An answer that begins with ERROR and took time is an answer; without times, one that scored is.
    """
    said = str(row.get("response") or "")
    seconds = number(row.get("response_time"), where, "response_time")
    nothing = "response" in row and (not said.strip() or bool(ERROR.match(said)))
    return nothing and (seconds == 0 if seconds is not None else score == 0)


def llmrouterbench(path: Path) -> Iterator[Cell]:
    """LLMRouterBench's result files, one of a model on a data set: `<dataset>/<split>/<model>/<time>.json`.

    Names that stand in the file come before those of the folders.
    """
    beside, rows = json_rows(path) if path.suffix == ".json" else ({}, list(rows_of(path)))
    if beside.get("demo"):
        raise DataError(f"{path}: is a demonstration run of a few rows; leave it out")
    folders = path.resolve().parent.parts
    dataset = beside.get("dataset_name") or beside.get("dataset_id") or (folders[-3] if len(folders) > 3 else "")
    agent = beside.get("model_name") or (folders[-1] if len(folders) > 1 else "")
    if not dataset or not agent:
        raise DataError(
            f"{path}: neither the file nor its folders (<dataset>/<split>/<model>/) name model and data set"
        )
    for where, row in rows:
        score = share(needed(row, where, "score"), where, "score")
        said = amount(row.get("completion_tokens"), where, "completion_tokens")
        prompt, completion = counts(row, where, ("prompt_tokens", "completion_tokens", "total_tokens"))
        silent = not str(row.get("prediction") or "").strip() and not str(row.get("raw_output") or "").strip()
        failed = silent and not said > 0 and not score
        yield Cell(
            dataset=str(dataset),
            question=text(row, where, "origin_query"),
            agent=str(agent),
            score=None if failed else score,
            reason=FAILED if failed else NO_SCORE if score is None else "",
            answer=plain(row.get("ground_truth")),
            prompt_tokens=prompt,
            completion_tokens=completion,
            cost=amount(row.get("cost"), where, "cost"),
        )


def routerarena(path: Path) -> Iterator[Cell]:
    """RouterArena's prediction files: for each query the model that was chosen, what it said, accuracy and cost."""
    for where, row in rows_of(path):
        name = text(row, where, "global index", "global_index")
        result = row.get("generated_result")
        if result is not None and not isinstance(result, Mapping):
            raise DataError(f"{where}: generated_result must be an object or null")
        used = (result or {}).get("token_usage") or {}
        if not isinstance(used, Mapping):
            raise DataError(f"{where}: token_usage must be an object or null")
        prompt, completion = counts(used, where, ("input_tokens", "output_tokens", "total_tokens"))
        score = share(row.get("accuracy"), where, "accuracy")
        reason = NOT_RUN if result is None else FAILED if not result.get("success") else NO_SCORE
        usable = result is not None and result.get("success") and score is not None
        yield Cell(
            id=name,
            dataset=re.sub(r"_\d+$", "", name),
            question=text(row, where, "prompt", "prompt_formatted"),
            agent=text(row, where, "prediction"),
            score=score if usable else None,
            reason="" if usable else reason,
            prompt_tokens=prompt,
            completion_tokens=completion,
            cost=amount(row.get("cost"), where, "cost"),
        )


FORMS: Mapping[str, Cells] = {
    "llmrouter": llmrouter,
    "llmrouterbench": llmrouterbench,
    "routerarena": routerarena,
}
"""Readers of the published forms, by name."""
