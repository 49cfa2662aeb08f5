"""What a trace remembers of a layered mixture: each proposal's review, and answers it could have stopped with."""

from typing import Literal

from coterie.records import record

Part = Literal["", "proposer", "reviewer", "critic", "residual", "aggregator"]
"""What a turn was for. Only ``, proposer and aggregator answer the query; the others help those that do."""
ANSWERING: tuple[Part, ...] = ("", "proposer", "aggregator")


@record
class Review:
    """What a reviewer said of one proposal: the memory's entry for it.

    `turn` is the proposal's index, `by` that of the review (None: there was none). `score` is on the reviewer's
    scale, 1 to 10 for `rem_moa`. `mended` says how the score came about: as asked for; read from a reply of
    another form; by asking again; neutral, because nothing could be read.
    """

    turn: int
    layer: int
    score: float
    rationale: str = ""
    by: int | None = None
    mended: Literal["", "form", "again", "neutral"] = ""


@record
class Exit:
    """A turn that could have settled the query by the end of a layer.

    `why`: the aggregator was asked after every layer; the layer's answers agreed; a learned rule held it for deep
    enough; a critic, moderator or residual saw nothing left to do. Whether the rollout did end there, the turns
    after it tell.
    """

    layer: int
    turn: int
    why: Literal["depth", "agreement", "learned", "said"]
