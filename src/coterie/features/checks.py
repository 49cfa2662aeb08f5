"""What settings accept as an encoder, and what an encoder is known by."""

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator

from coterie.types import Encoder


def _encoder(value: Any) -> Any:
    if isinstance(value, str | bytes) or not callable(getattr(value, "encode", None)):
        raise ValueError(f"expected an encoder, not {type(value).__name__}")
    return value


if TYPE_CHECKING:
    AnyEncoder = Encoder
else:
    # A protocol has no schema of its own; any object that encodes is taken as it is.
    AnyEncoder = Annotated[Any, AfterValidator(_encoder)]


def identity_of(encoder: Encoder) -> str:
    """What an encoder's features depend on: its own word for it, else the name of its class."""
    return str(getattr(encoder, "identity", type(encoder).__qualname__))
