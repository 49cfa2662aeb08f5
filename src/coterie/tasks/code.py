"""Verifiers of code: functions that statements are made about, and programs that read stdin.

Every run is confined (`sandbox`). Trouble of ours is an error, never a failed answer.
"""

from collections.abc import Callable, Mapping
from typing import Any

from coterie.errors import SandboxError
from coterie.tasks.levels import Level, Limits
from coterie.tasks.sandbox import chosen
from coterie.tasks.trials import Statements, Trial, run_programs, run_tests
from coterie.types import Score

LIMITS = Limits()


def verify_function(answer: str | None, text: str, reference: Mapping[str, Any]) -> Score:
    """Fraction of `tests` (statements) that hold for the code; pass exactly when all do.

    `reference`: `tests`; `test_setup`, run before them; `fn_name`, the function that must exist (None: any);
    `prefix`, the start of the code where the question is one (HumanEval): the answer may go on from it or
    repeat it. Error: no tests, a test that is at fault itself, no working sandbox.
    """
    return verdict(answer, reference, function_fault(reference), function_trial)


def verify_stdio(answer: str | None, text: str, reference: Mapping[str, Any]) -> Score:
    """Fraction of `tests` ({input, output}) for which the program prints the expected tokens; pass when all.

    A run that does not end by itself with exit status 0 does not count. Error: no tests, none that expects
    any output, no working sandbox.
    """
    return verdict(answer, reference, program_fault(reference), program_trial)


def function_trial(code: str, reference: Mapping[str, Any], level: Level, limits: Limits = LIMITS) -> Trial:
    """The statements of `reference` about `code`, at one level. Raises SandboxError."""
    tests = Statements(
        tests=reference["tests"],
        setup=reference.get("test_setup") or "",
        function=reference.get("fn_name"),
        prefix=reference.get("prefix") or "",
    )
    return run_tests(code, tests, level, limits)


def program_trial(code: str, reference: Mapping[str, Any], level: Level, limits: Limits = LIMITS) -> Trial:
    """The program `code` on the inputs of `reference`, at one level. Raises SandboxError."""
    return run_programs(code, reference["tests"], level, limits)


def verdict(answer: str | None, reference: Mapping[str, Any], fault: str, trial: Callable[..., Trial]) -> Score:
    """Run the trial in this machine's sandbox and say what its outcome is worth."""
    if fault:
        return Score(verdict="error", value=None, answer=answer, reason=fault)
    if answer is None or not answer.strip():
        return Score(verdict="fail", value=0.0, answer=answer, reason="no code")
    sandbox = chosen()
    if sandbox.fault:
        return Score(verdict="error", value=None, answer=answer, reason=sandbox.fault)
    try:
        return scored(answer, trial(answer, reference, sandbox.level))
    except SandboxError as error:
        return Score(verdict="error", value=None, answer=answer, reason=str(error))


def scored(answer: str, trial: Trial) -> Score:
    """The fraction passed as a score."""
    count = len(trial.passed)
    if count == trial.total:
        return Score(verdict="pass", value=1.0, answer=answer)
    reason = f"{count} of {trial.total} tests passed; {trial.reason}"
    return Score(verdict="fail", value=count / trial.total, answer=answer, reason=reason)


def function_fault(reference: Mapping[str, Any]) -> str:
    """Why nothing can be graded by this reference, or "" (verl#7853: no tests is no pass)."""
    tests = reference.get("tests")
    if not isinstance(tests, list | tuple) or not tests:
        return "the reference has no tests"
    return "" if all(isinstance(t, str) and t.strip() for t in tests) else "a test is not a statement"


def program_fault(reference: Mapping[str, Any]) -> str:
    """As `function_fault`, for programs: doing nothing must not pass."""
    tests = reference.get("tests")
    if not isinstance(tests, list | tuple) or not tests:
        return "the reference has no tests"
    if not all(isinstance(t, Mapping) and {type(t.get(k)) for k in ("input", "output")} == {str} for t in tests):
        return "a test lacks its input or output"
    return "" if any(t["output"].split() for t in tests) else "no test expects any output"
