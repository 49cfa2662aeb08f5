"""Answer contracts: what each reader takes out of a text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.tasks.extract import CONTRACTS, boxes

NAMES = sorted(CONTRACTS)
PIECES = [
    "\\boxed{", "{", "}", "\\{", "\\\\", "Answer:", "ANSWER: B", "the answer is ", "\n", "```python\n", "```",
    '{"answer": ', '"', "[", "]", "}", "A", "(B)", "####", " 7", "= 5", ".", " ", "é", "\x00", "```json\n", "**",
    "'", "…", "\r",
]  # fmt: skip
texts = st.one_of(st.text(max_size=300), st.lists(st.sampled_from(PIECES), max_size=60).map("".join))


def read(name: str, text: str) -> str | None:
    return CONTRACTS[name].extract(text)


def test_each_contract_knows_its_name_and_asks_for_what_it_reads():
    assert all(contract.name == name for name, contract in CONTRACTS.items())
    assert set(NAMES) >= {"boxed", "letter", "json", "fence", "answer", "text", "raw"}
    assert r"Answer: \boxed{" in CONTRACTS["boxed"].suffix
    assert "ANSWER: X" in CONTRACTS["letter"].suffix
    assert CONTRACTS["answer"].prefill == "Answer:"
    assert CONTRACTS["raw"].suffix == CONTRACTS["raw"].prefill == ""


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(text=texts)
def test_readers_take_any_text(name, text):
    found = read(name, text)
    assert found is None or (isinstance(found, str) and found.strip())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "piece",
    ["\\boxed{", "{", '{"answer": [', "[", "answer: ", "```\n", " ", "\\", '"answer":"\\', "A, ", "= ", "_", ". "],
)
def test_readers_take_long_hostile_texts(name, piece):
    read(name, piece * (200_000 // len(piece)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["", "   ", "\n\t\n"])
def test_nothing_is_no_answer(name, text):
    """G4."""
    assert read(name, text) is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{\frac12}", r"\frac12"),
        (r"\boxed{\text{(A)}}", r"\text{(A)}"),
        (r"\boxed{\{1, \{2, 3\}\}}", r"\{1, \{2, 3\}\}"),
        (r"\boxed{\left\{ x \mid x > 0 \right\}}", r"\left\{ x \mid x > 0 \right\}"),
        (r"in \boxed form. So \boxed{42}", "42"),
        (r"\boxed{1} and then \boxed{2}", "2"),
        (r"\boxed{7} and then \boxed{8", "7"),
        (r"\boxed {5}", "5"),
        (r"\boxed{\boxed{5}}", r"\boxed{5}"),
        (r"write \boxed{...} at the end. \boxed{3}", "3"),
        (r"the form Answer: \boxed{...}", None),
        (r"\boxed{}", None),
        (r"{ an open brace, \boxed{6}", "6"),
        ("42", None),
    ],
)
def test_boxed_is_the_last_complete_balanced_box(text, answer):
    """G1, G2."""
    assert read("boxed", text) == answer


def test_all_boxes_are_found_in_order():
    assert boxes(r"\boxed{1}, \boxed{\frac{2}{3}}, \boxed{}, \boxed{1}") == ["1", r"\frac{2}{3}", "1"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Because of this.\nANSWER: C", "C"),
        ("ANSWER: A\nNo, wait.\nANSWER: B", "B"),
        ("answer: (b)", "B"),
        ("**Answer: D**", "D"),
        ("**ANSWER:** D. Paris", "D"),
        ("ANSWER:\n\nE", "E"),
        ("ANSWER: B\nANSWER:", "B"),
        (r"ANSWER: \boxed{\text{(C)}}", "C"),
        (r"So \boxed{C}", "C"),
        ("A", "A"),
        ("(A)", "A"),
        ("A.", "A"),
        ("The answer is A.", "A"),
        ("The correct answer is option B, since A is too small.", "B"),
        ("(B) because (A) is wrong", "B"),
        ("B because A is wrong", "B"),
        ("I think option C fits best and the others do not.", "C"),
        ("reasoning\nmore reasoning\nB", "B"),
        ("ANSWER: Paris", "Paris"),
        ("ANSWER: A and B", "A and B"),
    ],
)
def test_letter_takes_the_last_marker_in_several_forms(text, answer):
    """G7, G13."""
    assert read("letter", text) == answer


@pytest.mark.parametrize(
    "text", ["A train leaves at noon.\nIt is late.", "### Step 1\nWe look at it.", "I do not know.\n\nSorry"]
)
def test_an_article_or_a_heading_is_no_option(text):
    """G13."""
    assert read("letter", text) is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('{"answer": "Paris"}', "Paris"),
        ('```json\n{"answer": "Paris"}\n```', "Paris"),
        ('Sure!\n```\n{"answer": "Paris"}\n```\nDone.', "Paris"),
        ('Here: {"answer": "Paris"} as asked {unclear}', "Paris"),
        ('first {"answer": "Rome"}, no: {"answer": "Paris"}', "Paris"),
        ('{"answer": "use ```python\\nx\\n``` here"}', "use ```python\nx\n``` here"),
        ('{"answer": "a {b} c", "why": {"deep": 1}}', "a {b} c"),
        ('{"answer": "line\nbreak"}', "line\nbreak"),
        ('{"answer": 42}', "42"),
        ('{"answer": true}', "True"),
        ('{"answer": [1, "a"]}', "[1, 'a']"),
        ('{"answer": "Par\\u00eds", "note": "cut of', "París"),
        ('{"answer": ""}', None),
        ('{"answer": null}', None),
        ('{"reply": "Paris"}', None),
        ("Paris", None),
    ],
)
def test_json_is_read_as_it_stands_then_from_fences_then_from_objects(text, answer):
    """G14, G15."""
    assert read("json", text) == answer


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nx = 1\n```", "x = 1"),
        ("```python\nx = 1\n```\nBetter:\n```python\nx = 2\n```\n", "x = 2"),
        ("```python\nx = 1\n```\nIt prints\n```\n1\n```", "x = 1"),
        ("```bash\nls\n```\n```py\nx = 1\n```", "x = 1"),
        ("```\nx = 1\n```", "x = 1"),
        ("  ```python\n  if x:\n      y\n  ```", "if x:\n    y"),
        ("~~~python\nx = '''```'''\n~~~", "x = '''```'''"),
        ("```python\nx = 1\n", "x = 1"),
        ("x = 1\ny = 2", "x = 1\ny = 2"),
        ("```text\nhello\n```", "```text\nhello\n```"),
    ],
)
def test_fence_is_the_last_python_block_else_everything(text, code):
    assert read("fence", text) == code


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" 56", "56"),
        ("56\nQuestion: 2 + 2\nAnswer: 4", "56"),
        ("\n\n 'hello'.", "hello"),
        ('"Paris."', "Paris"),
        ("Answer: 7", "7"),
        (" Answer:\nAnswer: 7.", "7"),
        ("The final answer is: 7.", "7"),
        ("3.5", "3.5"),
        ("**12**", "12"),
        ("'a' + 'b'", "'a' + 'b'"),
        ("[1, 2]", "[1, 2]"),
        ("Yes.", "Yes"),
    ],
)
def test_short_answers_are_the_first_line_after_the_prefill(text, answer):
    assert read("answer", text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("the answer is 3. But the answer is 5.", "5"),
        (r"The answer is 4. \boxed{5}", "5"),
        ("We add.\n#### 1,234", "1,234"),
        ("Answer: **3.5**. That is all.", "3.5"),
        ("First 7 * 8, which is\n7 * 8 = 56.", "56"),
        ("Paris.", "Paris"),
        ("The final answer is $x=2$.", "$x=2$"),
        ("A long story.\nIt has no answer in it.", None),
        ("### Step 1\nAdd the numbers", None),
    ],
)
def test_lenient_reading_of_free_text(text, answer):
    """G13."""
    assert read("text", text) == answer


def test_raw_is_everything():
    assert read("raw", " a\nb ") == "a\nb"
