"""docs/pytorch.md: every name is there, on both sides; and what it says of quantized tensors."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.ao.quantization._learnable_fake_quantize
import torch.ao.quantization.fx._decomposed

import npquant as nq

PAGE = (Path(nq.__file__).parents[1] / "docs" / "pytorch.md").read_text()
ROWS = [
    [re.findall(r"`([\w.]+)`", cell) for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| `")
]
PAIRS = [(cells[0][0], cells[1][0]) for cells in ROWS if len(cells) == 2]
PAIRS += [
    (f"{theirs}.{name}", f"{ours}.{name}")
    for (theirs,), names, (ours,) in (cells for cells in ROWS if len(cells) == 3)
    for name in names
]


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


def test_there_are_names():
    """And every op that has PyTorch's name is among them."""
    ours = {pair[1] for pair in PAIRS}
    assert len(PAIRS) > 50
    for name in nq.__all__:
        if hasattr(torch.ops.quantized_decomposed, name) or hasattr(torch, name):
            assert f"npquant.{name}" in ours, name


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
