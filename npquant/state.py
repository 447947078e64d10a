"""What modules and optimizers do with a saved state: whatever they refuse of it is a ValueError."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from npquant.errors import show


def takes_state(take: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """A method that takes a state. It is data: what is of the wrong kind in it is a wrong value."""

    @wraps(take)
    def method(self: Any, state_dict: Any) -> None:  # by this name, if by one
        try:
            take(self, state_dict)
        except TypeError as error:
            raise ValueError(str(error)) from error
        except AttributeError as error:  # what a class needs, and a pickle of another one lacks
            raise ValueError(
                f"the state of a {type(self).__name__} must have {error.name!r}"
            ) from error

    return method


def remade(instance: Any, state: Any) -> Any:
    """Another instance with these attributes, for its class to check."""
    if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
        raise ValueError(
            f"the state of a {type(instance).__name__} must be a dict of its attributes, "
            f"got {seen(state)}"
        )
    other = object.__new__(type(instance))
    other.__dict__.update(state)
    return other


def seen(value: Any) -> str:
    """A value in a few words, of which nothing is called if its class is none of Python's own."""
    if value is None or type(value) in (bool, int, float, str):
        return show(value)
    return f"an object of the class {type(value).__name__}"
