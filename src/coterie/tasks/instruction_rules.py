"""The 25 instructions of IFEval (Zhou et al. 2023, arXiv 2311.07911), each as one checker of a text.

Written from the published definitions. Where a reference implementation is known to err, the checker keeps
to the definition and its docstring says so. It judges text only: nothing here is drawn, fetched or logged.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from coterie.tasks.instruction_text import (
    LANGUAGES,
    count_sentences,
    is_english,
    is_language,
    paragraphs,
    words,
)
from coterie.types import record

RELATIONS = ("less than", "at least")
OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


# --- arguments: each reads one value of `instruction_kwargs` or raises ValueError ----------------------


def _count(value: Any) -> int:
    whole = isinstance(value, float) and value.is_integer()
    if isinstance(value, bool) or not (isinstance(value, int) or whole) or value < 0:
        raise ValueError("expected a number of at least 0")
    return int(value)


def _relation(value: Any) -> str:
    if value not in RELATIONS:
        raise ValueError(f"expected one of {', '.join(RELATIONS)}")
    return str(value)


def _phrase(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("expected a text")
    return value.strip()


def _phrases(value: Any) -> list[str]:
    if not isinstance(value, list) or not value:
        raise ValueError("expected a list of texts")
    return [_phrase(item) for item in value]


def _character(value: Any) -> str:
    if not isinstance(value, str) or len(value.strip()) != 1:
        raise ValueError("expected one character")
    return value.strip().lower()


def _language(value: Any) -> str:
    if value not in LANGUAGES:
        raise ValueError(f"expected a language code, one of {', '.join(sorted(LANGUAGES))}")
    return str(value)


def _holds(count: int, relation: str, threshold: int) -> bool:
    return count < threshold if relation == "less than" else count >= threshold


def _occurrences(keyword: str, text: str) -> int:
    return text.lower().count(keyword.lower())


# --- keywords, language, length -----------------------------------------------------------------------


def existence(text: str, keywords: list[str]) -> bool:
    """Every keyword occurs, in any case; within a longer word counts, as in the reference."""
    return all(_occurrences(keyword, text) for keyword in keywords)


def frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    """The keyword occurs `relation` `frequency` times; it is taken literally, not as a pattern."""
    return _holds(_occurrences(keyword, text), relation, frequency)


def forbidden_words(text: str, forbidden_words: list[str]) -> bool:
    """None of the words occurs as a whole word, in any case."""
    return not any(
        re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, flags=re.IGNORECASE) for word in forbidden_words
    )


def letter_frequency(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    """The character occurs so often, in any case. Any character is counted as given, also `#` and `!`."""
    return _holds(text.lower().count(letter), let_relation, let_frequency)


def response_language(text: str, language: str) -> bool:
    """The text is in that language; one whose language cannot be told is not."""
    return is_language(text, language)


def number_sentences(text: str, num_sentences: int, relation: str) -> bool:
    """The text has `relation` `num_sentences` sentences."""
    return _holds(count_sentences(text), relation, num_sentences)


def number_paragraphs(text: str, num_paragraphs: int) -> bool:
    """Exactly so many paragraphs between `***` dividers; one at either end is allowed, none between is not."""
    parts = [part.strip() for part in text.strip().split("***")]
    inner = parts[bool(not parts[0]) : len(parts) - bool(not parts[-1])]
    return len(inner) == num_paragraphs and all(inner)


def number_words(text: str, num_words: int, relation: str) -> bool:
    """The text has `relation` `num_words` words."""
    return _holds(len(words(text)), relation, num_words)


def nth_paragraph_first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Exactly so many paragraphs between blank lines, the n-th (from 1) beginning with the word.

    Empty paragraphs are neither counted nor numbered.
    """
    parts = paragraphs(text)
    if len(parts) != num_paragraphs or not 1 <= nth_paragraph <= num_paragraphs:
        return False
    opening = re.match(r"[^\s.,?!:;'’\"”]+", parts[nth_paragraph - 1].lstrip("'\"‘“"))
    return opening is not None and opening[0].lower() == first_word.lower()


# --- content and format -------------------------------------------------------------------------------


def number_placeholders(text: str, num_placeholders: int) -> bool:
    """At least so many placeholders such as [address]; `[]` names nothing and is none."""
    return len(re.findall(r"\[[^\[\]\n]+\]", text)) >= num_placeholders


def postscript(text: str, postscript_marker: str) -> bool:
    """A postscript begins with the marker, in any case, spaces between its letters allowed.

    `P.S.` inside `P.P.S.` is not the shorter marker.
    """
    letters = [re.escape(letter) for letter in postscript_marker.rstrip(".").lower().split(".")]
    marker = r"\.\s?".join(letters)
    return re.search(rf"(?<![\w.]){marker}(?!\w)", text.lower()) is not None


def number_bullet_lists(text: str, num_bullets: int) -> bool:
    """Exactly so many Markdown bullets (`*`, `-` or `+` and a space). Rules and emphasis are no bullets."""
    bullets = re.findall(r"^[ \t]*[*+-][ \t]+(.*)$", text, flags=re.MULTILINE)
    return sum(bool(re.search(r"[^\s*_-]", bullet)) for bullet in bullets) == num_bullets


def constrained_response(text: str) -> bool:
    """Exactly one of the three allowed answers occurs; naming two answers nothing."""
    return sum(option in text for option in OPTIONS) == 1


def number_highlighted_sections(text: str, num_highlights: int) -> bool:
    """At least so many highlighted sections such as *this* or **this**; list bullets do not open one."""
    found = re.findall(r"(?<![*\\])(\*{1,3})(?![\s*])[^*\n]*[^*\s]\1(?!\*)", text)
    return len(found) >= num_highlights


def multiple_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    """At least so many sections that begin with the splitter and a number (`Section 1`)."""
    return len(re.findall(rf"(?<!\w){re.escape(section_spliter)}\s?\d+", text)) >= num_sections


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def json_format(text: str) -> bool:
    """The whole text is JSON, bare or in one Markdown fence. `NaN` and `Infinity` are not JSON."""
    body = text.strip()
    if body.startswith("```") and body.endswith("```"):
        body = body.strip("`").strip()
        body = body[4:] if body[:4].lower() == "json" else body
    try:
        json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def title(text: str) -> bool:
    """A title in double angular brackets on one line, such as <<poem of joy>>."""
    return any(_between(line, "<<", ">>").strip("<> \t") for line in text.splitlines())


def _between(line: str, opening: str, closing: str) -> str:
    start, end = line.find(opening), line.rfind(closing)
    return line[start + len(opening) : end] if 0 <= start < end else ""


def two_responses(text: str) -> bool:
    """Two different responses separated by six asterisks, nothing else separated so."""
    parts = [part.strip() for part in text.split("******")]
    given = [part for part in parts if part]
    return all(parts[1:-1]) and len(given) == 2 and given[0] != given[1]


def repeat_prompt(text: str, prompt_to_repeat: str) -> bool:
    """The text begins with the request, word for word; case is not looked at."""
    return text.strip().lower().startswith(prompt_to_repeat.lower())


# --- beginning and end, case, punctuation -------------------------------------------------------------


def end_checker(text: str, end_phrase: str) -> bool:
    """The text ends with the phrase, in any case; a closing quotation mark may follow."""
    return text.strip().strip('"').rstrip().lower().endswith(end_phrase.strip('"').lower())


def quotation(text: str) -> bool:
    """The whole text is wrapped in double quotation marks and holds something."""
    inner = text.strip()
    return len(inner) > 2 and inner[0] == inner[-1] == '"'


def capital_word_frequency(text: str, capital_frequency: int, capital_relation: str) -> bool:
    """So many words are written in capitals throughout; "I" is one, a hyphenated or shortened word is one."""
    tokens = re.findall(r"[^\W_]+(?:['’.&-][^\W_]+)*", text)
    return _holds(sum(token.isupper() for token in tokens), capital_relation, capital_frequency)


def english_capital(text: str) -> bool:
    """English, and every letter a capital."""
    return text.isupper() and is_english(text)


def english_lowercase(text: str) -> bool:
    """English, and no letter a capital."""
    return text.islower() and is_english(text)


def no_comma(text: str) -> bool:
    """No comma, of whatever script."""
    return not re.search("[,，、،]", text)


# --- the table ----------------------------------------------------------------------------------------


@record
class Rule:
    """One instruction: `follows(text, **arguments)` after each argument was read by its reader."""

    follows: Callable[..., bool]
    arguments: Mapping[str, Callable[[Any], Any]]


def _rule(follows: Callable[..., bool], arguments: Mapping[str, Callable[[Any], Any]] | None = None) -> Rule:
    return Rule(follows=follows, arguments=arguments or {})


RULES: Mapping[str, Rule] = {
    "change_case:capital_word_frequency": _rule(
        capital_word_frequency, {"capital_frequency": _count, "capital_relation": _relation}
    ),
    "change_case:english_capital": _rule(english_capital),
    "change_case:english_lowercase": _rule(english_lowercase),
    "combination:repeat_prompt": _rule(repeat_prompt, {"prompt_to_repeat": _phrase}),
    "combination:two_responses": _rule(two_responses),
    "detectable_content:number_placeholders": _rule(number_placeholders, {"num_placeholders": _count}),
    "detectable_content:postscript": _rule(postscript, {"postscript_marker": _phrase}),
    "detectable_format:constrained_response": _rule(constrained_response),
    "detectable_format:json_format": _rule(json_format),
    "detectable_format:multiple_sections": _rule(
        multiple_sections, {"section_spliter": _phrase, "num_sections": _count}
    ),
    "detectable_format:number_bullet_lists": _rule(number_bullet_lists, {"num_bullets": _count}),
    "detectable_format:number_highlighted_sections": _rule(number_highlighted_sections, {"num_highlights": _count}),
    "detectable_format:title": _rule(title),
    "keywords:existence": _rule(existence, {"keywords": _phrases}),
    "keywords:forbidden_words": _rule(forbidden_words, {"forbidden_words": _phrases}),
    "keywords:frequency": _rule(frequency, {"keyword": _phrase, "frequency": _count, "relation": _relation}),
    "keywords:letter_frequency": _rule(
        letter_frequency, {"letter": _character, "let_frequency": _count, "let_relation": _relation}
    ),
    "language:response_language": _rule(response_language, {"language": _language}),
    "length_constraints:nth_paragraph_first_word": _rule(
        nth_paragraph_first_word, {"num_paragraphs": _count, "nth_paragraph": _count, "first_word": _phrase}
    ),
    "length_constraints:number_paragraphs": _rule(number_paragraphs, {"num_paragraphs": _count}),
    "length_constraints:number_sentences": _rule(
        number_sentences, {"num_sentences": _count, "relation": _relation}
    ),
    "length_constraints:number_words": _rule(number_words, {"num_words": _count, "relation": _relation}),
    "punctuation:no_comma": _rule(no_comma),
    "startend:end_checker": _rule(end_checker, {"end_phrase": _phrase}),
    "startend:quotation": _rule(quotation),
}
