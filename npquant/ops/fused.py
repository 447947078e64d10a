"""Observe and fake quantize in one call: the training step of quantization-aware training."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from npquant import arrays, backend, checks, dtypes, layout
from npquant.meta import ArraySpec
from npquant.ops.fast_choice import Step, fast_rows, fast_step, usual_state
from npquant.ops.fast_path import FastPath
from npquant.owners import Array, FloatLike, IntLike, on_device

#: The least scale, as a float32.
SMALL_SCALE = 6.1e-5


def fused_moving_avg_obs_fake_quant(
    input: Array,
    observer_on: Any,
    fake_quant_on: Any,
    running_min: Array,
    running_max: Array,
    scale: Array,
    zero_point: Array,
    averaging_const: FloatLike,
    quant_min: IntLike,
    quant_max: IntLike,
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
    `fake_quantize_per_channel_affine`. A NaN in `input` that is
    observed stays in the range for good and makes the output NaN, all of it or its row. An empty
    `input` changes nothing.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape; float16, bfloat16, float32 or float64.
    observer_on : number, bool or array of one element
        Whether to update the moving range, truncated to an integer.
    fake_quant_on : number, bool or array of one element
        Whether to choose qparams and quantize, truncated to an integer. Where it is 0 the output is
        a copy of `input`.
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
        Axis of the channels; a negative one counts from the back. Used per row alone.
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
        is not finite, `input` has no such axis, or an array that is updated has the wrong shape,
        is read-only or overlaps another one or `input`.

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

    Departures from PyTorch: D1, D8, D10, D24, D30; see docs/departures.md.

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
    averaging_const: FloatLike,
    quant_min: IntLike,
    quant_max: IntLike,
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
    `fake_quantize_per_channel_affine`. A NaN in `input` that is
    observed stays in the range for good and makes the output NaN, all of it or its row. An empty
    `input` changes nothing. The mask says where the code
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
        Axis of the channels; a negative one counts from the back. Used per row alone.
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
        is not finite, `input` has no such axis, or an array that is updated has the wrong shape,
        is read-only or overlaps another one or `input`.

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

    Departures from PyTorch: D1, D8, D10, D24, D30; see docs/departures.md.

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
    shape: tuple[int, ...],
    dtype: dtypes.DType,
    kind: type,
    averaging_const: Any,
    quant_min: Any,
    quant_max: Any,
    ch_axis: Any,
    per_row_fake_quant: Any,
    symmetric_quant: Any,
    masked: bool,
) -> tuple[Step, bool, FastPath]:
    """The step, whether it is per row, and what does it all at once if it can."""
    c = checks.finite(averaging_const, "averaging_const", kind)
    lo, hi = bounds = checks.bounds_of(quant_min, quant_max, dtypes.int32, kind)
    if lo == hi:
        raise ValueError(f"quant_min must be less than quant_max, got {lo} and {hi}")
    precision = dtypes.affine_precision(dtype, *bounds)
    symmetric = checks.switch(symmetric_quant, "symmetric_quant", kind)
    per_row = checks.switch(per_row_fake_quant, "per_row_fake_quant", kind)
    step = Step(
        "fused_fbgemm" + "_symmetric" * symmetric, symmetric, shape, dtype,
        layout.whole(prod(shape)), checks.ONE, _ZERO_POINTS, c, bounds, SMALL_SCALE, precision,
        masked,
    )  # fmt: skip
    if per_row:
        a = checks.axis_of(ch_axis, ArraySpec(shape, dtype), "ch_axis")
        rows = layout.per_channel(shape, a)
        step = step._replace(granularity=rows, shapes=((shape[a],),), kinds=_INT32)
    else:
        checks.shaping(ch_axis, "ch_axis")

    def anew(x: Array, observe: bool, a: Any, b: Any, s: Any, z: Any) -> tuple[Array, Any]:
        return _fused(
            x, observe, True, a, b, s, z, averaging_const, quant_min, quant_max, ch_axis,
            per_row_fake_quant, symmetric_quant, masked,
        )  # fmt: skip

    return step, per_row, (fast_rows if per_row else fast_step)(kind, step, anew)


def _fused(
    input: Any, observer_on: Any, fake_quant_on: Any, running_min: Any, running_max: Any,
    scale: Any, zero_point: Any, averaging_const: Any, quant_min: Any, quant_max: Any,
    ch_axis: Any, per_row_fake_quant: Any, symmetric_quant: Any, masked: bool,
) -> tuple[Array, Any]:  # fmt: skip
    x = checks.floats(input)
    if isinstance(input, np.ndarray) and not input.dtype.isnative:  # of whose copy nobody sees it
        named = zip(_NAMES, (running_min, running_max, scale, zero_point), strict=True)
        written = {name: np.asarray(v) for name, v in named if isinstance(v, np.ndarray)}
        checks.refuse_overlap(("input", *written), (np.asarray(input), *written.values()))
    step, per_row, at_once = _plan(
        x.shape, x.dtype, type(x), averaging_const, quant_min, quant_max, ch_axis,
        per_row_fake_quant, symmetric_quant, masked,
    )  # fmt: skip
    observe = checks.switch(observer_on, "observer_on", type(x))
    enabled = checks.switch(fake_quant_on, "fake_quant_on", type(x))
    if enabled:
        done = at_once(x, observe, running_min, running_max, scale, zero_point)
        if done is not None:
            return done
    (
        kernel, symmetric, _, _, granularity, shapes, kinds, c, bounds, eps, precision, _
    ) = step  # fmt: skip
    given = state = running_min, running_max, scale, zero_point
    usual = type(x) is np.ndarray and usual_state(*state, shapes[:1])
    if not (usual and zero_point.dtype in kinds):
        given = (
            _state(running_min, "running_min", shapes, x, _FLOAT),
            _state(running_max, "running_max", shapes, x, _FLOAT),
            _state(scale, "scale", shapes, x, _FLOAT),
            _state(zero_point, "zero_point", shapes, x, kinds),
        )
        state = tuple(map(arrays.flat, given))
    checks.refuse_overlap(("input", *_NAMES), (x, *given))
    low, high, s, z = state
    y, mask = checks.output_and_mask(x, masked)
    if type(x) is ArraySpec or x.size == 0:
        return y, mask
    lib = backend.of(x)
    if enabled and not per_row:
        run = getattr(lib, kernel)
        run(granularity, x, observe, c, low, high, bounds, eps, s, z, precision, y, mask)
    elif enabled and observe:
        run = lib.observe_fbgemm_symmetric if symmetric else lib.observe_fbgemm
        run(granularity, x, c, low, high, bounds, eps, s, z)
    elif enabled:
        run = lib.choose_fbgemm_symmetric if symmetric else lib.choose_fbgemm
        run(low, high, bounds, eps, 0, "float32", s, z)
    elif observe:
        lib.follow(granularity, x, c, low, high)
    if state is not given:
        for p, u in zip(given, state, strict=True):
            if u is not p and not checks.overlap(p, u):
                arrays.assign(p, u)
    if not enabled:
        lib.copy(x, y, mask)
    elif per_row:
        lib.fake_quantize_per_channel(granularity, x, s, z, (*bounds, 0), precision, y, mask)
    return y, mask


_NAMES = "running_min", "running_max", "scale", "zero_point"
_FLOAT, _INT32 = (dtypes.float32,), (dtypes.int32,)
_ZERO_POINTS = (dtypes.int32, dtypes.int64, dtypes.float32)


def _state(
    value: Any, name: str, shapes: checks.Shapes, x: Array, allowed: tuple[Any, ...]
) -> Array:
    """An array that is updated in place."""
    p = checks.place(value, name)
    if type(p) is ArraySpec or on_device(p) or on_device(x):
        checks.of_one_kind(x, p, name)
    dtypes.refuse_others(p.dtype, name, allowed)
    if p.shape not in shapes:
        raise ValueError(f"{name} must have the shape {' or '.join(map(str, shapes))}, "
                         f"got {p.shape}")  # fmt: skip
    if type(p) is not ArraySpec:
        checks.writeable(p, name)
    return p
