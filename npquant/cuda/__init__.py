"""The CUDA backend: every kernel of the CPU, for arrays on a GPU."""

from npquant.cuda.adaround import (
    adaround_codes,
    adaround_hard,
    adaround_init,
    adaround_regularizer,
    adaround_regularizer_backward,
    adaround_soft,
    adaround_soft_backward,
)
from npquant.cuda.convert import convert
from npquant.cuda.fake_quantize import (
    copy,
    fake_quantize_decomposed,
    fake_quantize_decomposed_by_division,
    fake_quantize_float_zero_point,
    fake_quantize_half_zero_point,
    fake_quantize_per_channel,
    fake_quantize_per_channel_by_division,
    fake_quantize_per_tensor,
    fake_quantize_per_tensor_by_division,
    masked_gradient,
)
from npquant.cuda.learnable import (
    fake_quantize_learnable,
    fake_quantize_learnable_per_tensor,
    learnable_gradients_per_channel,
    learnable_gradients_per_channel_nearest,
    learnable_gradients_per_tensor,
    learnable_gradients_per_tensor_nearest,
)
from npquant.cuda.metrics import magnitude, product, squared_difference, value
from npquant.cuda.quantize import (
    dequantize,
    dequantize_promoted,
    quantize_by_division,
    quantize_by_division_to_float8,
    quantize_per_channel,
    quantize_per_tensor,
    quantize_per_token,
)
from npquant.cuda.convert import inverse
from npquant.cuda.target import SIMULATED
from npquant.cuda.transfer import to_device, to_host

if not SIMULATED:
    from npquant.cuda import storage as _storage  # noqa: F401 (teaches the compiler)
