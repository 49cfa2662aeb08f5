"""Multiple choice: options as text, answers as labels. The labels are a closed set; no free text is graded."""

import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from coterie.tasks.extract import bare, last_box, letter
from coterie.types import Score

_SYNONYMS = ({"yes", "true", "correct", "right"}, {"no", "false", "incorrect", "wrong"})
_LEADING = re.compile(
    r"^[*_\"'`]*(?:\(?([A-Za-z])\)|\[([A-Za-z])\]|([A-Z])[.:]|([A-Z])\s+[-–—])[*_\"'`]*\s+(?=\S)(.*)$", re.DOTALL
)
_SAID = re.compile(r"(?i)\banswer\b(?:\s+is\b|\s*[:=])[\s:*_`]*")
_WRAPPED = re.compile(r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf|it)|mbox|boxed)\s*\{([^{}]*)\}|\\[()\[\]]|\$")


def render(question: str, choices: Sequence[str]) -> str:
    """The question and its lettered options, one a line."""
    lines = (f"{label}. {option}" for label, option in zip(ascii_uppercase, choices, strict=False))
    return "\n".join([question, "", *lines])


def verify(answer: str | None, text: str, reference: Mapping[str, Any]) -> Score:
    """Grade an extracted answer (letter, letter with text, or option text) against `reference["answer"]`.

    `reference["choices"]` holds the option texts. An answer that names no option, or two, fails with the
    reason `no answer`, apart from a wrong one. `error` where the reference names no option.
    """
    choices = [str(choice) for choice in reference.get("choices") or ()]
    gold = str(reference.get("answer") or "").strip().strip("()").upper()
    if len(gold) != 1 or gold not in _labels(choices):
        return Score(verdict="error", value=None, answer=answer, reason="the reference names no option")
    found = None if answer is None else label(answer, choices)
    if found is None:
        return Score(verdict="fail", value=0.0, answer=None, reason="no answer")
    if found != gold:
        return Score(verdict="fail", value=0.0, answer=found, reason="another option")
    return Score(verdict="pass", value=1.0, answer=found)


def same(a: str, b: str) -> bool:
    """Whether two answers count as one vote: the same letter, else the same text."""
    x, y = label(a, ()), label(b, ())
    return x == y if x and y else _plain(a) == _plain(b)


def label(answer: str, choices: Sequence[str]) -> str | None:
    """The label that `answer` names, None for none or for a contradiction. No choices: any letter is one."""
    answer = last_box(answer) or answer
    if len(answer) > 20_000:
        return None
    marks = list(_SAID.finditer(answer))
    answer = _WRAPPED.sub(r"\1", answer[marks[-1].end() :] if marks else answer).strip()
    for reader in (_by_text, _by_letter_and_text, _by_letter, _by_opening):
        if found := reader(answer, choices):
            return found if found in _labels(choices) else None
    return None


def _labels(choices: Sequence[str]) -> str:
    return ascii_uppercase[: len(choices)] if choices else ascii_uppercase


def _plain(text: str) -> str:
    text = re.sub(r"\s+", " ", _WRAPPED.sub(r"\1", text)).strip().casefold()
    return bare(text).rstrip(".,;:!") or text


def _texts(choices: Sequence[str]) -> dict[str, str]:
    """Normalised option text -> label; with yes and no (or true and false) come their synonyms."""
    plain = [_plain(choice) for choice in choices]
    table = {text: ascii_uppercase[i] for i, text in enumerate(plain[:26]) if plain.count(text) == 1}
    if len(plain) == 2:
        for words in _SYNONYMS:
            for mine, other in ((plain[0], "A"), (plain[1], "B")):
                table |= {word: other for word in words if mine in words and word not in table}
    return table


def _by_text(answer: str, choices: Sequence[str]) -> str | None:
    """The whole answer is the text of one option; a single letter is a label first."""
    found = _texts(choices).get(_plain(answer))
    is_label = re.fullmatch(r"\(?[A-Z]\)?", answer) and answer.strip("()") in _labels(choices)
    return None if is_label else found


def _by_letter_and_text(answer: str, choices: Sequence[str]) -> str | None:
    """`B. Paris`: the letter, unless the text is another option's."""
    found = _LEADING.match(answer)
    if found is None:
        return None
    named = next(group for group in found.groups() if group).upper()
    told = _texts(choices).get(_plain(found.groups()[-1]))
    return named if told in (None, named) else "?"


def _by_letter(answer: str, choices: Sequence[str]) -> str | None:
    return letter(answer)


def _by_opening(answer: str, choices: Sequence[str]) -> str | None:
    """The answer opens with the text of one option and goes on after a stop: `Paris, because …`."""
    plain = _plain(answer)
    opened = [
        (len(text), name)
        for text, name in _texts(choices).items()
        if plain.startswith(text) and re.match(r"\s*(?:[.,;:(—–\n]|-\s|because\b|since\b)", plain[len(text) :])
    ]
    return max(opened)[1] if opened else None
