"""What quantization costs the network: accuracy, noise and time for each way to do it."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

import npquant as nq
from npquant.demo.digits import (
    FloatArray,
    Layer,
    accuracy_percent,
    forward,
    load_digits,
    load_network,
)
from npquant.demo.environment import Environment
from npquant.metrics import sqnr

GROUP_SIZE = 16
"""Neighbouring inputs of one output channel that share a scale."""

REPEATS = 7
"""A time is the median of this many runs."""

EPS = np.array([2**-23], np.float32)
"""The smallest scale. PyTorch's observers use the same."""


class Codes(NamedTuple):
    """The integers that values become: their dtype, and the range of it that is used."""

    dtype: Any
    quant_min: int
    quant_max: int


CODES = {
    8: Codes(np.int8, -128, 127),
    4: Codes(ml_dtypes.int4, -8, 7),
    # Parts of a wider dtype. No dtype has 3 bits; int2 exists, but would give the same codes from
    # kernels of its own, which take seconds to compile.
    3: Codes(ml_dtypes.int4, -4, 3),
    2: Codes(ml_dtypes.int4, -2, 1),
}


class Granularity(NamedTuple):
    """What shares a scale: the ops that work so, and the argument that tells them how."""

    quantize: Callable[..., npt.NDArray[Any]]
    dequantize: Callable[..., npt.NDArray[Any]]
    argument: dict[str, int]


GRANULARITIES = {
    "tensor": Granularity(nq.quantize_per_tensor, nq.dequantize_per_tensor, {}),
    "channel": Granularity(nq.quantize_per_channel, nq.dequantize_per_channel, {"axis": 0}),
    "group": Granularity(
        nq.quantize_per_channel_group,
        nq.dequantize_per_channel_group,
        {"group_size": GROUP_SIZE},
    ),
}

SCHEMES = ("symmetric", "affine")


class Way(NamedTuple):
    """One way to quantize weights.

    Attributes
    ----------
    bits : int
        Width of a code, a key of `CODES`.
    granularity : str
        What shares a scale: the whole "tensor", a "channel" (axis 0, one output), or a "group" of
        `GROUP_SIZE` neighbouring inputs of one output.
    scheme : str
        "symmetric" (every zero point is 0) or "affine".
    """

    bits: int
    granularity: str
    scheme: str


WAYS = [Way(*way) for way in product(CODES, GRANULARITIES, SCHEMES)]


@dataclass(frozen=True)
class Row:
    """A way to quantize, and what came of it.

    Attributes
    ----------
    bits, granularity, scheme
        As in `Way`.
    sqnr_db : float
        Signal-to-quantization-noise ratio over all weights, in decibels.
    accuracy_weights : float
        Test images right, in percent, with quantized weights.
    accuracy_weights_activations : float
        The same with the input of every layer quantized too: 8 bits, affine, one scale an image.
    quantize_us : float
        Microseconds to choose the scales and quantize all weights.
    """

    bits: int
    granularity: str
    scheme: str
    sqnr_db: float
    accuracy_weights: float
    accuracy_weights_activations: float
    quantize_us: float


@dataclass(frozen=True)
class Report:
    """Everything the demo measured.

    Attributes
    ----------
    environment : Environment
        Versions and machine.
    test_images : int
        How many images an accuracy is taken over. None of them was trained on.
    weights : int
        How many weights were quantized. Biases stay float.
    group_size : int
        How many weights share a scale in the rows with granularity "group".
    accuracy_float : float
        Test images right, in percent, with the float network.
    rows : list of Row
        One for each of `WAYS`.
    activations_us : float
        Microseconds to choose the scales and quantize the inputs of all layers, for all test
        images.
    repeats : int
        Each time in microseconds is the median of so many runs.
    first_pass_s : float
        Seconds for a first pass over everything, in which Numba compiles the kernels or loads
        them from its cache. No time in microseconds contains any of it.
    total_s : float
        Seconds for the whole run.
    """

    environment: Environment
    test_images: int
    weights: int
    group_size: int
    accuracy_float: float
    rows: list[Row]
    activations_us: float
    repeats: int
    first_pass_s: float
    total_s: float


class Quantized(NamedTuple):
    """An array as integer codes, with what it takes to turn them back."""

    codes: npt.NDArray[Any]
    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int32]


def run() -> Report:
    """Quantize the network in every way, and measure.

    Returns
    -------
    Report
        Accuracy, signal-to-quantization-noise ratio and times.

    Examples
    --------
    >>> from npquant.demo import run
    >>> report = run()
    >>> report.accuracy_float
    97.0
    """
    start = time.perf_counter()
    images, labels = load_digits()
    layers, test_index = load_network()
    images, labels = images[test_index], labels[test_index]
    scores, inputs = forward(layers, images)

    def quantize_inputs() -> None:
        for x in inputs:
            quantize_activations(x)

    for way in WAYS:
        _restore_weights(layers, way)
    _restore_activations(images)
    first_pass_s = time.perf_counter() - start

    return Report(
        environment=Environment.here(),
        test_images=len(images),
        weights=sum(layer.weight.size for layer in layers),
        group_size=GROUP_SIZE,
        accuracy_float=accuracy_percent(scores, labels),
        rows=[_measure(layers, images, labels, way) for way in WAYS],
        activations_us=_median_us(quantize_inputs),
        repeats=REPEATS,
        first_pass_s=first_pass_s,
        total_s=time.perf_counter() - start,
    )


def quantize_weight(weight: FloatArray, way: Way) -> Quantized:
    """Choose scales and zero points from the smallest and largest weights, and quantize.

    Parameters
    ----------
    weight : ndarray of float32, shape (outputs, inputs)
        One row per output channel.
    way : Way
        How.

    Returns
    -------
    Quantized
        Codes of the weight's shape; one scale and zero point in all, per row, or per group.
    """
    codes = CODES[way.bits]
    granularity = GRANULARITIES[way.granularity]
    outputs, inputs = weight.shape
    scale_shape = {
        "tensor": (1,),
        "channel": (outputs,),
        "group": (outputs, inputs // GROUP_SIZE),
    }[way.granularity]

    # One row for each set of weights that shares a scale.
    sets = weight.reshape(math.prod(scale_shape), -1)
    scale, zero_point = nq.determine_qparams(
        sets.min(axis=1),
        sets.max(axis=1),
        codes.quant_min,
        codes.quant_max,
        codes.dtype,
        EPS,
        has_customized_qrange=True,
        qscheme=f"per_{'tensor' if way.granularity == 'tensor' else 'channel'}_{way.scheme}",
    )
    # They come as float64 and int64; float64 scales would make the ops compute in float64.
    scale = scale.astype(np.float32).reshape(scale_shape)
    zero_point = zero_point.astype(np.int32).reshape(scale_shape)
    quantized = granularity.quantize(
        weight, scale, zero_point, **granularity.argument, **codes._asdict()
    )
    return Quantized(quantized, scale, zero_point)


def dequantize_weight(quantized: Quantized, way: Way) -> FloatArray:
    """Turn codes back into float32: what `quantize_weight` made, up to rounding."""
    granularity = GRANULARITIES[way.granularity]
    return granularity.dequantize(*quantized, **granularity.argument, **CODES[way.bits]._asdict())


def quantize_activations(x: FloatArray) -> Quantized:
    """Quantize the input of a layer to 8 bits, each image (row) with a scale of its own."""
    scale, zero_point = nq.choose_qparams_per_token_asymmetric(x, np.int8)
    scale, zero_point = scale.astype(np.float32), zero_point.astype(np.int32)
    codes = nq.quantize_per_token(x, scale, zero_point, **CODES[8]._asdict())
    return Quantized(codes, scale, zero_point)


def _measure(
    layers: list[Layer], images: FloatArray, labels: npt.NDArray[np.uint8], way: Way
) -> Row:
    restored = _restore_weights(layers, way)
    weights_only, _ = forward(restored, images)
    with_activations, _ = forward(restored, images, _restore_activations)
    return Row(
        *way,
        sqnr_db=sqnr(_all_weights(layers), _all_weights(restored)),
        accuracy_weights=accuracy_percent(weights_only, labels),
        accuracy_weights_activations=accuracy_percent(with_activations, labels),
        quantize_us=_median_us(lambda: [quantize_weight(layer.weight, way) for layer in layers]),
    )


def _all_weights(layers: list[Layer]) -> FloatArray:
    return np.concatenate([layer.weight.ravel() for layer in layers])


def _restore_weights(layers: list[Layer], way: Way) -> list[Layer]:
    """Return the network with every weight quantized and turned back."""
    return [
        Layer(dequantize_weight(quantize_weight(layer.weight, way), way), layer.bias)
        for layer in layers
    ]


def _restore_activations(x: FloatArray) -> FloatArray:
    restored: FloatArray = nq.dequantize_per_token(*quantize_activations(x), **CODES[8]._asdict())
    return restored


def _median_us(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return 1e6 * statistics.median(seconds)
