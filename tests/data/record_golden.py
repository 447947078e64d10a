"""Record golden.npz: calls of every op that PyTorch 2.13 has, with the bits it returns.

Run it from anywhere, with PyTorch 2.13.0 (CPU, AVX2 or AVX-512) installed:

    python tests/data/record_golden.py

The inputs stay clear of the documented departures, so that a right implementation returns every
recorded bit. Gradient sums are recorded where they are exact in any order: one element a channel,
or dyadic numbers. The arrays' bits are stored once each, in one run of bytes that an index points
into; ``cases.golden`` reads them back.
"""

import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
from torch.ao.quantization.utils import determine_qparams

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import cases  # noqa: E402
from tensors import to_numpy, to_torch  # noqa: E402

torch.set_num_threads(1)
aten, decomposed = torch.ops.aten, torch.ops.quantized_decomposed
F16, BF16, F32, F64 = cases.FLOATS
INT8, UINT8, INT32 = (np.dtype(t) for t in (np.int8, np.uint8, np.int32))

calls, blob, places = [], bytearray(), {}


def stored(value):
    """Return what the index says of one argument or result; arrays go to ``blob``."""
    if isinstance(value, np.dtype):
        return {"dtype": value.name}
    if not isinstance(value, np.ndarray):
        return value
    raw = value.tobytes()
    if raw not in places:
        places[raw] = len(blob)
        blob.extend(raw)
    return {"at": places[raw], "dtype": value.dtype.name, "shape": list(value.shape)}


def record(name, op, *args, in_place=(), pytorch_args=None, **kwargs):
    """Call ``op``, keep the call under npquant's ``name`` of it, and return its results.

    ``in_place`` numbers the arguments whose final values belong to the results; ``pytorch_args``
    replace the arguments where PyTorch spells one differently.
    """
    tensors = [to_torch(value) for value in pytorch_args or args]
    outputs = op(*tensors, **{key: to_torch(value) for key, value in kwargs.items()})
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    results = [to_numpy(one) for one in (*outputs, *(tensors[i] for i in in_place))]
    spec = {"name": name, "args": [stored(value) for value in args]}
    spec["kwargs"] = {key: stored(value) for key, value in kwargs.items()}
    calls.append(spec | {"results": [stored(value) for value in results]})
    return results


def below_int64(x, scale):
    """Replace by -1 what overflows an int64 in PyTorch (D1)."""
    with np.errstate(all="ignore"):
        high = x.astype(F64) / np.asarray(scale, F64) >= 2.0**62
    return np.where(high, np.array(-1, x.dtype), x)


def quantize():
    scale, z = 0.41988401138528, 3
    per_tensor = decomposed.quantize_per_tensor
    for dtype in (F16, BF16, F32):
        x = cases.inputs(dtype, scale, -128, 127, z)
        record("quantize_per_tensor", per_tensor, x, scale, z, -128, 127, INT8)
    for target in cases.PYTORCH:
        bounds = (-1000, 1000) if target == INT32 else cases.BOUNDS[target]
        x = cases.inputs(F32, scale, *bounds, z, finite=target == INT32)
        record("quantize_per_tensor", per_tensor, x, scale, z, *bounds, target)
    one = np.array([0.1], F32), np.array([1.7], F32)
    x = cases.inputs(F32, 0.1, -128, 127)
    record("quantize_per_tensor", per_tensor.tensor, x, *one, -128, 127, INT8)
    low, high = np.array(-100.5, F32), np.array(5.5, F32)
    record("quantize_per_tensor", per_tensor.tensor2, x, *one, low, high, INT8)

    scales, zeros = cases.qparams(8, -128, 127)
    for dtype, axis in ((F16, 0), (BF16, 1), (F32, 2), (F32, -1)):
        x = cases.channels(dtype, scales[:4], zeros[:4], -128, 127, axis)
        for kind in (F32, F64):
            params = scales[:4].astype(kind), zeros[:4]
            op = decomposed.quantize_per_channel
            record("quantize_per_channel", op, x, *params, axis, -128, 127, INT8)
    ordinary = np.array([[0.1], [1 / 3], [0.5], [0.4199]], F32)
    for dtype, kind in ((F16, F16), (F16, F32), (BF16, BF16), (F32, F32), (F32, F64), (F64, F32)):
        s, z = ordinary.astype(kind), zeros[:4, None]
        x = cases.rows(dtype, s[:, 0], z[:, 0], -128, 127)
        record("quantize_per_token", decomposed.quantize_per_token, x, s, z, -128, 127, INT8)
        x = cases.rows(dtype, s[:, 0], z[:, 0], -8, 7, finite=True)
        s, z = s.repeat(4, axis=1), z.repeat(4, axis=1).astype(F32)
        op = decomposed.quantize_per_channel_group
        record("quantize_per_channel_group", op, x, s, z, -8, 7, INT8, 64)


def dequantize():
    q = np.arange(-128, 128, dtype=INT8)
    op = decomposed.dequantize_per_tensor
    for out in cases.FLOATS:
        for z in (3, 2049):
            args = q, 0.1, z, -128, 127, INT8
            record("dequantize_per_tensor", op, *args, out_dtype=out)
    eight = np.arange(256, dtype=UINT8)
    eight[np.isnan(eight.view(ml_dtypes.float8_e4m3fn))] = 0
    q8 = eight.view(ml_dtypes.float8_e4m3fn)
    record("dequantize_per_tensor", op, q8, 0.3, 1, -448, 448, q8.dtype)
    q = q.reshape(4, 8, 8)
    for axis in (0, 1, 2):
        scales, zeros = cases.qparams(q.shape[axis], -128, 127)
        op = decomposed.dequantize_per_channel
        record("dequantize_per_channel", op, q, scales, zeros.astype("i8"), axis, -128, 127, INT8)
        record("dequantize_per_channel", op, q, scales, None, axis, -128, 127, INT8)
    q = q.reshape(4, 64)
    scales, zeros = (v.reshape(4, 4) for v in cases.qparams(16, -128, 127))
    scales = np.where((scales > 1e3) | (scales < 1e-3), np.float32(0.3), scales)
    for kind, out in ((F32, F32), (F64, F32), (F64, F16), (F16, F32), (BF16, BF16), (F32, F64)):
        s, z = scales.astype(kind), zeros.astype("i8")
        args = q, s[:, :1], z[:, :1], -128, 127, INT8, out
        record("dequantize_per_token", decomposed.dequantize_per_token, *args)
        for zero_points in (z, None):
            args = q, s, zero_points, -128, 127, INT8, 16, out
            op = decomposed.dequantize_per_channel_group
            record("dequantize_per_channel_group", op, *args)


def convert():
    op = decomposed.convert_element_type.no_fuse
    extra = [127.9, 255.5, 300, -300, 464, 65504, 3e9, -3e9, 1e30]
    for source in cases.FLOATS:
        with np.errstate(over="ignore"):
            x = np.concatenate([cases.inputs(source, 1.0, -128, 127)[:128], extra], dtype=F64)
            x = x.astype(source)
            x = x[~np.isnan(x)]
        for target in (F16, BF16, F32, *cases.PYTORCH):
            record("convert_element_type", op, x, target)


def choose():
    rng = np.random.default_rng(0)
    low, high = np.sort(rng.normal(size=(2, 24)) * 10.0 ** rng.integers(-4, 4, 24), axis=0)
    low[:6], high[:6] = (0, 2, -3, 4, -1e-9, -3e38), (0, 2, -1, 6, 1e-9, 3e38)
    schemes = "per_tensor_affine", "per_tensor_symmetric", "per_channel_affine"
    schemes += "per_channel_symmetric", "per_channel_affine_float_qparams"
    eps = np.array([np.finfo(np.float32).eps])
    for scheme in schemes:
        for target, bounds in ((INT8, (-8, 7)), (UINT8, (0, 255)), (UINT8, (0, 15))):
            for customized in (False, True):
                vectors = low.astype(F32), high.astype(F32)
                for pair in (vectors, tuple(np.array(v[7]) for v in vectors)):
                    args = *pair, *bounds, target, eps.astype(F32), customized
                    spelled = *args, getattr(torch, scheme)
                    args = *args, scheme
                    record("determine_qparams", determine_qparams, *args, pytorch_args=spelled)
    for dtype in (F16, BF16, F32):
        for size in (1e-4, 1.0, 1e4):
            x = (rng.normal(0.5, 1, (96, 4)) * size).astype(dtype)
            for target, bounds in ((INT8, (-128, 127)), (UINT8, (0, 255))):
                for name in ("choose_qparams", "choose_qparams_symmetric"):
                    args = x, *bounds, 2.0**-12, target
                    record(name, getattr(decomposed, name).tensor, *args)
            x[0], x[1], x[2] = 0, abs(x[1]), -abs(x[2])
            for name in ("choose_qparams_per_token", "choose_qparams_per_token_asymmetric"):
                record(name, getattr(decomposed, name), x, INT8)


def fake_quantize():
    for dtype in cases.FLOATS:
        for scale, z, bounds in ((0.1, 3, (-128, 127)), (0.41988401138528, 1, (0, 15))):
            x = cases.inputs(dtype, scale, *bounds, z)
            args = x, scale, z, *bounds
            for name in ("", "_cachemask"):
                name = f"fake_quantize_per_tensor_affine{name}"
                record(name, getattr(aten, name), *args)
    name = "fake_quantize_per_tensor_affine_cachemask_tensor_qparams"
    for dtype, on in ((F32, 0), (F32, 1), (F64, 1)):
        x = cases.inputs(dtype, 0.1, -128, 127)
        args = x, np.array([0.1], F32), np.array([-2.7], F32), np.array([on]), -128, 127
        record(name, aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams, *args)
    bounds = -128, 127
    scales, zeros = cases.qparams(4, *bounds)
    fractions = zeros + np.array([0, 0.25, -0.5, 0.1])
    for dtype, axis in ((F16, 0), (BF16, 1), (F32, 2), (F64, 0), (F32, 0)):
        shape = [-1 if i == axis else 1 for i in range(3)]
        x = cases.channels(dtype, scales, zeros, *bounds, axis)
        x = below_int64(x, scales.reshape(shape))
        for z in (zeros, fractions.astype(F32), fractions.astype(F16)):
            for name in ("", "_cachemask"):
                name = f"fake_quantize_per_channel_affine{name}"
                record(name, getattr(aten, name), x, scales, z, axis, *bounds)
    s, z = np.array([0.1], F32), np.array([100.25], F32)
    x = np.array([[-56.67500305175781]], F32)  # plain arithmetic gives another step than the fma
    record(
        "fake_quantize_per_channel_affine",
        aten.fake_quantize_per_channel_affine,
        *(x, s, z, 0, -1000, 1000),
    )
    for axis in (0, 1, 2):
        x = cases.channels(F32, scales, zeros, *bounds, axis)
        args = x, scales, zeros, axis, *bounds
        op = decomposed.fake_quant_per_channel
        record("fake_quant_per_channel", op, *args)

        def with_mask(x, *rest, op=op):
            x.requires_grad_()
            output = op(x, *rest)
            output.backward(torch.ones_like(x))
            return output.detach(), x.grad == 1

        record("fake_quant_per_channel_cachemask", with_mask, *args)
    mask = np.arange(256) % 3 == 0
    for dtype in cases.FLOATS:
        grad = cases.inputs(dtype, 1.0, -128, 127, finite=True)
        for name in ("tensor", "channel"):
            name = f"fake_quantize_per_{name}_affine_cachemask_backward"
            record(name, getattr(aten, name), grad, mask)
        record("fake_quant_per_channel_backward", torch.mul, grad, mask)


def learnable():
    zeros = np.array([0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -2.6, -3, 3.49999, 300, -300], F32)
    bounds = -128, 127
    tensor, channel = (
        f"fake_quantize_learnable_per_{kind}_affine" for kind in ("tensor", "channel")
    )
    forward = {name: getattr(aten, f"_{name}") for name in (tensor, channel)}
    backward = {name: getattr(aten, f"_{name}_backward") for name in (tensor, channel)}
    for dtype in cases.FLOATS:
        x = cases.inputs(dtype, 0.1, *bounds)
        for z in zeros[:8:3]:
            args = x, np.array([0.1], F32), np.array([z]), *bounds
            record(tensor, forward[tensor], *args)
    scales, _ = cases.qparams(12, *bounds)
    for axis, dtype in ((0, F32), (1, F16), (2, F32), (0, BF16), (0, F64)):
        x = cases.channels(dtype, scales, np.zeros(12), *bounds, axis, finite=True)
        record(
            channel,
            forward[channel],
            x[:, :, :12] if axis == 2 else x,
            scales,
            zeros,
            axis,
            *bounds,
        )
    # One element a channel: the sums are the terms.
    rng = np.random.default_rng(0)
    for seed, z in enumerate(zeros):
        x = below_int64(cases.inputs(F32, 0.1, *bounds, int(z) % 100, seed=seed), 0.1)[None]
        grad = rng.normal(size=x.shape).astype(F32)
        params = np.full(x.size, 0.1, F32), np.full(x.size, z)
        args = grad, x, *params, 1, *bounds, 0.3
        record(f"{channel}_backward", backward[channel], *args)
    # Dyadic numbers: every partial sum is exact.
    for z in zeros:
        x = (rng.integers(-600, 600, (4, 40)) / 8).astype(F32)
        grad = (rng.integers(-8, 8, (4, 40)) / 4).astype(F32)
        args = grad, x, np.array([0.5], F32), np.array([z]), -64, 63, 0.5
        record(f"{tensor}_backward", backward[tensor], *args)
        # And alone, with an ordinary scale: the two roundings of one element.
        args = grad[:1, :1], x[:1, :1] / np.float32(10), np.array([0.1], F32), np.array([z])
        record(f"{tensor}_backward", backward[tensor], *args, *bounds, 0.3)


def fused():
    rng = np.random.default_rng(0)
    name = "fused_moving_avg_obs_fake_quant"
    for symmetric in (False, True):
        for per_row in (False, True):
            for bounds in ((-128, 127), (0, 255), (-8, 7)):
                count = 6 if per_row else 1
                state = np.full(count, np.inf, F32), np.full(count, -np.inf, F32)
                state += np.ones(count, F32), np.zeros(count, INT32)
                for size in (1.0, 3.0, 1e-6):
                    x = (rng.normal(0.4, size, (6, 16)) * size).astype(F32)
                    x[0], x[1], x[2] = 0, abs(x[1]), -abs(x[2])
                    on = np.array([1]), np.array([1])
                    args = x, *on, *state, 0.3, *bounds, 0, per_row, symmetric
                    helper = aten._fused_moving_avg_obs_fq_helper
                    record(f"{name}_cachemask", helper, *args, in_place=(3, 4, 5, 6))
                    results = record(name, getattr(aten, name), *args, in_place=(3, 4, 5, 6))
                    state = results[1:]


if __name__ == "__main__":
    if not torch.__version__.startswith("2.13.0"):
        raise SystemExit(f"the golden bits are PyTorch 2.13.0's, not {torch.__version__}'s")
    for family in (quantize, dequantize, convert, choose, fake_quantize, learnable, fused):
        family()
    index = {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}
    index = json.dumps(index | {"calls": calls})
    np.savez_compressed(HERE / "golden.npz", index=index, bits=np.frombuffer(blob, np.uint8))
    size = (HERE / "golden.npz").stat().st_size
    print(f"{len(calls)} calls, {len(places)} arrays, {size} bytes")
