"""Plain conversion between dtypes, with PyTorch's rules for what does not fit."""

from __future__ import annotations

from typing import Any

from npquant.cuda.loops import flat_map
from npquant.formulas.base import formula
from npquant.primitives import converted, item


@formula
def _converted(x: Any, y: Any) -> Any:
    return converted(x[0], item(y))


#: x -> y, of floating dtypes or from one to integers.
convert = flat_map(_converted, "convert")
