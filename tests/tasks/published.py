"""Rows in the columns of each published data set, invented here, with a right and a wrong answer."""

import json
from dataclasses import dataclass, field
from typing import Any

NULLS = dict.fromkeys(
    """
    N quantifier end_phrase keyword_list word forbidden_words letter i first_word postscript_marker options
    section_splitter original_prompt language
    """.split()  # noqa: SIM905
)
ARGUMENTS = dict.fromkeys(
    """
    capital_frequency capital_relation end_phrase first_word forbidden_words frequency keyword keywords language
    let_frequency let_relation letter nth_paragraph num_bullets num_highlights num_paragraphs num_placeholders
    num_sections num_sentences num_words postscript_marker prompt_to_repeat relation section_spliter
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Case:
    """A row of `hub:<name>`, whose item has this answer; `right` and `wrong` are completions."""

    name: str
    row: dict[str, Any]
    right: str
    wrong: str
    answer: Any = None
    hidden: tuple[str, ...] = ()
    part: str = ""
    contains: tuple[str, ...] = field(default=())


def fenced(code: str) -> str:
    return f"```python\n{code}\n```"


def boxed(answer: str) -> str:
    return f"Answer: \\boxed{{{answer}}}"


def rlvr(name: str, prompt: str, **arguments: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": prompt}],
        "ground_truth": json.dumps({"func_name": name, **NULLS, **arguments}),
        "dataset": "ifeval",
        "constraint_type": "x",
        "constraint": "y",
    }


def verl(prompt: str, truth: Any, ability: str = "code") -> dict[str, Any]:
    request = "Write Python code to solve the problem. Present the code in \n```python\nYour code\n```\nat the end."
    asked = f"{prompt}\n\n{request}"
    return {
        "data_source": "taco",
        "prompt": [{"role": "system", "content": "[ASSESS] [ADVANCE]"}, {"role": "user", "content": asked}],
        "ability": ability,
        "reward_model": {"ground_truth": json.dumps(truth), "style": "rule"},
        "extra_info": {"index": 7, "split": "train"},
    }


def hotpot(**changes: Any) -> dict[str, Any]:
    return {
        "id": "5a7",
        "question": "In which country is the town where Ada Brook was born?",
        "answer": "Norvania",
        "type": "bridge",
        "level": "hard",
        "supporting_facts": {"title": ["Ada Brook", "Lindby", "Ada Brook"], "sent_id": [0, 1, 1]},
        "context": {
            "title": ["Ada Brook", "Lindby", "Elsewhere"],
            "sentences": [
                ["Ada Brook was born in Lindby.", " She painted."],
                ["Lindby is a town.", " It is in Norvania."],
                ["No."],
            ],
        },
    } | changes


CASES = [
    Case(
        "gsm8k",
        {
            "question": "A crate holds 12 jars. How many jars are in 105 crates?",
            "answer": "105*12=<<105*12=1260>>1260\n#### 1,260",
        },
        boxed("1260"),
        boxed("126"),
        "1260",
        hidden=("<<", "####"),
    ),
    Case(
        "math",
        {
            "problem": "What is half of one third?",
            "level": "Level 2",
            "type": "Prealgebra",
            "solution": "First \\boxed{1}? No: $\\boxed{\\frac{1}{6}}$.",
        },
        boxed("\\frac16"),
        boxed("\\frac13"),
        "\\frac{1}{6}",
        part="prealgebra",
    ),
    Case(
        "math500",
        {
            "problem": "Compute $2^5$.",
            "solution": "It is $\\boxed{32}$.",
            "answer": "32",
            "subject": "Algebra",
            "level": 1,
            "unique_id": "test/algebra/9.json",
        },
        boxed("32"),
        boxed("64"),
        "32",
    ),
    Case(
        "dapo_math",
        {
            "prompt": "Find the sum of the first ten positive integers.",
            "solution": "55",
            "data_source": "math_dapo",
            "source_prompt": [{"role": "user", "content": "Solve ..."}],
            "ability": "MATH",
            "reward_model": {"ground_truth": "55", "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": "9a9b6eb4-a1cb"},
        },
        boxed("55"),
        boxed("45"),
        "55",
    ),
    Case(
        "olympiadbench",
        {
            "id": 2231,
            "question": "Determine the value of $x$.",
            "solution": ["Long."],
            "final_answer": ["$-3$"],
            "context": "Let $2x + 6 = 0$.",
            "image_1": None,
            "modality": "Text-only",
            "difficulty": "Competition",
            "is_multiple_answer": False,
            "unit": None,
            "answer_type": "Numerical",
            "error": None,
            "question_type": "Open-ended",
            "subfield": "Algebra",
            "subject": "Math",
            "language": "English",
        },
        boxed("-3"),
        boxed("3"),
        "-3",
        contains=("Let $2x + 6 = 0$.",),
    ),
    Case(
        "aime_2025",
        {"problem": "Find the remainder of 1000 by 7.", "answer": "6", "id": "0"},
        boxed("6"),
        boxed("5"),
        "6",
    ),
    Case(
        "mbpp",
        {
            "task_id": 601,
            "text": "Write a function to double a number.",
            "code": "def twice(n):\r\n  return 2 * n",
            "test_list": ["assert twice(2) == 4", "assert twice(0) == 0"],
            "test_setup_code": "",
            "challenge_test_list": [],
        },
        fenced("def twice(n):\n    return n + n"),
        fenced("def twice(n):\n    return 4"),
        hidden=("assert twice(0)",),
        contains=("assert twice(2) == 4",),
    ),
    Case(
        "humaneval",
        {
            "task_id": "HumanEval/900",
            "prompt": 'def triple(n: int) -> int:\n    """ Three times n. """\n',
            "canonical_solution": "    return 3 * n\n",
            "test": "def check(candidate):\n    assert candidate(2) == 6\n",
            "entry_point": "triple",
        },
        fenced("    return n + n + n"),
        fenced("    return n"),
        hidden=("return 3 * n", "candidate(2)"),
    ),
    Case(
        "eurus2_code",
        verl("Read a number and print it doubled.", {"inputs": ["2\n", "5\n"], "outputs": ["4\n", "10\n"]}),
        fenced("print(2 * int(input()))"),
        fenced("print(4)"),
        hidden=("at the end.", "[ASSESS]"),
    ),
    Case(
        "eurus2_code",
        verl("Complete addUp().", {"fn_name": "addUp", "inputs": [[1, 2], [[0, 0], 1]][:1], "outputs": [[3]]}),
        fenced("def addUp(a, b):\n    return a + b"),
        fenced("def addUp(a, b):\n    return a"),
    ),
    Case(
        "taco",
        {
            "question": "Print the larger of two numbers.",
            "solutions": "[]",
            "starter_code": "",
            "input_output": json.dumps({"inputs": ["1 2\n"], "outputs": ["2\n"]}),
            "difficulty": "EASY",
            "raw_tags": "[]",
            "name": None,
            "source": "codeforces",
            "tags": "[]",
            "skill_types": "[]",
            "url": "u",
        },
        fenced("print(max(map(int, input().split())))"),
        fenced("print(1)"),
    ),
    Case(
        "taco",
        {
            "question": "Return both ends of a list.",
            "solutions": "[]",
            "starter_code": "class Solution:\n    def ends(self, xs):",
            "input_output": json.dumps({"fn_name": "ends", "inputs": [[[1, 2, 3]]], "outputs": [[1, 3]]}),
            "difficulty": "EASY",
            "source": "leetcode",
        },
        fenced("class Solution:\n    def ends(self, xs):\n        return xs[0], xs[-1]"),
        fenced("class Solution:\n    def ends(self, xs):\n        return xs"),
        contains=("class Solution",),
    ),
    Case(
        "cruxeval",
        {"code": "def f(xs):\n    return xs[::-1]", "input": "[1, 2]", "output": "[2, 1]", "id": "sample_0"},
        "Answer: [2, 1]",
        "Answer: [1, 2]",
        ["[2, 1]"],
        hidden=("[2, 1]",),
    ),
    Case(
        "ifeval",
        {
            "key": 1000,
            "prompt": "Describe rain without any comma, and end with Done.",
            "instruction_id_list": ["punctuation:no_comma", "startend:end_checker"],
            "kwargs": [ARGUMENTS, ARGUMENTS | {"end_phrase": "Done."}],
        },
        "Rain falls. Done.",
        "Rain, falls. Done.",
    ),
    Case(
        "magpie_if",
        {
            "key": 3,
            "prompt": "Write about moss with at least 2 words in capital letters.",
            "instruction_id_list": ["change_case:capital_word_frequency"],
            "kwargs": [ARGUMENTS | {"capital_frequency": 2.0, "capital_relation": "at least"}],
        },
        "MOSS is GREEN.",
        "Moss is green.",
    ),
    Case(
        "rlvr_ifeval",
        rlvr("verify_keyword_frequency", "Write. The word fern should appear 2 times.", word="fern", N=2),
        "A fern is a fern.",
        "fern fern fern",
    ),
    Case(
        "agieval",
        {
            "query": "Q: Four friends queue. Who is last? Answer Choices: (A)Ana (B)Bo (C)Cy (D)Di\n"
            "A: Among A through D, the answer is",
            "choices": ["(A)Ana", "(B)Bo", "(C)Cy", "(D)Di"],
            "gold": [2],
        },
        "ANSWER: C",
        "ANSWER: A",
        "C",
        hidden=("Among A through", "Answer Choices"),
        part="lsat-ar",
    ),
    Case(
        "arc_challenge",
        {
            "id": "MCAS_1",
            "question": "What melts ice?",
            "choices": {"text": ["cold", "heat", "dark", "salt water only"], "label": ["1", "2", "3", "4"]},
            "answerKey": "2",
        },
        "ANSWER: B",
        "ANSWER: A",
        "B",
    ),
    Case(
        "bbh",
        {"input": "Which is first?\nOptions:\n(A) The red one\n(B) The blue one", "target": "(B)"},
        "ANSWER: B",
        "ANSWER: A",
        "B",
        part="hyperbaton",
        hidden=("Options:",),
    ),
    Case(
        "bbh",
        {"input": "Is the argument valid?\nOptions:\n- valid \n- invalid", "target": "invalid"},
        "ANSWER: B",
        "ANSWER: A",
        "B",
        part="formal_fallacies",
    ),
    Case(
        "bbh",
        {"input": "Close the brackets: [ {", "target": "} ]"},
        "Answer: } ]",
        "Answer: ] }",
        ["} ]"],
        part="dyck_languages",
    ),
    Case(
        "gpqa",
        {
            "Question": "Which particle is lightest?",
            "Correct Answer": "electron\n",
            "Incorrect Answer 1": "proton",
            "Incorrect Answer 2": "neutron",
            "Incorrect Answer 3": "muon",
            "Record ID": "rec1",
            "High-level domain": "Physics",
            "Subdomain": "x",
            "Explanation": "y",
        },
        "ANSWER: electron",
        "ANSWER: proton",
    ),
    Case(
        "gpqa_diamond",
        {
            "Question": "Which gas is noble?",
            "Correct Answer": "argon",
            "Incorrect Answer 1": "oxygen",
            "Incorrect Answer 2": "hydrogen",
            "Incorrect Answer 3": "chlorine",
            "Record ID": "rec2",
            "High-level domain": "Chemistry",
        },
        "ANSWER: argon",
        "ANSWER: oxygen",
    ),
    Case(
        "hellaswag",
        {
            "ind": 4,
            "activity_label": "Baking",
            "ctx_a": "x",
            "ctx_b": "y",
            "ctx": "A man opens the oven. [header] How to bake [title] Wait. he",
            "endings": ["takes the bread out.", "paints [step] the wall.", "swims away.", "reads the oven."],
            "source_id": "s",
            "split": "val",
            "split_type": "zeroshot",
            "label": "0",
        },
        "ANSWER: A",
        "ANSWER: D",
        "A",
        hidden=("[header]", "[step]"),
    ),
    Case(
        "logicbench",
        {
            "type": "propositional_logic",
            "axiom": "modus_tollens",
            "samples": [
                {
                    "id": 1,
                    "context": "If it rains, Bo stays. Bo did not stay.",
                    "qa_pairs": [{"question": "Does this entail that it did not rain?", "answer": "yes"}],
                }
            ],
        },
        "ANSWER: Yes",
        "ANSWER: No",
        "A",
        part="BQA-propositional_logic",
    ),
    Case(
        "logicbench",
        {
            "type": "nm_logic",
            "axiom": "default_reasoning",
            "data_samples": [
                {
                    "id": 1,
                    "context": "Cats usually sleep.",
                    "question": "What follows?",
                    "choices": {
                        "choice_1": "Cats fly.",
                        "choice_2": "A cat usually sleeps.",
                        "choice_3": "No.",
                        "choice_4": "Dogs.",
                    },
                    "answer": "choice_2",
                }
            ],
        },
        "ANSWER: B",
        "ANSWER: A",
        "B",
        part="MCQA-nm_logic",
    ),
    Case(
        "medqa",
        {
            "question": "A patient is thirsty. What helps?",
            "answer": "Water",
            "options": {"A": "Sand", "B": "Salt", "C": "Water", "D": "Dust"},
            "meta_info": "step1",
            "answer_idx": "C",
            "metamap_phrases": ["thirst"],
        },
        "ANSWER: C",
        "ANSWER: B",
        "C",
    ),
    Case(
        "mmlu_formal_logic",
        {
            "question": "Which is a tautology?",
            "subject": "formal_logic",
            "choices": ["P", "P and Q", "P or not P", "Q"],
            "answer": 2,
        },
        "ANSWER: C",
        "ANSWER: A",
        "C",
    ),
    Case(
        "mmlu_pro",
        {
            "question_id": 70,
            "question": "Which is prime?",
            "options": ["4", "6", "8", "9", "11", "N/A", "N/A"],
            "answer": "E",
            "answer_index": 4,
            "cot_content": "",
            "category": "math",
            "src": "ori_mmlu-x",
        },
        "ANSWER: E",
        "ANSWER: A",
        "E",
        hidden=("N/A",),
    ),
    Case(
        "mmlu_redux",
        {
            "question": "Which bone is in the leg?",
            "choices": ["femur", "radius", "ulna", "jaw"],
            "answer": 0,
            "error_type": "ok",
            "source": None,
            "correct_answer": None,
            "potential_reason": None,
        },
        "ANSWER: A",
        "ANSWER: B",
        "A",
        part="anatomy",
    ),
    Case(
        "hotpotqa",
        hotpot(),
        "Answer: Norvania",
        "Answer: Lindby",
        ["Norvania"],
        contains=("Lindby is a town. It is in Norvania.",),
    ),
    Case("2wikimultihopqa", hotpot(type="comparison"), "Answer: Norvania", "Answer: Sweden", ["Norvania"]),
    Case(
        "newsqa",
        {
            "context": "OSLO -- A gull stole a sandwich on Monday.",
            "question": "What did the gull steal?",
            "answers": ["a sandwich", "sandwich"],
            "key": "k1",
            "labels": [{"start": [20], "end": [29]}],
        },
        "Answer: sandwich",
        "Answer: a boat",
        ["a sandwich", "sandwich"],
        contains=("A gull stole",),
    ),
    Case(
        "trivia_qa",
        {
            "question": "Which river runs through Lind?",
            "question_id": "tc_1",
            "question_source": "s",
            "entity_pages": {},
            "search_results": {},
            "answer": {
                "value": "River Ysel",
                "aliases": ["Ysel", "River Ysel"],
                "normalized_aliases": ["ysel"],
                "type": "WikipediaEntity",
            },
        },
        "Answer: the Ysel",
        "Answer: Rhine",
        ["River Ysel", "Ysel"],
        hidden=("Ysel",),
    ),
]
