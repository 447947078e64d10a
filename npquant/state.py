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


def attributes(instance: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attributes in a state: all others, and those in slots, beside which it is a pair."""
    usual, slots = state, {}
    if isinstance(state, tuple) and len(state) == 2:
        usual, slots = {} if state[0] is None else state[0], state[1]
    for part in (usual, slots):
        if not isinstance(part, dict) or not all(isinstance(key, str) for key in part):
            raise ValueError(
                f"the state of a {type(instance).__name__} must be a dict of its attributes, "
                f"got {seen(state)}"
            )
    return usual, slots


def put(instance: Any, usual: dict[str, Any], slots: dict[str, Any]) -> None:
    """Give an instance these attributes, as they are."""
    instance.__dict__.update(usual)
    for name, value in slots.items():
        object.__setattr__(instance, name, value)


def remade(instance: Any, usual: dict[str, Any], slots: dict[str, Any]) -> Any:
    """Another instance with these attributes, for its class to check."""
    other = object.__new__(type(instance))
    put(other, usual, slots)
    return other


def seen(value: Any) -> str:
    """A value in a few words, of which nothing is called if its class is none of Python's own."""
    if value is None or type(value) in (bool, int, float, str):
        return show(value)
    return f"an object of the class {type(value).__name__}"
