"""The local backend: agents over one shared transformers model, their requests fused into running batches.

The asyncio side only, and light until `prepare`: the queue and its thread are in `worker`.
"""

import asyncio
from typing import TYPE_CHECKING

from coterie.errors import ConfigError
from coterie.types import Agent, Completion, Messages, Positive, Size, spec

if TYPE_CHECKING:
    from coterie.backends.base_model import Base
    from coterie.backends.worker import Worker


@spec
class Local:
    """Serves agents over one model of this process.

    `model`: `builtin:smollm2-135m`, a Hugging Face id (`id@revision`), a local folder or a `.gguf` file.
    `deterministic`: a completion is bit for bit the same whatever shares its batch (on one kind of machine, with
    one `max_batch`), at the price of one thread and of steps that all cost as much as a full batch. Without it,
    completions are equal up to floating-point ties.
    `return_tokens`: completions carry token ids and log-probabilities.
    `cache_gib` bounds the keys and values of the running batch: requests beyond it wait.
    """

    model: str
    max_batch: Size = 32
    deterministic: bool = False
    return_tokens: bool = False
    cache_gib: Positive = 4.0

    def __post_init__(self) -> None:
        for name, value in (("max_batch", self.max_batch), ("cache_gib", self.cache_gib)):
            if not value > 0:
                raise ConfigError(f"backend local: {name} must be above 0, not {value}")

    @property
    def identity(self) -> str:
        """What changes answers beside the agent: part of every cache key."""
        return f"deterministic {self.max_batch}" if self.deterministic else ""

    async def prepare(self, agent: Agent) -> None:
        """Load the model and the agent's adapter. Raises: UserError when either cannot be served."""
        await asyncio.to_thread(lambda: self._worker.prepare(agent))

    async def generate(self, agent: Agent, messages: Messages, *, seed: int) -> Completion:
        """One completion. Cancelling the caller takes the request out of its batch.

        Raises: BackendError when this request failed; ContextOverflow when its limits leave no room; BadRequest
        for a schema that completions cannot be held to.
        """
        if not self._started or not self._worker.knows(agent):
            await self.prepare(agent)
        if agent.sampling.schema:
            # Here and not in the worker's thread, where all that is being written would wait for it.
            await asyncio.to_thread(self._worker.compile, agent.sampling.schema)
        return await asyncio.wrap_future(self._worker.ask(agent, messages, seed))

    async def release(self, agent: Agent) -> None:
        """Forget an agent that is no longer asked; its adapter goes with the last that need it."""
        if self._started:
            await asyncio.to_thread(self._worker.release, agent)

    async def aclose(self) -> None:
        """Stop the thread, let go of the model and the adapters. A later call starts anew."""
        if self._started:
            await asyncio.to_thread(self._worker.close)

    @property
    def _started(self) -> bool:
        return "worker" in self.__dict__

    @property
    def _worker(self) -> "Worker":
        """The one worker; made at first use and off the event loop, since it imports torch."""
        if not self._started:
            # Of several threads that come here together the first one's worker stays: setdefault is atomic.
            self.__dict__.setdefault("worker", self._made())
        worker: Worker = self.__dict__["worker"]
        return worker

    def _made(self) -> "Worker":
        from coterie.backends.running import Running, one_thread
        from coterie.backends.worker import Worker

        def start(base: "Base") -> Running:
            if self.deterministic:
                one_thread()
            return Running(
                base,
                self.max_batch,
                deterministic=self.deterministic,
                tokens=self.return_tokens,
                cache_gib=self.cache_gib,
            )

        return Worker(self.model, start)
