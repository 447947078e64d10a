"""What every module shares: state that has names, and is saved, loaded, copied and shown."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np

from npquant.arithmetic import is_array, kind, on_host
from npquant.autograd import Parameter, call
from npquant.dtypes import REALS, names
from npquant.errors import show
from npquant.state import remade, seen, takes_state

Array = np.ndarray[Any, Any]


def value_of(x: Any) -> Any:
    """The array of a `Parameter`, and anything else as it is."""
    return x.value if isinstance(x, Parameter) else x


class Module:
    """Something with state that arrays pass through.

    A subclass lists the names of its state in `_parameters`, `_buffers` and `_modules`; the state
    itself is plain attributes. A buffer is an array. A parameter is an object whose attribute
    `value` is an array. Both arrays are replaced, never written to, unless a subclass says so.

    `forward(call, x)` does each step as ``call(f, *args)``, so that a caller can watch the steps:
    ``tape.apply(module, x)`` does. Calling the module itself is `npquant.autograd.call`. What
    passes may be a `Parameter`.
    """

    _parameters: ClassVar[tuple[str, ...]] = ()
    _buffers: ClassVar[tuple[str, ...]] = ()
    _modules: ClassVar[tuple[str, ...]] = ()

    def forward(self, call: Callable[..., Any], x: Any) -> Any:
        """Compute the output for `x`, each step by way of `call`."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, x: Any) -> Any:
        """Compute the output for `x`."""
        return self.forward(call, x)

    @classmethod
    def with_args(cls, **kwargs: Any) -> Callable[..., Self]:
        """Give a constructor that has some arguments already.

        Parameters
        ----------
        **kwargs
            Arguments of the constructor by name.

        Returns
        -------
        callable
            ``functools.partial(cls, **kwargs)``.
        """
        return partial(cls, **kwargs)

    # --- state --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Array]:
        """Copy the state.

        Returns
        -------
        dict of str to ndarray
            Parameters, buffers and then the state of child modules, under PyTorch's keys.
        """
        return {key: on_host(module._get(name)) for key, module, name in self._state("")}

    @takes_state
    def load_state_dict(self, state_dict: Mapping[str, Array]) -> None:
        """Replace the state, all of it or, if there is anything wrong with it, nothing.

        Parameters
        ----------
        state_dict : mapping of str to ndarray
            What `state_dict` of such a module returned.

        Raises
        ------
        ValueError
            If `state_dict` is no mapping, a key is missing or foreign, or a value no array, or one
            of a dtype, a shape or with values that it cannot have.
        """
        if not isinstance(state_dict, Mapping):
            raise ValueError(f"state_dict must be a mapping, got {seen(state_dict)}")
        places = {key: (module, name) for key, module, name in self._state("")}
        for key in places:
            if key not in state_dict:
                raise ValueError(f"state_dict must have the key {key!r}, got {list(state_dict)}")
        for key in state_dict:
            if key not in places:
                raise ValueError(f"state_dict must have the keys {list(places)}, got {key!r} too")
        copies: dict[str, Array] = {}
        for prefix, module in self._walk(""):
            arrays = {
                name: _copied(prefix + name, state_dict[prefix + name], module._dtypes(name))
                for name in module._names()
            }
            module._check_state(prefix, arrays)
            copies.update({prefix + name: array for name, array in arrays.items()})
        for key, (module, name) in places.items():
            module._set(name, copies[key])

    def _check_state(self, prefix: str, state: Mapping[str, Array]) -> None:
        """Raise a ValueError unless this module can have such state; dtypes are right already.

        A subclass whose arrays change their shape says here which ones they may have.
        """
        for name, array in state.items():
            check_shape(prefix + name, array, (kind(self._get(name))[0],))

    def _dtypes(self, name: str) -> tuple[np.dtype[Any], ...]:
        """The dtypes that a parameter or buffer may have."""
        return (kind(self._get(name))[1],)

    def _names(self) -> tuple[str, ...]:
        return (*self._parameters, *self._buffers)

    def _get(self, name: str) -> Array:
        value = getattr(self, name)
        array: Array = value.value if name in self._parameters else value
        return array

    def _set(self, name: str, array: Array) -> None:
        if name in self._parameters:
            getattr(self, name).value = array
        else:
            setattr(self, name, array)

    def _walk(self, prefix: str) -> Iterator[tuple[str, Module]]:
        yield prefix, self
        for child in self._modules:
            yield from getattr(self, child)._walk(f"{prefix}{child}.")

    def _state(self, prefix: str) -> Iterator[tuple[str, Module, str]]:
        for path, module in self._walk(prefix):
            for name in module._names():
                yield path + name, module, name

    def __copy__(self) -> Self:
        """Copy the state too: two modules never share it."""
        return copy.deepcopy(self)

    @takes_state
    def __setstate__(self, state: Any) -> None:
        """Take what a saved instance or a copy holds, if this class can have such state."""
        module = remade(self, state)
        for name in module._modules:
            child = getattr(module, name)
            if not isinstance(child, Module):
                raise ValueError(f"{name} must be a Module, got {seen(child)}")
        arrays = {}
        for name in module._names():
            array = module._get(name)
            if not is_array(array):
                raise ValueError(f"{name} must be an array, got {seen(array)}")
            arrays[name] = _copied(name, on_host(array), REALS)
        module._check_state("", arrays)
        self.__dict__.update(state)
        for name in self._buffers:  # a memory map becomes the array that kernels know
            if isinstance(a := self._get(name), np.ndarray) and type(a) is not np.ndarray:
                self._set(name, arrays[name])

    # --- looks --------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """What stands between the brackets of the repr, beside child modules."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = [extra] if extra else []
        if not self._modules:
            return f"{type(self).__name__}({extra})"
        for name in self._modules:
            lines.append(f"({name}): {getattr(self, name)!r}".replace("\n", "\n  "))
        return f"{type(self).__name__}(\n  " + "\n  ".join(lines) + "\n)"


def _copied(key: str, value: Any, dtypes: Collection[np.dtype[Any]]) -> Array:
    """A plain copy of an array, memory maps included; nothing that its class defines is called."""
    if not isinstance(value, np.ndarray) or isinstance(value, (np.ma.MaskedArray, np.matrix)):
        raise ValueError(f"state_dict[{key!r}] must be a NumPy array, got {seen(value)}")
    array = np.array(value, order="C")
    if array.dtype not in dtypes:
        several = "a dtype among" if len(dtypes) > 1 else "the dtype"
        raise ValueError(
            f"state_dict[{key!r}] must have {several} {names(dtypes)}, got {array.dtype}"
        )
    return array


def check_shape(key: str, array: Array, shapes: tuple[tuple[int, ...], ...]) -> None:
    if array.shape not in shapes:
        allowed = " or ".join(map(str, shapes))
        raise ValueError(f"state_dict[{key!r}] must have the shape {allowed}, got {array.shape}")


def check_eps(prefix: str, state: Mapping[str, Array]) -> None:
    """The least scale, of which a constructor would take no other."""
    check_shape(prefix + "eps", state["eps"], ((1,),))
    if not 0 < state["eps"] < np.inf:
        raise ValueError(
            f"state_dict[{prefix + 'eps'!r}] must be positive and finite, got {show(state['eps'])}"
        )
