"""From one row of a published data set, under its own column names, to the fields of an Item.

Mathematics, choices and short answers; code and instructions have modules of their own. Pure; a column that is not
there is a KeyError.
"""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from string import ascii_uppercase
from typing import Any

from coterie.tasks.extract import last_box

Row = Mapping[str, Any]
Fields = dict[str, Any]
Mapper = Callable[[Row], Fields]
"""Row to fields. `id` is the publisher's own where there is one; the loader adds `source`, and an id where not."""

LABEL = re.compile(r"^\s*\(?([A-Za-z])\s*[).:]\s*")
MARKUP = re.compile(r"\s*\[(?:header|title|step|substeps)\]\s*")
CALCULATOR = re.compile(r"<<[^<>]*>>")


class Unsupported(ValueError):
    """A row that cannot become a graded item. The message is the kind of reason, by which such rows are counted."""


# --- mathematics --------------------------------------------------------------------------------------


def gsm8k(row: Row) -> Fields:
    """openai/gsm8k: the answer is what follows `####`."""
    solution, sign, answer = row["answer"].rpartition("####")
    if not sign:
        raise Unsupported("no #### in the answer")
    meta = {"solution": CALCULATOR.sub("", solution).strip()}
    return {"task": "math", "question": row["question"], "answer": answer.strip().replace(",", ""), "meta": meta}


def math(row: Row) -> Fields:
    """EleutherAI/hendrycks_math: the answer is the last box of the solution."""
    answer = last_box(row["solution"])
    if answer is None or not answer.strip():
        raise Unsupported("no boxed answer in the solution")
    meta = {"subject": row["type"], "level": row["level"], "solution": row["solution"]}
    return {"task": "math", "question": row["problem"], "answer": answer.strip(), "meta": meta}


def math500(row: Row) -> Fields:
    """HuggingFaceH4/MATH-500: the answer has a column of its own."""
    meta = {"subject": row["subject"], "level": row["level"], "solution": row["solution"]}
    name = row["unique_id"].removesuffix(".json")
    return {"id": name, "task": "math", "question": row["problem"], "answer": row["answer"].strip(), "meta": meta}


def dapo(row: Row) -> Fields:
    """open-r1/DAPO-Math-17k-Processed: `prompt` is the bare problem, `solution` its integer answer."""
    name = str((row["extra_info"] or {}).get("index") or "")
    return {"id": name, "task": "math", "question": row["prompt"].strip(), "answer": str(row["solution"]).strip()}


def aime(row: Row) -> Fields:
    """math-ai/aime25."""
    return {"id": str(row["id"]), "task": "math", "question": row["problem"], "answer": str(row["answer"]).strip()}


def olympiad(row: Row) -> Fields:
    """Hothan/OlympiadBench, open-ended text-only: one final answer, or several written as a list.

    Answers that need a tolerance (`error`) or a person are not supported.
    """
    if row.get("error"):
        raise Unsupported("an answer with a tolerance")
    if row["answer_type"] == "Need_human_evaluate" or not row["final_answer"]:
        raise Unsupported("no final answer that can be compared")
    answer = ", ".join(part.strip().strip("$").strip() for part in row["final_answer"])
    unit = f"\n\nGive the answer in {row['unit']}." if row.get("unit") else ""
    meta = {"subject": row["subfield"], "answer_type": row["answer_type"], "solution": list(row["solution"] or [])}
    context = f"{row['context'].strip()}\n\n" if row.get("context") else ""
    question = f"{context}{row['question'].strip()}{unit}"
    return {"id": str(row["id"]), "task": "math", "question": question, "answer": answer, "meta": meta}


# --- choices ------------------------------------------------------------------------------------------


def choice(question: str, choices: Sequence[str], index: int, meta: Fields, id: str = "") -> Fields:
    """Fields of a choice item whose right option is the `index`-th."""
    if not 0 <= index < len(choices):
        raise Unsupported("the right answer is none of the options")
    options = [str(option).strip() for option in choices]
    return {
        "id": id,
        "task": "choice",
        "question": question.strip(),
        "choices": options,
        "answer": ascii_uppercase[index],
        "meta": meta,
    }


def arc(row: Row) -> Fields:
    """allenai/ai2_arc: labels are A to E, or 1 to 5 in some items."""
    labels = [str(label) for label in row["choices"]["label"]]
    if row["answerKey"] not in labels:
        raise Unsupported("the right answer is none of the options")
    return choice(row["question"], row["choices"]["text"], labels.index(row["answerKey"]), {}, row["id"])


def mmlu(row: Row) -> Fields:
    """cais/mmlu: `answer` is an index."""
    return choice(row["question"], row["choices"], row["answer"], {"subject": row["subject"]})


def mmlu_redux(row: Row) -> Fields:
    """edinburgh-dawg/mmlu-redux-2.0: items that the authors found faulty are left out, as in their evaluation."""
    if row["error_type"] != "ok":
        raise Unsupported(f"faulty by the authors: {row['error_type']}")
    return choice(row["question"], row["choices"], row["answer"], {})


def mmlu_pro(row: Row) -> Fields:
    """TIGER-Lab/MMLU-Pro: up to ten options; the `N/A` that fill up the list in early versions are no options."""
    options = list(row["options"])
    while options and options[-1].strip() == "N/A" and len(options) - 1 != row["answer_index"]:
        options.pop()
    meta = {"category": row["category"], "src": row["src"]}
    return choice(row["question"], options, row["answer_index"], meta, str(row["question_id"]))


def gpqa(row: Row) -> Fields:
    """Idavidrein/gpqa: the right option comes first upstream, so the order is drawn, by the item's own id."""
    options = [row["Correct Answer"], *(row[f"Incorrect Answer {n}"] for n in (1, 2, 3))]
    order = list(range(4))
    random.Random(sha256(row["Record ID"].encode()).digest()).shuffle(order)
    meta = {"subject": row["High-level domain"]}
    return choice(row["Question"], [options[i] for i in order], order.index(0), meta, row["Record ID"])


def hellaswag(row: Row) -> Fields:
    """Rowan/hellaswag: four endings; `label` is an index as text, empty in the test split."""
    if row["label"] == "":
        raise Unsupported("no label (the publisher keeps it)")
    texts = [MARKUP.sub(" ", text).strip() for text in (row["ctx"], *row["endings"])]
    question = f"{row['activity_label']}: {texts[0]}\n\nWhich ending is the most plausible?"
    return choice(question, texts[1:], int(row["label"]), {"category": row["activity_label"]})


def medqa(row: Row) -> Fields:
    """GBaker/MedQA-USMLE-4-options: options are a mapping from letter to text."""
    letters = sorted(letter for letter, text in row["options"].items() if text is not None)
    if row["answer_idx"] not in letters:
        raise Unsupported("the right answer is none of the options")
    options = [row["options"][letter] for letter in letters]
    return choice(row["question"], options, letters.index(row["answer_idx"]), {"subtask": row["meta_info"]})


def agieval(row: Row) -> Fields:
    """hails/agieval-*: passage, question and options stand in one text, which also asks for the letter."""
    query = re.sub(r"^\s*Q:\s*", "", row["query"])
    question = re.split(r"\s*Answer Choices:\s*", query)[0]
    if len(row["gold"]) != 1:
        raise Unsupported("several right options")
    return choice(question, [LABEL.sub("", option) for option in row["choices"]], row["gold"][0], {})


def logicbench(row: Row) -> Fields:
    """cogint/LogicBench-v1.0, one question of a sample (`logicbench_rows`): yes or no, or one of four."""
    question = f"{row['context'].strip()}\n\n{row['question'].strip()}"
    if "choices" not in row:
        answer = str(row["answer"]).strip().lower()
        if answer not in ("yes", "no"):
            raise Unsupported("neither yes nor no")
        return choice(question, ["Yes", "No"], ("yes", "no").index(answer), {"subtask": row["rule"]})
    names = sorted(row["choices"])
    if row["answer"] not in names:
        raise Unsupported("the right answer is none of the options")
    options = [row["choices"][name] for name in names]
    return choice(question, options, names.index(row["answer"]), {"subtask": row["rule"]})


def logicbench_rows(row: Row) -> list[Row]:
    """The questions of one file of LogicBench, each with its context and rule."""
    found: list[Row] = []
    for sample in row.get("samples") or row["data_samples"]:
        asked = sample.get("qa_pairs") or [sample]
        base = {"rule": row["axiom"], "context": sample["context"]}
        found += [
            base | {key: pair[key] for key in ("question", "answer", "choices") if key in pair} for pair in asked
        ]
    return found


def bbh(row: Row) -> Fields:
    """SaylorTwift/bbh: an `Options:` block becomes choices, all else is compared as text."""
    question, sign, block = row["input"].rpartition("\nOptions:")
    target = row["target"].strip()
    options = [line.strip() for line in block.splitlines() if line.strip()] if sign else []
    if not options:
        meta = {"metric": "exact", "target": target}
        return {"task": "qa", "question": row["input"].strip(), "answer": [target], "meta": meta}
    texts = [LABEL.sub("", option.removeprefix("- ")) if option[0] == "(" else option[2:] for option in options]
    names = [option.split(" ")[0] if option[0] == "(" else option[2:].strip() for option in options]
    if target not in names:
        raise Unsupported("the right answer is none of the options")
    return choice(question, texts, names.index(target), {"target": target})


# --- short answers ------------------------------------------------------------------------------------


def paragraphs(context: Any) -> list[dict[str, str]]:
    """Paragraphs of HotpotQA's forms: titles and sentences side by side, pairs, or either as JSON text."""
    if isinstance(context, str):
        context = json.loads(context)
    if isinstance(context, Mapping):
        context = list(zip(context["title"], context.get("sentences") or context["content"], strict=True))
    return [{"title": title, "text": "".join(sentences).strip()} for title, sentences in context]


def titles(supporting: Any) -> list[str]:
    """Titles of the paragraphs that hold the answer, each once: gold, so never in a prompt."""
    if isinstance(supporting, str):
        supporting = json.loads(supporting)
    found = supporting["title"] if isinstance(supporting, Mapping) else [pair[0] for pair in supporting]
    return list(dict.fromkeys(found))


def hotpot(row: Row) -> Fields:
    """hotpotqa/hotpot_qa (distractor) and 2WikiMultihopQA in the same layout."""
    if not row["answer"]:
        raise Unsupported("no answer (the publisher keeps it)")
    meta = {"metric": "f1", "subtask": row["type"], "supporting_titles": titles(row["supporting_facts"])}
    return {
        "id": row["id"],
        "task": "qa",
        "question": row["question"],
        "context": paragraphs(row["context"]),
        "answer": [row["answer"]],
        "meta": meta,
    }


def newsqa(row: Row) -> Fields:
    """lucadiliello/newsqa: a news story, a question about it, and the spans that people chose."""
    answers = list(dict.fromkeys(answer.strip() for answer in row["answers"] if answer.strip()))
    if not answers:
        raise Unsupported("no answer in the story")
    context = [{"title": "", "text": row["context"].strip()}]
    meta = {"metric": "f1"}
    return {"task": "qa", "question": row["question"].strip(), "context": context, "answer": answers, "meta": meta}


def trivia(row: Row) -> Fields:
    """mandarjoshi/trivia_qa without documents: the answer and its aliases are all accepted."""
    gold = row["answer"]
    accepted = dict.fromkeys(text for text in (gold["value"], *gold["aliases"]) if text and text != "<unk>")
    if not accepted:
        raise Unsupported("no answer (the publisher keeps it)")
    answers, meta = list(accepted), {"metric": "f1"}
    return {"id": row["question_id"], "task": "qa", "question": row["question"], "answer": answers, "meta": meta}
