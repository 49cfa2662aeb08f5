"""One spelling for written mathematics: LaTeX, Unicode and plain notation to canonical LaTeX.

Purely textual: it knows brackets, not values.
"""

import re
import unicodedata

_UNICODE = {
    "−": "-", "–": "-", "—": "-", "×": r"\cdot ", "·": r"\cdot ", "⋅": r"\cdot ", "∗": r"\cdot ", "÷": "/",
    "π": r"\pi ", "∞": r"\infty ", "≤": r"\leq ", "≥": r"\geq ", "≠": r"\neq ", "∪": r"\cup ", "∩": r"\cap ",
    "∈": r"\in ", "±": r"\pm ", "∓": r"\mp ", "°": r"^{\circ}", "º": r"^{\circ}", "²": "^{2}", "³": "^{3}",
    "√": r"\sqrt ", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "⅓": r"\frac{1}{3}",
    "⅔": r"\frac{2}{3}", "∅": r"\emptyset ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ",
    "∀": r"\forall ", "∃": r"\exists ", "…": r"\ldots ", "⟨": "(", "⟩": ")", "₂": "_{2}",
    "\u200b": "", "\ufeff": "",
    "⁄": "/", "∕": "/", "’": "'", "‘": "'", "“": '"', "”": '"',
}  # fmt: skip
_TABLE = str.maketrans(_UNICODE)

_REWRITES = [
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\\[()\[\]]", ""),
        (r"\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])\s*\.?", ""),
        (r"\\(?:displaystyle|textstyle|limits|nolimits|phantom\{[^{}]*\})(?![A-Za-z])", ""),
        (r"\\!|\{,\}(?=[0-9]{3})!?", "\0"),
        (r"\\(?:[,;: >]|q?quad(?![A-Za-z])|hspace\*?\{[^{}]*\})|~|&nbsp;", " "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\(?:times|ast|cdotp)(?![A-Za-z])|(?<!\*)\*(?!\*)", r"\\cdot "),
        (r"\*\*", "^"),
        (r"\\div(?![A-Za-z])", "/"),
        (r"\\leq?(?![A-Za-z])|\\leqslant|<=", r"\\leq "),
        (r"\\geq?(?![A-Za-z])|\\geqslant|>=", r"\\geq "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\ne(?![A-Za-z])|!=", r"\\neq "),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\langle(?![A-Za-z])", "("),
        (r"\\rangle(?![A-Za-z])", ")"),
        (r"\\varnothing|\\\{\s*\\\}", r"\\emptyset "),
        (r"\\(?:c|l|v)?dots(?![A-Za-z])|\.\.\.", r"\\ldots "),
        (r"\\(?:infinity)(?![A-Za-z])|(?<![A-Za-z\\])(?:infinity|inf|oo)(?![A-Za-z])", r"\\infty "),
        (r"(?:\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z]))", "^{\\\\circ}"),
        (r"\\%|(?<![A-Za-z\\])(?:percent|pct)\b\.?", "%"),
        (r"(?<![A-Za-z\\])(pi|sqrt|sin|cos|tan|cot|csc|arcsin|arccos|arctan|log|ln|exp)(?![A-Za-z])", r"\\\1 "),
        (r"\\math(?:bb|cal)\s*\{?\s*R\s*\}?", "R"),
    )
]
_WRAPPER = re.compile(
    r"\\(text(?:bf|it|rm|normal|sf|tt)?|math(?:rm|bf|it|sf|tt)|mbox|operatorname\*?|hbox|fbox|boxed|emph|bold|bm)\s*"
    r"\{([^{}]*)\}"
)
_OPENING = re.compile(r"(?i)^(?:(?:the\s+)?(?:final\s+)?answer\s*(?:is\s*:?|[:=])\s*)+")
_TRIM = ' \t\r\n"`*'
_MIXED = re.compile(r"(?<![0-9A-Za-z.}])([0-9]+) ?\\frac\{([0-9]+)\}\{([0-9]+)\}(?![!^])")
_MIXED_PLAIN = re.compile(r"(?<![0-9A-Za-z./,] )(?<![0-9A-Za-z./,])([0-9]+) ([0-9]+)/([0-9]+)(?![0-9.!^/])")
_COMMAS = re.compile(r"(?<![0-9.,])([0-9]{1,3})((?:,[0-9]{3})+)(?![0-9]|,[0-9])")
_SPACED = re.compile(r"(?<![0-9.] )(?<![0-9.])([0-9]{1,3})((?: [0-9]{3})+)(?! ?[0-9/])")
_BRACKETS = re.compile(r"\\[{}]|\\[A-Za-z]+|\\.|[(){}\[\]]", re.DOTALL)


def matching(text: str, start: int) -> int:
    """Index just behind the group that opens with the brace at `start`; -1 where it never closes."""
    depth = 0
    for match in _BRACKETS.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return -1


def _argument(text: str, start: int) -> tuple[str, int] | None:
    """The TeX argument at `start` and where it ends: a group, a command or one character."""
    start += len(text[start:]) - len(text[start:].lstrip())
    if start >= len(text) or text[start] in "})]":
        return None
    if text[start] == "{":
        end = matching(text, start)
        return (text[start + 1 : end - 1], end) if end > 0 else None
    command = re.compile(r"\\[A-Za-z]+|.", re.DOTALL).match(text, start)
    return (command[0], command.end()) if command else None


def _braced(text: str) -> str:
    r"""Braces around every argument of \frac, \sqrt, ^ and _, from the right so that inner ones come first."""
    for match in reversed(list(re.finditer(r"\\frac(?![A-Za-z])|\\sqrt(?![A-Za-z])(\s*\[[^\]]*\])?|[\^_]", text))):
        arguments, position = "", match.end()
        for _ in range(2 if match[0] == r"\frac" else 1):
            found = _parenthesised(text, position) if "sqrt" in match[0] else None
            found = found or _argument(text, position)
            if found is None:
                break
            arguments, position = f"{arguments}{{{found[0].strip()}}}", found[1]
        else:
            text = text[: match.start()] + match[0].replace(" ", "") + arguments + text[position:]
    return text


def _parenthesised(text: str, start: int) -> tuple[str, int] | None:
    r"""The content of `(...)` at `start`: \sqrt(2) means the root of 2."""
    start += len(text[start:]) - len(text[start:].lstrip())
    if text[start : start + 1] != "(":
        return None
    depth = 0
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return text[start + 1 : i], i + 1
    return None


def _unwrapped(match: re.Match[str]) -> str:
    r"""Mathematics out of \text and its kin; words stay as \text{words}, `or` and `and` become a comma."""
    command, content = match[1], match[2]
    words = content.strip()
    if words.lower() in ("or", "and", ", and", ", or", ","):
        return ","
    if command in ("boxed", "fbox") or not re.search(r"[A-Za-z]{2}", words) or "\\" in words:
        single = command.startswith(("text", "mbox", "hbox")) and re.fullmatch(r"[a-zL]", words)
        return f"\1{words}\2" if single and re.search(r"[0-9)}\]\s]$", match.string[: match.start()]) else words
    if command.startswith(("math", "operatorname")) and words.lower() in ("sin", "cos", "tan", "log", "ln", "exp"):
        return f"\\{words} "
    return f"\1{words}\2"


def _wrappers(text: str) -> str:
    """All text wrappers resolved, innermost first; what still holds words is marked \\text{...} once."""
    for _ in range(8):
        new = _WRAPPER.sub(_unwrapped, text)
        if new == text:
            break
        text = new
    return re.sub("\\s*\2\\s*\1\\s*", " ", text).replace("\1", r"\text{").replace("\2", "}")


def _unboxed(text: str) -> str:
    r"""Without the \boxed{} around the whole."""
    for _ in range(8):
        found = re.match(r"\$*\s*\\f?box(?:ed)?\s*(?=\{)", text)
        if not found or matching(text, found.end()) != len(text.rstrip("$ ")):
            break
        text = text.rstrip("$ ")[found.end() + 1 : -1]
    return text


def _dollars(text: str) -> str:
    r"""Math delimiters gone; a dollar that stands for money becomes \$."""
    text = text.replace("$$", "$") if len(text) > 2 else text
    money = text.count("$") - text.count(r"\$")
    if money % 2:
        text = re.sub(r"(?<!\\)\$", r"\\$", text, count=1)
    return re.sub(r"(?<!\\)\$", "", text)


def _proper(match: re.Match[str]) -> str:
    whole, numerator, denominator = match.groups()
    proper = len(numerator) < 19 and len(denominator) < 19 and 0 < int(numerator) < int(denominator)
    return rf"({whole}+\frac{{{numerator}}}{{{denominator}}})" if proper else match[0]


def _numbers(text: str) -> str:
    """Thousands separators out, mixed numbers as sums."""
    text = _SPACED.sub(lambda m: m[1] + m[2].replace(" ", ""), text)
    text = _MIXED_PLAIN.sub(_proper, text)
    return _MIXED.sub(_proper, text)


def joined(text: str) -> str:
    """Digits grouped by commas as one number: 58,500 is 58500; not inside brackets, and `1, 234` is a list."""

    def join(match: re.Match[str]) -> str:
        return match[0] if _open(text[: match.start()]) else match[0].replace(",", "")

    return _COMMAS.sub(join, text)


def _open(text: str) -> int:
    """How many round, square and set brackets stay open (intervals mix their kinds)."""
    steps = {"(": 1, "[": 1, r"\{": 1, ")": -1, "]": -1, r"\}": -1}
    return sum(steps.get(m[0], 0) for m in _BRACKETS.finditer(text))


def _trimmed(text: str) -> str:
    text = _OPENING.sub("", text.strip(_TRIM)).strip(_TRIM)
    if len(text) > 1 and text[0] == text[-1] == "'":
        text = text[1:-1]
    while text and text[-1] in ".,;:" and not text.endswith(".."):
        text = text[:-1].rstrip(_TRIM)
    return text


def tidy(text: str) -> str:
    """`text` in canonical LaTeX; equal results mean equal answers, unequal ones mean nothing."""
    text = unicodedata.normalize("NFKC", re.sub("[\0-\x08]", "", text).translate(_TABLE))
    text = re.sub(r"\s+", " ", text)
    text = _dollars(_trimmed(_unboxed(_trimmed(text))))
    text = text.replace("\\\\", "\3") if r"\begin" in text else re.sub(r"\\\\(?=[A-Za-z])", r"\\", text)
    for pattern, new in _REWRITES:
        text = pattern.sub(new, text)
    text = re.sub(r"\s+", " ", text.replace(" \0", "").replace("\0", ""))
    text = re.sub(r"(?<=[0-9]), (?=[0-9]{3}(?![0-9]))", ";", text)  # a list, not digits in groups
    text = _numbers(_braced(_wrappers(text)))
    text = re.sub(r"(?<![0-9A-Za-z}]) | (?![0-9A-Za-z\\])", "", _trimmed(text))
    return re.sub(r"(?<=[0-9}]) (?=\\)", "", text).replace("\3", r"\\")


def split(text: str, separators: str) -> list[str]:
    """`text` cut where one of the separators (a pattern) stands outside all brackets."""
    parts, depth, begin = [], 0, 0
    for match in re.finditer(rf"\\[{{}}]|\\begin|\\end|[(){{}}\[\]]|{separators}|\\.", text, re.DOTALL):
        step = _DEPTH.get(match[0])
        if step is not None:
            depth += step
        elif depth == 0 and re.fullmatch(separators, match[0]):
            parts.append(text[begin : match.start()])
            begin = match.end()
    return [*parts, text[begin:]]


_DEPTH = {"(": 1, "[": 1, "{": 1, r"\{": 1, r"\begin": 1, ")": -1, "]": -1, "}": -1, r"\}": -1, r"\end": -1}


def enclosed(text: str) -> bool:
    """Whether the bracket that opens `text` is closed by its last character."""
    depth = 0
    for match in re.finditer(r"\\[{}]|\\begin|\\end|[(){}\[\]]|\\.", text, re.DOTALL):
        depth += _DEPTH.get(match[0], 0)
        if depth == 0:
            return match.end() == len(text)
    return False
