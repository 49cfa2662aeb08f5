"""Python's parser under threads."""

import ast
import gc
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from coterie.tasks import syntax


class Pausing:
    """A cycle whose end hands the interpreter to another thread, as a finaliser that waits does."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        time.sleep(0)


@pytest.fixture
def restless():
    """Collects garbage and changes threads all the time."""
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(3)
    sys.setswitchinterval(1e-5)
    yield
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


def test_a_literal_is_read_whatever_other_threads_do(restless):
    failed = []

    def read():
        for number in range(300):
            Pausing()
            wanted = [1, (2, {"a": 3}), number]
            try:
                if syntax.literal_value(f"  [1, (2, {{'a': 3}}), {number}]") != wanted:
                    failed.append(number)
            except SystemError as error:
                failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert failed == []


def test_a_parse_that_failed_for_no_fault_of_its_text_is_tried_again(monkeypatch):
    asked = []

    def parse(text, mode):
        asked.append(text)
        if len(asked) < 3:
            raise SystemError("AST constructor recursion depth mismatch (before=18, after=15)")
        return ast.parse(text, mode=mode)

    monkeypatch.setattr(syntax, "ast", SimpleNamespace(parse=parse))
    assert isinstance(syntax.parsed("a + b", "eval").body, ast.BinOp)
    assert len(asked) == 3
    with pytest.raises(SyntaxError):
        syntax.parsed("a +")
    assert len(asked) == 4
