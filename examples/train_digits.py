"""Train the network of ``npquant demo``: an MLP 64-32-32-10 on 8x8 digits, with NumPy alone.

    python examples/train_digits.py                      # train, report, write nothing
    python examples/train_digits.py --write weights.npz  # and keep the weights

It trains floats; ``npquant demo --train`` quantizes what they have learned. The weights it writes
are the ones shipped as ``npquant/demo/data/digits_mlp.npz``. Two runs on one machine give the same
bits; another BLAS may sum in another order and end in a slightly different network.

Data
----
E. Alpaydin, C. Kaynak, *Optical Recognition of Handwritten Digits*, UCI Machine Learning
Repository, 1998, doi 10.24432/C50P49, CC BY 4.0. The 1,797 images are the test set of that
collection. ``npquant/demo/data/digits.npz`` was made once from the copy inside scikit-learn 1.9.1
and holds the same numbers::

    digits = sklearn.datasets.load_digits()
    np.savez_compressed(
        "digits.npz",
        images=digits.images.astype(np.uint8),   # 0 to 16, shape (1797, 8, 8)
        labels=digits.target.astype(np.uint8),
    )
"""

import argparse
import math
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from npquant.demo.digits import (
    FloatArray,
    Layer,
    TrainedNetwork,
    accuracy_percent,
    forward,
    load_digits,
)

SIZES = (64, 32, 32, 10)
TEST_IMAGES = 500
SEED = 0
EPOCHS = 60
BATCH = 32
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-3


def train(epochs: int = EPOCHS) -> TrainedNetwork:
    """Train on all but 500 images drawn at random.

    Parameters
    ----------
    epochs : int, default 60
        How often every training image is seen.

    Returns
    -------
    TrainedNetwork
        The layers, and which images were kept back.
    """
    rng = np.random.default_rng(SEED)
    images, labels = load_digits()
    order = rng.permutation(len(images))
    test, training = np.sort(order[:TEST_IMAGES]), order[TEST_IMAGES:]

    layers = [
        Layer(
            # He's initialisation keeps the variance of the activations through a ReLU.
            (rng.standard_normal((fan_out, fan_in)) * np.sqrt(2 / fan_in)).astype(np.float32),
            np.zeros(fan_out, np.float32),
        )
        for fan_in, fan_out in pairwise(SIZES)
    ]
    adam = Adam([array for layer in layers for array in layer])

    for epoch in range(epochs):
        # A cosine from the full rate to zero: the last epochs only polish.
        rate = LEARNING_RATE * (1 + math.cos(math.pi * epoch / epochs)) / 2
        rng.shuffle(training)
        for start in range(0, len(training), BATCH):
            rows = training[start : start + BATCH]
            adam.step(gradients(layers, images[rows], labels[rows]), rate)
    return TrainedNetwork(layers, test.astype(np.uint16))


def gradients(
    layers: Sequence[Layer], x: FloatArray, labels: npt.NDArray[np.uint8]
) -> list[FloatArray]:
    """Differentiate the mean cross-entropy by hand: the gradient of each weight and bias."""
    scores, inputs = forward(layers, x)
    probability = np.exp(scores - scores.max(axis=1, keepdims=True))
    probability /= probability.sum(axis=1, keepdims=True)

    # Cross-entropy after softmax: probability - one_hot(label).
    grad = probability
    grad[np.arange(len(labels)), labels] -= 1
    grad /= np.float32(len(labels))

    found: list[FloatArray] = []
    for layer, layer_input in zip(reversed(layers), reversed(inputs), strict=True):
        found = [grad.T @ layer_input, grad.sum(axis=0), *found]
        # The ReLU before this layer passes a gradient where it passed a value.
        grad = (grad @ layer.weight) * (layer_input > 0)
    return found


class Adam:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), updating arrays in place.

    Parameters
    ----------
    arrays : list of ndarray
        What to train. Arrays of two dimensions (weights) decay; biases do not.
    """

    def __init__(self, arrays: list[FloatArray]) -> None:
        self.arrays = arrays
        self.mean = [np.zeros_like(array) for array in arrays]
        self.square = [np.zeros_like(array) for array in arrays]
        self.steps = 0

    def step(
        self, grads: list[FloatArray], rate: float, beta1: float = 0.9, beta2: float = 0.999
    ) -> None:
        """Take one step against `grads`."""
        self.steps += 1
        for array, grad, mean, square in zip(
            self.arrays, grads, self.mean, self.square, strict=True
        ):
            mean += (1 - beta1) * (grad - mean)
            square += (1 - beta2) * (grad * grad - square)
            # Both averages start at zero; the powers undo that.
            change = mean / (1 - beta1**self.steps)
            change /= np.sqrt(square / (1 - beta2**self.steps)) + 1e-8
            if array.ndim == 2:
                change += WEIGHT_DECAY * array
            array -= rate * change


def main(argv: Sequence[str] | None = None) -> int:
    """Train, print the accuracy, and write the weights if asked to."""
    parser = argparse.ArgumentParser(description="Train the network of `npquant demo`.")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="default: %(default)s")
    parser.add_argument("--write", metavar="FILE", type=Path, help="keep the weights in this .npz")
    args = parser.parse_args(argv)
    if args.epochs < 0:
        parser.error(f"--epochs must be at least 0, got {args.epochs}")
    if args.write:
        try:
            args.write.open("ab").close()
        except OSError as error:
            parser.error(f"--write cannot write {args.write}: {error.strerror}")

    network = train(args.epochs)
    images, labels = load_digits()
    scores, _ = forward(network.layers, images)
    test = np.isin(np.arange(len(images)), network.test_index)
    for name, rows in (("training", ~test), ("test", test)):
        percent = accuracy_percent(scores[rows], labels[rows])
        print(f"{name:8} {rows.sum():5} images  {percent:6.2f} % right")

    if args.write:
        arrays = {f"weight{i}": layer.weight for i, layer in enumerate(network.layers)}
        arrays |= {f"bias{i}": layer.bias for i, layer in enumerate(network.layers)}
        with args.write.open("wb") as file:  # by its path NumPy may write to another name
            np.savez(file, test_index=network.test_index, **arrays)
        print(f"wrote {args.write}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
