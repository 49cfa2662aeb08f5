"""`ask` and `route`: one query to one team."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import click

from coterie.cli import options
from coterie.cli.show import explain, print_routing
from coterie.errors import ConfigError
from coterie.team import Team
from coterie.types import Routing, Trace


def _text(words: Sequence[str]) -> str:
    text = sys.stdin.read() if list(words) == ["-"] else " ".join(words)
    if not text.strip():
        raise ConfigError("the question is empty; give it as an argument, or '-' to read it from standard input")
    return text


@click.command()
@click.argument("question", nargs=-1, required=True)
@options.recipe
@click.option("--task", default="chat", show_default=True, help="Kind of question: chat, math, choice, qa, ...")
@click.option(
    "--explain", "form", flag_value="words", help="Say who was asked, why, and how the answer came about."
)
@click.option("--json", "form", flag_value="json", help="Print one JSON object.")
@options.settings
@options.no_cache
def ask(
    question: tuple[str, ...], recipe: str, task: str, form: str | None, settings: tuple[str, ...], no_cache: bool
) -> int:
    """Answer one QUESTION ('-': from standard input)."""
    text = _text(question)
    team = Team.load(recipe, settings, cache=options.open_cache(no_cache))
    trace = team.ask(text, task)
    if form == "json":
        options.print_json(ask_json(trace))
    elif form == "words":
        explain(trace, team)
    elif trace.final is not None:
        click.echo(trace.text.strip())
    if trace.final is None:
        reasons = "; ".join(f"{f.agent}: {f.message}" for f in trace.failures) or f"stopped by {trace.stopped}"
        click.echo(f"coterie: nobody answered ({reasons})", err=True)
        return 1
    return 0


def ask_json(trace: Trace) -> dict[str, Any]:
    """What `ask --json` prints: the answer, and who was asked (familiarity null: the router has none)."""
    routing = trace.routings[-1] if trace.routings else Routing(weights={})
    return {
        "answer": trace.answer,
        "text": trace.text,
        "agents": [
            {
                "name": turn.agent,
                "familiarity": routing.scores.get(turn.agent),
                "answer": turn.answer,
                "tokens": turn.completion.prompt_tokens + turn.completion.completion_tokens,
            }
            for turn in trace.turns
        ],
        "seconds": round(trace.seconds, 4),
        "degraded": trace.degraded,
        "settled_by": None if trace.final is None else trace.turns[trace.final].agent,
        "cost_usd": trace.cost,
        "stopped": trace.stopped,
        "failures": [{"agent": f.agent, "kind": f.kind, "message": f.message} for f in trace.failures],
    }


@click.command()
@click.argument("question", nargs=-1, required=True)
@options.recipe
@click.option("--task", default="chat", show_default=True, help="Kind of question: chat, math, choice, qa, ...")
@options.settings
@options.as_json
def route(question: tuple[str, ...], recipe: str, task: str, settings: tuple[str, ...], as_json: bool) -> None:
    """Say whom QUESTION would be sent to, without asking anyone."""
    team = Team.load(recipe, settings)
    rollout = team.rollout(team.query(_text(question), task))
    routing = asyncio.run(rollout.route())
    plan = getattr(team.strategy, "plan", None)
    asked = plan(routing, rollout.reader.open_ended) if plan else routing.ranked()[:1]
    if as_json:
        rows = [
            {"name": n, "weight": routing.weights[n], "familiarity": routing.scores.get(n)}
            for n in routing.ranked()
        ]
        options.print_json({"agents": rows, "would_ask": asked})
    else:
        print_routing(routing, asked)


COMMANDS = (ask, route)
