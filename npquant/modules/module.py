"""What every module shares: state that has names, and is saved, loaded, copied and shown."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np

from npquant import checks
from npquant.arrays import array_of, beside, kind, on_host
from npquant.arrays import copy as copied
from npquant.autograd import Parameter, call
from npquant.dtypes import refuse_others
from npquant.errors import show
from npquant.owners import OTHERWISE, on_device
from npquant.state import attributes, put, remade, seen, takes_state

Array = np.ndarray[Any, Any]

#: Dtypes by name.
Kinds = Mapping[str, tuple[np.dtype[Any], ...]]
#: Checks by name.
Options = Mapping[str, Callable[[Any, str], Any]]


class Module:
    """Something with state that arrays pass through.

    A subclass lists the names of its state in `_parameters`, `_buffers` and `_modules`; the state
    itself is plain attributes. A buffer is an array. A parameter is None, or a `Parameter`, whose
    value is an array. Both arrays are replaced, never written to, unless a subclass says so. What
    is assigned once there is such an attribute is checked, as far as it can be wrong by itself.

    `forward(call, x)` does each step as ``call(f, *args)``, so that a caller can watch the steps:
    ``tape.apply(module, x)`` does. Calling the module itself is `npquant.autograd.call`. What
    passes may be a `Parameter`.
    """

    _parameters: ClassVar[tuple[str, ...]] = ()
    _buffers: ClassVar[tuple[str, ...]] = ()
    _modules: ClassVar[tuple[str, ...]] = ()
    #: The buffers that may lie on a GPU, as the data does; all others are brought to NumPy.
    _travelling: ClassVar[tuple[str, ...]] = ()
    #: The dtypes that a saved instance may have of these; of others any but objects.
    _kinds: ClassVar[Kinds] = {}
    #: Options, and what makes them of what is assigned, or refuses it: ``check(value, name)``.
    _options: ClassVar[Options] = {}

    def forward(self, call: Callable[..., Any], x: Any) -> Any:
        """Compute the output for `x`, each step by way of `call`.

        Parameters
        ----------
        call : callable
            ``call(step, *args)``: on a tape `Tape.apply`, else what calls `step`.
        x : ndarray
            As of a call of the module.

        Returns
        -------
        ndarray
            Output for `x`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, x: Any) -> Any:
        """Compute the output for `x`.

        Parameters
        ----------
        x : ndarray
            Array in NumPy or on a GPU, of any shape that has the module's channels. Observers take
            floats and integers, and return `x` itself; modules that fake quantize take floats, and
            return an array of its shape and dtype, or `x` itself while they are switched off. Of an
            `ArraySpec` nothing is kept.

        Returns
        -------
        ndarray
            Output for `x`.

        Raises
        ------
        TypeError
            If `x` is no array, or has a dtype that is not allowed.
        ValueError
            If `x` has other channels than were seen before, or a value that cannot be observed, or
            qparams do not fit it. Nothing is kept then.
        """
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
            As ``functools.partial(cls, **kwargs)``, with a method `with_args` of its own.
        """
        return _Partial(cls, **kwargs)

    # --- state --------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        """Check options, and what becomes state. What modules compute goes past, by `__dict__`."""
        if name in self._options:
            value = self._options[name](value, name)
        super().__setattr__(name, self._checked(name, value) if hasattr(self, name) else value)

    def _checked(self, name: str, value: Any) -> Any:
        """What an attribute is to be: a copy, if that is an array of NumPy."""
        if name in self._modules:
            self._check_module(name, value)
        if name not in (*self._parameters, *self._buffers):
            return value
        given = array_of(value)
        if name in self._parameters:
            if value is None and getattr(self, name) is None:
                return value
            if not isinstance(value, Parameter):
                raise TypeError(f"{name} must be a Parameter, got {seen(value)}")
            given = array_of(value.value)
            if getattr(self, name) is None:  # and so of no dtype by now
                self._check_array(name, name, _copied(name, hosted(given), self._kinds.get(name)))
                return value
        if on_device(given):
            if name in (*self._parameters, *self._travelling):
                # Values are looked at when it is saved: to bring them here takes a while.
                shape, dtype = kind(given, name)
                refuse_others(dtype, name, self._dtypes(name))
                self._check_array(name, name, np.broadcast_to(np.ones((), dtype), shape))
                return value
            value = given = on_host(given)
        array = _copied(name, given, self._dtypes(name))
        self._check_array(name, name, array)
        return array if isinstance(given, np.ndarray) and name in self._buffers else value

    def state_dict(self) -> dict[str, Array]:
        """Copy the state.

        Returns
        -------
        dict of str to ndarray
            Parameters, buffers and then the state of child modules, under PyTorch's keys.

        Raises
        ------
        ValueError
            If `load_state_dict` would not take what was assigned, by itself or beside the rest.
        """
        state: dict[str, Array] = {}
        for prefix, module in self._walk(""):
            try:
                arrays = {
                    name: _copied(
                        key_of(prefix, name), hosted(module._get(name)), module._dtypes(name)
                    )
                    for name in module._names()
                }
            except TypeError as error:  # of what was assigned to a parameter's value
                raise ValueError(str(error)) from error
            module._check(prefix, arrays)
            state.update({prefix + name: array for name, array in arrays.items()})
        return state

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
        places = {key: (module, name) for key, module, name in self._state()}
        for key in places:
            if key not in state_dict:
                raise ValueError(f"state_dict must have the key {key!r}, got {list(state_dict)}")
        for key in state_dict:
            if key not in places:
                raise ValueError(f"state_dict must have the keys {list(places)}, got {key!r} too")
        copies: dict[str, Array] = {}
        for prefix, module in self._walk(""):
            arrays = {
                name: _copied(key_of(prefix, name), state_dict[prefix + name], module._dtypes(name))
                for name in module._names()
            }
            module._check(prefix, arrays)
            copies.update({prefix + name: array for name, array in arrays.items()})
        # As they are, whatever a module makes of its own.
        before = {key: Module._get(module, name) for key, (module, name) in places.items()}
        try:
            for key, (module, name) in places.items():
                module._set(name, copies[key])
        except BaseException:  # an interrupt, after which all is as before
            for key, (module, name) in places.items():
                module._set(name, before[key])
            raise

    def _check_module(self, name: str, value: Any) -> None:
        """Raise a TypeError unless a child can be this."""
        if not isinstance(value, Module):
            raise TypeError(f"{name} must be a Module, got {seen(value)}")

    def _check(self, prefix: str, state: Mapping[str, Array]) -> None:
        """Raise a ValueError unless this module can have such state; dtypes are right already."""
        for name, array in state.items():
            self._check_array(key_of(prefix, name), name, array)
        self._check_state(prefix, state)

    def _check_array(self, key: str, name: str, array: Array) -> None:
        """Raise a ValueError if an array, `key` in its message, is wrong beside any others."""

    def _check_state(self, prefix: str, state: Mapping[str, Array]) -> None:
        """Raise a ValueError if arrays, each of them right by itself, are not so together.

        A subclass whose arrays change their shape says here which ones they may have.
        """
        for name, array in state.items():
            checks.of_shape(array, key_of(prefix, name), kind(self._get(name))[0])

    def _dtypes(self, name: str) -> tuple[np.dtype[Any], ...]:
        """The dtypes that a parameter or buffer may have: its own, unless a class says."""
        if name in self._parameters and name in self._kinds:
            return self._kinds[name]
        return (kind(self._get(name), name)[1],)

    def _names(self) -> tuple[str, ...]:
        """What the state consists of: a parameter may be None, as a bias that there is none of."""
        there = [name for name in self._parameters if getattr(self, name, ...) is not None]
        return (*there, *self._buffers)

    def _get(self, name: str) -> Array:
        value = getattr(self, name)
        array: Array = array_of(value.value if name in self._parameters else value)
        return array

    def _set(self, name: str, array: Array) -> None:
        if name in self._parameters:
            getattr(self, name).value = array
        else:
            object.__setattr__(self, name, array)

    def _bring(self, x: Array, *names: str) -> None:
        """Have buffers lie where `x` does, to stay there."""
        self.__dict__.update({name: beside(x, self.__dict__[name]) for name in names})

    def _walk(self, prefix: str) -> Iterator[tuple[str, Module]]:
        yield prefix, self
        for child in self._modules:
            yield from getattr(self, child)._walk(f"{prefix}{child}.")

    def _state(self) -> Iterator[tuple[str, Module, str]]:
        for path, module in self._walk(""):
            for name in module._names():
                yield path + name, module, name

    def __copy__(self) -> Self:
        """Copy the state too: two modules never share it."""
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy what is on a GPU there: Numba's arrays cannot be copied as other objects are."""
        for name in self._names():
            held: Any = getattr(self, name, None)
            value = held.value if name in self._parameters else held
            if id(value) not in memo and on_device(value):
                memo[id(value)] = copied(value)
        other = object.__new__(type(self))
        memo[id(self)] = other
        other.__setstate__(copy.deepcopy(self.__getstate__() or {}, memo))  # None is of nothing
        return other

    @takes_state
    def __setstate__(self, state: Any) -> None:
        """Take what a saved instance or a copy holds, if this class can have such state."""
        usual, slots = attributes(self, state)
        module = remade(self, usual, slots)
        for name in module._modules:
            self._check_module(name, getattr(module, name))
        arrays = {
            name: _copied(name, hosted(module._get(name)), self._kinds.get(name))
            for name in module._names()
        }
        module._check("", arrays)
        put(self, usual, slots)
        for name in self._buffers:  # as kernels take them: none has gaps, nor is a memory map
            a = self._get(name)
            if isinstance(a, np.ndarray) and not (type(a) is np.ndarray and a.flags.carray):
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


class _Partial(partial[Any]):
    """A constructor that has some arguments already, and may be given more."""

    def with_args(self, **kwargs: Any) -> _Partial:
        return _Partial(self, **kwargs)


def key_of(prefix: str, name: str) -> str:
    """How a message calls what is loaded."""
    return f"state_dict[{prefix + name!r}]"


def hosted(value: Any) -> Any:
    """What is on a GPU as an array of NumPy, and anything else as it is."""
    return on_host(value) if on_device(value) else value


def _copied(key: str, value: Any, dtypes: Collection[np.dtype[Any]] | None) -> Array:
    """A plain copy of an array, memory maps included; nothing that its class defines is called.

    It must have one of the `dtypes`, or any but objects.
    """
    if not isinstance(value, np.ndarray) or isinstance(value, OTHERWISE):
        raise TypeError(f"{key} must be a NumPy array, got {seen(value)}")
    array = np.array(value, order="C")
    if array.dtype.hasobject:
        raise TypeError(f"{key} must not be an array of objects, got {array.dtype}")
    if dtypes is not None:
        refuse_others(array.dtype, key, dtypes)
    return array


def check_eps(key: str, eps: Array) -> None:
    """The least scale, of which a constructor would take no other."""
    checks.of_shape(eps, key, (1,))
    if not 0 < eps < np.inf:
        raise ValueError(f"{key} must be positive and finite, got {show(eps)}")
