"""From one row of a published data set of programs to the fields of an Item, as `columns` does. Runs no code."""

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from coterie.tasks.columns import Fields, Row, Unsupported
from coterie.tasks.syntax import parsed

MOST_TESTS = 50
LONGEST_TEST = 20_000
"""Tests beyond these are left out, and counted in `meta.tests_left_out`: a test is part of every trace."""

ASKED = re.compile(r"\s*Write Python code to solve the problem\.\s*Present the code in\s*```python.*$", re.DOTALL)
SAME = """
def _plain(value):
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value
def _same(got, want):
    return _plain(got) in (want, [want]) or [_plain(got)] == want
"""
"""APPS' comparison: a tuple counts as a list, and the expected value may be wrapped in a list of one."""


def mbpp(row: Row) -> Fields:
    """google-research-datasets/mbpp (full): the first assertion is shown, for it alone names the function."""
    tests = [_lines(test) for test in row["test_list"]]
    code = _lines(row["code"])
    if not tests:
        raise Unsupported("no test")
    meta = {"test_setup": _lines(row["test_setup_code"] or ""), "reference_solution": code}
    return {
        "id": str(row["task_id"]),
        "task": "code_function",
        "question": f"{row['text'].strip()}\n\nThe code must pass this test:\n{tests[0]}",
        "tests": tests,
        "fn_name": _called(code, tests[0]),
        "meta": meta,
    }


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").strip()


def _called(code: str, test: str) -> str | None:
    """The function of `code` that `test` calls, None where that is not plain."""
    try:
        defined = {node.name for node in ast.walk(parsed(code)) if isinstance(node, ast.FunctionDef)}
        used = [node.id for node in ast.walk(parsed(test)) if isinstance(node, ast.Name)]
    except (SyntaxError, ValueError):
        return None
    return next((name for name in used if name in defined), None)


def humaneval(row: Row) -> Fields:
    """openai/openai_humaneval: the question is the start of the code."""
    solution = row["prompt"] + row["canonical_solution"]
    return {
        "id": row["task_id"].replace("/", "-"),
        "task": "code_function",
        "question": row["prompt"],
        "tests": [f"{row['test'].strip()}\n\ncheck({row['entry_point']})"],
        "fn_name": row["entry_point"],
        "meta": {"prompt_is_code_prefix": True, "reference_solution": solution},
    }


def eurus(row: Row) -> Fields:
    """PRIME-RL/Eurus-2-RL-Data, rows of ability `code`: the human's message without its request for a fence."""
    asked = [message["content"] for message in row["prompt"] if message["role"] == "user"]
    question = ASKED.sub("", asked[-1]).strip()
    meta = {"subtask": row["data_source"]}
    return program(question, json.loads(row["reward_model"]["ground_truth"]), meta)


def taco(row: Row) -> Fields:
    """BAAI/TACO: tests as JSON text, and for some problems the code to start from."""
    starter = f"\n\n{row['starter_code'].strip()}" if row["starter_code"].strip() else ""
    meta = {"subtask": row["source"], "difficulty": row["difficulty"]}
    return program(row["question"].strip() + starter, json.loads(row["input_output"]), meta)


def program(question: str, tests: Fields, meta: Fields) -> Fields:
    """A problem in APPS' form: `inputs` and `outputs` of whole programs, or of calls where there is `fn_name`."""
    pairs = list(zip(tests["inputs"], tests["outputs"], strict=True))
    if not pairs:
        raise Unsupported("no test")
    name = tests.get("fn_name") or None
    made = _calls(name, pairs) if name else _runs(pairs)
    kept = [test for test in made if len(str(test)) <= LONGEST_TEST][:MOST_TESTS]
    if not kept:
        raise Unsupported("no test that is short enough")
    meta = meta | ({"tests_left_out": len(made) - len(kept)} if len(kept) < len(made) else {})
    if name is None:
        return {"task": "code_stdio", "question": question, "tests": kept, "meta": meta}
    meta |= {"test_setup": f"{SAME}\ncall = {_target(name, question)}"}
    return {"task": "code_function", "question": question, "tests": kept, "fn_name": None, "meta": meta}


def _target(name: str, question: str) -> str:
    """What the tests call: a function, or the method of `class Solution` where the problem starts from one."""
    if not name.isidentifier():
        raise Unsupported("the function has no plain name")
    return f"Solution().{name}" if "class Solution" in question else name


def _calls(name: str, pairs: Sequence[tuple[Any, Any]]) -> list[str]:
    return [f"assert _same(call(*{arguments!r}), {expected!r})" for arguments, expected in pairs]


def _runs(pairs: Sequence[tuple[Any, Any]]) -> list[dict[str, str]]:
    """Input and output as text; some rows have them as lists of lines."""
    return [
        {"input": _text(given), "output": _text(expected)} for given, expected in pairs if _text(expected).split()
    ]


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def cruxeval(row: Row) -> Fields:
    """cruxeval-org/cruxeval, output prediction: the value of one call as a Python literal."""
    asked = f"What does `f({row['input']})` return? Answer with a Python literal."
    question = f"```python\n{row['code'].strip()}\n```\n\n{asked}"
    meta = {"metric": "python_literal"}
    return {"id": row["id"], "task": "qa", "question": question, "answer": [row["output"]], "meta": meta}
