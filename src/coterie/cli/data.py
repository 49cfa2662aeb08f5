"""`data`: task data (list, check, convert, pin) and recorded outcomes (import, outcomes, export)."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import click
import numpy as np

from coterie.cli import options
from coterie.config import nearest, read_yaml, validate
from coterie.errors import ConfigError, DataError
from coterie.storage import exports
from coterie.storage.cells import NOT_RUN
from coterie.storage.imports import NAMES, import_rows
from coterie.storage.runs import Run, write_atomically
from coterie.storage.tablefile import QUERIES, Recorded, Table, read_table, save_table
from coterie.tasks import catalog, download, pins
from coterie.tasks import data as task_data
from coterie.tasks.benchmarks import BENCHMARKS
from coterie.tasks.contamination import question_and_options
from coterie.tasks.hub import PREFIX, read_name
from coterie.tasks.rows import Reading, read_rows
from coterie.types import Price, Trace, record

FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
PATH = click.Path(path_type=Path)
ENOUGH = 0.5
"""An agent that lacks more than this share of its outcomes points to an outage or a broken grader."""

columns = click.option(
    "--column", "columns", multiple=True, metavar="OURS=THEIRS", help="What one of our columns is called there."
)
ignore = click.option("--ignore", multiple=True, metavar="COLUMN", help="A column to leave out.")
allow_missing = click.option(
    "--allow-missing", is_flag=True, help="Go on though an agent lacks most of its outcomes."
)
kind = click.option("--kind", help="Kind of task of rows that do not say it: math, qa, choice, ...")


@click.group()
def data() -> None:
    """Task data and recorded outcomes."""


# --- tasks --------------------------------------------------------------------------------------------


@data.command("list")
@click.option("--hub", is_flag=True, help="Say where the published benchmarks lie, their splits and licences.")
@options.as_json
def list_(hub: bool, as_json: bool) -> None:
    """Name the tasks that can be evaluated."""
    rows: Sequence[Any] = [facts(name) for name in sorted(BENCHMARKS)] if hub else catalog.known_tasks()
    if as_json:
        options.print_json({"benchmarks" if hub else "tasks": rows})
        return
    for row in rows:
        click.echo(row if isinstance(row, str) else _line(row))


def facts(name: str) -> dict[str, Any]:
    """What is known of a published benchmark."""
    benchmark = BENCHMARKS[name]
    repos = {part.repo: pins.pinned(part.repo, part.revision) for part in benchmark.parts}
    return {
        "name": f"{PREFIX}{name}",
        "kind": benchmark.kind,
        "splits": sorted(benchmark.splits),
        "published": dict(sorted(benchmark.splits.items())),
        "parts": [part.label for part in benchmark.parts if part.label],
        "revisions": repos,
        "licence": benchmark.licence,
        "note": benchmark.note,
    }


def _line(row: Mapping[str, Any]) -> str:
    places = [f"{repo}@{commit[:10] if commit else 'not pinned yet'}" for repo, commit in row["revisions"].items()]
    more = f", … {len(places)} in all" if len(places) > 1 else ""
    parts = f", {len(row['parts'])} parts" if row["parts"] else ""
    tail = f"; {row['note']}" if row["note"] else ""
    splits = "/".join(row["splits"]) + _renamed(row["published"])
    return f"{row['name']}: {row['kind']}, {splits}{parts}, {places[0]}{more}; {row['licence']}{tail}"


def _renamed(published: Mapping[str, str]) -> str:
    """Which of our splits are of rows that the publisher has under another name."""
    if len(published) > 1 and len(set(published.values())) == 1:
        return f" (parts of the publisher's {next(iter(published.values()))})"
    other = [f"{ours} is the publisher's {theirs}" for ours, theirs in published.items() if ours != theirs]
    return f" ({', '.join(other)})" if other else ""


@data.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@kind
@columns
@ignore
@options.as_json
def check(
    files: tuple[str, ...], kind: str | None, columns: tuple[str, ...], ignore: tuple[str, ...], as_json: bool
) -> int:
    """Check FILEs (JSONL, CSV, folders or hub:NAME): schema, golds, and questions that stand in two splits."""
    reading = Reading(kind=kind, columns=pairs(columns), ignore=ignore)
    reports = task_data.check_all(files, reading)
    if as_json:
        options.print_json({"files": [report.as_json() for report in reports]})
    else:
        for report in reports:
            click.echo(str(report))
    return 2 if any(report.problems for report in reports) else 0


def pairs(given: Sequence[str]) -> dict[str, str]:
    """`OURS=THEIRS` options as a mapping."""
    found = {}
    for text in given:
        ours, sign, theirs = text.partition("=")
        if not sign or not ours or not theirs:
            raise ConfigError(f"--column {text!r}: expected OURS=THEIRS, such as answer=gold")
        found[ours] = theirs
    return found


@record
class ConvertOptions:
    """What `convert` is told."""

    file: Path
    out: Path
    kind: str | None
    columns: tuple[str, ...]
    ignore: tuple[str, ...]
    as_json: bool


@data.command()
@click.argument("file", type=FILE)
@click.option("--out", "-o", required=True, type=FILE, help="JSONL file to write.")
@kind
@columns
@ignore
@options.as_json
@options.bundle(ConvertOptions)
def convert(chosen: ConvertOptions) -> None:
    """Write FILE (CSV or short JSONL rows) as items of the full schema."""
    reading = Reading(kind=chosen.kind, columns=pairs(chosen.columns), ignore=chosen.ignore)
    _refuse_out(chosen.file, chosen.out)
    items = read_rows(chosen.file, reading=reading)
    if not items:
        raise DataError(f"{chosen.file}: holds no row")
    text = "".join(json.dumps(item.model_dump(), ensure_ascii=False) + "\n" for item in items)
    write_atomically(chosen.out, text)
    _say(
        {"items": len(items), "file": str(chosen.out)}, f"wrote {len(items)} items to {chosen.out}", chosen.as_json
    )


def _refuse_out(file: Path, out: Path) -> None:
    if out.suffix.lower() != ".jsonl":
        raise ConfigError(f"--out {out}: the items are JSON lines: give a name that ends in .jsonl")
    if os.path.exists(out) and os.path.exists(file) and os.path.samefile(out, file):
        raise ConfigError(f"--out {out}: is the file that is read; give another name")


@data.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--commit", help="Pin this commit of one benchmark, not the present one.")
@options.as_json
def pin(names: tuple[str, ...], commit: str | None, as_json: bool) -> int:
    """Pin the published benchmarks NAMEs (default: all) to the present commits, in coterie-data.lock."""
    wanted = [read_name(name if name.startswith(PREFIX) else f"{PREFIX}{name}") for name in names or BENCHMARKS]
    repos = list(dict.fromkeys(part.repo for found in wanted for part in found.parts))
    if commit is not None and (len(repos) != 1 or not pins.COMMIT.fullmatch(commit)):
        raise ConfigError("--commit needs the 40 digits of a commit and one benchmark of one repository")
    pinned, failed = _resolved(repos, commit)
    pins.write_lock(pins.lock_file(), pinned)
    if as_json:
        options.print_json({"lock": str(pins.lock_file()), "pinned": pinned, "failed": failed})
    else:
        for repo, found in pinned.items():
            click.echo(f"{repo}: {found}")
        for reason in failed.values():
            click.echo(f"coterie: {reason}", err=True)
    return 2 if failed else 0


def _resolved(repos: Sequence[str], commit: str | None) -> tuple[dict[str, str], dict[str, str]]:
    """Commits by repository, and reasons by repository that has none; without network nobody else is asked."""
    pinned: dict[str, str] = {}
    failed: dict[str, str] = {}
    for repo in repos:
        try:
            pinned[repo] = commit or download.resolve(repo)
        except DataError as error:
            failed[repo] = str(error)
            if download.NO_NETWORK in str(error):
                break
    return pinned, failed


# --- outcomes -----------------------------------------------------------------------------------------


@record
class ImportOptions:
    """What `import` is told."""

    form: str
    files: tuple[Path, ...]
    out: Path
    prices: Path | None
    columns: tuple[str, ...]
    ignore: tuple[str, ...]
    allow_missing: bool
    as_json: bool


@data.command("import")
@click.argument("form", type=click.Choice(NAMES))
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=PATH)
@click.option("--out", "-o", required=True, type=FOLDER, help="Folder of the outcome table.")
@click.option("--prices", type=FILE, help="YAML: agent to {prompt: $/M tokens, completion: $/M tokens}.")
@columns
@ignore
@allow_missing
@options.as_json
@options.bundle(ImportOptions)
def import_(chosen: ImportOptions) -> None:
    """Read routing rows (JSONL, JSON, CSV, Parquet; files or folders) into a recorded outcome table.

    FORM is llmrouter, llmrouterbench, routerarena or log (a row for each query, agent and score).
    """
    prices = {} if chosen.prices is None else read_prices(chosen.prices)
    _refuse_table(chosen.out)
    found = import_rows(
        chosen.form, chosen.files, prices=prices, columns=pairs(chosen.columns), ignore=chosen.ignore
    )
    if not chosen.allow_missing:
        _refuse_holes(found.table, found.missing)
    save_table(chosen.out, found.table)
    missing = _lost(found.missing)
    facts = {**_counts(found.table), "rows": found.rows, "missing": missing, "repeated": found.repeated}
    _say({**facts, "table": str(chosen.out)}, "\n".join([*found.lines(), f"wrote {chosen.out}"]), chosen.as_json)


def read_prices(path: Path) -> dict[str, Price]:
    """Prices by agent: keys prompt and completion, or LLMRouter's input_price and output_price."""
    prices = {}
    for name, row in read_yaml(path).items():
        if not isinstance(row, Mapping):
            raise ConfigError(f"{path}: {name}: expected {{prompt: ..., completion: ...}}")
        theirs = {"prompt": row.get("input_price"), "completion": row.get("output_price")}
        table = theirs if "input_price" in row else dict(row)
        prices[str(name)] = validate(Price, table, f"{path}: {name}")
    return prices


def _refuse_table(folder: Path) -> None:
    if os.path.exists(folder / QUERIES):
        raise ConfigError(f"{folder} holds a table; choose another folder or delete it")


def _lost(missing: Mapping[tuple[str, str], int]) -> list[dict[str, Any]]:
    return [{"agent": a, "reason": why, "count": count} for (a, why), count in sorted(missing.items())]


def _refuse_holes(table: Table, missing: Mapping[tuple[str, str], int]) -> None:
    graded = dict(zip(table.agents, (~np.isnan(table.scores)).sum(axis=0).tolist(), strict=True))
    for agent in dict.fromkeys([*table.agents, *(name for name, _ in sorted(missing))]):
        lost = {why: count for (name, why), count in missing.items() if name == agent}
        total = sum(lost.values()) + graded.get(agent, 0)
        if sum(lost.values()) > ENOUGH * total:
            reasons = ", ".join(f"{count} × {why}" for why, count in lost.items())
            raise DataError(
                f"agent {agent!r} lacks {sum(lost.values())} of {total} outcomes ({reasons}): a broken grader or an"
                " outage? --allow-missing goes on with the rest"
            )


def _counts(table: Table) -> dict[str, Any]:
    outcomes = int((~np.isnan(table.scores)).sum())
    return {"queries": len(table.items), "agents": list(table.agents), "outcomes": outcomes}


def _say(value: Mapping[str, Any], words: str, as_json: bool) -> None:
    if as_json:
        options.print_json(value)
    else:
        click.echo(words)


recipe = click.option("--recipe", help="Only what this recipe of the run asked (default: all of them).")


@data.command()
@click.argument("run", type=PATH)
@click.option("--out", "-o", required=True, type=FOLDER, help="Folder of the outcome table.")
@recipe
@allow_missing
@options.as_json
def outcomes(run: Path, out: Path, recipe: str | None, allow_missing: bool, as_json: bool) -> None:
    """Write what each agent scored in a finished RUN as an outcome table."""
    _refuse_table(out)
    models = recorded(Run.load(run).config, recipe)
    found = exports.table_of(_traces(run, recipe), models, asked=question_and_options)
    if not allow_missing:
        # a router leaves most cells empty on purpose: only what was asked and came to nothing is suspect
        _refuse_holes(found.table, {key: count for key, count in found.missing.items() if key[1] != NOT_RUN})
    save_table(out, found.table)
    counts = _counts(found.table)
    words = (
        f"{counts['queries']} queries, {len(counts['agents'])} agents, {counts['outcomes']} outcomes; wrote {out}"
    )
    lost = [f"missing: {row['agent']}: {row['count']} × {row['reason']}" for row in _lost(found.missing)]
    facts = {**counts, "missing": _lost(found.missing), "table": str(out)}
    _say(facts, "\n".join([words, *lost]), as_json)


def recorded(config: Mapping[str, Any], recipe: str | None) -> dict[str, Recorded]:
    """Model and price of each agent in a run's recipes; an agent that two of them price apart has no price."""
    found: dict[str, Recorded] = {}
    for name, facts in config.get("recipes", {}).items():
        agents = facts.get("config", {}).get("agents", []) if recipe in (None, name) else []
        for agent in agents:
            price = validate(Price, agent.get("price") or {}, f"run.json: {agent['name']}: price")
            row = Recorded(agent=agent["name"], base_model=agent["model"], price=price, price_source="recipe")
            before = found.setdefault(row.agent, row)
            if before.price != row.price:
                found[row.agent] = Recorded(agent=row.agent, base_model=before.base_model)
    return {name: row if row.price != Price() else replace(row, price_source="") for name, row in found.items()}


def _traces(run: Path, recipe: str | None) -> list[Trace]:
    found = Run.load(run).traces()
    if recipe is not None and recipe not in found:
        raise ConfigError(f"{run}: has no recipe {recipe!r}{nearest(recipe, found)}")
    return list(chain.from_iterable(rows for name, rows in found.items() if recipe in (None, name)))


@data.command()
@click.argument("form", type=click.Choice(["routerarena"]))
@click.argument("source", metavar="RUN_OR_TABLE", type=PATH)
@click.option("--out", "-o", required=True, type=FILE, help="JSON file to write.")
@click.option("--agent", help="For a table: the agent that the router chose; the others are there for optimality.")
@click.option("--recipe", help="For a run of several recipes: the one to export.")
@options.as_json
def export(form: str, source: Path, out: Path, agent: str | None, recipe: str | None, as_json: bool) -> None:
    """Write a run or an outcome table as a prediction file of RouterArena."""
    rows = _of_table(source, agent) if os.path.exists(source / QUERIES) else _of_run(source, recipe)
    write_atomically(out, json.dumps(rows, ensure_ascii=False, indent=2, allow_nan=False) + "\n")
    _say({"form": form, "entries": len(rows), "file": str(out)}, f"wrote {len(rows)} entries to {out}", as_json)


def _of_table(source: Path, agent: str | None) -> list[dict[str, Any]]:
    table = read_table(source)
    if agent is None and len(table.agents) > 1:
        raise ConfigError(f"{source}: say with --agent whom the router chose: {', '.join(table.agents)}")
    return exports.arena_of_table(table, agent or table.agents[0])


def _of_run(source: Path, recipe: str | None) -> list[dict[str, Any]]:
    recipes = Run.load(source).traces()
    if recipe is None and len(recipes) > 1:
        raise ConfigError(f"{source}: say with --recipe which one: {', '.join(recipes)}")
    return exports.arena_of_traces(_traces(source, recipe))


COMMANDS = (data,)
