"""The CUDA backend: every kernel of the CPU, for arrays on a GPU."""

from npquant.cuda.convert import convert, inverse
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
from npquant.cuda.quantize import (
    dequantize,
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
    from npquant.cuda import storage as _storage  # noqa: F401 (teaches the compiler)
