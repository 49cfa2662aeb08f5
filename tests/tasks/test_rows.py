"""One's own data: short rows and CSV become whole items, and what is not clear is asked for in one line."""

import json

import pytest

from coterie.errors import DataError
from coterie.tasks.catalog import load_task, verify
from coterie.tasks.data import check, check_all
from coterie.tasks.rows import Reading, read_rows


def jsonl(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def table(path, text):
    path.write_text(text, encoding="utf-8")
    return path


# --- short rows ---------------------------------------------------------------------------------------


def test_a_question_and_an_answer_are_enough(tmp_path):
    file = jsonl(
        tmp_path / "mine.jsonl",
        {"question": "What is 6 * 7?", "answer": 42},
        {"question": "Half of 3?", "answer": "1.5"},
    )
    first, second = read_rows(file)
    assert (first.task, first.answer, first.source) == ("math", "42", "mine")
    assert first.id.startswith("mine-")
    assert first.id != second.id
    assert read_rows(file)[0].id == first.id
    (query, _) = load_task(str(file)).queries
    assert verify("So \\boxed{42}.", query).verdict == "pass"


@pytest.mark.parametrize(
    ("row", "task"),
    [
        ({"answer": 5}, "math"),
        ({"answer": "1,200"}, "math"),
        ({"answer": ["a", "b"]}, "qa"),
        ({"answer": "A", "choices": ["x", "y"]}, "choice"),
        ({"tests": ["assert f(1) == 1"], "fn_name": "f"}, "code_function"),
        ({"tests": [{"input": "1", "output": "1"}]}, "code_stdio"),
        ({"instruction_id_list": ["punctuation:no_comma"], "instruction_kwargs": [{}]}, "instruction"),
        ({}, "chat"),
    ],
)
def test_the_kind_is_guessed_where_only_one_is_possible(tmp_path, row, task):
    (item,) = read_rows(jsonl(tmp_path / "mine.jsonl", {"question": "?", **row}))
    assert item.task == task


@pytest.mark.parametrize("answer", ["Paris", "x + 1", "", "true"])
def test_a_text_could_be_two_kinds_and_is_asked_for(tmp_path, answer):
    file = jsonl(tmp_path / "mine.jsonl", {"question": "?", "answer": answer})
    with pytest.raises(
        DataError, match=r"mine\.jsonl:1: the kind of task is not clear: .* --kind math or --kind qa"
    ):
        read_rows(file)
    assert read_rows(file, reading=Reading(kind="qa"))[0].task == "qa"


def test_what_a_row_says_comes_before_what_was_given(tmp_path):
    rows = [
        {"question": "1?", "answer": "1", "task": "math", "id": "x", "source": "s"},
        {"question": "2?", "answer": "two"},
    ]
    first, second = read_rows(jsonl(tmp_path / "mine.jsonl", *rows), reading=Reading(kind="qa"))
    assert (first.task, first.id, first.source, second.task) == ("math", "x", "s", "qa")


def test_a_domain_groups_the_results(tmp_path):
    file = jsonl(tmp_path / "mine.jsonl", {"question": "1?", "answer": 1, "domain": "billing"})
    assert load_task(str(file)).queries[0].domain == "billing"


@pytest.mark.parametrize(("answer", "letter"), [("B", "B"), ("blue", "B"), (" blue ", "B"), ("a", "A")])
def test_the_right_option_is_given_by_letter_or_text(tmp_path, answer, letter):
    row = {"question": "?", "answer": answer, "choices": ["red", "blue"]}
    assert read_rows(jsonl(tmp_path / "mine.jsonl", row))[0].answer == letter


def test_an_option_by_number_may_count_from_0_or_1(tmp_path):
    row = {"question": "?", "answer": 1, "choices": ["red", "blue"]}
    with pytest.raises(DataError, match="the answer 1 may count options from 0 or from 1; give its letter"):
        read_rows(jsonl(tmp_path / "mine.jsonl", row))


def test_the_same_question_twice_is_told_with_its_line(tmp_path):
    file = jsonl(tmp_path / "mine.jsonl", {"question": "1?", "answer": 1}, {"question": "1?", "answer": 1})
    with pytest.raises(DataError, match=r"mine\.jsonl:2: id 'mine-\w+' is already on line 1"):
        read_rows(file)


def test_all_keys_that_miss_are_named_at_once(tmp_path):
    """Not one at a time, so that a file is mended in one go."""
    rows = [{"answer": "1"}, {"context": [{}], "question": "?", "answer": 1}, {"qestion": "?", "asnwer": "1"}]
    messages = [problem.message for problem in check(jsonl(tmp_path / "mine.jsonl", *rows)).problems]
    assert messages == [
        "keys 'id', 'source', 'task' and 'question' are missing",
        "keys 'context.0.title' and 'context.0.text' are missing",
        "unknown key 'qestion'; did you mean 'question'?; unknown key 'asnwer'; did you mean 'answer'?;"
        " keys 'id', 'source' and 'task' are missing",
    ]


# --- CSV ----------------------------------------------------------------------------------------------


def test_a_table_of_options_in_columns_or_as_json(tmp_path):
    text = 'question,A,B,C,answer\n"Which, then?",red,blue,,blue\nAnd now?,one,two,three,C\n'
    first, second = read_rows(table(tmp_path / "mine.csv", text))
    assert (first.question, first.choices, first.answer) == ("Which, then?", ["red", "blue"], "B")
    assert (second.choices, second.answer) == (["one", "two", "three"], "C")
    listed = 'question,choices,answer\nWhich?,"[""red"", ""blue""]",A\n'
    assert read_rows(table(tmp_path / "two.csv", listed))[0].choices == ["red", "blue"]


def test_a_table_with_a_mark_crlf_and_several_lines_in_a_field(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_bytes('\ufeffquestion,answer,domain\r\n"Two\r\nlines?",2,a\r\n\r\nOne?,1,\r\n'.encode())
    first, second = read_rows(path)
    assert first.question == "Two\r\nlines?"
    assert (second.answer, second.meta) == ("1", {})
    with pytest.raises(DataError, match=r"mine\.csv:5: the kind of task"):
        read_rows(table(path, 'question,answer\n"a\nb?",1\nc?,1\nd?,word\n'))


def test_tabs_and_accepted_answers_as_json(tmp_path):
    (item,) = read_rows(table(tmp_path / "mine.tsv", 'question\tanswer\nWho?\t["Ada", "Ada L."]\n'))
    assert (item.task, item.answer) == ("qa", ["Ada", "Ada L."])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "question,anser\n1?,1\n",
            r":2: unknown column 'anser'; did you mean 'answer'\?; name what it is \(--column answer=anser\)",
        ),
        ("question,answer\n1?,1,2\n", ":2: 3 fields where 2 are due"),
        ("question,question\n1?,1\n", ":1: the first line must name every column once"),
        ("", ":1: the first line must name every column once"),
        ("question,A,C,answer\n1?,x,y,A\n", ":2: options A, C leave out a letter of A, B"),
        ('question,choices,answer\n1?,"[x",A\n', ":2: column 'choices': not valid JSON"),
        ('question,answer\n"1?,1\n', ":2: cannot be read"),
    ],
)
def test_a_bad_table_is_named_with_file_and_line(tmp_path, text, said):
    with pytest.raises(DataError, match=rf"mine\.csv{said}") as error:
        read_rows(table(tmp_path / "mine.csv", text))
    assert "\n" not in str(error.value)


def test_columns_of_other_names_are_mapped_and_others_left_out(tmp_path):
    path = table(tmp_path / "mine.csv", "prompt,gold,notes,answer\nWho?,Ada,x,wrong\n")
    reading = Reading(kind="qa", columns={"question": "prompt", "answer": "gold"}, ignore=("notes",))
    (item,) = read_rows(path, reading=reading)
    assert (item.question, item.answer) == ("Who?", "Ada")
    named = load_task(f"{path}?kind=qa&question=prompt&answer=gold&ignore=notes")
    assert named.queries[0].reference["answers"] == ["Ada"]
    assert named.name.endswith("/mine")
    with pytest.raises(DataError, match="there is no column 'golden'; did you mean 'gold'"):
        read_rows(path, reading=Reading(columns={"answer": "golden"}, ignore=("notes", "prompt")))
    with pytest.raises(DataError, match="unknown column 'anwser' of an item; did you mean 'answer'"):
        read_rows(path, reading=Reading(columns={"anwser": "gold"}))


def test_short_json_rows_are_mapped_too(tmp_path):
    path = jsonl(tmp_path / "mine.jsonl", {"prompt": "1?", "gold": 1, "notes": "x"})
    reading = Reading(columns={"question": "prompt", "answer": "gold"}, ignore=("notes",))
    assert read_rows(path, reading=reading)[0].answer == "1"


# --- checking -----------------------------------------------------------------------------------------


def test_tables_are_checked_as_json_lines_are(tmp_path):
    path = table(tmp_path / "mine.csv", "question,A,B,answer\n1?,x,y,C\n2?,x,y,A\n2?,y,x,B\n3?,x,,A\n")
    report = check(path)
    assert [(problem.line, problem.message) for problem in report.problems] == [
        (2, "the answer 'C' is not the letter of an option (A to B)"),
        (4, "the question is already in mine.csv:3"),
        (5, "fewer than two options, too many, or an empty one"),
    ]
    assert check(tmp_path).items == 4


def test_one_question_in_two_splits_is_found_across_folders_and_tasks(tmp_path):
    """The same item under another task, case, order of options: a test item among the training items."""
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    options = {"choices": ["red", "blue"], "answer": "A"}
    train = jsonl(
        tmp_path / "one" / "train.jsonl",
        {"question": "Which  colour is it?", **options},
        {"question": "1?", "answer": 1},
    )
    turned = {"choices": ["Blue", "RED"], "answer": "B"}
    test = table(tmp_path / "two" / "test.csv", "question,A,B,answer\nWhich colour is it,Blue,RED,B\n")
    same = jsonl(tmp_path / "three" / "train.jsonl", {"question": "which colour is it?", **turned})
    reports = check_all([str(train), str(test), str(same)])
    assert [problem.message for problem in reports[1].problems] == [f"the question is already in {train}:1"]
    assert [problem.message for problem in reports[2].problems] == [f"the question is already in {test}:2"]
    assert check_all([str(train), str(same)])[1].problems == ()


# --- what could not be written again ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (r'"question": "a\ud800", "answer": 1', "half of a character"),
        (r'"question": "a", "answer": 1, "meta": {"\uDFFF": 1}', "half of a character"),
        (r'"question": "a", "answer": 1, "meta": {"x": 1e400}', "beyond"),
        ('"question": "a", "answer": 1, "meta": {"x": ' + "[" * 300 + "]" * 300 + "}", "levels deep"),
        ('"question": "a", "answer": ' + "[" * 100_000 + "]" * 100_000, "not valid JSON"),
    ],
)
def test_a_row_that_could_not_be_written_again_is_named_by_line(tmp_path, text, says):
    """What reads must convert: the check finds it, and reading stops at it."""
    path = table(tmp_path / "mine.jsonl", '{"question": "b", "answer": 2}\n{' + text + "}\n")
    with pytest.raises(DataError, match=rf"mine\.jsonl:2: .*{says}"):
        read_rows(path)
    (problem,) = check(path).problems
    assert (problem.line, says in problem.message) == (2, True)


def test_an_escaped_backslash_and_a_pair_of_halves_are_text(tmp_path):
    path = table(tmp_path / "m.jsonl", r'{"question": "\\ud800 \ud83d\ude00", "answer": 2}' + "\n")
    assert read_rows(path)[0].question == "\\ud800 \U0001f600"


def test_a_long_question_in_a_table_is_read(tmp_path):
    path = table(tmp_path / "mine.csv", "question,answer\n" + "x" * 200_000 + ",1\n")
    assert len(read_rows(path)[0].question) == 200_000


@pytest.mark.parametrize("rows", ["", "1 + 1,2\n"])
@pytest.mark.parametrize(
    ("reading", "says"),
    [
        (Reading(kind="mahts"), "unknown task 'mahts'"),
        (Reading(ignore=("nope",)), "there is no column 'nope'"),
        (Reading(columns={"id": "nope"}), "there is no column 'nope'"),
    ],
)
def test_an_unknown_name_is_an_error_also_without_rows(tmp_path, rows, reading, says):
    path = table(tmp_path / "mine.csv", f"question,answer\n{rows}")
    for read in (read_rows, check):
        with pytest.raises(DataError, match=says):
            read(path, reading=reading)


def test_a_column_to_ignore_may_be_in_one_of_several_files(tmp_path):
    files = [
        table(tmp_path / "train.csv", "question,answer,note\n1 + 1,2,x\n"),
        jsonl(tmp_path / "test.jsonl", {"question": "3", "answer": 3}),
    ]
    assert not any(report.problems for report in check_all(list(map(str, files)), Reading(ignore=("note",))))
