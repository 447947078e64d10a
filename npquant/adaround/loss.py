"""The loss that AdaRound minimises: reconstruction, and a regularizer that decides roundings.

Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", 2020.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npquant import checks, dtypes
from npquant.arrays import filled, following, on_host
from npquant.cpu.metrics import total_squared_difference
from npquant.meta import ArraySpec
from npquant.ops.adaround import adaround_regularizer, adaround_regularizer_backward, alone

Array = np.ndarray[Any, Any]

#: As a float64 counts them.
MOST_STEPS = 2**53


class AdaroundLoss:
    """The regularizer of AdaRound, whose exponent is annealed, and the reconstruction loss.

    For the first steps there is no regularizer, so that V may go where the reconstruction wants it.
    Then ``beta`` falls from `beta_range[0]` to `beta_range[1]` along half a cosine, which drives
    every h(V) to 0 or 1::

        w    = warm_start * max_iter
        beta = end + 0.5 * (start - end) * (1 + cos(pi * (step - w) / (max_iter - w)))
        loss = reg_param * sum(1 - |2h(V) - 1|**beta)

    Parameters
    ----------
    max_iter : int
        Number of steps, at least 1.
    warm_start : float, default 0.2
        Share of the steps that have no regularizer, at least 0 and less than 1.
    beta_range : tuple of two floats, default (20, 2)
        Exponent at first and in the end, at least 1.
    reg_param : float, default 0.001
        Weight of the regularizer, at least 0.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind.
    ValueError
        If a number is out of its range.

    See Also
    --------
    npquant.adaround_regularizer : Sum what is undecided.

    Notes
    -----
    Corresponds to ``torch.ao.quantization.experimental``'s ``AdaptiveRoundingLoss``, which no wheel
    of PyTorch 2.13 contains. Its values are PyTorch's within a relative 1e-6; PyTorch adds in
    float32.

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.adaround import AdaroundLoss
    >>> loss = AdaroundLoss(1000)
    >>> V = np.array([-1, 0, 1], np.float32)
    >>> loss.regularizer(100, V), loss.beta(200)
    (0.0, 20.0)
    >>> round(loss.regularizer(999, V), 4)
    0.0024
    """

    def __init__(
        self,
        max_iter: int,
        warm_start: float = 0.2,
        beta_range: tuple[float, float] = (20, 2),
        reg_param: float = 0.001,
    ) -> None:
        self.max_iter = checks.within(max_iter, "max_iter", 1, MOST_STEPS)
        self.warm_start = checks.below_one(warm_start, "warm_start")
        self.beta_range = tuple(
            checks.at_least_in_float32(b, f"beta_range[{i}]", 1.0)
            for i, b in enumerate(checks.two(beta_range, "beta_range"))
        )
        self.reg_param = checks.at_least_in_float32(reg_param, "reg_param", 0.0)

    def beta(self, step: int) -> float | None:
        """Return the exponent at a step.

        Parameters
        ----------
        step : int
            Number of the step, from 0.

        Returns
        -------
        float or None
            The exponent; None while there is no regularizer.

        Raises
        ------
        TypeError
            If `step` is no integer.
        ValueError
            If `step` is not within 0..max_iter - 1.
        """
        n = checks.within(step, "step", 0, self.max_iter - 1)
        warm = self.warm_start * self.max_iter
        if n < warm:
            return None
        start, end = self.beta_range
        share = (n - warm) / (self.max_iter - warm)
        return end + 0.5 * (start - end) * (1 + math.cos(math.pi * share))

    def regularizer(self, step: int, V: Array) -> float:
        """Return the regularizer at a step.

        Parameters
        ----------
        step : int
            Number of the step, from 0.
        V : ndarray
            What decides the rounding; float32 or float64.

        Returns
        -------
        float
            ``reg_param * adaround_regularizer(V, beta)``, or 0 while there is no regularizer.

        Raises
        ------
        TypeError
            If an argument is of the wrong kind or of a dtype that is not allowed.
        ValueError
            If `step` is not within 0..max_iter - 1.
        """
        beta, v = self.beta(step), _decider(V)
        if beta is None:
            return 0.0
        return self.reg_param * float(on_host(adaround_regularizer(v, beta)))

    def regularizer_backward(self, step: int, V: Array, *, out: Array | None = None) -> Array:
        """Return V's gradient of the regularizer at a step.

        Parameters
        ----------
        step : int
            Number of the step, from 0.
        V : ndarray
            What decides the rounding; float32 or float64.
        out : ndarray, optional
            Where to write the gradient; see `npquant.adaround_regularizer_backward`.

        Returns
        -------
        ndarray
            The gradient, of the shape and the dtype of V; zeros while there is no regularizer.

        Raises
        ------
        TypeError
            If an argument is of the wrong kind or of a dtype that is not allowed.
        ValueError
            If `step` is not within 0..max_iter - 1, or `out` does not fit.
        """
        beta, v = self.beta(step), _decider(V, out)
        gradient: Array
        if beta is not None:
            gradient = adaround_regularizer_backward(v, beta, self.reg_param, out=out)
        else:
            gradient = checks.output(out, v, v.dtype, data="V")
            filled(following(v, gradient), 0)
            gradient = checks.returned(out, gradient)
        return gradient

    def reconstruction(self, output: Array, target: Array) -> float:
        """Return the mean squared difference of a layer's output and what it should be.

        Parameters
        ----------
        output, target : ndarray
            Arrays of floats of one shape and dtype.

        Returns
        -------
        float
            The mean of ``(output - target)**2``, summed in float64.

        Raises
        ------
        TypeError
            If one is no array of floats, or their dtypes differ.
        ValueError
            If their shapes differ, or there are no elements.
        """
        a, b = _pair(output, target)
        return total_squared_difference((a, b)) / a.size

    def reconstruction_backward(self, output: Array, target: Array) -> Array:
        """Return the output's gradient of the reconstruction loss.

        Parameters
        ----------
        output, target : ndarray
            Arrays of floats of one shape and dtype.

        Returns
        -------
        ndarray
            ``2 / size * (output - target)``, of their shape and dtype; two-byte floats are computed
            in float32 and rounded once.

        Raises
        ------
        TypeError
            If one is no array of floats, or their dtypes differ.
        ValueError
            If their shapes differ, or there are no elements.
        """
        a, b = _pair(output, target)
        compute = dtypes.compute(a.dtype)
        gradient: Array = np.empty_like(a, compute, subok=False)
        wide = a.astype(compute, copy=False), b.astype(compute, copy=False)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            np.subtract(*wide, out=gradient)
            gradient *= compute.type(2 / a.size)
            return gradient.astype(a.dtype, copy=False)


def _decider(V: Any, out: Any = None) -> Any:
    v: Any = alone(V, out)
    if type(v) is ArraySpec:
        raise TypeError(f"V must be an array with values, got {v}")
    return v


def _pair(output: Any, target: Any) -> tuple[Array, Array]:
    a = checks.host_array(output, "output", dtypes.FLOATS, (np.ndarray, np.generic))
    b = checks.same(target, "target", a, data="output")
    if a.size == 0:
        raise ValueError(f"output must have elements, got shape {a.shape}")
    return a, b
