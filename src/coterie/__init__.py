"""Coterie sends each query to the smallest group of LLM agents able to answer it."""

from coterie.errors import AllAgentsFailed, BackendError, BudgetExceeded, CoterieError, UserError
from coterie.outcomes import Outcomes
from coterie.rollout import Limits, Rollout, Strategy
from coterie.team import Team
from coterie.types import (
    Agent,
    Backend,
    Completion,
    Encoder,
    Message,
    Pool,
    Query,
    Router,
    Routing,
    Sampling,
    Score,
    State,
    Trace,
    Turn,
    spec,
)

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AllAgentsFailed",
    "Backend",
    "BackendError",
    "BudgetExceeded",
    "Completion",
    "CoterieError",
    "Encoder",
    "Limits",
    "Message",
    "Outcomes",
    "Pool",
    "Query",
    "Rollout",
    "Router",
    "Routing",
    "Sampling",
    "Score",
    "State",
    "Strategy",
    "Team",
    "Trace",
    "Turn",
    "UserError",
    "spec",
]
