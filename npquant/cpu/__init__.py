"""The CPU backend: every kernel, compiled by Numba."""

from npquant.cpu.adaround import (
    adaround_codes,
    adaround_hard,
    adaround_init,
    adaround_regularizer,
    adaround_regularizer_backward,
    adaround_soft,
    adaround_soft_backward,
)
from npquant.cpu.convert import convert
from npquant.cpu.fake_quantize import (
    copy,
    fake_quantize_decomposed,
    fake_quantize_float_zero_point,
    fake_quantize_half_zero_point,
    fake_quantize_per_channel,
    fake_quantize_per_tensor,
    masked_gradient,
)
from npquant.cpu.learnable import (
    fake_quantize_learnable,
    learnable_gradients_per_channel,
    learnable_gradients_per_channel_nearest,
    learnable_gradients_per_tensor,
    learnable_gradients_per_tensor_nearest,
)
from npquant.cpu.metrics import product, squared_difference
from npquant.cpu.optim import adam, sgd, sgd_decayed, sgd_momentum, sgd_momentum_decayed
from npquant.cpu.qparams import (
    choose_affine,
    choose_fbgemm,
    choose_fbgemm_symmetric,
    choose_float,
    choose_per_token,
    choose_per_token_asymmetric,
    choose_symmetric,
    minmax,
    move,
    outside,
)
from npquant.cpu.quantize import (
    dequantize,
    dequantize_promoted,
    quantize_per_channel,
    quantize_per_tensor,
    quantize_per_token,
)

__all__ = [
    "adam",
    "adaround_codes",
    "adaround_hard",
    "adaround_init",
    "adaround_regularizer",
    "adaround_regularizer_backward",
    "adaround_soft",
    "adaround_soft_backward",
    "choose_affine",
    "choose_fbgemm",
    "choose_fbgemm_symmetric",
    "choose_float",
    "choose_per_token",
    "choose_per_token_asymmetric",
    "choose_symmetric",
    "convert",
    "copy",
    "dequantize",
    "dequantize_promoted",
    "fake_quantize_decomposed",
    "fake_quantize_float_zero_point",
    "fake_quantize_half_zero_point",
    "fake_quantize_learnable",
    "fake_quantize_per_channel",
    "fake_quantize_per_tensor",
    "learnable_gradients_per_channel",
    "learnable_gradients_per_channel_nearest",
    "learnable_gradients_per_tensor",
    "learnable_gradients_per_tensor_nearest",
    "masked_gradient",
    "minmax",
    "move",
    "outside",
    "product",
    "quantize_per_channel",
    "quantize_per_tensor",
    "quantize_per_token",
    "sgd",
    "sgd_decayed",
    "sgd_momentum",
    "sgd_momentum_decayed",
    "squared_difference",
]
