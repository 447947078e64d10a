"""npquant: PyTorch's quantization numerics for NumPy, bit for bit, without PyTorch."""

import importlib as _importlib
from typing import Any as _Any

from npquant.meta import ArraySpec
from npquant.ops.adaround import (
    adaround_codes,
    adaround_hard,
    adaround_init,
    adaround_regularizer,
    adaround_regularizer_backward,
    adaround_soft,
    adaround_soft_backward,
)
from npquant.ops.convert import convert_element_type
from npquant.ops.dynamic import quantize_per_token_dynamic
from npquant.ops.fake_quantize import (
    fake_quant_per_channel,
    fake_quant_per_channel_backward,
    fake_quant_per_channel_cachemask,
    fake_quantize_per_channel_affine,
    fake_quantize_per_channel_affine_cachemask,
    fake_quantize_per_channel_affine_cachemask_backward,
    fake_quantize_per_tensor_affine,
    fake_quantize_per_tensor_affine_cachemask,
    fake_quantize_per_tensor_affine_cachemask_backward,
    fake_quantize_per_tensor_affine_cachemask_tensor_qparams,
)
from npquant.ops.fused import (
    fused_moving_avg_obs_fake_quant,
    fused_moving_avg_obs_fake_quant_cachemask,
)
from npquant.ops.learnable import (
    fake_quantize_learnable_per_channel_affine,
    fake_quantize_learnable_per_channel_affine_backward,
    fake_quantize_learnable_per_channel_group_affine,
    fake_quantize_learnable_per_channel_group_affine_backward,
    fake_quantize_learnable_per_tensor_affine,
    fake_quantize_learnable_per_tensor_affine_backward,
    fake_quantize_learnable_per_token_affine,
    fake_quantize_learnable_per_token_affine_backward,
)
from npquant.ops.qparams import (
    choose_qparams,
    choose_qparams_per_token,
    choose_qparams_per_token_asymmetric,
    choose_qparams_symmetric,
    determine_qparams,
)
from npquant.ops.quantize import (
    dequantize_per_channel,
    dequantize_per_channel_group,
    dequantize_per_tensor,
    dequantize_per_token,
    quantize_per_channel,
    quantize_per_channel_group,
    quantize_per_tensor,
    quantize_per_token,
)

__version__ = "0.1.0"

__all__ = [
    "ArraySpec",
    "adaround_codes",
    "adaround_hard",
    "adaround_init",
    "adaround_regularizer",
    "adaround_regularizer_backward",
    "adaround_soft",
    "adaround_soft_backward",
    "choose_qparams",
    "choose_qparams_per_token",
    "choose_qparams_per_token_asymmetric",
    "choose_qparams_symmetric",
    "convert_element_type",
    "dequantize_per_channel",
    "dequantize_per_channel_group",
    "dequantize_per_tensor",
    "dequantize_per_token",
    "determine_qparams",
    "fake_quant_per_channel",
    "fake_quant_per_channel_backward",
    "fake_quant_per_channel_cachemask",
    "fake_quantize_learnable_per_channel_affine",
    "fake_quantize_learnable_per_channel_affine_backward",
    "fake_quantize_learnable_per_channel_group_affine",
    "fake_quantize_learnable_per_channel_group_affine_backward",
    "fake_quantize_learnable_per_tensor_affine",
    "fake_quantize_learnable_per_tensor_affine_backward",
    "fake_quantize_learnable_per_token_affine",
    "fake_quantize_learnable_per_token_affine_backward",
    "fake_quantize_per_channel_affine",
    "fake_quantize_per_channel_affine_cachemask",
    "fake_quantize_per_channel_affine_cachemask_backward",
    "fake_quantize_per_tensor_affine",
    "fake_quantize_per_tensor_affine_cachemask",
    "fake_quantize_per_tensor_affine_cachemask_backward",
    "fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    "fused_moving_avg_obs_fake_quant",
    "fused_moving_avg_obs_fake_quant_cachemask",
    "quantize_per_channel",
    "quantize_per_channel_group",
    "quantize_per_tensor",
    "quantize_per_token",
    "quantize_per_token_dynamic",
]

#: What is imported when it is first asked for: an import of npquant takes no longer for it.
_LATER = frozenset({"adaround", "autograd", "gptq", "metrics", "modules", "optim"})


def __getattr__(name: str) -> _Any:
    if name in _LATER:
        return _importlib.import_module(f"npquant.{name}")
    if name == "cuda":  # not among the others: where numba-cuda is missing it cannot be imported
        try:
            return _importlib.import_module("npquant.cuda")
        except ModuleNotFoundError as error:
            raise AttributeError(f"npquant.cuda cannot be imported: {error}") from error
    raise AttributeError(f"module 'npquant' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
