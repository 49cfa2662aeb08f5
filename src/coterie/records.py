"""What records and components are made with: their decorators, and bounds of settings."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

from pydantic import ConfigDict, Field

T = TypeVar("T")
STRICT = ConfigDict(extra="forbid")

# Bounds of settings, which `config.validate` reports; direct construction does not check them.
Count = Annotated[int, Field(ge=0)]
Size = Annotated[int, Field(ge=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=1)]
Decay = Annotated[float, Field(ge=0, le=1)]
Units = Annotated[int, Field(ge=1, le=65536)]

if TYPE_CHECKING:  # type checkers know `replace` and `asdict` for the one true decorator only
    from dataclasses import dataclass as record
    from dataclasses import dataclass as spec
else:
    record = dataclass(frozen=True, slots=True, kw_only=True)

    def spec(cls: type[T]) -> type[T]:
        """A component that is its own configuration: a frozen keyword-only dataclass, strict about its keys.

        `use: <name>` in a recipe picks the class, the other keys are its fields.
        """
        cls.__pydantic_config__ = STRICT
        return dataclass(frozen=True, kw_only=True)(cls)


def is_table(text: str) -> bool:
    """Whether a text is a JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
