"""The CUDA backend: the kernels that ops ask for, for arrays on a GPU."""

from npquant import cpu
from npquant.cuda.adaround import (
    adaround_codes,
    adaround_hard,
    adaround_init,
    adaround_regularizer,
    adaround_regularizer_backward,
    adaround_soft,
    adaround_soft_backward,
)
from npquant.cuda.again import repeated
from npquant.cuda.convert import convert, inverse
from npquant.cuda.dynamic import dynamic_per_token, dynamic_per_token_asymmetric
from npquant.cuda.extremes import minmax, minmax_finite
from npquant.cuda.fake_quantize import (
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
from npquant.cuda.fused import fused_fbgemm, fused_fbgemm_symmetric
from npquant.cuda.histogram import count_doubling, count_linear
from npquant.cuda.learnable import (
    fake_quantize_learnable,
    fake_quantize_learnable_per_tensor,
    learnable_gradients_per_channel,
    learnable_gradients_per_channel_nearest,
    learnable_gradients_per_tensor,
    learnable_gradients_per_tensor_nearest,
)
from npquant.cuda.optim import (
    adam,
    adam_decayed,
    adamw,
    sgd,
    sgd_decayed,
    sgd_momentum,
    sgd_momentum_decayed,
)
from npquant.cuda.qparams import (
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
from npquant.cuda.quantize import (
    dequantize,
    dequantize_in_integers,
    dequantize_promoted,
    quantize_by_division,
    quantize_by_division_to_float8,
    quantize_per_channel,
    quantize_per_tensor,
    quantize_per_token,
)
from npquant.cuda.target import SIMULATED
from npquant.cuda.transfer import to_device, to_host

if not SIMULATED:
    from npquant.cuda import primitives as _primitives  # teaches the compiler

__all__ = [*cpu.__all__, "inverse", "to_device", "to_host"]
