"""The code verifiers: verdicts, values, what tests may pass to a solution and get from it, and all of the data."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from coterie.errors import SandboxError
from coterie.tasks import code, sandbox
from coterie.tasks.code import verify_function, verify_stdio
from coterie.tasks.sandbox import Sandbox
from coterie.tasks.trials import Trial

DOUBLE = "def f(x):\n    return x * 2"
NO_TESTS = [{}, {"tests": []}, {"tests": None}, {"tests": [""]}, {"tests": [3]}, {"tests": "assert f(1) == 2"}]


def about(*tests, setup="", name="f", **more):
    return {"tests": list(tests), "test_setup": setup, "fn_name": name, **more}


def passes(answer, *tests, **more):
    return verify_function(answer, "", about(*tests, **more)).verdict == "pass"


def test_value_is_the_fraction_and_pass_is_all():
    score = verify_function(DOUBLE, "", about("assert f(1) == 2", "assert f(2) == 5", "assert f(3) == 6"))
    assert (score.verdict, round(score.value, 3), score.answer) == ("fail", 0.667, DOUBLE)
    assert score.reason.startswith("2 of 3 tests passed; test 2: assertion is false")
    whole = verify_function(DOUBLE, "", about("assert f(1) == 2"))
    assert (whole.verdict, whole.value, whole.reason) == ("pass", 1.0, "")


@pytest.mark.parametrize("answer", [None, "", "  \n"])
def test_no_code_fails(answer):
    for verify, tests in ((verify_function, ["assert f(1) == 2"]), (verify_stdio, [{"input": "", "output": "2"}])):
        score = verify(answer, "no block here", {"tests": tests})
        assert (score.verdict, score.value, score.reason) == ("fail", 0.0, "no code")


@pytest.mark.parametrize("reference", NO_TESTS)
@pytest.mark.parametrize("verify", [verify_function, verify_stdio])
def test_nothing_to_test_is_an_error(verify, reference):
    """docs/faults.md, sandbox, verl#7853: an empty list of tests is not passed by all."""
    score = verify(DOUBLE, "", reference)
    assert (score.verdict, score.value) == ("error", None)


def test_a_program_that_should_print_nothing_is_an_error():
    """docs/faults.md, sandbox: doing nothing must not pass."""
    assert verify_stdio("pass", "", {"tests": [{"input": "1", "output": " \n"}]}).verdict == "error"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("def g(x): return 2", "does not define f"),
        ("def f(x) return 2", "SyntaxError"),
        ("import nowhere_to_be_found\ndef f(x): return 2", "nowhere_to_be_found"),
        ("def f(x):\n    import nowhere_to_be_found", "ModuleNotFoundError"),
        ("def f(x): return y", "NameError"),
        ("def f(): return 2", "TypeError"),
        ("def f(x):\n    raise AssertionError", "AssertionError"),
        ("f = 2", "not callable"),
        ("I think that the answer is 2.", "SyntaxError"),
        ("\0", "null bytes"),
        ("def f(x): return '\ud800'", "surrogates"),
    ],
)
def test_bad_code_fails_with_a_reason(answer, reason):
    score = verify_function(answer, "", about("assert f(1) == 2"))
    assert (score.verdict, score.value) == ("fail", 0.0)
    assert reason in score.reason


@pytest.mark.parametrize(
    ("tests", "setup"),
    [
        (["assert f(1) == "], ""),
        (["import nowhere_to_be_found"], ""),
        (["assert f(1) == 2"], "import nowhere_to_be_found"),
        (["class Own: pass\nassert f(Own()) == 2"], ""),
    ],
)
def test_tests_that_are_at_fault_are_an_error(tests, setup):
    """R23, R24: the grader's own trouble is no wrong answer."""
    score = verify_function(DOUBLE, "", about(*tests, setup=setup))
    assert (score.verdict, score.value) == ("error", None)
    assert score.reason


def test_a_sandbox_that_fails_is_an_error(monkeypatch):
    """R23, R24: never a zero."""
    real = sandbox.chosen()
    monkeypatch.setattr(code, "chosen", lambda: Sandbox(level=real.level, fault="self-test, a known pass: no"))
    score = verify_function(DOUBLE, "", about("assert f(1) == 2"))
    assert (score.verdict, score.value, score.reason) == ("error", None, "self-test, a known pass: no")

    def down(*_):
        raise SandboxError("the sandbox did not start")

    monkeypatch.setattr(code, "chosen", lambda: real)
    monkeypatch.setattr(code, "run_programs", down)
    score = verify_stdio("print(2)", "", {"tests": [{"input": "", "output": "2"}]})
    assert (score.verdict, score.value, score.reason) == ("error", None, "the sandbox did not start")


def test_the_verdict_does_not_vary_with_hashes():
    """The same answer gets the same verdict in every run, also where it depends on the order of a set."""
    answer = "def f(x):\n    return ''.join(set('abcdefgh'))"
    tests = [f"assert f(1) == {''.join(p)!r}" for p in ("abcdefgh", "hgfedcba")]
    tests.append("assert f(1)[0] < 'd'")
    seen = {verify_function(answer, "", about(*tests)).value for _ in range(4)}
    assert len(seen) == 1


# --- what passes between tests and solution --------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "None, True, -3, 10**400, 0.1, -0.0, 1e300, 2+3j",
        "'é\\n\\ud800', b'\\x00\\xff', bytearray(b'x'), range(3, 9, 2)",
        "[1, [2, [3]]], (1, (2,)), {1: {2: 3}}, {1, 2}, frozenset({3}), []",
        "float('inf'), [float('-inf')]",
        "int, str, len, {}.keys(), Ellipsis",
        "Counter('aab'), OrderedDict([(1, 2)]), deque([1, 2], 5), Fraction(1, 3), Decimal('1.10')",
        "date(2024, 2, 29), datetime(2024, 1, 2, 3, 4, 5, 6), timedelta(days=1, seconds=2), time(1, 2)",
    ],
)
def test_plain_values_arrive_as_they_left(text):
    setup = (
        "from collections import *\nfrom fractions import *\nfrom decimal import *\nfrom datetime import *\n"
        f"values = [{text}]"
    )
    check = (
        "for v in values:\n    r = f(v)\n    assert type(r) is type(v) and (r == v or list(r) == list(v)), (v, r)"
    )
    score = verify_function("def f(x):\n    return x", "", about(check, setup=setup))
    assert (score.verdict, score.reason) == ("pass", "")


def test_not_a_number_is_not_equal():
    assert passes("def f(x):\n    return x", "r = f(float('nan'))\nassert r != r")
    assert not passes("def f(x):\n    return float('nan')", "assert abs(f(1) - 2) < 1e-6")


def test_arguments_that_a_call_changes_are_changed_for_the_test():
    answer = "def f(a, b, *, c):\n    a.sort()\n    b['x'] = 1\n    c.add(3)"
    call = "a, b, c = [3, 1, 2], {}, set()\nassert f(a, b, c=c) is None"
    assert passes(answer, f"{call}\nassert (a, b, c) == ([1, 2, 3], {{'x': 1}}, {{3}})")


def test_objects_of_the_solution_are_used_by_the_tests():
    answer = """
class Node:
    def __init__(self, data):
        self.data, self.left, self.right = data, None, None
    def twice(self): return self.data * 2
    def __len__(self): return 5
    def __getitem__(self, key): return key + 1
    def __iter__(self): return iter([1, 2])
def f(node):
    return 0 if node is None else 1 + max(f(node.left), f(node.right))
"""
    setup = "root = Node(1)\r\nroot.left = Node(2)\r\nroot.left.left = Node(3)"
    tests = [
        "assert f(root) == 3",
        "assert f(root.left) == 2 and root.left.data == 2 and root.left is root.left",
        "assert root.twice() == 2 and len(root) == 5 and root[4] == 5 and list(root) == [1, 2]",
        "assert root != 1 and not root == root.left",
    ]
    assert passes(answer, *tests, setup=setup)


def test_functions_of_the_tests_are_called_by_the_solution():
    answer = "def f(g, xs):\n    return [g(x) for x in xs], sorted(xs, key=lambda x: g(x))"
    assert passes(answer, "assert f(lambda x: -x, [1, 2]) == ([-1, -2], [2, 1])")
    assert passes(answer, "assert f(abs, [-1]) == ([1], [-1])")


def test_functions_that_a_solution_returns_are_called_by_the_tests():
    assert passes("def f(n):\n    return lambda x: x + n", "assert f(2)(3) == 5")


def test_iterators_are_what_is_left_in_them():
    answer = "def f(n):\n    yield from range(n)"
    assert passes(answer, "assert list(f(3)) == [0, 1, 2]", "assert next(f(1)) == 0", "assert f(2) != [0, 1]")
    assert passes("def f(d):\n    return d.keys()", "assert sorted(f({2: 1, 1: 1})) == [1, 2]")


def test_subclasses_arrive_as_what_they_are_made_of():
    answer = """
from collections import defaultdict, namedtuple
from enum import IntEnum
P = namedtuple("P", "x y")
E = IntEnum("E", "A B")
def f(n):
    d = defaultdict(list)
    d[1].append(2)
    return [d, P(1, 2), E.B]
"""
    assert passes(answer, "assert f(0) == [{1: [2]}, (1, 2), 2]")


def test_exceptions_that_tests_expect():
    answer = "class Own(ValueError): pass\ndef f(x):\n    raise Own('no') if x else KeyError(3)"
    expect = "try:\n    f({})\nexcept {} as e:\n    assert '{}' in str(e)\nelse:\n    assert False"
    assert passes(answer, expect.format(1, "ValueError", "no"), expect.format(0, "KeyError", "3"))
    assert not passes(answer, expect.format(1, "TypeError", "no"))


def test_modules_that_a_solution_imports_are_the_judges_own():
    """A solution's patched `math.isclose` must not decide."""
    answer = "import math\nmath.isclose = lambda *a, **k: True\ndef f(x):\n    return 3.0"
    assert not passes(answer, "assert math.isclose(f(1), 2.0)")
    assert passes("import math\ndef f(x):\n    return 2.0", "assert math.isclose(f(1), 2.0)")


def test_expected_values_never_reach_the_solution():
    """It looks through all it has: the argument is there, what the test compares with is not."""
    answer = """
import gc, sys
def f(x):
    found = [w for v in gc.get_objects() if type(v) in (list, tuple, dict) for w in v if type(w) is str]
    frame = sys._getframe()
    while frame:
        found += [str(v) for v in frame.f_locals.values()]
        frame = frame.f_back
    return any("".join(["need", "le"]) in w for w in found)
"""
    assert passes(answer, "assert f('needle') is True")
    assert not passes(answer, "assert f('hay') is True, 'needle'")


def test_test_setup_stays_with_the_judge():
    assert not passes("def f(x):\n    return globals().get('wanted')", "assert f(1) == wanted", setup="wanted = 41")


def test_names_like_builtins():
    assert passes("def sum(xs):\n    return 7", "assert sum([1]) == 7", name="sum")


def test_a_main_block_does_not_run_in_function_items():
    assert passes(DOUBLE + "\nif __name__ == '__main__':\n    raise SystemExit(input())", "assert f(1) == 2")


def test_dataclasses_and_annotations_work():
    answer = """
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class P:
    x: int
def f(x: int) -> P:
    return P(x)
"""
    assert passes(answer, "assert f(2).x == 2")


PREFIX = 'from typing import List\n\n\ndef f(xs: List[int]) -> int:\n    """ Sum.\n    >>> f([1])\n    1\n    """'


@pytest.mark.parametrize(
    "answer",
    [
        "    total = 0\n    for x in xs:\n        total += x\n    return total",
        "total = 0\n    for x in xs:\n        total += x\n    return total",
        "total = 0\nfor x in xs:\n    total += x\nreturn total",
        "def f(xs: List[int]) -> int:\n    return sum(xs)",
        "from __future__ import annotations\ndef f(xs: list[int]) -> int:\n    return sum(xs)",
        PREFIX + "\n    return sum(xs)",
    ],
)
def test_a_completion_goes_on_from_the_prefix_or_repeats_it(answer):
    test = "def check(candidate):\n    assert candidate([1, 2]) == 3\n\ncheck(f)"
    assert passes(answer, test, prefix=PREFIX)
    assert not passes(answer.replace("total += x", "total -= x").replace("sum(xs)", "0"), test, prefix=PREFIX)


def test_stdio_verdicts():
    tests = [{"input": "3\n1 2 3\n", "output": "6\n"}, {"input": "1\n5\n", "output": "5"}]
    right = verify_stdio("n = int(input())\nprint(sum(map(int, input().split())))", "", {"tests": tests})
    assert (right.verdict, right.value) == ("pass", 1.0)
    half = verify_stdio("if __name__ == '__main__':\n    input()\n    print(5)", "", {"tests": tests})
    assert (half.verdict, half.value) == ("fail", 0.5)
    assert "test 1: wrong output" in half.reason


def test_a_trial_is_scored_by_its_fraction():
    assert code.scored("x", Trial(total=4, passed=frozenset({0}), reason="no")).value == 0.25


# --- the data --------------------------------------------------------------------------------------------


def items(folder, source):
    for split in ("train", "test"):
        for line in (folder / source / f"{split}.jsonl").read_text("utf-8").splitlines():
            yield json.loads(line)


def judged(item):
    reference = about(*item["tests"], setup=item["meta"].get("test_setup") or "", name=item["fn_name"])
    if item["meta"].get("prompt_is_code_prefix"):
        reference["prefix"] = item["question"]
    return verify_function(item["meta"]["reference_solution"], "", reference)


@pytest.mark.parametrize(("source", "count"), [("mbpp", 552), ("humaneval", 111)])
def test_every_reference_solution_passes(data, source, count):
    found = list(items(data, source))
    with ThreadPoolExecutor(3) as threads:
        scores = list(threads.map(judged, found))
    assert len(found) == count
    assert not {i["id"]: s.reason for i, s in zip(found, scores, strict=True) if s.verdict != "pass"}


def test_humaneval_bodies_pass_and_others_bodies_do_not(data):
    """The completion alone, as a model asked to go on writes it; and the completion of another item."""
    found = [i for i in items(data, "humaneval") if i["meta"]["reference_solution"].startswith(i["question"])][:16]
    bodies = [i["meta"]["reference_solution"].removeprefix(i["question"]) for i in found]
    right = [{**i, "meta": {**i["meta"], "reference_solution": b}} for i, b in zip(found, bodies, strict=True)]
    wrong = [
        {**i, "meta": {**i["meta"], "reference_solution": b}}
        for i, b in zip(found, bodies[1:] + bodies[:1], strict=True)
    ]
    with ThreadPoolExecutor(3) as threads:
        assert {s.verdict for s in threads.map(judged, right)} == {"pass"}
        assert {s.verdict for s in threads.map(judged, wrong)} == {"fail"}


def test_stdio_tests_do_not_pass_by_echo(data):
    for item in list(items(data, "apps"))[:5]:
        score = verify_stdio("print(open(0).read())", "", {"tests": item["tests"]})
        assert score.verdict == "fail"
