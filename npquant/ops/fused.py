"""Observe and fake quantize in one call: the training step of quantization-aware training."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from npquant import backend, checks, dtypes, layout
from npquant.checks import Array
from npquant.layout import Granularity
from npquant.meta import ArraySpec
from npquant.ops.fake_quantize import run_per_tensor

_BOOL = np.dtype(np.bool_)
#: The least scale, as a float32.
SMALL_SCALE = 6.1e-5
_INT32 = (-(2**31), 2**31 - 1)


def fused_moving_avg_obs_fake_quant(
    input: Array,
    observer_on: Any,
    fake_quant_on: Any,
    running_min: Array,
    running_max: Array,
    scale: Array,
    zero_point: Array,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> Array:
    """Update a moving range, choose qparams from it, and fake quantize with them.

    Where the observer is on, the moving range takes in that of `input`, each step in float32::

        running = running + averaging_const * (seen - running)

    or becomes it, where it is infinite. Where quantizing is on, `scale` and `zero_point` are chosen
    from the moving range with 0 included, in float64 with float32 results: scales below 6.1e-5
    become that, a range of no width has the scale 0.1, and of the two ends the one with the smaller
    error fixes the zero point, but in a symmetric range that is the middle of the codes. Then
    `input` is fake quantized, as by `fake_quantize_per_tensor_affine` or per row by
    `fake_quantize_per_channel_affine`. A NaN in `input` stays in the range for good and makes the
    output NaN, all of it or its row. An empty `input` changes nothing.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape; float16, bfloat16, float32 or float64.
    observer_on : number, bool or array of one element
        Whether to update the moving range, truncated to an integer.
    fake_quant_on : number, bool or array of one element
        Whether to choose qparams and quantize, truncated to an integer. Where it is 0 the output is
        a copy of `input` and the mask is true.
    running_min : ndarray or ArraySpec
        Moving minima, float32, updated in place; shape (C,) per row, else (1,) or ().
    running_max : ndarray or ArraySpec
        Moving maxima, float32, updated in place; shape (C,) per row, else (1,) or ().
    scale : ndarray or ArraySpec
        Scales, float32, overwritten in place; shape (C,) per row, else (1,) or ().
    zero_point : ndarray or ArraySpec
        Zero points, overwritten in place; int32 of shape (C,) per row, else int32, int64 or float32
        of shape (1,) or ().
    averaging_const : float or array of one element
        Weight of the new range in the moving one; finite.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included and int32, with ``quant_min < quant_max``.
    ch_axis : int
        Axis of the channels; a negative one counts from the back. Only used per row.
    per_row_fake_quant : bool or number, default False
        Whether each of the C indices of `ch_axis` has its own range, scale and zero point.
    symmetric_quant : bool or number, default False
        Whether a range on both sides of zero is widened to a symmetric one.

    Returns
    -------
    ndarray or ArraySpec
        Values of the shape and the dtype of `input`.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If the bounds are equal, in the wrong order or beyond int32, `averaging_const` or a switch
        is not finite, `input` has no such axis, or an array that is updated has the wrong shape or
        is read-only.

    See Also
    --------
    fused_moving_avg_obs_fake_quant_cachemask :
        Update a moving range and fake quantize with it, and tell what was inside the range.
    fake_quantize_per_tensor_affine :
        Round to the grid of one scale and zero point, and clamp to its range.
    determine_qparams : Choose scales and zero points from minima and maxima.

    Notes
    -----
    Corresponds to ``torch.ops.aten.fused_moving_avg_obs_fake_quant`` of PyTorch 2.13. The formula
    is that of ``aten/src/ATen/native/quantized/cpu/fused_obs_fake_quant.cpp``.

    Scale and zero point are those of FBGEMM's ``ChooseQuantizationParams``, and so not those of
    `determine_qparams`: symmetric scales divide by 127, not 127.5, for int8. PyTorch observes
    float32 input alone.

    Departures from PyTorch: D1, D8, D10, D24; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([-1.3, 0.2, 2.7], np.float32)
    >>> low, high = np.array([np.inf], np.float32), np.array([-np.inf], np.float32)
    >>> scale, zero_point = np.ones(1, np.float32), np.zeros(1, np.int32)
    >>> nq.fused_moving_avg_obs_fake_quant(
    ...     x, 1, 1, low, high, scale, zero_point, 0.01, 0, 255, 0
    ... )
    array([-1.3019608 ,  0.20392159,  2.6980393 ], dtype=float32)
    >>> low, high
    (array([-1.3], dtype=float32), array([2.7], dtype=float32))
    >>> scale, zero_point
    (array([0.01568628], dtype=float32), array([83], dtype=int32))
    """
    return _fused(
        input, observer_on, fake_quant_on, running_min, running_max, scale, zero_point,
        averaging_const, quant_min, quant_max, ch_axis, per_row_fake_quant, symmetric_quant, False,
    )[0]  # fmt: skip


def fused_moving_avg_obs_fake_quant_cachemask(
    input: Array,
    observer_on: Any,
    fake_quant_on: Any,
    running_min: Array,
    running_max: Array,
    scale: Array,
    zero_point: Array,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> tuple[Array, Array]:
    """Update a moving range and fake quantize with it, and tell what was inside the range.

    Where the observer is on, the moving range takes in that of `input`, each step in float32::

        running = running + averaging_const * (seen - running)

    or becomes it, where it is infinite. Where quantizing is on, `scale` and `zero_point` are chosen
    from the moving range with 0 included, in float64 with float32 results: scales below 6.1e-5
    become that, a range of no width has the scale 0.1, and of the two ends the one with the smaller
    error fixes the zero point, but in a symmetric range that is the middle of the codes. Then
    `input` is fake quantized, as by `fake_quantize_per_tensor_affine` or per row by
    `fake_quantize_per_channel_affine`. A NaN in `input` stays in the range for good and makes the
    output NaN, all of it or its row. An empty `input` changes nothing. The mask says where the code
    lay between the bounds before it was clamped.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape; float16, bfloat16, float32 or float64.
    observer_on : number, bool or array of one element
        Whether to update the moving range, truncated to an integer.
    fake_quant_on : number, bool or array of one element
        Whether to choose qparams and quantize, truncated to an integer. Where it is 0 the output is
        a copy of `input` and the mask is true.
    running_min : ndarray or ArraySpec
        Moving minima, float32, updated in place; shape (C,) per row, else (1,) or ().
    running_max : ndarray or ArraySpec
        Moving maxima, float32, updated in place; shape (C,) per row, else (1,) or ().
    scale : ndarray or ArraySpec
        Scales, float32, overwritten in place; shape (C,) per row, else (1,) or ().
    zero_point : ndarray or ArraySpec
        Zero points, overwritten in place; int32 of shape (C,) per row, else int32, int64 or float32
        of shape (1,) or ().
    averaging_const : float or array of one element
        Weight of the new range in the moving one; finite.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included and int32, with ``quant_min < quant_max``.
    ch_axis : int
        Axis of the channels; a negative one counts from the back. Only used per row.
    per_row_fake_quant : bool or number, default False
        Whether each of the C indices of `ch_axis` has its own range, scale and zero point.
    symmetric_quant : bool or number, default False
        Whether a range on both sides of zero is widened to a symmetric one.

    Returns
    -------
    output : ndarray or ArraySpec
        Values of the shape and the dtype of `input`.
    mask : ndarray or ArraySpec
        Bool, of the shape of `input`: true where the code lay between the bounds unclamped.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If the bounds are equal, in the wrong order or beyond int32, `averaging_const` or a switch
        is not finite, `input` has no such axis, or an array that is updated has the wrong shape or
        is read-only.

    See Also
    --------
    fused_moving_avg_obs_fake_quant :
        Update a moving range, choose qparams from it, and fake quantize with them.
    fake_quantize_per_tensor_affine_cachemask_backward :
        Compute the input's gradient of `fake_quantize_per_tensor_affine_cachemask`.

    Notes
    -----
    Corresponds to ``torch.ops.aten._fused_moving_avg_obs_fq_helper`` of PyTorch 2.13. The formula
    is that of ``aten/src/ATen/native/quantized/cpu/fused_obs_fake_quant.cpp``.

    Scale and zero point are those of FBGEMM's ``ChooseQuantizationParams``, and so not those of
    `determine_qparams`: symmetric scales divide by 127, not 127.5, for int8. PyTorch observes
    float32 input alone.

    Departures from PyTorch: D1, D8, D10, D24; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([-1.3, 0.2, 2.7], np.float32)
    >>> low, high = np.array([np.inf], np.float32), np.array([-np.inf], np.float32)
    >>> scale, zero_point = np.ones(1, np.float32), np.zeros(1, np.int32)
    >>> output, mask = nq.fused_moving_avg_obs_fake_quant_cachemask(
    ...     x, 1, 1, low, high, scale, zero_point, 0.01, 0, 255, 0
    ... )
    >>> output
    array([-1.3019608 ,  0.20392159,  2.6980393 ], dtype=float32)
    >>> mask
    array([ True,  True,  True])
    """
    return _fused(
        input, observer_on, fake_quant_on, running_min, running_max, scale, zero_point,
        averaging_const, quant_min, quant_max, ch_axis, per_row_fake_quant, symmetric_quant, True,
    )  # fmt: skip


# --- what they share --------------------------------------------------------------------------


@checks.remembered
def _plan(
    shape: tuple[int, ...], kind: type, averaging_const: Any, quant_min: Any, quant_max: Any,
    ch_axis: Any, per_row_fake_quant: Any,
) -> tuple[Granularity, checks.Shapes, float, tuple[int, int], bool]:  # fmt: skip
    """The granularity, the shapes of the state, the weight, the bounds, and whether per row."""
    c = checks.finite(averaging_const, "averaging_const", kind)
    bounds = _int32_bounds(quant_min, quant_max, kind)
    if checks.switch(per_row_fake_quant, "per_row_fake_quant", kind):
        a = checks.axis_of(ch_axis, ArraySpec(shape, dtypes.float32), "ch_axis")
        return layout.per_channel(shape, a), ((shape[a],),), c, bounds, True
    return Granularity(1, prod(shape), None), ((1,), ()), c, bounds, False


def _fused(
    input: Any, observer_on: Any, fake_quant_on: Any, running_min: Any, running_max: Any,
    scale: Any, zero_point: Any, averaging_const: Any, quant_min: Any, quant_max: Any,
    ch_axis: Any, per_row_fake_quant: Any, symmetric_quant: Any, masked: bool,
) -> tuple[Array, Any]:  # fmt: skip
    x = checks.floats(input)
    granularity, shapes, c, bounds, per_row = _plan(
        x.shape, type(x), averaging_const, quant_min, quant_max, ch_axis, per_row_fake_quant
    )
    observe = checks.switch(observer_on, "observer_on", type(x))
    enabled = checks.switch(fake_quant_on, "fake_quant_on", type(x))
    symmetric = checks.switch(symmetric_quant, "symmetric_quant", type(x))
    low = _state(running_min, "running_min", shapes, x, _FLOAT)
    high = _state(running_max, "running_max", shapes, x, _FLOAT)
    s = _state(scale, "scale", shapes, x, _FLOAT)
    z = _state(zero_point, "zero_point", shapes, x, _INTEGER if not per_row else _INTEGER[:1])
    y = checks.output(None, x, x.dtype)
    mask = checks.output(None, x, _BOOL) if masked else None
    if type(x) is ArraySpec or x.size == 0:
        return y, mask
    lib, state = backend.of(x), (low, high, s, z)
    low, high, s, z = checks.flat(low), checks.flat(high), checks.flat(s), checks.flat(z)
    if observe and enabled:
        run = lib.observe_fbgemm_symmetric if symmetric else lib.observe_fbgemm
        run(granularity, x, c, low, high, bounds, SMALL_SCALE, 0, "float32", s, z)
    elif observe:
        lib.move(
            *(checks.cast(v, dtypes.float32) for v in lib.minmax(granularity, x)), c, low, high
        )
    elif enabled:
        choose = lib.choose_fbgemm_symmetric if symmetric else lib.choose_fbgemm
        choose(low, high, bounds, SMALL_SCALE, 0, "float32", s, z)
    for p, u in zip(state, (low, high, s, z), strict=True):
        if u is not p and not checks.overlap(p, u):
            checks.assign(p, u)
    lo, hi = bounds
    if not enabled:
        lib.copy(x, y, mask)
    elif per_row:
        code = checks.precision(x.dtype, lo, hi)
        lib.fake_quantize_per_channel(
            granularity, x, s, z, (lo, hi, 0), ("float32", code, code), y, mask
        )
    else:
        if type(s) is np.ndarray:
            s, z = s.item(), int(z.item())
        else:
            z = checks.cast(z, dtypes.int32)
        run_per_tensor(x, s, z, lo, hi, y, mask)
    return y, mask


_FLOAT = (dtypes.float32,)
_INTEGER = (dtypes.int32, np.dtype(np.int64), dtypes.float32)


def _int32_bounds(quant_min: Any, quant_max: Any, kind: type) -> tuple[int, int]:
    lo, hi = checks.bounds(quant_min, quant_max, kind)
    lo, hi = (
        _INT32[i] if type(v) is ArraySpec else n
        for i, (v, n) in enumerate(((quant_min, lo), (quant_max, hi)))
    )
    if lo == hi or lo < _INT32[0] or hi > _INT32[1]:
        raise ValueError(f"quant_min < quant_max is required, both int32, got {lo} and {hi}")
    return lo, hi


def _state(
    value: Any, name: str, shapes: checks.Shapes, x: Array, allowed: tuple[Any, ...]
) -> Array:
    """An array that is updated in place."""
    p = value if type(value) is np.ndarray else checks.place(value, name)
    if type(p) is not np.ndarray or type(x) not in (np.ndarray, ArraySpec):
        checks.together(x, p, name)
    if p.dtype not in allowed:
        raise TypeError(f"{name} must have a dtype among {dtypes.names(allowed)}, got {p.dtype}")
    if p.shape not in shapes:
        raise ValueError(f"{name} must have the shape {' or '.join(map(str, shapes))}, "
                         f"got {p.shape}")  # fmt: skip
    if type(p) is np.ndarray:
        checks.writeable(p, name)
    return p
