"""A value that an object makes at most once, however many threads ask for it first."""

from collections.abc import Callable
from threading import RLock
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
Self = TypeVar("Self")


class once(Generic[T]):
    """A property that is computed on first use and kept; threads that come meanwhile wait for the one.

    `functools.cached_property` does not lock from Python 3.12 on. A failed try is not kept.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self.make = make
        self.lock = RLock()
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "once[T]": ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> "T | once[T]":
        if instance is None:
            return self
        with self.lock:
            # The instance's own entry wins over this descriptor from now on, so later reads take no lock.
            if self.name not in vars(instance):
                vars(instance)[self.name] = self.make(instance)
            return vars(instance)[self.name]  # type: ignore[no-any-return]
