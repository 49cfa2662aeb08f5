"""The manner of the code base as tests: bounds of docs/architecture.md, and the hops of one solve.

Layers and cycles are checked by import-linter (`make check`); the bounds by reading the source here.
"""

import ast
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "coterie"
FILES = sorted(SOURCE.rglob("*.py"))
BROAD_DOORS = {"cli/main.py", "tasks/box/link.py", "learning/sinks.py"}
BAD_SUFFIXES = ("Manager", "Helper", "Util", "Utils", "Factory", "Builder", "Mixin", "Service")
BAD_VERBS = ("get_", "process_", "handle_", "manage_")
BAD_MODULES = {"utils", "common", "core", "helpers", "misc"}

FOREIGN_CALLS = {"cli/options.py", "backends/decode.py", "tasks/box/link.py"}
"""Where signatures are given by click, by transformers, and by the tests of a code task."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in FILES:
        yield path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def functions() -> Iterator[tuple[str, Function]]:
    for name, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                yield f"{name}:{node.lineno} {node.name}", node


def length(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_functions_are_short():
    lengths = sorted(length(node) for _, node in functions())
    assert statistics.median(lengths) <= 12
    assert lengths[int(0.9 * len(lengths))] <= 40
    assert not [where for where, node in functions() if length(node) > 60]


def test_files_are_short():
    sizes = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert not {name: size for name, size in sizes.items() if size > 400}
    assert sum(size <= 250 for size in sizes.values()) >= 0.8 * len(sizes)


def test_parameters_are_few_and_no_keyword_bags():
    wide, bags = [], []
    for where, node in functions():
        names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        if len([n for n in names if n not in ("self", "cls")]) > 6:
            wide.append(where)
        if node.args.kwarg is not None:
            bags.append(where)
    assert not wide
    assert {where.split(":")[0] for where in bags} <= FOREIGN_CALLS


def depth(node: ast.AST, level: int = 0) -> int:
    """How deep blocks nest; an `elif` is no deeper than its `if`."""
    blocks = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
    deepest = level
    for field, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        for child in children:
            if not isinstance(child, ast.AST) or isinstance(child, Function | ast.ClassDef | ast.Lambda):
                continue
            chained = (
                isinstance(node, ast.If) and field == "orelse" and isinstance(child, ast.If) and len(children) == 1
            )
            deepest = max(deepest, depth(child, level + (isinstance(child, blocks) and not chained)))
    return deepest


def test_nesting_is_shallow():
    assert not [where for where, node in functions() if depth(node) > 3]


def test_broad_except_only_at_the_doors():
    found = set()
    for name, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler):
                caught = [node.type] if not isinstance(node.type, ast.Tuple) else node.type.elts
                if any(
                    c is None or (isinstance(c, ast.Name) and c.id in ("Exception", "BaseException"))
                    for c in caught
                ):
                    found.add(name)
    assert found <= BROAD_DOORS


def test_names_say_what_things_are():
    bad = [
        where
        for where, node in functions()
        if re.sub("^_(?!_)", "", node.name).startswith(BAD_VERBS) and where.split(":")[0] not in FOREIGN_CALLS
    ]
    for name, tree in trees():
        bad += [f"{name} {Path(name).stem}"] if Path(name).stem in BAD_MODULES else []
        bad += [
            f"{name} {node.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            and (node.name.endswith(BAD_SUFFIXES) or re.fullmatch("(Abstract|Base).+|.+Base", node.name))
        ]
    assert not bad


def test_every_module_says_what_it_is():
    for name, tree in trees():
        text = ast.get_docstring(tree)
        assert text, name
        assert len(text.splitlines()) <= 20, name


def test_only_the_command_line_prints():
    prints = [
        f"{name}:{node.lineno}"
        for name, tree in trees()
        if not name.startswith("cli/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not prints


@pytest.mark.parametrize("module", ["coterie", "coterie.team", "coterie.cli.main", "coterie.evaluation.evaluate"])
def test_import_is_light(module):
    """Every light command must run without torch."""
    heavy = ("torch", "transformers", "reasoning_gym", "pandas")
    code = f"import sys, {module}; print(sorted(set(sys.modules) & set({heavy})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_one_vote_takes_few_hops(scripted_team):
    """At most 40 functions of at most 12 of our files run while one query is voted on."""
    team = scripted_team({"a": "4", "b": "4", "c": "5"})
    query = team.query("What is 2 + 2?")
    await team.solve(query)
    seen: set[tuple[str, str]] = set()

    def profile(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if event == "call" and SOURCE in path.parents:
            seen.add((path.name, frame.f_code.co_qualname))

    sys.setprofile(profile)
    try:
        await team.solve(query)
    finally:
        sys.setprofile(None)
    names = {name for _, name in seen if "<" not in name.split(".")[-1]}
    assert {"Team.solve", "Vote.solve", "Rollout.route", "Rollout.ask_all"} <= names
    assert len(names) <= 40, sorted(names)
    assert len({file for file, _ in seen}) <= 12
