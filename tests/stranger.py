"""What somebody who just installed coterie has: two models behind HTTP, and 200 questions with their answers.

The models are a server's in a thread. One is good at sums, the other at words; neither is always right.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

GOOD = {"llama": "math", "qwen": "choice"}
"""What each model is good at."""
RIGHT = {True: 0.95, False: 0.3}
"""How often a model is right on what it is good at, and on the rest."""
WORDS = ("quick fast", "big large", "start begin", "end finish", "quiet silent", "clever smart", "glad happy")
THINGS = ("pens", "eggs", "cups", "nails", "stamps", "apples", "coins", "cards")


def rows(size: int = 200) -> list[dict[str, Any]]:
    """Half sums, half multiple choice, no question twice."""
    found: dict[str, dict[str, Any]] = {}
    random = Random(7)
    while len(found) < size:
        row = _sum(random) if len(found) % 2 else _word(random)
        found.setdefault(row["question"], row)
    return list(found.values())


def _sum(random: Random) -> dict[str, Any]:
    boxes, each, thing = random.randint(2, 30), random.randint(2, 30), random.choice(THINGS)
    question = f"There are {boxes} boxes with {each} {thing} in each. How many {thing} are there?"
    return {"question": question, "answer": boxes * each, "domain": "sums"}


def _word(random: Random) -> dict[str, Any]:
    word, meaning = random.choice(WORDS).split()
    others = [pair.split()[1] for pair in WORDS if not pair.startswith(word)]
    options = [meaning, *random.sample(others, 3)]
    random.shuffle(options)
    who = f"{random.choice(('Ada', 'Ben', 'Cleo', 'Dan', 'Eve'))} {random.choice(('says', 'writes', 'reads'))}"
    question = f"{who} the word “{word}” on page {random.randint(1, 99)}. What does it mean?"
    return {"question": question, "choices": options, "answer": "ABCD"[options.index(meaning)], "domain": "words"}


def write_rows(path: Path, found: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found), encoding="utf-8")


def said(model: str, question: str, known: list[dict[str, Any]]) -> str:
    """What a model answers: always the same to the same question."""
    row = next((row for row in known if row["question"] in question), None)
    if row is None:
        return f"I am {model}, and I do not know that."
    kind = "choice" if "choices" in row else "math"
    right = Random(f"{model} {row['question']}").random() < RIGHT[GOOD[model] == kind]
    if kind == "math":
        return f"Let me count. \\boxed{{{row['answer'] if right else row['answer'] + 1}}}"
    return f"The answer is {row['answer'] if right else 'ABCD'['ABCD'.index(row['answer']) - 1]}."


def down(seen: Any) -> Any:
    """The reply of a server that does not serve the model now, and says so at once."""
    from upstream import refusal

    return refusal(400, "model_not_loaded", "the model is not loaded")


@contextmanager
def served(known: list[dict[str, Any]]) -> Iterator[Any]:
    """An upstream with both models, in a thread of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(Path(__file__).parent / "backends"), *sys.path])
        from upstream import answer, in_thread

    def script(seen):
        model = "llama" if "llama" in seen.model else "qwen"
        return answer(said(model, seen.body["messages"][-1]["content"], known))

    with in_thread() as upstream:
        for model in ("llama-3.2-3b", "qwen2.5:7b"):
            upstream.scripts[model] = [script]
        yield upstream
