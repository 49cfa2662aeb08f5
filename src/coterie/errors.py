"""Everything coterie raises on purpose.

CoterieError
  UserError            the caller can mend it; the message is one line that says how (CLI: exit code 2)
    ConfigError          a recipe, option or agent folder is wrong; names file and key
    DataError            a data file is wrong; names file and line
    MissingExtra         an optional dependency is absent; names the extra
  BackendError         one agent could not answer; becomes data in `Trace.failures`
    Unreachable, TimedOut           no connection; a deadline passed
    Overloaded, ServerFault         busy, for `retry_after` seconds where the server says so; broken
    AccessDenied, UnknownModel      the key is refused or its quota spent; there is no such model
    BadRequest, ContextOverflow     the server refuses what was asked; the prompt does not fit
    ContentFiltered                 the server or the model declined to answer
    MalformedAnswer                 the model answered with something that is not a completion
      EmptyAnswer, BrokenStream       nothing in it to read; a stream that ended before its answer did
  SandboxError         the sandbox itself failed: no verdict, never a wrong answer
  BudgetExceeded       a limit of the rollout was reached
  AllAgentsFailed      nobody that was asked answered
  Diverged             training was stopped: its numbers mean nothing any more
    NoVerdicts           ... because verifiers fail
"""

from collections.abc import Mapping
from typing import Any


class CoterieError(Exception):
    """The root of the tree."""


class UserError(CoterieError):
    """The caller can mend it; the message is one line that says how."""


class ConfigError(UserError, ValueError):
    """A recipe, an option or an agent folder is wrong."""


class DataError(UserError, ValueError):
    """A data file is wrong."""


class MissingExtra(UserError, ImportError):
    """An optional dependency is absent."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'coterie[{extra}]'")


class BackendError(CoterieError):
    """One agent could not answer.

    `again`: the same request may succeed at another try. `retry_after`: seconds that the server asks to wait.
    `prompt_tokens` and `completion_tokens` are what the failed call is known to have used all the same.
    """

    again = False

    def __init__(self, message: str = "", *, again: bool | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.again = type(self).again if again is None else again
        self.retry_after = retry_after
        self.prompt_tokens = self.completion_tokens = 0


class Unreachable(BackendError):
    """There is no connection, or it broke before an answer: refused, reset, no such host, TLS."""

    again = True


class TimedOut(BackendError):
    """A deadline passed: connecting, first byte, silence within an answer, or the whole attempt."""

    again = True


class Overloaded(BackendError):
    """The backend is busy; another try later may work."""

    again = True


class ServerFault(BackendError):
    """The server failed."""

    again = True


class AccessDenied(BackendError):
    """The key is refused, or its quota is spent: trying again does not help, other settings may."""


class UnknownModel(BackendError):
    """The server has no such model."""


class BadRequest(BackendError):
    """The server refuses what was asked."""


class ContextOverflow(BackendError):
    """The prompt does not fit the model's context."""


class ContentFiltered(BackendError):
    """The server or the model declined to answer."""


class MalformedAnswer(BackendError):
    """The model's reply is not a usable completion."""


class EmptyAnswer(MalformedAnswer):
    """The completion has nothing in it to read: blank, reasoning only, or calls of tools nobody offered."""


class BrokenStream(MalformedAnswer):
    """The stream ended before its answer did."""

    again = True


class SandboxError(CoterieError):
    """The sandbox itself failed: there is no verdict, which is never a wrong answer."""


class BudgetExceeded(CoterieError):
    """A limit of the rollout was reached."""


class AllAgentsFailed(CoterieError):
    """Nobody that was asked answered."""


class Diverged(CoterieError):
    """Training was stopped because its numbers mean nothing any more.

    `row` are the figures of the last round; None where one was stopped in the middle, so that it is not kept.
    """

    def __init__(self, message: str, row: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.row = row


class NoVerdicts(Diverged):
    """Training was stopped because too many completions could not be graded."""
