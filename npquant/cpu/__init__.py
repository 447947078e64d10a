"""The CPU backend: every kernel that has a twin on a GPU, compiled by Numba."""

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
from npquant.cpu.extremes import minmax, minmax_finite
from npquant.cpu.fake_quantize import (
    copy,
    fake_quantize_decomposed,
    fake_quantize_decomposed_by_division,
    fake_quantize_decomposed_wide,
    fake_quantize_decomposed_wide_by_division,
    fake_quantize_float_zero_point,
    fake_quantize_half_zero_point,
    fake_quantize_per_channel,
    fake_quantize_per_channel_by_division,
    fake_quantize_per_tensor,
    fake_quantize_per_tensor_by_division,
    masked_gradient,
)
from npquant.cpu.fused import fused_fbgemm, fused_fbgemm_symmetric
from npquant.cpu.histogram import count_doubling, count_linear
from npquant.cpu.learnable import (
    fake_quantize_learnable,
    fake_quantize_learnable_per_tensor,
    learnable_gradients_per_channel,
    learnable_gradients_per_channel_nearest,
    learnable_gradients_per_tensor,
    learnable_gradients_per_tensor_nearest,
)
from npquant.cpu.optim import (
    adam,
    adam_decayed,
    adamw,
    sgd,
    sgd_decayed,
    sgd_momentum,
    sgd_momentum_decayed,
)
from npquant.cpu.qparams import (
    choose_affine,
    choose_fbgemm,
    choose_fbgemm_symmetric,
    choose_float,
    choose_kept_float,
    choose_symmetric,
    follow,
    observe_fbgemm,
    observe_fbgemm_symmetric,
    qparams_per_token,
    qparams_per_token_asymmetric,
    step_towards,
)
from npquant.cpu.quantize import (
    dequantize,
    dequantize_in_integers,
    dequantize_promoted,
    quantize_by_division,
    quantize_by_division_to_float8,
    quantize_per_channel,
    quantize_per_tensor,
    quantize_per_token,
)

#: The names of a backend: what is imported above.
__all__ = sorted(name for name, kernel in globals().items() if callable(kernel))
