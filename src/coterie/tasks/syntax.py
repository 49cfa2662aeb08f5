"""Python's parser for threads.

CPython 3.11 counts the depth of all threads' trees in one place, so that now and then a parse fails for no fault of
its text (SystemError, gh-106905). Such a parse is tried again.
"""

import ast
from typing import Any

TRIES = 100


def parsed(text: str, mode: str = "exec") -> Any:
    """The tree of a text; raises what `ast.parse` raises for it."""
    for _ in range(TRIES - 1):
        try:
            return ast.parse(text, mode=mode)
        except SystemError:
            continue
    return ast.parse(text, mode=mode)


def literal_value(text: str) -> Any:
    """The value of a Python literal; raises what `ast.literal_eval` raises."""
    return ast.literal_eval(parsed(text.lstrip(" \t"), "eval"))
