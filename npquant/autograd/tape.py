"""A tape: what was computed, so that gradients can be computed backwards."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from npquant import checks
from npquant.arithmetic import add
from npquant.arrays import alike, array_of, copy, filled, kind
from npquant.autograd.rules import RULES, Rule
from npquant.dtypes import native_order
from npquant.errors import show
from npquant.owners import is_array, no_array

Array = np.ndarray[Any, Any]
#: One function of the result's gradient that gives the gradient of every input, or one for each.
Backward = Callable[[Array], Sequence[Any]] | tuple[Callable[[Array], Any] | None, ...]


class Parameter:
    """Hold an array that is trained.

    A step that is applied on a tape takes parameters in place of arrays. The tape watches each that
    it meets, so a parameter can be a source of `Tape.gradient` without further ado. It is known by
    itself, not by its value: `value` may be written to, or replaced, between two passes.

    Parameters
    ----------
    value : ndarray
        What is trained: float16, bfloat16, float32 or float64. It is held, not copied.
    name : str, optional
        A name for people to read.

    Attributes
    ----------
    value : ndarray
        What is trained.
    name : str or None
        A name for people to read.

    Raises
    ------
    TypeError
        If `value` is no array of floats, or `name` no string.

    See Also
    --------
    Tape : Record steps, and compute gradients backwards.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant.autograd as ag
    >>> ag.Parameter(np.zeros((3, 2), np.float32), "w")
    Parameter(float32 of shape (3, 2), 'w')
    """

    __slots__ = ("__weakref__", "name", "value")

    def __init__(self, value: Array, name: str | None = None) -> None:
        _array_of_floats(value, "value")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name must be a string or None, got {show(name)}")
        self.value, self.name = value, name

    def __array__(self, *args: Any, **kwargs: Any) -> Array:
        """Refuse: what NumPy computes is not recorded, and it would save an object."""
        raise TypeError(f"{self!r} is no array: take its value, or apply the step on a tape")

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As protocols from 2 on do it: slots are unknown to those before."""
        return super().__reduce_ex__(max(protocol, 2))

    def __repr__(self) -> str:
        name = "" if self.name is None else f", {self.name!r}"
        value = self.value  # which may be anything by now; a message that shows it is raised
        held = f"{value.dtype} of shape {value.shape}" if is_array(value) else show(value)
        return f"Parameter({held}{name})"


def value_of(x: Any) -> Any:
    """The array of a `Parameter`, and anything else as it is."""
    return x.value if isinstance(x, Parameter) else x


class Tape:
    """Record steps, and compute gradients backwards.

    Inside of ``with Tape() as tape:``, ``y = tape.apply(step, x, ...)`` computes ``step(x, ...)``
    and remembers what its gradient needs, if any of its inputs can be traced back to a `Parameter`
    or to an array that `watch` was told of. `gradient` then goes through these records backwards,
    once, and frees each as it goes.

    Results are plain arrays. The tape knows an array by its identity: a slice, a copy or the result
    of a function that was not applied on the tape is another array, with no way back. An array that
    was an input or a result, a mask too, must keep its values until `gradient` has run.

    See Also
    --------
    Parameter : Hold an array that is trained.
    call : Apply a step without a tape.

    Notes
    -----
    A tape has no global state: tapes do not see each other, in one thread or in several. One tape
    serves one thread and one pass. There are no gradients of gradients.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant.autograd as ag
    >>> x, target = np.array([[1.0, 2.0]]), np.array([[3.0]])
    >>> w = ag.Parameter(np.array([[0.5, 0.5]]))
    >>> with ag.Tape() as tape:
    ...     y = tape.apply(ag.linear, x, w)
    ...     loss = tape.apply(ag.mse_loss, y, target)
    >>> loss
    array(2.25)
    >>> tape.gradient(loss, w)
    array([[-3., -6.]])
    """

    __slots__ = ("__weakref__", "_records", "_state", "_variables")

    def __init__(self) -> None:
        self._state = "new"
        #: Of each step: the identity of its result, those of its inputs (None: not traced), and
        #: its backward.
        self._records: list[tuple[int, list[int | None], Backward]] = []
        #: What is traced, by identity. It is held: no other object can get its identity.
        self._variables: dict[int, Any] = {}

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse: arrays are known by their identity, which copies have not."""
        raise TypeError("a tape is not copied or pickled, make a new Tape for each pass")

    def __enter__(self) -> Tape:
        if self._state != "new":
            raise ValueError("a tape is entered once, make a new Tape for each pass")
        self._state = "recording"
        return self

    def __exit__(self, *raised: object) -> None:
        if self._state == "recording":
            self._state = "left"

    def apply(self, step: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Compute a step, and remember how to go back.

        Without a traced input nothing is remembered, and the step costs what it costs without a
        tape. The results are those of the step itself, bit for bit.

        Parameters
        ----------
        step : callable or object with a method `forward`
            A differentiable function of npquant or of `npquant.autograd`; or anything with a method
            ``forward(apply, *args, **kwargs)`` that applies such steps by the `apply` it is given,
            such as the modules of npquant.
        *args
            Arguments of the step: a `Parameter` stands for its value.
        **kwargs
            Arguments of the step by name, but for `out`. The learnable ops also take
            `zero_point_rounding`, the option of their backward.

        Returns
        -------
        ndarray or tuple
            What the step returns. Of several results the first has a gradient. A module that is
            switched off returns the `Parameter` that it is given, to be traced on.

        Raises
        ------
        TypeError
            If `step` cannot be applied, an `out` is given, or an argument is wrong: also a traced
            scale or zero point in an op other than the learnable ones, which alone have gradients
            of them.
        ValueError
            If the tape does not record, or an argument is wrong.

        See Also
        --------
        call : Apply a step without a tape.
        Tape.record : Remember a step of one's own.

        Examples
        --------
        >>> import numpy as np
        >>> import npquant as nq
        >>> import npquant.autograd as ag
        >>> x = np.array([0.3, 1.6, 9.0], np.float32)
        >>> with ag.Tape() as tape:
        ...     tape.watch(x)
        ...     y = tape.apply(nq.fake_quantize_per_tensor_affine, x, 1.0, 0, -8, 7)
        >>> y
        array([0., 2., 7.], dtype=float32)
        >>> tape.gradient(y, x, np.ones_like(y))
        array([1., 1., 0.], dtype=float32)
        """
        self._must_record()
        rule = _rule(step)
        if rule is None:
            return _forward(step)(self.apply, *args, **kwargs)
        if kwargs.pop("out", None) is not None:
            raise TypeError("out must not be given on a tape: a result is an array of its own")
        given = len(args)
        keys = [self._key(args[i] if i < given else kwargs.get(name)) for i, name in rule.inputs]
        for i, name in rule.fixed:
            source = args[i] if i < given else kwargs.get(name)
            if isinstance(source, Parameter) or id(source) in self._variables:
                raise TypeError(
                    f"{name} must not be traced, as it has no gradient in {step.__name__} (those "
                    f"of the learnable ops have): give its value, got {show(source)}"
                )
        args, kwargs = _values(args, kwargs)
        if not any(keys):
            return rule.plain(*args, **kwargs)
        result, backward = rule.differentiated(*args, **kwargs)
        if isinstance(backward, tuple):  # what leads nowhere is not kept
            backward = tuple(f if k else None for f, k in zip(backward, keys, strict=True))
        y = result[0] if isinstance(result, tuple) else result
        self._variables[id(y)] = y
        self._records.append((id(y), keys, backward))
        return result

    def watch(self, source: Any) -> None:
        """Trace what is computed from an array from now on.

        A `Parameter` is watched when it is first used; to watch it here does no harm.

        Parameters
        ----------
        source : ndarray or Parameter
            An array of floats; it is known by its identity, not by its values.

        Raises
        ------
        TypeError
            If `source` is no array of floats and no `Parameter`.
        ValueError
            If the tape does not record.

        See Also
        --------
        Tape.gradient : Compute the gradients of one array.

        Examples
        --------
        >>> import numpy as np
        >>> import npquant.autograd as ag
        >>> x = np.array([3.0])
        >>> with ag.Tape() as tape:
        ...     tape.watch(x)
        ...     y = tape.apply(ag.mul, x, x)
        >>> tape.gradient(y, x)
        array([6.])
        """
        self._must_record()
        if not isinstance(source, Parameter):
            _array_of_floats(source, "source", " or a Parameter")
        self._variables[id(source)] = source

    def record(
        self, output: Array, inputs: Sequence[Any], backward: Callable[[Array], Sequence[Any]]
    ) -> None:
        """Remember a step of one's own.

        The step was computed by whatever means; `backward` tells the tape how to go back. It is
        called at most once, by `gradient`, and not at all if nothing that was asked for leads
        through this step.

        Parameters
        ----------
        output : ndarray
            What the step returned: an array of floats that the tape does not know yet, and so no
            input. A view of an input is another array.
        inputs : list or tuple of ndarray, Parameter or anything
            What it was computed from; what is not traced counts for nothing.
        backward : callable
            ``backward(grad)`` takes the gradient of `output`, an array of its shape and dtype that
            must not be written to, and returns a tuple or list of gradients: for each of the inputs
            a new array of its shape and dtype, or None where no gradient passes.

        Raises
        ------
        TypeError
            If an argument is of the wrong kind. From `gradient`, if `backward` returns something
            else than a tuple or list, or a gradient of another dtype than its input.
        ValueError
            If the tape does not record, or `output` is known to it. From `gradient`, if there are
            not as many gradients as inputs, or one has another shape than its input.

        See Also
        --------
        Tape.apply : Compute a step, and remember how to go back.

        Examples
        --------
        >>> import numpy as np
        >>> import npquant.autograd as ag
        >>> x = np.array([0.0, 1.0])
        >>> with ag.Tape() as tape:
        ...     tape.watch(x)
        ...     y = np.exp(x)
        ...     tape.record(y, [x], lambda grad: (grad * y,))
        ...     z = tape.apply(ag.mul, y, 2.0)
        >>> tape.gradient(z, x, np.ones(2))
        array([2.        , 5.43656366])
        """
        self._must_record()
        _array_of_floats(output, "output")
        if not isinstance(inputs, (list, tuple)):
            raise TypeError(f"inputs must be a list or tuple, got {show(inputs)}")
        if not callable(backward):
            raise TypeError(f"backward must be callable, got {show(backward)}")
        keys = [self._key(source) for source in inputs]
        if id(output) in self._variables or any(output is source for source in inputs):
            raise ValueError(
                f"output must be an array that the tape does not know yet, got {show(output)} "
                "that is an input or a result: give a copy, or output.view()"
            )
        if any(keys):
            kinds = [kind(value_of(s)) if k else None for s, k in zip(inputs, keys, strict=True)]
            self._variables[id(output)] = output
            self._records.append((id(output), keys, _checked(backward, kinds)))

    def gradient(self, target: Array, sources: Any, grad: Array | None = None) -> Any:
        """Compute the gradients of one array.

        The records are gone through backwards, and each is freed with its arrays as soon as it has
        been used; the tape is spent then. Only what leads to the `sources` is computed. Where an
        array was used more than once, its gradients are added.

        Parameters
        ----------
        target : ndarray
            A result of a step: what is differentiated, a loss for instance.
        sources : ndarray, Parameter, or a list or tuple of these
            What to differentiate by: parameters, watched arrays, or results on the way.
        grad : ndarray, optional
            Gradient of `target`, of its shape and dtype. By default 1, for a target of one element.

        Returns
        -------
        ndarray or None, or list of these
            Gradients in the order of the sources, each a new array of the shape and dtype of its
            source, in the machine's order of bytes; None where the target does not depend on it.
            For a list or tuple of sources a list; for a single source its gradient alone.

        Raises
        ------
        TypeError
            If an argument is of the wrong kind or dtype.
        ValueError
            If the tape is spent or was never entered, `target` was not computed on it from anything
            traced, a source is an array that it does not know, `grad` has another shape than
            `target`, or is missing for more than one element.

        See Also
        --------
        Tape.watch : Trace what is computed from an array from now on.

        Examples
        --------
        >>> import numpy as np
        >>> import npquant.autograd as ag
        >>> a, b, c = (ag.Parameter(np.array(v)) for v in (2.0, 3.0, 5.0))
        >>> with ag.Tape() as tape:
        ...     y = tape.apply(ag.mul, a, b)
        >>> tape.gradient(y, [a, b, c])
        [array(3.), array(2.), None]
        """
        if self._state in ("new", "spent"):
            raise ValueError(_REFUSALS[self._state])
        wanted = list(sources) if isinstance(sources, (list, tuple)) else [sources]
        for source in wanted:
            if not (isinstance(source, Parameter) or is_array(source)):
                raise TypeError(f"sources must be arrays and Parameters, got {show(source)}")
        if not is_array(target):
            raise TypeError(
                "target must be an array that tape.apply returned (NumPy's own arithmetic is not "
                f"recorded), got {show(target)}"
            )
        if id(target) not in self._variables:
            raise ValueError(
                f"target must be a result that this tape traced to a Parameter or a watched array, "
                f"got {show(target)} that it does not know (was each step taken by tape.apply, "
                "with the Parameter itself?)"
            )
        for source in wanted:
            if not (isinstance(source, Parameter) or id(source) in self._variables):
                raise ValueError(
                    "sources must be Parameters (not their values), watched arrays and results "
                    f"that were traced, got {show(source)} that this tape does not know"
                )
        x = checks.array(target, "target")
        shape, native = x.shape, native_order(x.dtype)  # as gradients are
        if grad is None:
            if math.prod(shape) != 1:
                raise ValueError(f"grad must be given for a target of shape {shape}")
            first = filled(alike(x, native), 1)
        else:
            given = checks.same(grad, "grad", x, native, data="target")
            first = given if isinstance(given, np.ndarray) else grad

        ends = {id(source) for source in wanted}
        leading = self._leading(ends)
        grads = {id(target): first}
        self._state = "spent"
        try:
            while self._records:
                self._step_back(grads, ends, leading)
        finally:  # whatever a backward raises
            self._records.clear()
            self._variables.clear()

        taken = {id(grad)}  # arrays that are somebody else's already
        found = [_own(grads.get(id(source)), taken) for source in wanted]
        return found if isinstance(sources, (list, tuple)) else found[0]

    def _leading(self, ends: set[int]) -> set[int]:
        """What leads to the sources, and the sources themselves."""
        leading = set(ends)
        for key, inputs, _ in self._records:
            if not leading.isdisjoint(inputs):
                leading.add(key)
        return leading

    def _step_back(self, grads: dict[int, Array], ends: set[int], leading: set[int]) -> None:
        """Use the last record, and let go of it."""
        key, inputs, backward = self._records.pop()
        del self._variables[key]
        grad = grads.get(key) if key in ends else grads.pop(key, None)
        if grad is None or leading.isdisjoint(inputs):
            return
        if isinstance(backward, tuple):
            parts: Sequence[Any] = [
                f(grad) if k in leading and f else None
                for f, k in zip(backward, inputs, strict=True)
            ]
        else:
            parts = backward(grad)
        for k, part in zip(inputs, parts, strict=True):
            if k in leading and part is not None:
                grads[k] = add(grads[k], part) if k in grads else array_of(part)

    def _key(self, source: Any) -> int | None:
        """The identity of what is traced; None for anything else."""
        key = id(source)
        if key in self._variables:
            return key
        if isinstance(source, Parameter):
            self._variables[key] = source
            return key
        return None

    def _must_record(self) -> None:
        if self._state != "recording":
            raise ValueError(_REFUSALS[self._state])


def call(step: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Apply a step without a tape.

    The counterpart of `Tape.apply`, with the same arguments and the same results: a module that
    gives its ``forward(apply, ...)`` this function computes, and records nothing. It takes `out`
    too, and scales that have no gradient, as arrays of integers, for which a tape has no use.

    Parameters
    ----------
    step : callable or object with a method `forward`
        As for `Tape.apply`.
    *args
        Arguments of the step: a `Parameter` stands for its value.
    **kwargs
        Arguments of the step by name.

    Returns
    -------
    ndarray or tuple
        What the step returns.

    Raises
    ------
    TypeError
        If `step` cannot be applied, or an argument is wrong.
    ValueError
        If an argument is wrong.

    See Also
    --------
    Tape.apply : Compute a step, and remember how to go back.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant.autograd as ag
    >>> class Twice:
    ...     def __init__(self, w):
    ...         self.w = ag.Parameter(w)
    ...
    ...     def forward(self, apply, x):
    ...         return apply(ag.linear, apply(ag.linear, x, self.w), self.w)
    ...
    ...     def __call__(self, x):
    ...         return ag.call(self, x)
    >>> twice = Twice(np.array([[0.0, 1.0], [2.0, 0.0]]))
    >>> twice(np.array([[1.0, 2.0]]))
    array([[2., 4.]])
    """
    rule = _rule(step)
    if rule is None:
        return _forward(step)(call, *args, **kwargs)
    args, kwargs = _values(args, kwargs)
    return rule.plain(*args, **kwargs)


_REFUSALS = {
    "new": "the tape records nothing yet, use it inside of `with Tape() as tape:`",
    "left": "the tape records no more: its `with` block has ended",
    "spent": "the tape is spent: gradient has freed its records, make a new Tape for each pass",
}


def _rule(step: Any) -> Rule | None:
    try:
        return RULES.get(step)
    except (TypeError, ValueError):  # cannot be looked up: a memoryview, too
        return None


def _forward(step: Any) -> Callable[..., Any]:
    """How a step that consists of steps is applied."""
    forward = getattr(step, "forward", None)
    if callable(forward) and not isinstance(step, type):
        return forward  # type: ignore[no-any-return]
    name = getattr(step, "__name__", None) or show(step)
    raise TypeError(
        f"step must be a differentiable function of npquant or npquant.autograd, or an object with "
        f"a method forward(apply, ...), got {name}; Tape.record takes steps of your own"
    )


def _values(args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments with arrays in place of parameters."""
    args = [a.value if isinstance(a, Parameter) else a for a in args]
    if kwargs:
        kwargs = {k: a.value if isinstance(a, Parameter) else a for k, a in kwargs.items()}
    return args, kwargs


def _array_of_floats(value: Any, name: str, other: str = "") -> None:
    if not is_array(value):
        raise TypeError(f"{name} must be a NumPy array{other}, got {no_array(value)}")
    checks.floats(value, name)


def _checked(
    backward: Callable[[Array], Sequence[Any]], kinds: list[tuple[tuple[int, ...], Any] | None]
) -> Callable[[Array], Sequence[Any]]:
    """A backward of the user's own, with its gradients held against the inputs."""

    def checked(grad: Array) -> Sequence[Any]:
        parts = backward(grad)
        if not isinstance(parts, (list, tuple)):
            raise TypeError(f"backward must return a tuple or list of gradients, got {show(parts)}")
        if len(parts) != len(kinds):
            raise ValueError(f"backward must return {len(kinds)} gradients, got {len(parts)}")
        found = list(parts)
        for i, (part, wanted) in enumerate(zip(parts, kinds, strict=True)):
            if part is None or wanted is None:
                continue
            name = f"gradient {i} of backward"
            if not (is_array(part) or isinstance(part, np.generic)):
                raise TypeError(f"{name} must be a NumPy array or None, got {no_array(part)}")
            shape, dtype = kind(part, name)
            native = native_order(dtype)
            if native != native_order(wanted[1]):
                raise TypeError(f"{name} must have the dtype {wanted[1]}, got {dtype}")
            if native != dtype:
                found[i] = part.astype(native)
            if shape != wanted[0]:
                raise ValueError(f"{name} must have the shape {wanted[0]}, got {shape}")
        return found

    return checked


def _own(grad: Array | None, taken: set[int]) -> Array | None:
    """`grad` as an array that shares its memory with no other that is returned."""
    if grad is not None and (id(grad) in taken or getattr(grad, "base", None) is not None):
        grad = copy(grad)
        return grad
    taken.add(id(grad))
    return grad
