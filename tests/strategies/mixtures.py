"""Teams for tests of mixtures: scripted proposers, a reviewer that knows, an aggregator that copies the best."""

import json
import re

from coterie.backends.recorded import Scripted
from coterie.config import build
from coterie.pool import pool_of, revise
from coterie.team import Backends, Team
from coterie.types import Agent, Message, Query, Sampling

QUERY = Query(id="q", messages=(Message(role="user", content="What is 3 + 4?"),), task="qa", contract="boxed")


def query(text="What is 3 + 4?", **parts):
    return Query(**{"id": "q", "task": "qa", "contract": "boxed", **parts}, messages=(user(text),))


def user(text):
    return Message(role="user", content=text)


def boxed(text):
    return f"Some steps of {text}.\nAnswer: \\boxed{{{text}}}"


def attempts(messages):
    """Number and body of each quotation in a prompt, as a model would see them."""
    found = re.finditer(r'<(attempt\S*) number="(\d+)"[^>]*>\n(.*?)\n</\1>', messages[-1].content, re.DOTALL)
    return {int(match[2]): match[3] for match in found}


def reviews(*scores, rationale="because"):
    items = [{"trace": n, "score": s, "rationale": f"{rationale} {n}"} for n, s in enumerate(scores, 1)]
    return json.dumps({"reviews": items})


def knowing(right, good=9, bad=2):
    """A reviewer that gives traces with the right box `good`, others `bad`."""

    def reply(agent, messages, seed):
        return reviews(*(good if f"{{{right}}}" in body else bad for body in attempts(messages).values()))

    return reply


def team_of(replies, strategy, *, router="uniform", sampling=None, **parts):
    """A team of scripted agents. `replies` by name; a name may be `reviewer:r` or `aggregator:m`."""
    agents, opened = [], {}
    for key, reply in replies.items():
        role, _, name = key.rpartition(":")
        agent = revise(
            Agent(name=name, model=f"scripted:{name}", role=role or "solver", sampling=sampling or Sampling())
        )
        agents.append(agent)
        opened[agent.model] = Scripted(model=name, answer=said(reply))
    made = build("strategy", strategy)
    return Team(
        pool=pool_of(agents),
        router=build("router", router),
        strategy=made,
        backends=Backends(opened=opened),
        **parts,
    )


def said(reply):
    return reply if callable(reply) else lambda agent, messages, seed: reply


def calls(team, name):
    """The calls that a scripted agent got, in order."""
    return team.backends.opened[f"scripted:{name}"].calls
