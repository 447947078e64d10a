"""The images and the trained network of the demo, and how the network computes."""

from collections.abc import Callable, Sequence
from importlib.resources import as_file, files
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

PIXEL_MAX = 16
"""An image is 8x8 counts of dark pixels in blocks of 4x4: 0 to 16."""


class Layer(NamedTuple):
    """One linear layer: ``x @ weight.T + bias``.

    Attributes
    ----------
    weight : ndarray of float32, shape (outputs, inputs)
        One row per output channel.
    bias : ndarray of float32, shape (outputs,)
        Added to every row of the result.
    """

    weight: FloatArray
    bias: FloatArray


class TrainedNetwork(NamedTuple):
    """Trained layers, and the images that were kept back while training.

    Attributes
    ----------
    layers : list of Layer
        From the pixels to the ten scores; a ReLU stands between two layers.
    test_index : ndarray of int, shape (500,)
        Rows of `load_digits` that were not trained on.
    """

    layers: list[Layer]
    test_index: npt.NDArray[np.integer[Any]]


def load_digits() -> tuple[FloatArray, npt.NDArray[np.uint8]]:
    """Load the 1,797 images of handwritten digits.

    Returns
    -------
    images : ndarray of float32, shape (1797, 64)
        Pixels scaled to [0, 1], one image a row.
    labels : ndarray of uint8, shape (1797,)
        The digit, 0 to 9.

    Notes
    -----
    E. Alpaydin, C. Kaynak, *Optical Recognition of Handwritten Digits*, UCI Machine Learning
    Repository, 1998, doi 10.24432/C50P49, CC BY 4.0.
    """
    data = _load("digits.npz")
    images = data["images"].reshape(len(data["images"]), -1)
    return images.astype(np.float32) / np.float32(PIXEL_MAX), data["labels"]


def load_network() -> TrainedNetwork:
    """Load the network that ``examples/train_digits.py`` trained.

    Returns
    -------
    TrainedNetwork
        Layers 64-32-32-10, and the index of the test images.
    """
    data = _load("digits_mlp.npz")
    layers = [
        Layer(data[f"weight{i}"], data[f"bias{i}"])
        for i in range(sum(name.startswith("weight") for name in data))
    ]
    return TrainedNetwork(layers, data["test_index"])


def forward(
    layers: Sequence[Layer],
    images: FloatArray,
    prepare: Callable[[FloatArray], FloatArray] | None = None,
) -> tuple[FloatArray, list[FloatArray]]:
    """Compute the ten scores of each image.

    Parameters
    ----------
    layers : sequence of Layer
        The network.
    images : ndarray of float32, shape (images, 64)
        Pixels in [0, 1].
    prepare : callable, optional
        Applied to the input of every layer: where the demo quantizes activations.

    Returns
    -------
    scores : ndarray of float32, shape (images, 10)
        The largest score of a row is the network's answer.
    inputs : list of ndarray of float32, shape (images, inputs of the layer)
        What each layer was given.
    """
    inputs = []
    x = images
    for i, layer in enumerate(layers):
        if i > 0:
            x = np.maximum(x, 0)
        if prepare is not None:
            x = prepare(x)
        inputs.append(x)
        x = x @ layer.weight.T + layer.bias
    return x, inputs


def accuracy_percent(scores: FloatArray, labels: npt.NDArray[np.uint8]) -> float:
    """Return how many rows have their largest score at the label, in percent."""
    right = np.count_nonzero(np.argmax(scores, axis=1) == labels)
    return 100 * int(right) / len(labels)


def _load(name: str) -> dict[str, npt.NDArray[Any]]:
    # as_file: the package may have been imported from a zip.
    with as_file(files("npquant.demo") / "data" / name) as path, np.load(path) as data:
        return dict(data)
