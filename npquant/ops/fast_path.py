"""The short way of a call: what does not depend on the data is found once, the rest is one kernel.

That kernel looks at the qparams, and computes; of whatever it does not take as it is, the op goes
the long way. Elementwise ops of any size go it, and the learnable backward of most arrays; for what
chooses qparams see fast_choice.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from npquant import arrays, backend, checks, cpu, dtypes
from npquant.cpu import strided, sums
from npquant.cpu.checks import Looks
from npquant.cpu.loops import PAST, past_pays
from npquant.cpu.target import PARALLEL_FROM, threads
from npquant.cpu.walk import PIECE, contiguous, in_one_part, plain
from npquant.dtypes import DType, Precision
from npquant.layout import Granularity, dense_strides, memory_order, order_of_strides
from npquant.meta import ArraySpec
from npquant.owners import Array

_BOOL = dtypes.bool_
#: Gradients of so many elements at most are packed, if they or the data are not contiguous: fewer
#: than a tensor has whose rows are of several tiles each, for which there is nothing at once.
PACKED = strided.GATHERED
#: A scale and a zero point that are numbers. As classes they equal the first dtypes of
#: `dtypes.DOUBLE`, but have other hashes: sets tell them apart, and tuples do not.
_NUMBERS = float, int
PYTHON_NUMBERS: dtypes.Pairs = (_NUMBERS,)
#: What a kernel may take, or its one element.
_QPARAMS = float, int, np.ndarray, np.generic

_is_carray = attrgetter("flags.carray")
# Names of this module are found sooner than those of another.
_Array, _empty, _float32 = np.ndarray, np.empty, dtypes.float32

#: ``fast_path(x, scale, zero_point, out) -> (output, mask)``, or None: see `fast_path`.
FastPath = Callable[..., tuple[Array, Any] | None]
#: The same of three gradients.
Backward = Callable[..., tuple[Array, Array, Array] | None]
#: The axes of data, from the slowest to the fastest in memory.
Order = tuple[int, ...]


def no_fast_path(*args: Any) -> None:
    """What stands for a fast path where there is nothing of the kind."""


def _number(qparam: Any) -> Any:
    """The one element of an array, or a scalar, of NumPy as Python's; else what is given."""
    if (
        (type(qparam) is _Array or isinstance(qparam, np.generic))
        and qparam.size == 1
        and qparam.dtype in dtypes.REALS
    ):
        return qparam.item()
    return qparam


class Entries(dict[Any, Any]):
    """What is found once: compiled functions by the dtypes of qparams, None of unusual ones.

    Or what is done with data, by their strides; of these there may be many, in the end too many.
    """

    def __init__(self, find: Callable[[Any], Any]) -> None:
        self._find = find

    def __missing__(self, kinds: Any) -> Any:
        if len(self) >= 64:
            self.clear()
        self[kinds] = found = self._find(kinds)
        return found


def _lies_so(order: Order, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Whether data are dense with their axes in this order, but for axes of one."""
    dense = dense_strides(shape, order, itemsize)
    return all(n == 1 or a == b for n, a, b in zip(shape, strides, dense, strict=True))


def _in_c_order(lying: tuple[int, ...], order: Order) -> None:
    """What stands for `turned` where data are packed, in whatever order they lie."""


def ways(
    at_once: Callable[..., Any],
    shape: tuple[int, ...],
    itemsize: int,
    alike: int,
    turned: Callable[[tuple[int, ...], Order], Any] = _in_c_order,
    place: int | None = None,
    updated: bool = False,
) -> Any:
    """By the strides of data that are not contiguous, what `at_once` is for those that are.

    Dense data whose axes lie in another order go, as a view, to `turned(lying, order)`: the same
    for the shape as it lies, where there is such a thing. Others are packed by NumPy, or the
    result is None where they are too large for that. As the long way makes them, the first `alike`
    results lie as dense data do, else in C order.

    With `place` there are several arrays of data, of which that one says how results lie. With
    `updated`, all but the first of what is taken beside the data is written to.
    """
    n, axes = prod(shape), tuple(range(len(shape)))

    def in_c_order(x: Any, *rest: Any) -> Any:
        if n > PIECE:
            return None
        if updated:  # which no kernel sees of a copy
            for a in rest[1:]:
                if type(a) is not _Array or np.may_share_memory(a, x):
                    return None
        return at_once(x.copy() if place is None else tuple(map(contiguous, x)), *rest)

    def find(strides: tuple[int, ...]) -> Callable[..., Any]:
        order = order_of_strides(shape, strides, itemsize)
        if order is None or _lies_so(axes, shape, strides, itemsize):
            return in_c_order
        if _lies_so(axes[::-1], shape, strides, itemsize):
            order = axes[::-1]  # as it does for NumPy, wherever axes of one are
        back = tuple(sorted(axes, key=order.__getitem__))
        lying = turned(tuple([shape[i] for i in order]), order)

        def as_they_lie(x: Any, *rest: Any) -> Any:
            x = x.transpose(order) if place is None else tuple([a.transpose(order) for a in x])
            done = lying(x, *rest)
            if done is None or not alike:
                return done
            y, *rest = done
            if alike == 1:
                return y.transpose(back), *rest
            (mask,) = rest
            return y.transpose(back), None if mask is None else mask.transpose(back)

        def and_put_so(x: Any, *rest: Any) -> Any:
            done = in_c_order(x, *rest)
            if done is None:
                return None
            y, mask = done[:2]
            y = y.transpose(order).copy().transpose(back)
            if alike == 1:
                return y, *done[1:]
            return y, None if mask is None else mask.transpose(order).copy().transpose(back)

        if lying is not None:
            return no_fast_path if lying is no_fast_path else as_they_lie
        return and_put_so if alike else in_c_order

    return Entries(find)


def _converted(
    scale: Array, zero_point: Array, integers: dict[Any, DType], used_in: Mapping[DType, DType]
) -> tuple[Array, Array]:
    """Few qparams in the dtypes in which a kernel takes them, where nothing is lost by it.

    That is integer zero points as those that it takes beside such scales, if they are among these,
    and scales in the dtype in which they are used.
    """
    if scale.size > PIECE:
        return scale, zero_point
    scale = arrays.cast(scale, used_in.get(scale.dtype, scale.dtype))
    wanted = integers.get(scale.dtype)
    if wanted is not None and zero_point.dtype in dtypes.INTEGERS:
        fits = np.can_cast(zero_point.dtype, wanted)
        if fits or checks.outside(zero_point, *dtypes.BOUNDS[dtypes.int32]) < 0:
            zero_point = zero_point.astype(wanted, copy=False)
    return scale, zero_point


def _both_plain(scale: Any, zero_point: Any, shapes: checks.Shapes) -> bool:
    """Whether a kernel can take qparams in arrays as they are."""
    return (
        type(scale) is type(zero_point) is _Array
        and (given := scale.shape) in shapes
        and zero_point.shape == given
        and (scale.flags.carray or plain(scale))
        and (zero_point.flags.carray or plain(zero_point))
    )


class Form(NamedTuple):
    """What of a call of an elementwise op, or of a backward, does not depend on its data."""

    #: The kernel's name.
    kernel: str
    #: Of the data. With several dtypes there are as many inputs.
    shape: tuple[int, ...]
    dtype: DType | tuple[DType, ...]
    granularity: Granularity
    #: That arrays of qparams may have; if there is none, those of one element count as numbers.
    shapes: checks.Shapes
    #: Those of the kernel, and the types of a scale, of a zero point and of them, as `Elementwise`
    #: takes both. Of codes the last constant is what a NaN becomes.
    constants: tuple[Any, ...]
    precision: Precision
    #: The dtype of the result.
    target: DType
    #: The dtypes that arrays of qparams may have, and bounds of the zero points.
    kinds: dtypes.Pairs
    within: tuple[float, float]
    #: What `out` must be apart from: inputs but for the one at `place`, and the qparams.
    names: tuple[str, ...]
    place: int = 0
    #: Whether there is a mask, too.
    masked: bool = False
    #: Whether the kernel takes the reciprocal of a scale.
    inverse: bool = False
    #: Whether results are written past the caches, where large arrays are given for them. In new
    #: memory they are not, as the system has just cleared it by way of the caches.
    past: bool = False
    #: Where other channels follow those of the granularity, after how many times: see `Piece`.
    repeats: int = 0
    #: The dtypes in which scales are used, by their own, where that is another one.
    used_in: Mapping[DType, DType] = dtypes.IN_THEIR_OWN


#: Of an op: what the long way is told, and what does it all at once if it can.
Plan = tuple[Form, FastPath]


def fast_path(kind: type, form: Form, anew: Any = None) -> FastPath:
    """A function of an input of this form, its qparams, and perhaps `out`.

    It does all that is left: one kernel looks at the qparams, and goes on if there is nothing to
    convert and nothing to refuse. That is arrays of the dtypes and shapes that the form names, or
    numbers, scales that are positive and finite, zero points within the bounds, and all of it
    contiguous, be it that the axes of the data lie in another order. Else nothing was written, and
    the result is None.

    On a GPU nothing is looked at, and an equal call is what one came to: see `repeated`.
    """
    if kind is not np.ndarray:
        return repeated(kind, anew, form.place, (-1,))
    (
        kernel, shape, dtype, granularity, shapes, constants, precision, target, kinds, within,
        names, place, masked, inverse, past, times, used_in,
    ) = form  # fmt: skip
    n, code = prod(shape), precision.code
    # A kernel's public name is the method `run` of its `Elementwise`.
    op, beyond = getattr(cpu, kernel).__self__, None
    run, items, repeats, grain = op.in_one_call(granularity, n, code, past, times)
    large = n * run.work >= PARALLEL_FROM
    several = type(dtype) is tuple
    read = dtype[place] if isinstance(dtype, tuple) else dtype
    channels, inner, _ = granularity
    inner = inner or n
    scales = n // (inner * times) if times else channels
    if not (past or masked) and n * target.itemsize >= PAST and past_pays(read, target, inner):
        beyond = fast_path(kind, form._replace(past=True))
    # A float is one already: an integer is asked for it in every call.
    lo, hi, nan = constants if code == "int32" else map(float, constants)
    (lowest, highest), (least, most) = within, map(float, within)

    # What cuts the data into channels.
    cut = (0, channels, inner, repeats) if repeats else (0, channels, inner)

    def key(given: tuple[Any, Any]) -> Any:
        types = precision if given[0] is float else (*given, code)
        return dtype, target, types, not masked

    known = frozenset(kinds)
    integers = {s: z for s, z in kinds if z in dtypes.INTEGERS}
    entries = Entries(lambda given: run.serial[key(given)] if given in known else None)

    turned = partial(_turned, kind, form)
    with_gaps = Entries(lambda strides: _with_gaps(form, (lo, hi, nan), strides))
    in_order = Entries(lambda order: turned(tuple([shape[i] for i in order]), order))

    def onto(x: Any, scale: Any, zero_point: Any, out: Any) -> tuple[Array, Any] | None:
        """Of data that are not contiguous, from which `out` is as far as it must be."""
        if not all(isinstance(q, _QPARAMS) for q in (scale, zero_point)):
            return None  # what is refused first
        u, others = (x[place], (*x[:place], *x[place + 1 :])) if several else (x, ())
        y = checks.output(out, u, target, names, (*others, scale, zero_point))
        if not several and not y.flags.carray:  # both may lie in another order
            order = memory_order(x)
            lying = None if order is None else in_order[order]
            if lying is None:
                return None
            v = x.transpose(order)
            w = v if y is x else y.transpose(order)
            as_they_lie = plain(v) and w.flags.carray
            return (out, None) if as_they_lie and lying(v, scale, zero_point, w) else None
        if n > PIECE or not y.flags.carray:
            return None
        done = call(tuple(map(contiguous, x)) if several else x.copy(), scale, zero_point, y)
        return None if done is None else (out, None)

    def call(
        x: Any, scale: Any, zero_point: Any, out: Array | None = None
    ) -> tuple[Array, Any] | None:
        found: FastPath | None = None
        if several:
            as_it_is = all(map(_is_carray, x)) or all(map(plain, x))
        else:
            as_it_is = x.flags.carray or plain(x)
        if not as_it_is:
            if out is not None:
                return onto(x, scale, zero_point, out)
            if n > PIECE:
                if several and all(a.flags.aligned for a in x):
                    found = with_gaps[tuple([a.strides for a in x])]
                elif not several and x.flags.aligned:
                    found = with_gaps[x.strides]
            if found is None:
                return by_strides[(x[place] if several else x).strides](x, scale, zero_point)
        if beyond is not None and out is not None:
            return beyond(x, scale, zero_point, out)
        qparams = scale, zero_point
        if not shapes:
            scale = scale if type(scale) is float else _number(scale)
            zero_point = zero_point if type(zero_point) is int else _number(zero_point)
        if type(scale) is float:
            # Not between the floats, to which large bounds are rounded.
            if type(zero_point) is not int or not lowest <= zero_point <= highest:
                return None
            if inverse and scale:
                scale = 1.0 / scale
            given: Any = _NUMBERS
        elif _both_plain(scale, zero_point, shapes):
            given = scale.dtype, zero_point.dtype
        else:
            return None
        if found is not None:
            return found(x, scale, zero_point, given)
        entry = entries[given]
        if entry is None:
            if given is _NUMBERS:
                return None
            scale, zero_point = _converted(scale, zero_point, integers, used_in)
            given = scale.dtype, zero_point.dtype
            entry = entries[given]
            if entry is None:
                return None
        if out is None:
            y = _empty(shape, target)
        else:
            u, others = (x[place], (*x[:place], *x[place + 1 :])) if several else (x, ())
            y = checks.output(out, u, target, names, (*others, *qparams))
            if not y.flags.carray:
                return None
            if not past and strided.written_over(y, u):
                return None  # which is better done in pieces
        mask = _empty(shape, _BOOL) if masked else None
        if large and threads() > 1:  # one looks, and all compute
            args = *cut, x, scale, zero_point, lo, hi, nan, y, mask
            if done := entry(0, 0, scales, least, most, *args):
                run(items, n, (0, 0.0, 0.0, *args), key(given), grain)
        elif repeats:
            done = entry(0, items, scales, least, most, 0, channels, inner, repeats, x, scale,
                         zero_point, lo, hi, nan, y, mask)  # fmt: skip
        else:
            done = entry(0, items, scales, least, most, 0, channels, inner, x, scale, zero_point,
                         lo, hi, nan, y, mask)  # fmt: skip
        return (y if out is None else out, mask) if done else None

    by_strides: dict[Any, FastPath] = ways(
        call, shape, read.itemsize, 2, turned, place if several else None
    )
    return call


def _turned(kind: type, form: Form, lying: tuple[int, ...], order: Order) -> FastPath | None:
    """A fast path of dense data whose axes lie in another order: of the view where they do not."""
    granularity, shape, shapes = form.granularity, form.shape, form.shapes
    cut = granularity.layout(shape, order)
    there = form._replace(shape=lying, past=False)
    if cut is not None:
        return fast_path(kind, there._replace(granularity=Granularity(*cut, None)))
    spans = granularity.spans(shape, order)
    if spans is None or not in_one_part(spans):
        return None
    outer, run, beside = spans
    channels, inner, repeats = (outer, run, 0) if beside == 1 else (beside, 1, run)
    there = there._replace(
        granularity=Granularity(channels, inner, None),
        repeats=repeats,
        shapes=((outer * beside,),),
    )
    at_once, grid = fast_path(kind, there), (*shape[:-1], shape[-1] // run)

    def in_memory(
        x: Any, scale: Any, zero_point: Any, out: Array | None = None
    ) -> tuple[Array, Any] | None:
        """With qparams of rows in the order of these."""
        if not _both_plain(scale, zero_point, shapes):
            return None
        s, z = (q.reshape(grid).transpose(order).reshape(-1) for q in (scale, zero_point))
        return at_once(x, s, z, out)

    return in_memory


def _with_gaps(form: Form, constants: tuple[Any, Any, Any], strides: Any) -> FastPath | None:
    """A function of data that are not dense and so many that they are not packed; else None.

    It takes qparams, too, and what of them are `given`: two dtypes, or _NUMBERS. They are looked at
    first, and then one kernel takes the data as they lie. With several arrays there are as many
    `strides`.
    """
    dtype, shape, precision, target, masked = (
        form.dtype, form.shape, form.precision, form.target, form.masked,
    )  # fmt: skip
    several = isinstance(dtype, tuple)
    every = zip(strides, dtype, strict=True) if isinstance(dtype, tuple) else [(strides, dtype)]
    data = tuple([(shape, steps, d.itemsize) for steps, d in every])
    dense = order_of_strides(*data[form.place]) is not None
    if dense or any(step % size for _, steps, size in data for step in steps):
        return None
    op = getattr(cpu, form.kernel).__self__
    way = op.of_data_apart(form.granularity, precision.code, data, target, masked)
    if way is None:
        return None
    (kernel, items, grain, told, key), as_given = way
    n, looks, numbers = prod(shape), Looks(*form.kinds), _NUMBERS in frozenset(form.kinds)
    below, beyond = (ends[np.dtype(precision.scale)] for ends in (checks.BELOW, checks.BEYOND))
    least, most = map(float, form.within)

    def apart(x: Any, scale: Any, zero_point: Any, given: Any) -> tuple[Array, Any] | None:
        types: Any = precision
        if given is _NUMBERS:
            good = numbers and below < scale < beyond
        else:
            types, look = (*given, precision.code), looks[given]
            good = look is not None and look(scale.size, scale, zero_point, least, most)
        if not good:
            return None
        x = tuple(map(as_given, x)) if several else as_given(x)
        of_x = tuple(map(key, x)) if several else key(x)
        y, mask = _empty(shape, target), _empty(shape, _BOOL) if masked else None
        args = (*told, x, scale, zero_point, *constants, y, mask)
        kernel(items, n, args, (of_x, target, types, not masked), grain)
        return y, mask

    return apart


def repeated(
    kind: type, anew: Any, lead: int = 0, written: tuple[int, ...] = ()
) -> Callable[..., Any]:
    """What stands for a fast path on a GPU: an equal call is what one came to, see again.py.

    `anew` takes the same arguments, and calls the op with them.
    """
    if kind is np.ndarray or kind is ArraySpec:
        return no_fast_path
    found: Callable[..., Any] = backend.of_kind(kind).repeated(anew, lead, written)
    return found


def fast_backward(kind: type, form: Form, anew: Backward) -> Backward:
    """The same of learned qparams: of (gradient, input) and qparams, to the gradients."""
    dtype, shape, shapes, code = form.target, form.shape, form.shapes, form.precision.code
    n = prod(shape)
    if kind is not np.ndarray:
        return repeated(kind, anew, 1)
    if n == 0:
        return no_fast_path
    of = getattr(cpu, form.kernel)
    run = of.at_once(form.granularity, shape, dtype, code)
    lo, hi, factor = map(float, form.constants)

    def call(data: Any, scale: Any, zero_point: Any) -> tuple[Array, Array, Array] | None:
        grad, x = data
        if not (type(grad) is _Array and grad.dtype == dtype and grad.shape == shape):
            return None
        way = None
        flat = (grad.flags.carray or plain(grad)) and (x.flags.carray or plain(x))
        if run is None or not flat:
            if n > PACKED and grad.flags.aligned and x.flags.aligned:
                way = known[grad.strides, x.strides]
            if way is None:
                return None if flat or n > PIECE else by_strides[x.strides](data, scale, zero_point)
        if not _both_plain(scale, zero_point, shapes):
            return None
        a, b = scale.dtype, zero_point.dtype
        usual = a is b is _float32
        if not (usual or (scale.size <= sums.CHANNELS_AT_A_TIME and {a, b} <= dtypes.FLOATS)):
            return None
        s = scale if usual else arrays.cast(scale, _float32)
        given = scale.shape
        if usual:
            slope, shift = _empty(given, _float32), _empty(given, _float32)
        else:
            slope, shift = _empty(given, dtypes.summed(a)), _empty(given, dtypes.summed(b))
        if way is None:
            y = _empty(shape, dtype)
            if not run(grad, x, s, zero_point, lo, hi, factor, y, slope, shift):
                return None
        else:
            if not looks[_float32, b](s.size, s, zero_point, *form.within):
                return None
            y = arrays.alike(x, dtype)
            of.in_one_call(way, grad, x, y, s, zero_point, (lo, hi, factor), code, slope, shift)
        if usual:
            return y, slope, shift
        return y, dtypes.round_once(slope, a), dtypes.round_once(shift, b)

    def find(strides: tuple[tuple[int, ...], ...]) -> Any:
        """How one call takes so many data with these strides, if it can, and their result."""
        grad, x = (as_strided(_empty(1, dtype), shape, steps) for steps in strides)
        return of.way(form.granularity, grad, x, arrays.alike(x, dtype))

    looks, known = Looks(*[(_float32, kind) for kind in dtypes.FLOATS]), Entries(find)
    by_strides: dict[Any, Backward] = ways(call, shape, dtype.itemsize, 1, place=1)
    return call
