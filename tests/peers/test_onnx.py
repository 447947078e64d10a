"""ONNX's rule, its codes: its own node cases, its reference evaluator, ONNX Runtime.

QuantizeLinear divides, so `rounding="divide"` has its bits. docs/numerics.md lists which op has
them with which argument, and where none has.
"""

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NotImplemented_

import cases
import npquant as nq

ort.set_default_logger_severity(3)
FLOAT = TensorProto.FLOAT
F16, BF16, F32, _ = cases.FLOATS
E4M3FN, E5M2 = cases.FLOAT8
#: ONNX quantizes to these.
TARGETS = [d for d in cases.BOUNDS if d != np.int32]
TWO_BITS = [np.dtype(t) for t in (ml_dtypes.int2, ml_dtypes.uint2)]
#: Versions of the ops, and of the file format that each needs: with float8, with blocks and four
#: bits, with a `precision`, with two bits.
OPSETS = {19: 9, 21: 10, 23: 11, 25: 13}
DIVIDE = {"rounding": "divide"}


def named(dtypes):
    return {"argvalues": dtypes, "ids": [d.name for d in dtypes]}


# --- the cases that come with onnx ------------------------------------------------------------

with np.errstate(all="ignore"):
    CASES = {case.name: case for case in collect_testcases()}


def of_kind(kind):
    """The cases of one op, but for formats that npquant does not have."""
    other_formats = "fnuz", "e8m0", "float4e2m1", "_expanded"  # the last are CastLike
    return [
        name
        for name, case in CASES.items()
        if [node.op_type for node in case.model.graph.node] == [kind]
        and not any(word in name.lower() for word in other_formats)
    ]


def case_of(name):
    """The node's attributes, its inputs and the result that is expected."""
    case = CASES[name]
    attributes = {a.name: helper.get_attribute_value(a) for a in case.model.graph.node[0].attribute}
    (inputs, (expected,)) = case.data_sets[0]
    *inputs, expected = (
        numpy_helper.to_array(v) if isinstance(v, TensorProto) else np.asarray(v)
        for v in (*inputs, expected)
    )
    return attributes, inputs, expected


def rows_of(x, axis):
    """The matrix whose rows lie along an axis."""
    return np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])


def in_place_of(rows, x, axis):
    """The inverse of `rows_of`."""
    shape = np.moveaxis(x, axis, -1).shape
    return np.moveaxis(rows.reshape(shape), -1, axis)


def qparams_of(scale, zero_point=None):
    """Zero points as integers; none are 0."""
    if zero_point is None:
        return scale, np.zeros(scale.shape, np.int32)
    return scale, zero_point.astype(np.int32)


@pytest.mark.parametrize("name", of_kind("QuantizeLinear"))
def test_cases_of_quantize_linear(name):
    attributes, (x, *qparams), expected = case_of(name)
    args = *cases.BOUNDS[expected.dtype], expected.dtype
    (s, z), axis = qparams_of(*qparams), attributes.get("axis", 1)
    if s.size == 1:
        q = nq.quantize_per_tensor(x, s, z, *args, **DIVIDE)
    elif s.ndim == 1:
        q = nq.quantize_per_channel(x, s, z, axis, *args, **DIVIDE)
    else:
        s, z = rows_of(s, axis), rows_of(z, axis)
        size = attributes["block_size"]
        q = nq.quantize_per_channel_group(rows_of(x, axis), s, z, *args, size, **DIVIDE)
        q = in_place_of(q, x, axis)
    cases.assert_same(q, expected)


@pytest.mark.parametrize("name", of_kind("DequantizeLinear"))
def test_cases_of_dequantize_linear(name):
    attributes, (q, *qparams), expected = case_of(name)
    args = *cases.BOUNDS[q.dtype], q.dtype
    (s, z), axis = qparams_of(*qparams), attributes.get("axis", 1)
    if s.size == 1:
        y = nq.dequantize_per_tensor(q, s, z, *args, out_dtype=expected.dtype)
    elif s.ndim == 1:
        y = nq.dequantize_per_channel(q, s, z, axis, *args, out_dtype=expected.dtype)
    else:
        s, z = rows_of(s, axis), rows_of(z, axis)
        size = attributes["block_size"]
        y = nq.dequantize_per_channel_group(rows_of(q, axis), s, z, *args, size, expected.dtype)
        y = in_place_of(y, q, axis)
    cases.assert_same(y, expected)


#: What npquant has no op for: e4m3fn that does not saturate, and integers from integers.
WITHOUT_OP = [f"test_cast_no_saturate_{t}_to_FLOAT8E4M3FN" for t in ("FLOAT", "FLOAT16")]
WITHOUT_OP += [f"test_cast_{sign}INT{n}_to_{sign}INT8" for sign in ("", "U") for n in (2, 4)]


@pytest.mark.parametrize("name", [name for name in of_kind("Cast") if name not in WITHOUT_OP])
def test_cases_of_cast(name):
    attributes, (x,), expected = case_of(name)
    target, saturate = expected.dtype, attributes.get("saturate", 1)
    if x.dtype in cases.SUB_BYTE:
        y = nq.dequantize_per_tensor(x, 1.0, 0, *cases.BOUNDS[x.dtype], x.dtype, out_dtype=target)
    elif target in cases.SUB_BYTE or (target == E5M2 and saturate):
        lo, hi = cases.BOUNDS[target]
        y = nq.quantize_per_tensor(x, 1.0, 0, lo, hi, target, **DIVIDE)
        if target in cases.SUB_BYTE:  # ONNX leaves open what is beyond; npquant saturates
            inside = (lo <= x) & (x <= hi)
            y, expected = y[inside], expected[inside]
    else:
        y = nq.convert_element_type(x, target)
    cases.assert_same(y, expected)


def test_the_cases_are_there():
    """The parametrized lists above are not empty by accident."""
    counts = [len(of_kind(kind)) for kind in ("QuantizeLinear", "DequantizeLinear", "Cast")]
    assert counts == [12, 13, 40]


# --- the evaluators, at ties ------------------------------------------------------------------


def model_of(kind, x, scale, zero_point, opset=21, **attributes):
    """One node of constants; its result becomes float32, since not every dtype can leave it."""
    constants = {"x": x, "scale": scale, "zero_point": zero_point}
    node = helper.make_node(kind, list(constants), ["y"], **attributes)
    cast = helper.make_node("Cast", ["y"], ["values"], to=FLOAT)
    output = helper.make_tensor_value_info("values", FLOAT, x.shape)
    tensors = [numpy_helper.from_array(v, name) for name, v in constants.items()]
    graph = helper.make_graph([node, cast], "one", [], [output], tensors)
    opset = 25 if zero_point.dtype in TWO_BITS else opset
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=OPSETS[opset])
    onnx.checker.check_model(model)
    return model


def reference(*node, **attributes):
    """What onnx's reference evaluator gives, as float32."""
    return ReferenceEvaluator(model_of(*node, **attributes)).run(None, {})[0]


def runtime(*node, **attributes):
    """What ONNX Runtime gives, as float32, with every node run as it is written."""
    model = model_of(*node, **attributes).SerializeToString()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options, ["CPUExecutionProvider"]).run(None, {})[0]


def ties(scale, target, dtype=F32):
    """Ties about the bounds and between them, their neighbours at +-2 ulp, and normals."""
    lo, hi = cases.BOUNDS[target]
    codes = np.arange(max(lo, -300) - 5, min(hi, 300) + 5) + 0.5
    codes = np.concatenate([codes, [lo - 0.5, lo + 0.5, hi - 0.5, hi + 0.5]])
    exact = (codes * float(scale)).astype(dtype)
    near = [cases._shifted(exact, ulps) for ulps in (0, 1, -1, 2, -2)]
    normal = np.random.default_rng(0).normal(0, min(hi, 300) * float(scale), 500)
    return np.concatenate([*near, normal.astype(dtype), np.array([0.0, -0.0], dtype)])


def zero_point_of(target):
    """An odd one; for float8 both evaluators leave it out of the sum."""
    lo, hi = cases.BOUNDS[target]
    return 0 if target in cases.FLOAT8 else (lo + hi) // 2 + 1


#: At powers of two the reciprocal is exact, and both roundings are ONNX's.
SCALES = (2.0**-10, 4.0, 0.1, 1 / 3, 0.41988401138528, 13.7)


@pytest.mark.parametrize("target", **named(TARGETS))
def test_ties_per_tensor(target):
    z, args = zero_point_of(target), (*cases.BOUNDS[target], target)
    wrong = 0
    for scale in SCALES:
        s, zero_point = np.array(scale, F32), np.array(z, target)
        x = ties(s, target)
        q = nq.quantize_per_tensor(x, s, z, *args, **DIVIDE)
        for evaluate in (reference, runtime):
            cases.assert_same(
                q.astype(F32), evaluate("QuantizeLinear", x, s, zero_point), (evaluate, scale)
            )
        y = nq.dequantize_per_tensor(q, s, z, *args)
        for evaluate in (reference, runtime):
            cases.assert_same(y, evaluate("DequantizeLinear", q, s, zero_point), (evaluate, scale))
        other = nq.quantize_per_tensor(x, s, z, *args) != q
        assert target in cases.FLOAT8 or scale not in SCALES[:2] or not other.any()
        wrong += np.count_nonzero(other)
    assert wrong  # with the reciprocal


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_ties_per_channel(axis):
    rng = np.random.default_rng(axis)
    shape = (3, 4, 50)
    count = shape[axis]
    s = rng.uniform(0.01, 2, count).astype(F32)
    z = rng.integers(-5, 5, count).astype(np.int8)
    along = [-1 if i == axis else 1 for i in range(3)]
    x = ((rng.integers(-140, 140, shape) + 0.5) * s.reshape(along)).astype(F32)
    q = nq.quantize_per_channel(x, s, z, axis, -128, 127, np.int8, **DIVIDE)
    y = nq.dequantize_per_channel(q, s, z, axis, -128, 127, np.int8)
    for evaluate in (reference, runtime):
        cases.assert_same(q.astype(F32), evaluate("QuantizeLinear", x, s, z, axis=axis))
        cases.assert_same(y, evaluate("DequantizeLinear", q, s, z, axis=axis))
    assert (q != nq.quantize_per_channel(x, s, z, axis, -128, 127, np.int8)).any()


@pytest.mark.parametrize("target", **named([d for d in TARGETS if d.name in ("int8", "uint4")]))
def test_ties_of_blocks(target):
    """Blocks along the last axis are groups, and one block a row is a token."""
    rng = np.random.default_rng(3)
    lo, hi = cases.BOUNDS[target]
    for size in (16, 64):
        s = rng.uniform(0.01, 2, (6, 64 // size)).astype(F32)
        z = rng.integers(lo, hi, s.shape).astype(target)
        x = (rng.integers(lo - hi, hi - lo, (6, 64)) + 0.5).astype(F32)
        x = (x * np.repeat(s, size, axis=1)).astype(F32)
        args = lo, hi, target
        q = nq.quantize_per_channel_group(x, s, z.astype(np.int32), *args, size, **DIVIDE)
        y = nq.dequantize_per_channel_group(q, s, z.astype(np.int32), *args, size)
        if size == 64:
            rows = nq.quantize_per_token(x, s, z.astype(np.int32), *args, **DIVIDE)
            cases.assert_same(q, rows)
        block = {"axis": 1, "block_size": size}
        for evaluate in (reference, runtime):
            cases.assert_same(q.astype(F32), evaluate("QuantizeLinear", x, s, z, **block))
            cases.assert_same(y, evaluate("DequantizeLinear", q, s, z, **block))


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("dtype", **named([F16, BF16]))
def test_ties_of_two_byte_numbers(dtype, opset):
    """ONNX divides in the type of the scale. ONNX Runtime widens it before opset 23."""
    s = np.array([0.1], dtype)
    x = ties(s[0], np.dtype(np.int8), dtype)
    args = np.zeros(1, np.int8), 0, -128, 127, np.int8
    narrow = nq.quantize_per_channel(x[None], s, *args, **DIVIDE)[0]
    wide = nq.quantize_per_channel(x[None], s.astype(F32), *args, **DIVIDE)[0]
    cases.assert_same(wide, nq.quantize_per_tensor(x, s, *args[:1], *args[2:], **DIVIDE))
    node = "QuantizeLinear", x, np.array(s[0]), np.zeros((), np.int8), opset
    cases.assert_same(narrow.astype(F32), reference(*node))
    if dtype == BF16:
        with pytest.raises(NotImplemented_, match="Could not find an implementation"):
            runtime(*node)
    else:
        cases.assert_same((wide if opset < 23 else narrow).astype(F32), runtime(*node))
        if opset >= 23:
            cases.assert_same(wide.astype(F32), runtime(*node, precision=FLOAT))
    assert (narrow != wide).any()


@pytest.mark.parametrize("opset", OPSETS)
def test_ties_of_every_version(opset):
    """Of float32 none differs."""
    s, z = np.array(0.1, F32), np.array(3, np.int8)
    x = ties(s, z.dtype)
    q = nq.quantize_per_tensor(x, s, 3, -128, 127, np.int8, **DIVIDE)
    cases.assert_same(q.astype(F32), runtime("QuantizeLinear", x, s, z, opset))
    y = nq.dequantize_per_tensor(q, s, 3, -128, 127, np.int8)
    cases.assert_same(y, runtime("DequantizeLinear", q, s, z, opset))


@pytest.mark.parametrize("opset", [23, 25])
def test_float32_beside_float16_scales(opset):
    """ONNX Runtime rounds the input to the type of the scale: npquant does if it is told to."""
    x, s, z = ties(0.1, np.dtype(np.int8)), np.array(0.1, F16), np.zeros((), np.int8)
    args = s[None], [0], 0, -128, 127, np.int8
    narrow = nq.quantize_per_channel(x.astype(F16)[None], *args, **DIVIDE)[0]
    wide = nq.quantize_per_channel(x[None], *args, **DIVIDE)[0]
    cases.assert_same(narrow.astype(F32), runtime("QuantizeLinear", x, s, z, opset))
    cases.assert_same(wide.astype(F32), reference("QuantizeLinear", x, s, z, opset))
    assert (narrow != wide).any()


@pytest.mark.parametrize("target", **named([np.dtype(np.int8), np.dtype(ml_dtypes.int4), E5M2]))
@pytest.mark.parametrize("opset", [21, 25])
def test_float16_of_channels_and_blocks(target, opset):
    rng = np.random.default_rng(5)
    lo, hi = cases.BOUNDS[target]
    s = rng.uniform(0.05, 0.9, 4).astype(F16)
    x = ((rng.integers(-140, 140, (4, 640)) + 0.5) * s[:, None]).astype(F16)
    scales = s if opset >= 23 else s.astype(F32)
    q = nq.quantize_per_channel(x, scales, [0] * 4, 0, lo, hi, target, **DIVIDE)
    other = s.astype(F32) if opset >= 23 else s
    assert (q != nq.quantize_per_channel(x, other, [0] * 4, 0, lo, hi, target, **DIVIDE)).any()
    y = nq.dequantize_per_channel(q, s, [0] * 4, 0, lo, hi, target, out_dtype=F16)
    along, zero = {"axis": 0}, np.zeros(4, target)
    blocks, zeros = {"axis": 1, "block_size": 160}, np.zeros((4, 4), target)
    for *qparams, at in ((s, zero, along), (np.repeat(s[:, None], 4, axis=1), zeros, blocks)):
        cases.assert_same(q.astype(F32), runtime("QuantizeLinear", x, *qparams, opset, **at))
        cases.assert_same(y.astype(F32), runtime("DequantizeLinear", q, *qparams, opset, **at))


@pytest.mark.parametrize("dtype", **named([F16, BF16]))
@pytest.mark.parametrize("target", **named([np.dtype(t) for t in ("int16", "uint16", "int32")]))
def test_wide_codes_to_two_bytes(target, dtype):
    """ONNX computes in float32, and rounds once."""
    random, (lo, hi) = np.random.default_rng(6), cases.BOUNDS[target]
    most = 10**5
    q, z = (random.integers(max(lo, -most), min(hi, most), n).astype(target) for n in ((4, 64), 4))
    z = np.zeros_like(z) if target == np.int32 else z  # ONNX has no others there
    s = random.uniform(0.01, 0.2, 4).astype(dtype)
    args, blocks = (z, 0, lo, hi, target), {"axis": 1, "block_size": 32}
    y = nq.convert_element_type(nq.dequantize_per_channel(q, s, *args), dtype)
    groups, zeros = (np.repeat(v[:, None], 2, axis=1) for v in (s, z))
    in_groups = nq.dequantize_per_channel_group(q, groups.astype(F32), zeros, lo, hi, target, 32)
    in_groups = nq.convert_element_type(in_groups, dtype)
    for evaluate in (reference, runtime) if dtype == F16 else (reference,):
        cases.assert_same(y.astype(F32), evaluate("DequantizeLinear", q, s, z, axis=0))
        cases.assert_same(
            in_groups.astype(F32), evaluate("DequantizeLinear", q, groups, zeros, **blocks)
        )
    assert (y != nq.dequantize_per_channel(q, s, *args, out_dtype=dtype)).any()


def test_fake_quantize_is_quantize_and_dequantize():
    """The pair of nodes, at float32."""
    s, z = np.array(0.1, F32), np.array(3, np.int8)
    x = ties(s, z.dtype)
    args = x, s, 3, -128, 127
    y = nq.fake_quantize_per_tensor_affine(*args, **DIVIDE)
    for evaluate in (reference, runtime):
        q = evaluate("QuantizeLinear", x, s, z).astype(np.int8)
        cases.assert_same(y, evaluate("DequantizeLinear", q, s, z))
    channels = x[None], s[None], [3], 0, -128, 127
    cases.assert_same(nq.fake_quantize_per_channel_affine(*channels, **DIVIDE)[0], y)
    assert (y != nq.fake_quantize_per_tensor_affine(*args)).any()


# --- qparams of the data ----------------------------------------------------------------------


def dynamic_model():
    """One node, of data of any length."""
    outputs = {"y": TensorProto.UINT8, "scale": FLOAT, "zero_point": TensorProto.UINT8}
    node = helper.make_node("DynamicQuantizeLinear", ["x"], list(outputs))
    x = helper.make_tensor_value_info("x", FLOAT, ["n"])
    y = [
        helper.make_tensor_value_info(name, kind, ["n"] if name == "y" else [])
        for name, kind in outputs.items()
    ]
    graph = helper.make_graph([node], "one", [x], y)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6)


DYNAMIC = (
    ReferenceEvaluator(dynamic_model()),
    ort.InferenceSession(dynamic_model().SerializeToString(), providers=["CPUExecutionProvider"]),
)


def dynamic_qparams(x):
    return nq.choose_qparams(x, 0, 255, 0.0, np.uint8)


def dynamic_data():
    """Of one sign and of both, of every size, single numbers; ranges whose zero point is a tie."""
    rng = np.random.default_rng(0)
    for exponent in range(-40, 38):
        x = rng.normal(rng.normal(), 1, 60) * 10.0**exponent
        yield from (x, abs(x), -abs(x), x[:1], [x[0], 0.0], np.full(9, x[0]))
    for least in range(255):  # the least subnormal number has no half
        for scale in (2.0**-149, 2.0**-126, 0.25, 1.0, 2.0**119, 0.1):
            ends = (
                np.array([-(least + 0.5), 254.5 - least])
                if scale > 1e-40
                else [-least, 255 - least]
            )
            inner = rng.uniform(*ends, 20)
            yield np.concatenate([ends, inner, np.rint(inner) + 0.5]).clip(*ends) * scale


def test_dynamic_quantize_linear():
    """The affine qparams of PyTorch are ONNX's, if no least scale is asked for."""
    ties = 0
    for x in dynamic_data():
        x = np.array(x, F32)
        s, z = dynamic_qparams(x)
        if s == 0:
            continue
        q = nq.quantize_per_tensor(x, s, z, 0, 255, np.uint8, **DIVIDE)
        for evaluator in DYNAMIC:
            with np.errstate(over="ignore"):
                expected = evaluator.run(None, {"x": x})
            actual = q, s.astype(F32)[0], z.astype(np.uint8)[0]
            for one, other in zip(actual, expected, strict=True):
                cases.assert_same(one, other, (x, evaluator))
        ties += x.min() / s.astype(F32)[0] % 1 == 0.5
    assert ties > 900


@pytest.mark.parametrize(
    ("data", "scale", "theirs"),
    [
        ([0, -0.0], 0, [1 / 255, 1]),
        ([1e-44, 3e-45], 0, [0, 0]),  # the 255th part of it is none
        ([-3e38, 3e38], np.inf, [np.inf, np.inf]),
        ([1, np.inf], np.inf, [np.inf, np.inf]),
        ([1, np.nan], np.nan, [np.nan, 1 / 255]),
    ],
    ids=["zeros", "next_to_zero", "too_wide", "infinite", "nan"],
)
def test_dynamic_quantize_linear_of_what_has_no_scale(data, scale, theirs):
    x = np.array(data, F32)
    s, z = dynamic_qparams(x)
    np.testing.assert_array_equal(s, [scale])
    with pytest.raises(ValueError, match="scale must be positive and finite"):
        nq.quantize_per_tensor(x, s, z, 0, 255, np.uint8, **DIVIDE)
    with np.errstate(all="ignore"):
        found = [evaluator.run(None, {"x": x})[1] for evaluator in DYNAMIC]
    np.testing.assert_array_equal(found, np.array(theirs, F32))


# --- where no argument gives ONNX's codes -----------------------------------------------------


def test_nan_and_the_evaluators():
    """ONNX leaves NaN open: both give the least code here, and npquant the one nearest 0."""
    x, s, z = np.array([np.nan, np.inf, -np.inf, 3e9], F32), np.array(1, F32), np.array(3, np.int8)
    assert nq.quantize_per_tensor(x, s, 3, -128, 127, np.int8, **DIVIDE).tolist() == [
        0, 127, -128, 127,
    ]  # fmt: skip
    assert runtime("QuantizeLinear", x, s, z).tolist() == [-128, 127, -128, 127]


def test_zero_points_of_float8_and_the_evaluators():
    """By ONNX's formula a zero point is added, which none of the two does."""
    x, s, z = np.array([1.0], F32), np.array(1, F32), np.array(2, E5M2)
    q = nq.quantize_per_tensor(x, s, 2, -57344, 57344, E5M2, **DIVIDE)
    assert q.astype(F32) == 3
    assert reference("QuantizeLinear", x, s, z) == runtime("QuantizeLinear", x, s, z) == 1
