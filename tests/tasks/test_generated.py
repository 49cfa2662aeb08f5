"""reasoning-gym data sets: different questions, disjoint splits, verdicts that cannot be talked into a pass."""

import json
from itertools import islice

import pytest

from coterie.errors import UserError
from coterie.tasks import generated
from coterie.tasks.generated import datasets, disjoint_split, reasoning_gym_queries, same, stream, verify
from coterie.tasks.guard import ALGEBRA, ARITHMETIC, COMPARED, EVALUATED, REGRADED, unfit
from coterie.tasks.worker import Crew

pytest.importorskip("reasoning_gym")

HOSTILE = [
    "__import__('os').system('touch HACKED')",
    "().__class__",
    "9**9**9**9",
    "(" * 5_000,
    "[i for i in [1]]",
    "1e99999999",
    "\x00",
]


def reference(dataset, index=0, **config):
    queries = islice(stream(dataset, 0, config, "answer"), index, None)
    return json.loads(json.dumps(next(queries).reference))


# --- making -------------------------------------------------------------------------------------------


def test_queries_hold_what_grading_needs_and_hide_the_answer():
    (query,) = reasoning_gym_queries("chain_sum", 1, 0, {"min_terms": 4, "max_terms": 4})
    assert query.task == "reasoning_gym"
    assert query.metadata == {"source": "reasoning_gym", "domain": "chain_sum"}
    assert query.messages[-1].content == "Answer:"
    assert set(query.reference) == {"answer", "dataset", "config", "entry"}
    assert query.reference["answer"] not in "".join(message.content for message in query.messages)
    assert json.loads(json.dumps(query.reference)) == query.reference


def test_equal_arguments_give_equal_queries_and_seeds_differ():
    """reasoning-gym's item i of seed s is item 0 of seed s + i: seeds 0 and 1 would share all but one question."""
    first, again, other = (reasoning_gym_queries("chain_sum", 30, seed) for seed in (0, 0, 1))
    assert first == again
    assert len({query.id for query in first + other}) > 55


def test_a_contract_writes_the_prompt():
    (query,) = reasoning_gym_queries("lcm", 1, 0, contract="boxed")
    assert query.contract == "boxed"
    assert query.messages[-1].role == "user"
    assert "boxed" in query.text


@pytest.mark.parametrize(("dataset", "config"), [("chain_sum", {"max_terms": 2}), ("letter_counting", None)])
def test_train_and_test_share_no_question(dataset, config):
    train, test = disjoint_split(dataset, 40, 20, 7, config)
    assert (len(train), len(test)) == (40, 20)
    questions = [query.text for query in train + test]
    assert len(set(questions)) == 60


def test_a_pool_that_is_too_small_is_one_clear_line():
    """Small pools; train and test would overlap."""
    config = {"min_n": 1, "max_n": 8}
    train, test = disjoint_split("count_bits", 5, 3, 0, config)
    assert len({query.text for query in train + test}) == 8
    with pytest.raises(
        UserError, match=r"count_bits has only about 8 different questions .* 9 are needed"
    ) as error:
        disjoint_split("count_bits", 5, 4, 0, config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("dataset", "config", "said"),
    [
        ("chain_sums", {}, "unknown data set reasoning_gym:chain_sums; did you mean 'chain_sum'"),
        ("composite", {}, "unknown data set reasoning_gym:composite"),
        ("chain_sum", {"min_term": 2}, "unknown parameter 'min_term'; did you mean 'min_terms'"),
        ("chain_sum", {"seed": 2}, "unknown parameter 'seed'"),
        ("chain_sum", {"min_terms": 9, "max_terms": 2}, "do not fit"),
        ("chain_sum", {"min_terms": "two"}, "do not fit"),
    ],
)
def test_a_wrong_name_or_parameter_is_one_clear_line(dataset, config, said):
    with pytest.raises(UserError, match=said) as error:
        reasoning_gym_queries(dataset, 1, 0, config)
    assert "\n" not in str(error.value)


# --- grading ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", datasets())
def test_every_data_set_grades_its_own_answers_and_nothing_else(dataset):
    """The gold passes, after JSON too; junk and hostile text fail; nothing is printed, run or raised."""
    for index in range(2):
        table = reference(dataset, index)
        if isinstance(table["answer"], str):
            assert verify(table["answer"], "", table).verdict == "pass"
            assert verify(f" {table['answer']}\n", "", table).value == 1.0
        for junk in ("zzz", "nan", "{}", "[[1], 2]", "-", "x" * 3_000, *HOSTILE):
            score = verify(junk, junk, table)
            assert (score.verdict, score.value < 0.999) == ("fail", True), junk
        assert verify(None, "", table).value == verify(" ", " ", table).value == 0.0


@pytest.mark.parametrize("dataset", sorted({"arc_agi", "rearc", "codeio", "gsm_symbolic", "acre", "n_queens"}))
def test_the_scorer_itself_takes_the_gold_from_a_written_trace(dataset):
    """Tuples and fractions become lists and text in JSON; arc_agi and rearc would score their gold 0.05."""
    table = reference(dataset)
    entry = generated._frozen(table["entry"]) if dataset in generated.TUPLES else table["entry"]
    assert generated._scorer(dataset, "{}").score_answer(table["answer"], entry) >= 0.999


def test_hostile_answers_run_nothing(tmp_path, monkeypatch, capfd):
    """string_insertion and others `eval` answers; countdown and others give them to sympy's parser."""
    monkeypatch.chdir(tmp_path)
    for dataset in sorted(EVALUATED | ARITHMETIC | ALGEBRA):
        for text in HOSTILE:
            assert verify(text, text, reference(dataset)).verdict == "fail"
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("dataset", "text", "fits"),
    [
        ("countdown", "(84 - 5) * 2 / 3", True),
        ("countdown", "2**9", False),
        ("countdown", "2* *9", False),
        ("countdown", "f(2)", False),
        ("string_insertion", "['A', 'B']", True),
        ("string_insertion", "A B C", True),
        ("string_insertion", "print('A')", False),
        ("simple_integration", "x**3/3 + 2*x - 5*x**2/2 + C", True),
        ("intermediate_integration", "exp(2*x)*sin(x)/5 + sqrt(x) + C", True),
        ("simple_integration", "x.__class__", False),
        ("simple_integration", "exec('1')", False),
        ("simple_integration", "((9**99)**99)**99", False),
        ("simple_integration", "9**(9**9)", False),
        ("simple_integration", "factorial(99999)", False),
        ("simple_integration", "x + 1e-99999999", False),
        ("complex_arithmetic", "nan + nani", False),
        ("chain_sum", "anything at all", True),
        ("chain_sum", "x" * 30_000, False),
    ],
)
def test_what_may_reach_a_scorer(dataset, text, fits):
    assert (unfit(dataset, text) == "") is fits


def test_equivalent_answers_pass_by_the_data_sets_own_scorer():
    products = reference("products", 0)
    assert verify(f"{products['answer']}.0", "", products).verdict == "pass"
    integral = reference("simple_integration")
    assert verify(integral["answer"].replace(" + C", " + 7"), "", integral).verdict == "pass"
    assert verify(f"2*({integral['answer']})", "", integral).verdict == "fail"


def test_partial_scores_are_values_and_not_passes():
    table = reference("tower_of_hanoi")
    moves = table["answer"].splitlines()
    longer = "\n".join([moves[0], moves[0].replace("from", "FROM"), *moves])
    assert verify(moves[0], "", table).verdict == "fail"
    assert verify(moves[0], "", table).value == pytest.approx(0.05)
    assert verify(longer, "", table).verdict == "fail"


def test_answers_without_a_gold_text_are_scored():
    """propositional_logic and three others have no answer field."""
    table = reference("propositional_logic")
    assert table["answer"] is None
    assert verify(table["entry"]["metadata"]["example_answer"], "", table).verdict == "pass"
    assert verify("None", "None", table).verdict == "fail"


def test_the_scorer_is_the_one_of_the_querys_parameters():
    """puzzle24's scorer reads the allowed range of numbers from the configuration."""
    table = reference("chain_sum", min_terms=2, max_terms=2)
    assert table["config"] == {"min_terms": 2, "max_terms": 2}
    assert verify(table["answer"], "", {**table, "config": {"min_term": 2}}).verdict == "pass"
    wrong = verify("1000000", "", {**table, "config": {"min_term": 2}})
    assert (wrong.verdict, wrong.value) == ("error", None)


@pytest.mark.parametrize("change", [{"dataset": "none"}, {"entry": None}, {"dataset": None}])
def test_a_malformed_reference_is_an_error(change):
    score = verify("7", "7", {**reference("chain_sum"), "answer": "8", **change})
    assert (score.verdict, score.value) == ("error", None)


def test_a_scorer_that_fails_on_everything_is_an_error_and_one_answer_is_not():
    table = reference("prime_factorization")
    assert verify("two times three", "", table).verdict == "fail"
    broken = verify("2 × 3", "", {**table, "entry": {"question": "?", "metadata": {}}})
    assert (broken.verdict, broken.value) == ("error", None)
    assert "the scorer fails" in broken.reason


@pytest.mark.parametrize(
    ("dataset", "entry", "right", "wrong"),
    [
        ("game_of_life_halting", {"answer": "False"}, ["False", "false."], ["True", "x", "0"]),
        (
            "coin_flip",
            {"answer": "0.015625"},
            ["1/64", "0.0156", "0.01562"],
            ["0", "0.0", "0.01", "1", "x", "1/0", "1e-99999999"],
        ),
        (
            "puzzle24",
            {"answer": "4*1*6/1", "metadata": {"numbers": [4, 1, 1, 6]}},
            ["(4*6)*1*1", "6/1*4*1"],
            ["8 + 9 - 3 + 10", "4*6", "4*6 + 1/(1+1)", "4+1+1+6", "46 - 11", "4*6/(1-1)"],
        ),
    ],
)
def test_data_sets_whose_own_scorer_passes_wrong_answers_are_graded_here(dataset, entry, right, wrong):
    table = {"answer": entry["answer"], "dataset": dataset, "config": {}, "entry": entry}
    assert dataset in REGRADED
    assert [verify(text, text, table).verdict for text in right] == ["pass"] * len(right)
    assert [verify(text, text, table).value for text in wrong] == [0.0] * len(wrong)


def test_same_answers_differ_in_space_only():
    assert same("1 2\n3", "1  2 3")
    assert not same("A", "a")


# --- scorers that need a clock ------------------------------------------------------------------------

ENDLESS = "(" + "+".join(f"sin({n}*x)*cos({n + 1}*x)" for n in range(1, 20)) + ")**9"
"""Plain algebra of 367 characters that sympy simplifies for hours."""


@pytest.fixture
def no_child(monkeypatch):
    def refuse():
        raise AssertionError("a child was asked")

    monkeypatch.setattr(generated, "scorers", refuse)


@pytest.mark.parametrize("dataset", ["chain_sum", "products", "letter_counting", "isomorphic_strings"])
def test_comparing_scorers_start_no_child(no_child, dataset):
    table = reference(dataset)
    assert verify("no such thing", "", table).verdict == "fail"
    assert verify(f"It is {table['answer']}.", "", table).verdict == "fail"


def test_equal_text_and_unfit_answers_start_no_child(no_child):
    table = reference("simple_integration")
    assert verify(f" {table['answer']} ", "", table).verdict == "pass"
    assert verify("exec('1')", "", table).verdict == "fail"
    assert verify("x", "", {**table, "dataset": "none"}).verdict == "error"


def test_what_runs_here_is_known_by_name():
    """A scorer that evaluates, parses or searches must not be among those that only compare."""
    assert set(datasets()) >= COMPARED
    assert not [name for name in EVALUATED | ARITHMETIC | ALGEBRA if generated.compares(name)]
    assert not generated.compares("propositional_logic")
    assert generated.compares("gcd")


def test_a_scorer_without_end_is_an_error_and_the_next_answer_is_scored(monkeypatch):
    """G9: sympy cannot be interrupted from inside; the clock outside ends its process."""
    crew = Crew("coterie.tasks.generated:scorer", 1, 4.0)
    monkeypatch.setattr(generated, "scorers", lambda: crew)
    table = reference("simple_integration")
    assert unfit("simple_integration", ENDLESS) == ""
    assert verify(table["answer"].replace(" + C", " + 7"), "", table).verdict == "pass"
    (first,) = crew.alive
    score = verify(ENDLESS, "", table)
    assert (score.verdict, score.value, score.reason) == ("error", None, "no decision within 4 s")
    assert first.process.poll() is not None
    assert verify("x", "", table).verdict == "fail"
    crew.close()


def test_a_reference_that_is_no_json_is_an_error():
    table = reference("simple_integration")
    score = verify("x", "", {**table, "config": {"min_terms": {1, 2}}})
    assert (score.verdict, score.value) == ("error", None)
