"""Optimizers: a step of every parameter from its gradient, in one pass over its arrays.

The update rules are those of PyTorch 2.13 on a CPU (``torch.optim``, ``foreach=False``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import Any, Self

import numpy as np

from npquant import backend, checks
from npquant.arrays import alike, beside, copy, full_like, on_host
from npquant.dtypes import SINGLE_AND_DOUBLE, float32, refuse_others
from npquant.errors import show
from npquant.owners import is_array, no_array
from npquant.state import attributes, put, remade, seen, takes_state

__all__ = ["SGD", "Adam"]

Array = np.ndarray[Any, Any]

#: A kernel of a backend, the arrays that it updates, and the numbers that it is told.
Work = tuple[Any, tuple[Array, ...], tuple[float, ...]]

#: The least number that becomes infinite in float32.
_BEYOND = checks.BEYOND[float32]


class _Optimizer(ABC):
    """What optimizers share: the parameters, and checks before anything is written."""

    #: The options in the order of the constructor, and the names of the arrays of the state.
    _options: tuple[str, ...]
    _arrays: tuple[str, ...]
    #: Those of them that are never negative.
    _squares: tuple[str, ...] = ()
    #: The options that must be finite in the dtype of a parameter, in which they are used.
    _factors: tuple[str, ...]

    def __init__(self, params: Iterable[Any]) -> None:
        self.params = _listed(params, "params", "arrays and Parameters")
        if not self.params:
            raise ValueError("params must not be empty")
        values = [self._value(i) for i in range(len(self.params))]
        i = _first_overlapping(values)
        if i is not None:
            raise ValueError(f"params must lie apart, params[{i}] overlaps another")
        self._state: list[dict[str, Any]] = [{} for _ in values]

    def __setattr__(self, name: str, value: Any) -> None:
        """Check options that are assigned as those of the constructor, and make them so."""
        super().__setattr__(name, self._checked(name, value) if name in self._options else value)

    def __repr__(self) -> str:
        count = len(self.params)
        options = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._options)
        return f"{type(self).__name__}({count} parameter{'s' * (count > 1)}, {options})"

    def step(self, gradients: Sequence[Any]) -> None:
        """Update every parameter in place.

        Parameters
        ----------
        gradients : sequence of ndarray or None
            The gradient of each parameter, in their order, of its shape and dtype. A parameter
            whose gradient is None stays as it is, and so does its state. Parameters are updated in
            their order: a gradient that lies in another one's memory is read when that is done.

        Raises
        ------
        TypeError
            If a gradient, or a parameter by now, is no array of float32 or float64, or their dtypes
            differ.
        ValueError
            If there is not one gradient for each parameter, or their shapes differ, or a parameter
            has another shape or dtype than its state, or a gradient overlaps its parameter and is
            not the same array, or a float32 does not hold an option of a parameter of that dtype,
            the step that Adam makes of `lr`, or ``1 - lr * weight_decay``. Nothing has been updated
            then.
        """
        given = _listed(gradients, "gradients", "arrays, one for each parameter")
        if len(given) != len(self.params):
            raise ValueError(
                f"gradients must be {len(self.params)}, one for each parameter, got {len(given)}"
            )
        if len(self._state) != len(self.params):
            raise ValueError(
                f"params must stay the {len(self._state)} that there were, got {len(self.params)}"
            )
        large = self._large()
        pairs: list[tuple[int, Array, Array]] = []
        for i, gradient in enumerate(given):
            if gradient is not None:
                value = self._value(i)
                if not self._fits(self._state[i], value):
                    raise ValueError(
                        f"params[{i}] must keep its shape and dtype, got {show(value)}"
                    )
                found = checks.same(gradient, f"gradients[{i}]", value, data=f"params[{i}]")
                checks.itself_or_apart(value, f"params[{i}]", found, f"gradients[{i}]")
                if large and value.dtype == float32:
                    self._check_numbers(self._state[i])
                pairs.append((i, value, found))
        # First all memory, and all that is compiled: where there is none, or an interrupt breaks
        # that off, nothing has been updated nor counted.
        work = []
        for i, value, gradient in pairs:
            state = self._state_of(i, value)
            if "step" in state:  # counted first: a state of no step could not be saved
                state = {**state, "step": state["step"] + 1}
            kernel, arrays, numbers = self._work(state, value)
            work.append((i, state, *kernel.ready(gradient, arrays, numbers)))
        for i, state, update, args in work:
            before = self._state[i]
            self._state[i] = state  # at once: an interrupt is raised when the kernel has ended
            try:
                update(*args)
            except Exception:
                self._state[i] = before
                raise

    def _state_of(self, i: int, value: Array) -> dict[str, Any]:
        """The state of a parameter, where that lies by now."""
        state = self._state[i]
        if not state:
            return self._begun(value)
        host = type(value) is np.ndarray
        for key in self._arrays:
            if (type(state[key]) is np.ndarray) is not host:
                moved = {name: beside(value, state[name]) for name in self._arrays}
                self._state[i] = state = {**state, **moved}
                break
        return state

    @abstractmethod
    def _large(self) -> bool:
        """Whether a step may compute with a number that no float32 holds."""

    def _check_numbers(self, state: dict[str, Any]) -> None:
        """Refuse what a float32 does not hold, in which a step would compute with it."""
        for name in self._factors:
            checks.finite_float32(getattr(self, name), name)

    @abstractmethod
    def _begun(self, value: Array) -> dict[str, Any]:
        """The state before a first step."""

    @abstractmethod
    def _work(self, state: dict[str, Any], value: Array) -> Work:
        """What a step of a parameter and its state comes to; nothing is done."""

    def _value(self, i: int) -> Array:
        """The array of a parameter, fit to be updated."""
        name = f"params[{i}]"
        given = self.params[i]
        if type(given) is np.ndarray and given.dtype in SINGLE_AND_DOUBLE and given.flags.carray:
            return given
        value = given if is_array(given) else getattr(given, "value", None)
        if not is_array(value):
            raise TypeError(
                f"{name} must be a NumPy array or have one as its value, got {no_array(given)}"
            )
        found: Array = checks.array(value, name)
        refuse_others(found.dtype, name, SINGLE_AND_DOUBLE)
        checks.writeable(found, name)
        return found

    def _fits(self, state: dict[str, Any], value: Array) -> bool:
        """Whether the arrays of a state have the shape and the dtype of their parameter."""
        for name in self._arrays:
            a = state.get(name, value)
            a = a if type(a) is np.ndarray else checks.array(a, name)
            if a.shape != value.shape or a.dtype != value.dtype:
                return False
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the state and the options, as copies in NumPy.

        Returns
        -------
        dict
            As PyTorch's: ``state`` with an entry for each parameter that was updated, by its
            place, and ``param_groups``, a list of one dict of the options.
        """
        options = {name: getattr(self, name) for name in self._options}
        group = {**options, "params": list(range(len(self.params)))}
        state = {i: _copied(entry, on_host) for i, entry in enumerate(self._state) if entry}
        return {"state": state, "param_groups": [group]}

    @takes_state
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned, all of it or nothing.

        Parameters
        ----------
        state_dict : dict
            Result of `state_dict` of an optimizer with parameters of the same shapes and dtypes. A
            number of steps may be an array of one element, as files give it back, or a whole float.

        Raises
        ------
        ValueError
            If it is no such dict, lacks a part, has one that is unknown or of the wrong kind, or an
            array has another shape or dtype than its parameter.
        """
        parts = _part(state_dict, "state_dict", ("state", "param_groups"))
        groups = parts["param_groups"]
        if type(groups) not in (list, tuple) or len(groups) != 1:
            got = f"{len(groups)} of them" if type(groups) in (list, tuple) else seen(groups)
            raise ValueError(f"param_groups must be a list of one dict, got {got}")
        group = _part(groups[0], "param_groups[0]", (*self._options, "params"))
        count = len(self.params)
        params = group["params"]
        listed = type(params) is list and all(type(i) is int for i in params)
        if not listed or params != list(range(count)):
            got = params if listed else seen(params)
            raise ValueError(f"params must be the list 0..{count - 1}, got {got}")
        options = {}
        for name in self._options:
            _of_numbers(name, group[name])
            options[name] = self._checked(name, group[name])
        if not isinstance(parts["state"], Mapping):
            raise ValueError(f"state must be a dict, got {seen(parts['state'])}")
        state: list[dict[str, Any]] = [{} for _ in range(count)]
        for i, entry in parts["state"].items():
            if type(i) is not int or i not in range(count):
                raise ValueError(f"state must have keys within 0..{count - 1}, got {seen(i)}")
            state[i] = self._entry(i, entry)
        self.__dict__.update(options, _state=state)  # at once

    def __copy__(self) -> Self:
        """Another optimizer of the same parameters, with a state of its own."""
        other: Self = remade(self, *attributes(self, object.__getstate__(self)))
        state = [_copied(entry) for entry in self._state]
        other.__dict__.update(params=list(self.params), _state=state)
        return other

    @takes_state
    def __setstate__(self, state: Any) -> None:
        """Take what a pickle or a copy holds, if this class can have such state."""
        usual, slots = attributes(self, state)
        other = remade(self, usual, slots)
        lists = other.params, other._state
        if any(type(a) is not list for a in lists) or len(lists[0]) != len(lists[1]):
            raise ValueError(
                "params and _state must be lists of one length, "
                f"got {seen(lists[0])} and {seen(lists[1])}"
            )
        for name in self._options:
            value = getattr(other, name)
            _of_numbers(name, value)
            usual = {**usual, name: self._checked(name, value)}
        entries = []
        for i, entry in enumerate(other._state):
            other._value(i)
            entries.append(other._entry(i, entry) if type(entry) is not dict or entry else {})
        put(self, {**usual, "_state": entries}, slots)

    def _entry(self, i: int, entry: Any) -> dict[str, Any]:
        """The checked state of a parameter."""
        name, value = f"state[{i}]", self._value(i)
        steps = ("step",) if "step" in self._keys() else ()
        parts = _part(entry, name, self._keys())
        found: dict[str, Any] = {}
        for key in steps:
            found[key] = _steps(parts[key], f"{name}[{key!r}]")
        for key in self._arrays:
            if not is_array(parts[key]):
                raise ValueError(f"{name}[{key!r}] must be an array, got {seen(parts[key])}")
            there, like = parts[key], value
            if isinstance(value, np.ndarray):
                there = beside(value, there)
            elif isinstance(there, np.ndarray):  # checked here, before it goes to the parameter
                like = np.broadcast_to(np.zeros((), value.dtype), value.shape)
            given = checks.same(there, f"{name}[{key!r}]", like, data=f"params[{i}]")
            known = isinstance(given, np.ndarray)  # none is asked for that is on a GPU
            if key in self._squares and known and (given < 0).any():
                raise ValueError(
                    f"{name}[{key!r}] must not be negative, a mean of squares, got {given.min()}"
                )
            # In NumPy lying as the parameter does, or each step would pack one of both.
            if isinstance(value, np.ndarray):
                found[key] = alike(value, value.dtype)
                found[key][...] = given
            else:
                found[key] = copy(given) if like is value else beside(value, given)
        return found

    def _keys(self) -> tuple[str, ...]:
        return self._arrays

    def _checked(self, name: str, value: Any) -> Any:
        """An option as it is kept."""
        return checks.at_least(value, name, 0.0)


class SGD(_Optimizer):
    """Stochastic gradient descent, with momentum.

    With g the gradient, to which `weight_decay` times the parameter is added::

        buffer    = momentum * buffer + g        (the first time g)
        parameter = parameter - lr * buffer      (lr * g without momentum)

    Parameters
    ----------
    params : iterable
        What is updated in place: arrays of float32 or float64, or objects whose ``value`` is one.
        For a single one a list of it: an array is not taken for its rows.
    lr : float, default 1e-3
        Learning rate, at least 0.
    momentum : float, default 0
        Share of the buffer that stays, at least 0.
    weight_decay : float, default 0
        Factor of the parameter in its gradient (an L2 penalty), at least 0.

    Attributes
    ----------
    lr, momentum, weight_decay : float
        The options. They may be assigned between steps: `lr`, to follow a schedule. What the
        constructor would refuse is refused then, too.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If there are no parameters, two overlap, one cannot be written to, or a number is negative
        or not finite.

    Notes
    -----
    Corresponds to ``torch.optim.SGD`` of PyTorch 2.13, without dampening and Nesterov's variant:
    the same bits, in float32 and in float64. Products that something is added to are rounded once
    with the sum where PyTorch does so (``parameter - lr * g``, and the decay).

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.optim import SGD
    >>> w = np.array([1.0, 2.0], np.float32)
    >>> SGD([w], lr=0.5).step([np.array([1, -1], np.float32)])
    >>> w
    array([0.5, 2.5], dtype=float32)
    """

    _options = ("lr", "momentum", "weight_decay")
    _arrays = ("momentum_buffer",)
    _factors = ("lr", "momentum", "weight_decay")
    lr: float
    momentum: float
    weight_decay: float

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0,
        *,
        weight_decay: float = 0,
    ) -> None:
        super().__init__(params)
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay

    def _large(self) -> bool:
        return self.lr >= _BEYOND or self.momentum >= _BEYOND or self.weight_decay >= _BEYOND

    def _begun(self, value: Array) -> dict[str, Any]:
        # -0.0 is what every gradient can be added to without a change, 0.0 included.
        return {"momentum_buffer": full_like(value, -0.0)} if self.momentum else {}

    def _work(self, state: dict[str, Any], value: Array) -> Work:
        lib = backend.of(value)
        if self.momentum == 0:
            kernel = lib.sgd_decayed if self.weight_decay else lib.sgd
            return kernel, (value,), (self.lr, self.weight_decay)
        update = lib.sgd_momentum_decayed if self.weight_decay else lib.sgd_momentum
        arrays = value, state["momentum_buffer"]
        return update, arrays, (self.lr, self.weight_decay, self.momentum)


class Adam(_Optimizer):
    """Adam: steps of the mean gradient over the root of the mean square.

    With g the gradient, to which `weight_decay` times the parameter is added, at the t-th step of
    the parameter::

        exp_avg    = exp_avg + (1 - beta1) * (g - exp_avg)
        exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * g**2
        denom      = sqrt(exp_avg_sq) / sqrt(1 - beta2**t) + eps
        parameter  = parameter - lr / (1 - beta1**t) * exp_avg / denom

    With `decoupled_weight_decay`, which is AdamW, nothing is added to the gradient, and the
    parameter is multiplied by ``1 - lr * weight_decay`` first.

    Parameters
    ----------
    params : iterable
        What is updated in place: arrays of float32 or float64, or objects whose ``value`` is one.
        For a single one a list of it: an array is not taken for its rows.
    lr : float, default 1e-3
        Learning rate, at least 0.
    betas : tuple of two floats, default (0.9, 0.999)
        Shares of the means that stay, at least 0 and less than 1.
    eps : float, default 1e-8
        What is added to the root, at least 0.
    weight_decay : float, default 0
        Factor of the parameter in its gradient (an L2 penalty), at least 0.
    decoupled_weight_decay : bool, default False
        Whether `weight_decay` shrinks the parameter itself (AdamW) instead.

    Attributes
    ----------
    lr, betas, eps, weight_decay, decoupled_weight_decay
        The options. They may be assigned between steps: `lr`, to follow a schedule. What the
        constructor would refuse is refused then, too.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If there are no parameters, two overlap, one cannot be written to, or a number is out of its
        range.

    Notes
    -----
    Corresponds to ``torch.optim.Adam`` of PyTorch 2.13, and to ``torch.optim.AdamW``, whose
    `weight_decay` is 0.01 by default; without AMSGrad. The two means have PyTorch's bits, but for
    the sign of a zero where ``1 - betas[0]`` rounds to 1. PyTorch's square root is not always
    correctly rounded, and this one is: where it is not, a parameter may differ by an ulp, and so,
    with a decay that is not decoupled, may later gradients and means.

    References
    ----------
    .. [1] D. P. Kingma and J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015,
       arXiv:1412.6980.
    .. [2] I. Loshchilov and F. Hutter, "Decoupled Weight Decay Regularization", ICLR 2019,
       arXiv:1711.05101.

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.optim import Adam
    >>> w = np.array([1.0, 2.0], np.float32)
    >>> Adam([w], lr=0.5).step([np.array([0.1, -10], np.float32)])
    >>> w
    array([0.5, 2.5], dtype=float32)
    """

    _options = ("lr", "betas", "eps", "weight_decay", "decoupled_weight_decay")
    _arrays = ("exp_avg", "exp_avg_sq")
    _squares = ("exp_avg_sq",)
    _factors = ("lr", "eps", "weight_decay")
    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    decoupled_weight_decay: bool

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        *,
        decoupled_weight_decay: bool = False,
    ) -> None:
        super().__init__(params)
        self.lr, self.betas, self.eps = lr, betas, eps
        self.weight_decay, self.decoupled_weight_decay = weight_decay, decoupled_weight_decay

    def _checked(self, name: str, value: Any) -> Any:
        if name == "decoupled_weight_decay":
            return checks.switch(value, name)
        return _betas(value) if name == "betas" else super()._checked(name, value)

    def _large(self) -> bool:
        lr, decay = self.lr, self.weight_decay
        if lr / (1 - self.betas[0]) >= _BEYOND or self.eps >= _BEYOND:
            return True
        return decay >= _BEYOND or lr * decay >= _BEYOND

    def _check_numbers(self, state: dict[str, Any]) -> None:
        super()._check_numbers(state)
        count = state.get("step", 0) + 1
        checks.finite_float32(self.lr / (1 - self.betas[0] ** count), "lr / (1 - betas[0]**t)")
        if self.decoupled_weight_decay:
            checks.finite_float32(1 - self.lr * self.weight_decay, "1 - lr * weight_decay")

    def _keys(self) -> tuple[str, ...]:
        return ("step", *self._arrays)

    def _begun(self, value: Array) -> dict[str, Any]:
        return {"step": 0, "exp_avg": full_like(value, 0), "exp_avg_sq": full_like(value, 0)}

    def _work(self, state: dict[str, Any], value: Array) -> Work:
        count = state["step"]
        beta1, beta2 = self.betas
        step = -(self.lr / (1 - beta1**count))
        root = (1 - beta2**count) ** 0.5
        lib, decay = backend.of(value), self.weight_decay
        update = lib.adam
        if decay:
            update = lib.adam_decayed
            if self.decoupled_weight_decay:
                update, decay = lib.adamw, 1 - self.lr * decay
        arrays = value, state["exp_avg"], state["exp_avg_sq"]
        return update, arrays, (1 - beta1, beta2, 1 - beta2, step, root, self.eps, decay)


def _listed(values: Any, name: str, of: str) -> list[Any]:
    """What is given one after another; an array is one, not its rows, and a set has no order."""
    if not (is_array(values) or isinstance(values, (str, bytes, set, frozenset))):
        try:
            return list(values)
        except TypeError:  # it cannot be gone through
            pass
    raise TypeError(f"{name} must be a list of {of}, got {show(values)}")


def _first_overlapping(values: list[Array]) -> int | None:
    """The place of the first array that overlaps one before it."""
    spans, others, found = [], [], len(values)
    for i, v in enumerate(values):
        if type(v) is not np.ndarray:
            others.append(i)
        else:
            spans.append((*np.lib.array_utils.byte_bounds(v), i))
    pairs = combinations(others, 2)
    for j, i in chain(_met(spans), pairs):  # arrays of NumPy and on a GPU lie apart
        if i < found and checks.overlap(values[i], values[j]):
            found = i
    return found if found < len(values) else None


def _met(spans: list[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
    """Yield what pairs of (begin, end, place) have memory in common, each in order of the places.

    In memory, one may meet those alone that began before it and have not ended there.
    """
    open_: list[tuple[int, int]] = []
    for begin, end, i in sorted(spans):
        open_ = [(e, j) for e, j in open_ if e > begin]
        for _, j in open_:
            yield min(i, j), max(i, j)
        open_.append((end, i))


def _betas(betas: Any) -> tuple[float, float]:
    pair = enumerate(checks.two(betas, "betas"))
    first, second = (checks.below_one(b, f"betas[{i}]") for i, b in pair)
    return first, second


def _part(value: Any, name: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
    """A dict with these keys and no others."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a dict, got {seen(value)}")
    if set(value) != set(keys):
        got = ", ".join(map(seen, value)) or "none"
        raise ValueError(f"{name} must have the keys {', '.join(keys)}, got {got}")
    return value


def _of_numbers(name: str, value: Any) -> None:
    """Nothing is called of what is no number, nor two of them."""
    for v in value if type(value) in (list, tuple) else (value,):
        if not isinstance(v, (int, float, np.number, np.bool_)):
            raise ValueError(f"{name} must be a number, or a pair of numbers, got {seen(value)}")


def _steps(value: Any, name: str) -> int:
    """A number of steps, as files give it back: in an array of NumPy, or as PyTorch's float."""
    n = value
    # What is none is not asked for one.
    if type(n) is np.ndarray and n.size == 1 and n.dtype.kind in "iuf":
        n = n.reshape(())[()]
    if isinstance(n, (np.integer, np.floating)) and not isinstance(n, np.timedelta64):
        n = n.item() if isinstance(n, np.integer) else float(n)
    if type(n) is float and n.is_integer():
        n = int(n)
    if type(n) is not int:
        got = show(value) if type(value) is np.ndarray else seen(value)
        raise ValueError(f"{name} must be an integer, got {got}")
    return checks.within(n, name, 1, 2**63 - 1)


def _copied(entry: dict[str, Any], copied: Callable[[Array], Array] = copy) -> dict[str, Any]:
    return {k: copied(v) if is_array(v) else v for k, v in entry.items()}
