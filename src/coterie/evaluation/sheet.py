"""A page's sheet of cards: titles, notes, tables and drawings that stand by themselves. It knows no run."""

from collections.abc import Sequence
from html import escape

from coterie.evaluation.svg import tag
from coterie.types import record


@record
class Card:
    """One box of a sheet. `title` and `note` are plain text; in `markup`, HTML or SVG, all text is escaped."""

    title: str
    markup: str
    note: str = ""


@record
class Sheet:
    """One tab of a page: a name, what it is about, and cards. Those without markup are left out."""

    name: str
    about: str
    cards: tuple[Card, ...]


def sheet(number: int, found: Sheet) -> str:
    """The sheet as a section of the page, its `number`-th tab."""
    head = tag(
        "div",
        {"class": "headline-box"},
        tag("h1", {"id": f"name-{number}"}, escape(found.name)),
        tag("p", {"class": "task"}, escape(found.about)),
    )
    return tag(
        "section",
        {"class": "run", "id": f"run-{number}", "data-run": str(number), "aria-labelledby": f"name-{number}"},
        head,
        cards(found.cards),
    )


def cards(found: Sequence[Card]) -> str:
    """The cards that show something, one below the other."""
    return "".join(
        tag(
            "article",
            {"class": "card"},
            tag("h2", {}, escape(card.title)),
            tag("p", {"class": "note"}, escape(card.note)) if card.note else "",
            card.markup,
        )
        for card in found
        if card.markup
    )


def scrolling(markup: str, css: str = "") -> str:
    """Wide markup in a box that scrolls; `plot` as `css` is for drawings. Empty stays empty."""
    return tag("div", {"class": f"scroll {css}".strip(), "tabindex": "0"}, markup) if markup else ""


def plain_table(titles: Sequence[str], rows: Sequence[Sequence[str]], hints: Sequence[str] = ()) -> str:
    """A table of plain text; a row begins with its name. `hints` explain the titles. No row: empty text."""
    if not rows:
        return ""
    told = [*hints, *[""] * (len(titles) - len(hints))]
    heads = [
        tag("th", {"scope": "col", **({"title": hint} if hint else {})}, escape(title))
        for title, hint in zip(titles, told, strict=True)
    ]
    body = [tag("tr", {"data-recipe": row[0]}, *_cells(row)) for row in rows]
    table = tag("table", {"class": "plain"}, tag("thead", {}, tag("tr", {}, *heads)), tag("tbody", {}, *body))
    return scrolling(table)


def _cells(row: Sequence[str]) -> list[str]:
    first, *rest = row
    return [tag("th", {"scope": "row"}, escape(first)), *(tag("td", {}, escape(cell)) for cell in rest)]
