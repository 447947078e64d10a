"""The peers, called on the same arrays. PyTorch and ONNX Runtime are imported when first needed."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np

from . import plain, work
from .cases import Call, Case, Inputs
from .tensors import as_torch, load_torch

_threads = 1

#: Ops whose name in PyTorch is another.
_NAMES = {"fused_moving_avg_obs_fake_quant_cachemask": "_fused_moving_avg_obs_fq_helper"}

_QUANTIZED = {"int8": "qint8", "uint8": "quint8", "int32": "qint32"}
_ONNX = ("int8", "uint8", "int16", "uint16", "int4", "float8_e4m3fn")


def setup(threads: int) -> dict[str, str]:
    """Give every peer so many threads; returns the versions of those that are installed."""
    global _threads
    _threads = threads
    versions = {}
    for name in ("torch", "onnxruntime", "onnx"):
        try:
            versions[name] = importlib.import_module(name).__version__
        except ImportError:
            continue
    if "torch" in versions:
        load_torch().set_num_threads(threads)
    return versions


def calls_of(
    case: Case, inputs: Inputs, wanted: Collection[str]
) -> tuple[dict[str, Call], dict[str, str]]:
    """The calls of those peers that compute the case, each called once; why the others do not."""
    calls, absent = {}, {}
    for name in case.peers:
        if name not in wanted:
            continue
        try:
            call = PEERS[name](case, inputs)
            if call is None:
                absent[name] = "has no such quantizer"
                continue
            call()
        except Exception as error:  # whatever a library says of what it cannot do
            why = (str(error).strip().splitlines() or [""])[0]
            absent[name] = f"{type(error).__name__}: {why[:90]}"
        else:
            calls[name] = call
    return calls, absent


# --- PyTorch ----------------------------------------------------------------------------------


def _partial(function: Any, case: Case, inputs: Inputs) -> Call:
    keywords = {name: as_torch(value) for name, value in case.keywords(inputs).items()}
    return partial(function, *map(as_torch, case.arguments(inputs)), **keywords)


def same_op(case: Case, inputs: Inputs) -> Call:
    """PyTorch's own op of that name: its binding if it has one, else what the dispatcher has."""
    torch = load_torch()
    utils = importlib.import_module("torch.ao.quantization.utils")
    known = _NAMES.get(case.op, case.op)
    for name in (known, f"_{known}"):
        for place in (torch, utils):
            if hasattr(place, name):
                return _partial(getattr(place, name), case, inputs)
        if hasattr(torch.ops.aten, name):
            return _partial(getattr(torch.ops.aten, name).default, case, inputs)
    raise AttributeError(f"PyTorch has no {case.op}")


def decomposed(case: Case, inputs: Inputs) -> Call:
    """The op of torch.ops.quantized_decomposed, without the lookup of its overload."""
    if case.op == "quantize_per_token_dynamic":
        return _in_two_steps(inputs)
    packet = getattr(load_torch().ops.quantized_decomposed, case.op)
    call = _partial(getattr(packet, packet.overloads()[0]), case, inputs)
    if "dequantize_per_token" in case.op or "dequantize_per_channel_group" in case.op:
        # The dispatcher knows no default for it.
        return partial(call.func, *call.args, as_torch(inputs.floating))
    return call


def _in_two_steps(inputs: Inputs) -> Call:
    """PyTorch chooses qparams of rows, and then quantizes with them."""
    ops, target = load_torch().ops.quantized_decomposed, as_torch(inputs.target)
    choose, code = ops.choose_qparams_per_token_asymmetric.default, ops.quantize_per_token.default

    def call(x: Any) -> Any:
        found = choose(x, target)
        return code(x, *found, *inputs.bounds, target), *found

    return partial(call, as_torch(inputs.x))


def quantized(case: Case, inputs: Inputs) -> Call | None:
    """torch.quantize_per_tensor or per_channel, to a quantized tensor, and back from one."""
    torch, name = load_torch(), _QUANTIZED.get(inputs.target.name)
    layout, backwards = inputs.layout, case.op.startswith("dequantize")
    many = layout.group or (layout.grain == "token" and len(layout.shape) > 2)
    if name is None or inputs.floating != np.float32 or many:
        return None
    data = as_torch(inputs.codes if backwards else inputs.x)
    dtype = () if backwards else (getattr(torch, name),)
    if not layout.scales:
        make = torch._make_per_tensor_quantized_tensor if backwards else torch.quantize_per_tensor
        call = partial(make, data, *inputs.qparams, *dtype)
    else:
        make = torch._make_per_channel_quantized_tensor if backwards else torch.quantize_per_channel
        qparams = [as_torch(p.reshape(-1)) for p in (inputs.scales, inputs.zero_points)]
        call = partial(make, data, *qparams, *(layout.axis or (0,)), *dtype)
    return call().dequantize if backwards else call


def expression(case: Case, inputs: Inputs) -> Call:
    """The plain expression, for ops that PyTorch lacks."""
    return _expression(case, inputs, load_torch(), as_torch)


def compiled(case: Case, inputs: Inputs) -> Call | None:
    """torch.compile of PyTorch's call, for exactly these shapes."""
    peer = next((name for name in COMPILED if name in case.peers), None)
    call = PEERS[peer](case, inputs) if peer else None
    return None if call is None else compiled_call(call)


def compiled_call(call: Call) -> Call:
    """torch.compile of a call of PyTorch's."""
    torch = load_torch()
    torch._dynamo.reset()  # or there would be too many versions of one function
    function, given = (call, ()) if not isinstance(call, partial) else (call.func, call.args)
    keywords = call.keywords if isinstance(call, partial) else {}
    made = torch.compile(function, fullgraph=True, dynamic=False)
    return partial(made, *given, **keywords)


# --- NumPy ------------------------------------------------------------------------------------


def numpy(case: Case, inputs: Inputs) -> Call:
    """The plain expression."""
    return _expression(case, inputs, np, lambda value: value)


def _expression(case: Case, inputs: Inputs, xp: Any, own: Any) -> Call:
    call = partial(plain.EXPRESSIONS[case.op], plain.Plain(case, inputs, xp, own))
    call()  # makes the arrays
    return call


# --- ONNX Runtime -----------------------------------------------------------------------------


def onnxruntime(case: Case, inputs: Inputs) -> Call | None:
    """A session of one QuantizeLinear or DequantizeLinear, its input and output bound."""
    runtime, onnx = importlib.import_module("onnxruntime"), importlib.import_module("onnx")
    if inputs.target.name not in _ONNX or inputs.layout.order:
        return None  # it takes C order only
    data, *_ = case.arguments(inputs)
    if data.dtype.name == "int4":
        return None  # the runtime's are packed, two to a byte
    options = runtime.SessionOptions()
    options.intra_op_num_threads = _threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what it refuses is named in the table
    session = runtime.InferenceSession(
        _model(onnx, case, inputs).SerializeToString(), options, ["CPUExecutionProvider"]
    )
    if data.dtype.name == "float8_e4m3fn":
        kind = onnx.TensorProto.FLOAT8E4M3FN
        value = runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(data.view(np.uint8), kind)
    else:
        value = runtime.OrtValue.ortvalue_from_numpy(data)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_output("y", "cpu")
    return partial(session.run_with_iobinding, binding)


def _model(onnx: Any, case: Case, inputs: Inputs) -> Any:
    layout, helper = inputs.layout, onnx.helper
    backwards = case.op.startswith("dequantize")
    kinds = [helper.np_dtype_to_tensor_dtype(d) for d in (inputs.floating, inputs.target)]
    attributes = {"axis": layout.axis[0] if layout.axis else 0} if layout.scales else {}
    if layout.group:
        attributes = {"axis": 1, "block_size": layout.group[0]}
    shape = layout.scales if layout.group else (-1,) if layout.scales else ()
    scales = inputs.scales.reshape(shape).astype(inputs.floating)
    zero_points = inputs.zero_points.reshape(shape).astype(inputs.target)
    graph = helper.make_graph(
        [helper.make_node(
            "DequantizeLinear" if backwards else "QuantizeLinear", ["x", "s", "z"], ["y"],
            **attributes,
        )],
        "one_op",
        [helper.make_tensor_value_info("x", kinds[backwards], layout.shape)],
        [helper.make_tensor_value_info("y", kinds[not backwards], layout.shape)],
        [onnx.numpy_helper.from_array(scales, "s"), onnx.numpy_helper.from_array(zero_points, "z")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


#: By the names that cases call them.
PEERS = {
    "torch": same_op,
    "torch decomposed": decomposed,
    "torch quantized": quantized,
    "torch expression": expression,
    "torch work": work.peer,
    "torch.compile": compiled,
    "onnxruntime": onnxruntime,
    "numpy": numpy,
}

#: Those that `torch.compile` compiles, of which a case has one at most: PyTorch's own call of the
#: same op, or else the op as an expression.
COMPILED = ("torch", "torch decomposed", "torch work", "torch expression")

#: Those that take seconds to compile for every case.
SLOW = ("torch.compile",)
