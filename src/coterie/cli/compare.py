"""`compare`: the recipes of finished runs against a baseline, on the queries they share."""

from collections.abc import Sequence
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from coterie.cli import options, show
from coterie.cli.runs import run_view
from coterie.errors import ConfigError
from coterie.evaluation import compared, lineup
from coterie.evaluation.compare import Comparison, compare, to_json
from coterie.evaluation.forest import comparison_sheet
from coterie.evaluation.lineup import By, Entrant, Measure
from coterie.evaluation.report import write_report
from coterie.types import record


@record
class CompareOptions:
    runs: tuple[Path, ...]
    baseline: str | None
    by: By | None
    k: str | None
    measure: Measure
    by_name: bool
    out: Path | None
    as_json: bool


@click.command("compare")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--baseline", help="Recipe that the others are compared with (default: the first run's).")
@click.option("--by", type=click.Choice(["domain", "source", "task"]), help="Effects within each of these, too.")
@click.option("--k", metavar="K,…", help="pass@k for these numbers of samples, e.g. 1,4,8.")
@click.option(
    "--measure",
    type=click.Choice(["accuracy", "score"]),
    default="accuracy",
    show_default=True,
    help="Share of passes, or mean reward where partial marks count.",
)
@click.option(
    "--by-name",
    is_flag=True,
    help="Recipes of one name are one recipe, a replicate a run, whatever else differs (e.g. trained weights).",
)
@click.option("--out", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Write an HTML page, too.")
@options.as_json
@options.bundle(CompareOptions)
def command(chosen: CompareOptions) -> None:
    """Compare the recipes of finished RUNS on the same queries."""
    ks = _numbers(chosen.k)
    found = lineup.entrants(lineup.members(chosen.runs), chosen.measure, by_name=chosen.by_name)
    if len(found) < 2:
        raise ConfigError("there is one recipe only, nothing to compare it with; give another run")
    baseline = lineup.chosen(found, chosen.baseline) if chosen.baseline else _usual(found, chosen.runs[0])
    rows = compare(found, baseline, by=chosen.by, ks=ks)
    if not any(row.effect.n for row in rows):
        raise ConfigError(_nothing(rows, baseline.name))
    if chosen.out is not None:
        whole = rows if chosen.by else compare(found, baseline, by="domain", ks=ks)
        write_report(chosen.out, [run_view(path) for path in chosen.runs], [comparison_sheet(whole, found)])
    if chosen.as_json:
        options.print_json(to_json(rows, found, baseline.name, chosen.measure))
    else:
        _print(rows, baseline)
    if chosen.out is not None:
        click.echo(f"wrote {chosen.out}", err=True)


def _numbers(text: str | None) -> list[int]:
    """The k of `--k 1,4,8`, sorted."""
    parts = [part.strip() for part in text.split(",")] if text is not None else []
    if not all(part.isascii() and part.isdigit() and 1 <= int(part) <= 10_000 for part in parts):
        raise ConfigError(f"--k {text!r}: expected numbers of samples, such as 1,4,8")
    return sorted({int(part) for part in parts})


def _nothing(rows: Sequence[Comparison], baseline: str) -> str:
    """Why not one query could be compared."""
    if any(row.dropped.no_verdict for row in rows):
        return f"no query has a verdict of {baseline!r} and of another recipe; was the run finished?"
    if any(row.dropped.other_question for row in rows):
        return f"no recipe shares a question with {baseline!r}: the same ids stand for other questions"
    return f"no recipe shares a query with {baseline!r}; were the runs on the same task?"


def _usual(found: Sequence[Entrant], first: Path) -> Entrant:
    """The baseline that the first run was evaluated with, else the first recipe."""
    name = lineup.finished(first).config.get("baseline")
    same = [e for e in found if e.name == name or e.name.startswith(f"{name} @ ")]
    return next(iter(same), found[0])


def _print(rows: Sequence[Comparison], baseline: Entrant) -> None:
    titles, cells = compared.table(rows)
    _print_table(f"against {baseline.name}", titles, cells)
    if over_seeds := compared.seeds(rows):
        _print_table("over seeds", compared.SEED_TITLES, over_seeds)
    if passes := [compared.pass_at(row.name, found) for row in rows for found in row.pass_at]:
        _print_table("pass@k", compared.PASS_TITLES, passes)
    for row in rows:
        if row.parts:
            parts = [compared.part(found) for found in row.parts]
            _print_table(f"{row.name} against {baseline.name}", compared.PART_TITLES, parts)
    for note in compared.notes(rows):
        show.out.print(note, markup=False)


def _print_table(title: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=escape(title), title_justify="left")
    for i, name in enumerate(titles):
        table.add_column(escape(name), justify="right" if i else "left", overflow="fold")
    for cells in rows:
        table.add_row(*map(escape, cells))
    show.out.print(table)


COMMANDS = (command,)
