"""Where ONNX has the same rule, the same codes: QuantizeLinear divides, so powers of two agree."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import cases
import npquant as nq

ort.set_default_logger_severity(3)
TARGETS = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "int16": TensorProto.INT16,
           "uint16": TensorProto.UINT16}  # fmt: skip


def evaluators(kind, source, target, axis, shapes):
    """ONNX Runtime and onnx's own reference, for one node."""
    code = source if kind == "DequantizeLinear" else target
    dtypes = {"x": source, "scale": TensorProto.FLOAT, "zero_point": code}
    inputs = [helper.make_tensor_value_info(n, dtypes[n], shapes[n]) for n in dtypes]
    node = helper.make_node(kind, ["x", "scale", "zero_point"], ["y"], axis=axis)
    output = helper.make_tensor_value_info("y", target, shapes["x"])
    graph = helper.make_graph([node], "one", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session, ReferenceEvaluator(model)


def run(kind, source, target, axis, x, scale, zero_point):
    """The results of both."""
    feed = {"x": x, "scale": scale, "zero_point": zero_point}
    shapes = {name: value.shape for name, value in feed.items()}
    return [e.run(None, feed)[0] for e in evaluators(kind, source, target, axis, shapes)]


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("scale", [2.0**-10, 0.5, 1.0, 4.0])
def test_per_tensor(name, scale):
    dtype = np.dtype(name)
    lo, hi = cases.BOUNDS[dtype]
    z = (lo + hi) // 2 + 3
    x = cases.inputs(np.float32, scale, lo, hi, z, finite=True)
    s, zero_point = np.array(scale, np.float32), np.array(z, dtype)
    q = nq.quantize_per_tensor(x, scale, z, lo, hi, dtype)
    for theirs in run("QuantizeLinear", TensorProto.FLOAT, TARGETS[name], 0, x, s, zero_point):
        cases.assert_same(q, theirs)
    y = nq.dequantize_per_tensor(q, scale, z, lo, hi, dtype)
    for theirs in run("DequantizeLinear", TARGETS[name], TensorProto.FLOAT, 0, q, s, zero_point):
        cases.assert_same(y, theirs)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_per_channel(axis):
    rng = np.random.default_rng(axis)
    x = rng.normal(0, 40, (3, 4, 5)).astype(np.float32)
    count = x.shape[axis]
    s = np.exp2(np.arange(count) - 2).astype(np.float32)
    z = rng.integers(-5, 5, count).astype(np.int8)
    q = nq.quantize_per_channel(x, s, z, axis, -128, 127, np.int8)
    for theirs in run("QuantizeLinear", TensorProto.FLOAT, TensorProto.INT8, axis, x, s, z):
        cases.assert_same(q, theirs)
    y = nq.dequantize_per_channel(q, s, z, axis, -128, 127, np.int8)
    for theirs in run("DequantizeLinear", TensorProto.INT8, TensorProto.FLOAT, axis, q, s, z):
        cases.assert_same(y, theirs)
