"""What learning to quantize brings the network: nearest, AdaRound, GPTQ and LSQ, over seeds."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import npquant as nq
from npquant import autograd as ag
from npquant.adaround import Grid, Linear, RoundingReport, optimize_rounding
from npquant.demo.digits import (
    FloatArray,
    Layer,
    accuracy_percent,
    forward,
    load_digits,
    load_network,
)
from npquant.demo.environment import Environment
from npquant.gptq import gptq
from npquant.optim import Adam

BITS = (4, 3, 2)

SEEDS = (0, 1, 2, 3, 4)

CALIBRATION = 512
"""Training images that a seed draws for AdaRound and GPTQ."""

HELD_OUT = 0.2
"""Share of these that AdaRound does not learn from, but judges by."""

STEPS = 700
"""Steps of AdaRound for a layer."""

ROWS = 128
"""Images that AdaRound learns from in a step: BLAS gives products of this size to one thread."""

EPOCHS, BATCH, RATE = 15, 64, 3e-3
"""How LSQ trains: Adam's rate falls to zero along half a cosine."""

SHARES = np.linspace(0.2, 1, 81)
"""Shares of the largest weight among which the grid of the least squared error is sought."""


class Way(NamedTuple):
    """One way to choose the grid of the weights.

    Attributes
    ----------
    bits : int
        Width of a code.
    granularity : str
        What shares a scale: the whole "tensor" or a "channel" (one output). Zero points are 0.
    scales : str
        "absmax" (the range reaches to the largest weight) or "mse" (the share of that with the
        least squared error of the weights).
    """

    bits: int
    granularity: str
    scales: str


WAYS = tuple(
    Way(bits, granularity, scales)
    for bits in BITS
    for granularity, scales in (("tensor", "absmax"), ("tensor", "mse"), ("channel", "mse"))
)


@dataclass(frozen=True)
class Accuracy:
    """Test images right, in percent.

    Attributes
    ----------
    mean, deviation : float
        Over the seeds; the deviation is that of a sample, and 0 for a single seed.
    seeds : list of float
        For each seed.
    """

    mean: float
    deviation: float
    seeds: list[float]


@dataclass(frozen=True)
class TrainRow:
    """A way to choose the grid, and what each method makes of it.

    Attributes
    ----------
    bits, granularity, scales
        As in `Way`.
    nearest : Accuracy
        Weights rounded to nearest. Nothing in it depends on the seed.
    adaround : Accuracy
        Rounding learned by `npquant.adaround.optimize_rounding`.
    gptq : Accuracy
        Rounding by `npquant.gptq.gptq`, on the inputs that the layers quantized before hand on.
    lsq : Accuracy
        Weights, biases and scales trained through fake quantization.
    adaround_kept_nearest : int
        How many layers, of all seeds, kept nearest since learning made them worse.
    """

    bits: int
    granularity: str
    scales: str
    nearest: Accuracy
    adaround: Accuracy
    gptq: Accuracy
    lsq: Accuracy
    adaround_kept_nearest: int


@dataclass(frozen=True)
class TrainReport:
    """Everything that ``npquant demo --train`` measured.

    Attributes
    ----------
    environment : Environment
        Versions and machine.
    test_images, training_images, calibration_images : int
        How many images accuracy is taken over, LSQ trains on, and each seed draws from the latter
        for AdaRound and GPTQ.
    weights : int
        How many weights were quantized. Biases stay float.
    adaround_steps : int
        Steps of AdaRound for a layer.
    lsq_epochs : int
        How often LSQ sees every training image.
    seeds : list of int
        The seeds.
    accuracy_float : float
        Test images right, in percent, with the float network.
    rows : list of TrainRow
        One for each of `WAYS`.
    seconds : dict of str to float
        Seconds that each method took for all ways and seeds, with compiling.
    total_s : float
        Seconds for the whole run.
    """

    environment: Environment
    test_images: int
    training_images: int
    calibration_images: int
    weights: int
    adaround_steps: int
    lsq_epochs: int
    seeds: list[int]
    accuracy_float: float
    rows: list[TrainRow]
    seconds: dict[str, float]
    total_s: float


class Task(NamedTuple):
    """What a method is given: the network, a grid for each layer, and what to learn from."""

    layers: list[Layer]
    grids: list[Grid]
    images: FloatArray  #: All training images.
    labels: npt.NDArray[np.uint8]
    calibration: FloatArray  #: Those that the seed has drawn.
    seed: int
    steps: int
    epochs: int
    reports: list[RoundingReport]  #: Where AdaRound says what it has brought.


def grid_of(weight: FloatArray, way: Way) -> Grid:
    """Choose the scales of a weight.

    The range of the codes reaches to the largest weight of what shares a scale, or to the share of
    it (of `SHARES`) with the least squared error.
    """
    lo, hi = -(2 ** (way.bits - 1)), 2 ** (way.bits - 1) - 1
    sets = weight.reshape(1 if way.granularity == "tensor" else len(weight), -1)
    widest = np.abs(sets).max(axis=1) / np.float32((hi - lo) / 2)
    if way.scales == "mse":
        scales = (SHARES[:, np.newaxis] * widest).astype(np.float32)[..., np.newaxis]
        errors = np.clip(np.rint(sets / scales), lo, hi) * scales - sets
        best = np.argmin(np.square(errors).sum(axis=2), axis=0)
        widest = scales[best, np.arange(len(sets)), 0]
    if way.granularity == "tensor":
        return Grid(float(widest[0]), 0, lo, hi)
    return Grid(widest, np.zeros(len(sets), np.int32), lo, hi, axis=0)


def nearest(task: Task) -> list[Layer]:
    """Round every weight to the nearest value of its grid."""
    return [
        Layer(_fake_quantized(layer.weight, grid), layer.bias)
        for layer, grid in zip(task.layers, task.grids, strict=True)
    ]


def adaround(task: Task) -> list[Layer]:
    """Learn the rounding of one layer after another."""
    last = len(task.layers) - 1
    chain = [
        Linear(layer.weight, layer.bias, None if i == last else ag.relu)
        for i, layer in enumerate(task.layers)
    ]
    done = optimize_rounding(
        chain,
        task.grids,
        task.calibration,
        held_out=HELD_OUT,
        batch_size=ROWS,
        steps=task.steps,
        rng=task.seed,
    )
    task.reports.extend(r.report for r in done)
    return [Layer(r.weight, layer.bias) for r, layer in zip(done, task.layers, strict=True)]


def by_gptq(task: Task) -> list[Layer]:
    """Round by the Gram matrices of what the layers that are quantized already hand on."""
    done: list[Layer] = []
    x = task.calibration
    for i, (layer, grid) in enumerate(zip(task.layers, task.grids, strict=True)):
        if i > 0:
            x = np.maximum(x, 0)
        weight, _ = gptq(layer.weight, x.T @ x, **vars(grid))
        done.append(Layer(weight, layer.bias))
        x = x @ weight.T + layer.bias
    return done


def lsq(task: Task) -> list[Layer]:
    """Train weights, biases and scales through fake quantization, from the float network."""
    network = LearnedNetwork(task.layers, task.grids)
    adam = Adam(network.parameters, lr=RATE)
    rng = np.random.default_rng(task.seed)
    count = len(task.images)
    starts = range(0, count - BATCH + 1, BATCH)
    for epoch in range(task.epochs):
        order = rng.permutation(count)
        for i, begin in enumerate(starts):
            adam.lr = RATE * (1 + math.cos(math.pi * (epoch + i / len(starts)) / task.epochs)) / 2
            rows = order[begin : begin + BATCH]
            with ag.Tape() as tape:
                scores = tape.apply(network, task.images[rows])
                loss = tape.apply(ag.softmax_cross_entropy, scores, task.labels[rows])
            adam.step(tape.gradient(loss, network.parameters))
            for scale in network.scales:  # Adam may step over zero
                np.maximum(scale.value, np.float32(2**-23), out=scale.value)
    return network.quantized()


class LearnedNetwork:
    """The network with weights that are fake quantized, and scales that are learned (LSQ).

    Parameters
    ----------
    layers : list of Layer
        Where training starts.
    grids : list of Grid
        The first scales, and the bounds.
    """

    def __init__(self, layers: Sequence[Layer], grids: Sequence[Grid]) -> None:
        self.grids = list(grids)
        self.weights = [ag.Parameter(layer.weight.copy()) for layer in layers]
        self.biases = [ag.Parameter(layer.bias.copy()) for layer in layers]
        self.scales = [ag.Parameter(np.array(g.scale, np.float32).reshape(-1)) for g in grids]
        self.parameters = [*self.weights, *self.biases, *self.scales]

    def forward(self, apply: Callable[..., FloatArray], x: FloatArray) -> FloatArray:
        """Compute the scores; `apply` is that of a tape, or `npquant.autograd.call`."""
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if i > 0:
                x = apply(ag.relu, x)
            x = apply(ag.linear, x, self._weight(apply, i, weight), bias)
        return x

    def quantized(self) -> list[Layer]:
        """The layers on their grids."""
        return [
            Layer(self._weight(ag.call, i, weight), bias.value)
            for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True))
        ]

    def _weight(self, apply: Callable[..., FloatArray], i: int, weight: ag.Parameter) -> FloatArray:
        grid, scale = self.grids[i], self.scales[i]
        zero_point = np.zeros(scale.value.shape, np.float32)
        bounds = grid.quant_min, grid.quant_max
        # LSQ's gradient scale: a scale is moved by as much as one of its weights.
        factor = 1 / math.sqrt(weight.value.size / scale.value.size * grid.quant_max)
        if grid.axis is None:
            op = nq.fake_quantize_learnable_per_tensor_affine
            return apply(op, weight, scale, zero_point, *bounds, factor)
        per_channel = nq.fake_quantize_learnable_per_channel_affine
        return apply(per_channel, weight, scale, zero_point, grid.axis, *bounds, factor)


METHODS = {"nearest": nearest, "adaround": adaround, "gptq": by_gptq, "lsq": lsq}
NAMES = {"nearest": "nearest", "adaround": "AdaRound", "gptq": "GPTQ", "lsq": "LSQ"}


def run_training(
    *,
    ways: Sequence[Way] = WAYS,
    seeds: Sequence[int] = SEEDS,
    steps: int = STEPS,
    epochs: int = EPOCHS,
) -> TrainReport:
    """Quantize the network by every method in every way, and measure.

    Parameters
    ----------
    ways : sequence of Way, optional
        How grids are chosen.
    seeds : sequence of int, optional
        Seeds: of the calibration images that are drawn, of AdaRound's batches and of LSQ's order.
    steps : int, default 700
        Steps of AdaRound for a layer.
    epochs : int, default 15
        How often LSQ sees every training image.

    Returns
    -------
    TrainReport
        Accuracies and times.
    """
    start = time.perf_counter()
    images, labels = load_digits()
    layers, test_index = load_network()
    training = np.delete(np.arange(len(images)), test_index)
    test, truth = images[test_index], labels[test_index]
    seconds = dict.fromkeys(METHODS, 0.0)

    def judged(network: list[Layer]) -> float:
        return accuracy_percent(forward(network, test)[0], truth)

    def row(way: Way) -> TrainRow:
        grids = [grid_of(layer.weight, way) for layer in layers]
        found: dict[str, list[float]] = {name: [] for name in METHODS}
        reports: list[RoundingReport] = []
        for seed in seeds:
            drawn = np.random.default_rng(seed).choice(training, CALIBRATION, replace=False)
            task = Task(layers, grids, images[training], labels[training], images[drawn], seed,
                        steps, epochs, reports)  # fmt: skip
            for name, method in METHODS.items():
                began = time.perf_counter()
                network = method(task)
                seconds[name] += time.perf_counter() - began
                found[name].append(judged(network))
        of_methods = {name: _accuracy(values) for name, values in found.items()}
        return TrainRow(
            bits=way.bits,
            granularity=way.granularity,
            scales=way.scales,
            nearest=of_methods["nearest"],
            adaround=of_methods["adaround"],
            gptq=of_methods["gptq"],
            lsq=of_methods["lsq"],
            adaround_kept_nearest=sum(report.kept == "nearest" for report in reports),
        )

    return TrainReport(
        environment=Environment.here(),
        test_images=len(test),
        training_images=len(training),
        calibration_images=CALIBRATION,
        weights=sum(layer.weight.size for layer in layers),
        adaround_steps=steps,
        lsq_epochs=epochs,
        seeds=[int(seed) for seed in seeds],
        accuracy_float=judged(layers),
        rows=[row(way) for way in ways],
        seconds=seconds,
        total_s=time.perf_counter() - start,
    )


def _fake_quantized(weight: FloatArray, grid: Grid) -> FloatArray:
    qparams, bounds = (grid.scale, grid.zero_point), (grid.quant_min, grid.quant_max)
    found: FloatArray = (
        nq.fake_quantize_per_tensor_affine(weight, *qparams, *bounds)
        if grid.axis is None
        else nq.fake_quantize_per_channel_affine(weight, *qparams, grid.axis, *bounds)
    )
    return found


def _accuracy(values: list[float]) -> Accuracy:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return Accuracy(statistics.fmean(values), deviation, values)
