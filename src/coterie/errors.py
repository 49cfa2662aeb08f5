"""Everything coterie raises on purpose.

CoterieError
  UserError            the caller can mend it; the message is one line that says how (CLI: exit code 2)
    ConfigError          a recipe, option or agent folder is wrong; names file and key
    DataError            a data file is wrong; names file and line
    MissingExtra         an optional dependency is absent; names the extra
  BackendError         one agent could not answer; becomes data in `Trace.failures`
    Overloaded           worth another try later
    ContextOverflow      the prompt does not fit
    MalformedAnswer      the model answered with something that is not a completion
  SandboxError         the sandbox itself failed: no verdict, never a wrong answer
  BudgetExceeded       a limit of the rollout was reached
  AllAgentsFailed      nobody that was asked answered
"""


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
    """One agent could not answer."""


class Overloaded(BackendError):
    """The backend is busy; another try later may work."""


class ContextOverflow(BackendError):
    """The prompt does not fit the model's context."""


class MalformedAnswer(BackendError):
    """The model's reply is not a usable completion."""


class SandboxError(CoterieError):
    """The sandbox itself failed: there is no verdict, which is never a wrong answer."""


class BudgetExceeded(CoterieError):
    """A limit of the rollout was reached."""


class AllAgentsFailed(CoterieError):
    """Nobody that was asked answered."""
