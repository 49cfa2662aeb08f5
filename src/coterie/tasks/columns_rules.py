"""From one row of a published data set of verifiable instructions to the fields of an Item, as `columns` does.

RLVR-IFEval's functions become the IFEval rules that accept exactly the same answers in kind; where there is none,
or the prompt asks for something that our rules do not check, the row is unsupported.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from coterie.tasks import instruction
from coterie.tasks.columns import Fields, Row, Unsupported

Rules = list[tuple[str, dict[str, Any]]]
CHOICES = {"my answer is yes.", "my answer is no.", "my answer is maybe."}
"""The answers that IFEval's `constrained_response` accepts."""


def ifeval(row: Row) -> Fields:
    """google/IFEval and the `filtered` part of argilla/ifeval-like-data: each argument, null where unused."""
    tables = [_given(table) for table in _arguments(row["kwargs"])]
    return rules(row["prompt"], list(zip(row["instruction_id_list"], tables, strict=True)), str(row["key"]))


def _arguments(kwargs: Any) -> list[Mapping[str, Any]]:
    return json.loads(kwargs) if isinstance(kwargs, str) else list(kwargs)


def _given(table: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are there; counts that were stored as decimals become whole again."""
    given = {key: value for key, value in table.items() if value is not None}
    return {key: int(v) if isinstance(v, float) and v.is_integer() else v for key, v in given.items()}


def rules(prompt: str, wanted: Rules, id: str = "") -> Fields:
    """Fields of an instruction item; Unsupported where a rule is unknown or lacks an argument."""
    names, tables = [name for name, _ in wanted], [table for _, table in wanted]
    if faults := instruction.problems(names, tables):
        raise Unsupported(faults[0])
    return {
        "id": id,
        "task": "instruction",
        "question": prompt,
        "instruction_id_list": names,
        "instruction_kwargs": tables,
        "meta": {"subtask": names[0].split(":")[0]},
    }


def rlvr(row: Row) -> Fields:
    """allenai/RLVR-IFeval: `ground_truth` is JSON with a function's name and all arguments, null where unused."""
    given = _given(json.loads(row["ground_truth"]))
    name = given.pop("func_name")
    if name not in FUNCTIONS:
        raise Unsupported(f"function {name}")
    asked = [message["content"] for message in row["messages"] if message["role"] == "user"]
    try:
        wanted = FUNCTIONS[name](given)
    except KeyError as error:
        raise Unsupported(f"function {name} without {error}") from None
    return rules(asked[-1], wanted)


def _rule(name: str, arguments: Mapping[str, str] | None = None) -> Callable[[Fields], Rules]:
    """One rule whose arguments (ours by theirs) are taken over as they are."""
    known = arguments or {}
    return lambda given: [(name, {ours: given[theirs] for theirs, ours in known.items()})]


def _exactly(name: str, count: str, relation: str, rest: Mapping[str, str]) -> Callable[[Fields], Rules]:
    """Exactly N, which IFEval says with two rules: at least N and less than N + 1."""

    def both(given: Fields) -> Rules:
        same = {ours: given[theirs] for theirs, ours in rest.items()}
        bounds = [("at least", given["N"]), ("less than", given["N"] + 1)]
        return [(name, same | {count: number, relation: word}) for word, number in bounds if number > 0]

    return both


def _bounded(name: str, count: str, relation: str) -> Callable[[Fields], Rules]:
    """`at least` N, or `at most` N, which is less than N + 1; IFEval has no `around`."""

    def one(given: Fields) -> Rules:
        match given["quantifier"]:
            case "at least":
                return [(name, {count: given["N"], relation: "at least"})]
            case "at most":
                return [(name, {count: given["N"] + 1, relation: "less than"})]
            case other:
                raise Unsupported(f"quantifier {other!r}, which no IFEval rule has")

    return one


def _choice(given: Fields) -> Rules:
    options = given["options"]
    listed = options if isinstance(options, list) else str(options).strip("()[]").split("', '")
    if {str(option).strip(" '\"").lower() for option in listed} != CHOICES:
        raise Unsupported("a choice of its own options")
    return [("detectable_format:constrained_response", {})]


def _paragraphs(given: Fields) -> Rules:
    raise Unsupported("paragraphs divided by `* * *`, which IFEval's rule does not count")


WORDS, LENGTH, CASE = "keywords", "length_constraints", "change_case"
CONTENT, FORMAT = "detectable_content", "detectable_format"
FUNCTIONS: Mapping[str, Callable[[Fields], Rules]] = {
    "verify_keywords": _rule(f"{WORDS}:existence", {"keyword_list": "keywords"}),
    "verify_keyword_frequency": _exactly(f"{WORDS}:frequency", "frequency", "relation", {"word": "keyword"}),
    "validate_forbidden_words": _rule(f"{WORDS}:forbidden_words", {"forbidden_words": "forbidden_words"}),
    "verify_letter_frequency": _exactly(
        f"{WORDS}:letter_frequency", "let_frequency", "let_relation", {"letter": "letter"}
    ),
    "validate_response_language": _rule("language:response_language", {"language": "language"}),
    "verify_paragraph_count": _paragraphs,
    "validate_word_constraint": _bounded(f"{LENGTH}:number_words", "num_words", "relation"),
    "verify_sentence_constraint": _bounded(f"{LENGTH}:number_sentences", "num_sentences", "relation"),
    "validate_paragraphs": _rule(
        f"{LENGTH}:nth_paragraph_first_word",
        {"N": "num_paragraphs", "i": "nth_paragraph", "first_word": "first_word"},
    ),
    "verify_postscript": _rule(f"{CONTENT}:postscript", {"postscript_marker": "postscript_marker"}),
    "validate_placeholders": _rule(f"{CONTENT}:number_placeholders", {"N": "num_placeholders"}),
    "verify_bullet_points": _rule(f"{FORMAT}:number_bullet_lists", {"N": "num_bullets"}),
    "validate_title": _rule(f"{FORMAT}:title"),
    "validate_choice": _choice,
    "validate_highlighted_sections": _rule(f"{FORMAT}:number_highlighted_sections", {"N": "num_highlights"}),
    "validate_sections": _rule(
        f"{FORMAT}:multiple_sections", {"N": "num_sections", "section_splitter": "section_spliter"}
    ),
    "validate_json_format": _rule(f"{FORMAT}:json_format"),
    "validate_repeat_prompt": _rule("combination:repeat_prompt", {"original_prompt": "prompt_to_repeat"}),
    "validate_two_responses": _rule("combination:two_responses"),
    "validate_uppercase": _rule(f"{CASE}:english_capital"),
    "validate_lowercase": _rule(f"{CASE}:english_lowercase"),
    "validate_frequency_capital_words": _bounded(
        f"{CASE}:capital_word_frequency", "capital_frequency", "capital_relation"
    ),
    "validate_end": _rule("startend:end_checker", {"end_phrase": "end_phrase"}),
    "validate_quotation": _rule("startend:quotation"),
    "validate_no_commas": _rule("punctuation:no_comma"),
}
"""RLVR-IFEval's functions (open-instruct `if_functions.py`) and what they are in IFEval's rules."""
