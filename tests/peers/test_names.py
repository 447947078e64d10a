"""docs/pytorch.md: every name is there, on both sides, and its arguments; what else it says."""

import importlib
import inspect
import itertools
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.ao.quantization._learnable_fake_quantize
import torch.ao.quantization.fx._decomposed

import npquant as nq
from npquant.modules import FakeQuantize

PAGE = (Path(nq.__file__).parents[1] / "docs" / "pytorch.md").read_text()
NAMES, ARGUMENTS = PAGE.split("## Missing arguments")


def rows(page):
    """Return the names in each cell of the tables."""
    return [
        [re.findall(r"`([\w.]+)`", cell) for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith("| `")
    ]


ROWS = rows(NAMES)
PAIRS = [(cells[0][0], cells[1][0]) for cells in ROWS if len(cells) == 2]
PAIRS += [
    (f"{theirs}.{name}", f"{ours}.{name}")
    for (theirs,), names, (ours,) in (cells for cells in ROWS if len(cells) == 3)
    for name in names
]
#: Arguments that npquant lacks, by the last name of what it has.
MISSING = {name: lacks for names, lacks in rows(ARGUMENTS) for name in names}
#: Arguments that PyTorch lacks.
OWN = {
    "out", "rounding", "symmetric", "zero_point_rounding", "per_token", "group_size", "init",
    "upsample_rate",
}  # fmt: skip
#: What is of another kind here.
OTHERS = {
    "torch.Tensor.to", "torch.autograd.Function", "torch.autograd.grad", "torch.nn.Module",
    "torch.nn.Parameter", "torch.ao.quantization.ObserverBase", "torch.set_num_threads",
    "torch.ao.quantization.FakeQuantizeBase",
    "torch.ao.ns.fx.utils.compute_cosine_similarity", "torch.ao.ns.fx.utils.compute_sqnr",
}  # fmt: skip
#: Where the signature of a function that chooses between two is found.
CHOSEN = {"torch.nn.functional.max_pool2d": "torch.nn.functional.max_pool2d_with_indices"}


def found(name):
    """What a dotted name stands for."""
    module, *rest = name.split(".")
    value = importlib.import_module(module)
    for part in rest:
        try:
            value = getattr(value, part)
        except AttributeError:
            value = importlib.import_module(f"{value.__name__}.{part}")
    return value


@pytest.mark.parametrize(("theirs", "ours"), PAIRS)
def test_names(theirs, ours):
    assert callable(found(theirs))
    assert callable(found(ours))


def signature(name):
    """Return PyTorch's arguments: (name, whether it has a place, default, or None)."""
    value = found(CHOSEN.get(name, name))
    if inspect.isfunction(value) or inspect.isclass(value):
        return [
            (p.name, p.kind != p.KEYWORD_ONLY, None if p.default is p.empty else p.default)
            for p in inspect.signature(value).parameters.values()
            if p.kind != p.VAR_KEYWORD
        ]
    if not isinstance(value, torch._ops.OpOverloadPacket):
        value = getattr(torch.ops.aten, name.rpartition(".")[2])
    schema = getattr(value, value.overloads()[0])._schema
    return [
        ("input" if a.name == "self" else a.name, not a.kwarg_only, a.default_value)
        for a in schema.arguments
    ]


def names(function, *, but=()):
    """Return the names of arguments, without those of the kinds `but`."""
    kinds = (inspect.Parameter.VAR_KEYWORD, *but)
    found = inspect.signature(function).parameters.values()
    return [p.name for p in found if p.kind not in kinds]


@pytest.mark.parametrize(("theirs", "ours"), [p for p in PAIRS if p[0] not in OTHERS])
def test_arguments(theirs, ours):
    """They are PyTorch's in their order, less what the page says; up to there also by place."""
    told, lacks = signature(theirs), MISSING.get(ours.rpartition(".")[2], [])
    wanted = [name for name, _, _ in told]
    assert set(lacks) <= set(wanted)
    got = [name for name in names(found(ours)) if name not in OWN or name in wanted]
    assert got == [name for name in wanted if name not in lacks]
    there = itertools.takewhile(lambda a: a[1] and a[0] not in lacks, told)
    placed = names(found(ours), but=[inspect.Parameter.KEYWORD_ONLY])
    assert placed == [name for name, _, _ in there]


@pytest.mark.parametrize(("theirs", "ours"), [p for p in PAIRS if p[0] not in OTHERS])
def test_defaults(theirs, ours):
    """They are PyTorch's where they are numbers or switches, but for one that the page names."""
    parameters = inspect.signature(found(ours)).parameters
    for name, _, default in signature(theirs):
        if name in parameters and isinstance(default, bool | int | float):
            wanted = 1 if (ours, name) == ("npquant.autograd.flatten", "start_dim") else default
            assert parameters[name].default == wanted, name


def test_there_are_names():
    """And every op that has PyTorch's name is among them."""
    ours = {pair[1] for pair in PAIRS}
    assert len(PAIRS) > 50
    for name in nq.__all__:
        if hasattr(torch.ops.quantized_decomposed, name) or hasattr(torch, name):
            assert f"npquant.{name}" in ours, name


def test_dtypes_by_way_of_bits():
    """The page's lines, run: each pair goes from a tensor to an array and back, in its memory."""
    lines = [line.strip() for line in PAGE.splitlines() if line.startswith("    ")]
    assert len(lines) == 4
    for there, back in (lines[:2], lines[2:]):
        dtype = found(re.findall(r"torch\.b?float\w+", back)[0])
        space = {"torch": torch, "np": np, "ml_dtypes": ml_dtypes}
        space["tensor"] = tensor = torch.tensor([1.5, -2.0]).to(dtype)
        exec(there, space)
        assert space["x"].tolist() == [1.5, -2.0]
        exec(back, space)
        assert space["tensor"].dtype == dtype
        assert space["tensor"].data_ptr() == tensor.data_ptr()
    codes = np.array([-8, 7], ml_dtypes.int4)
    with pytest.raises(TypeError, match="can't convert"):
        torch.from_numpy(codes)
    assert torch.from_numpy(codes.astype(np.int8)).tolist() == [-8, 7]


@pytest.mark.parametrize("name", ["observer", "fake_quant"])
def test_switches_are_methods(name):
    for switch in (f"enable_{name}", f"disable_{name}"):
        assert callable(getattr(torch.ao.quantization, switch))
        assert callable(getattr(FakeQuantize, switch))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_tensors():
    """Ties and their neighbours, with scales of any float32."""
    r = np.random.default_rng(0)
    differ = 0
    for _ in range(20):
        scale, zero_point = np.float32(r.uniform(0.001, 0.2)), int(r.integers(-20, 20))
        x = ((r.integers(-90, 90, (8, 512)) + 0.5) * np.float64(scale)).astype(np.float32)
        x = np.nextafter(x, r.choice([-9, 9], x.shape).astype(np.float32))
        t, scales, zeros = torch.from_numpy(x), np.full(8, scale), np.full(8, zero_point)

        by_row = torch.quantize_per_channel(t, torch.from_numpy(scales), torch.from_numpy(zeros),
                                            0, torch.qint8)  # fmt: skip
        ours = nq.quantize_per_token(x, scales, zeros, -128, 127, np.int8)
        np.testing.assert_array_equal(by_row.int_repr().numpy(), ours)

        whole = torch.quantize_per_tensor(t, float(scale), zero_point, torch.qint8)
        # The product of two float32 and the sum are exact enough in float64 to be rounded once.
        once = x.astype(np.float64) * np.float64(np.float32(1) / scale) + zero_point
        wanted = np.clip(np.rint(once.astype(np.float32)), -128, 127).astype(np.int8)
        np.testing.assert_array_equal(whole.int_repr().numpy(), wanted)
        back = nq.dequantize_per_tensor(wanted, float(scale), zero_point, -128, 127, np.int8)
        np.testing.assert_array_equal(whole.dequantize().numpy(), back)
        own = nq.quantize_per_tensor(x, float(scale), zero_point, -128, 127, np.int8)
        differ += np.count_nonzero(own != wanted)
    assert differ > 1000
    steps = torch.quantize_per_tensor(torch.tensor([0.5, 1.5]), 1.0, 1, torch.qint8)
    assert steps.int_repr().tolist() == [2, 2]
    own = nq.quantize_per_tensor(np.array([0.5, 1.5]), 1.0, 1, -128, 127, np.int8)
    assert own.tolist() == [1, 3]
