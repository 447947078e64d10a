"""The example `minilm` as a module, and a BERT of random weights that it can run."""

import importlib.util
import sys
from pathlib import Path

import numpy as np

VOCABULARY, POSITIONS, WIDTH, UP, HEADS, BLOCKS = 30, 20, 16, 32, 4, 2
EPS = 1e-12

#: Sentences of tokens, of lengths that differ; one is a single token.
SENTENCES = [[2, 7, 7, 1], [5], list(range(20)), [3, 29, 11], [9, 4, 8, 8, 8, 25, 1]]

#: How far a component of a vector of length 1 may be off. On the longest path there are some 30
#: sums and products for each of two blocks, each of which may err by 2**-24 of what has variance 1.
NEAR = 64 * 2.0**-24


def example():
    """Import ``examples/minilm.py``."""
    path = Path(__file__).parent.parent / "examples" / "minilm.py"
    spec = importlib.util.spec_from_file_location("minilm", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["minilm"] = module  # its dataclasses look their annotations up there
    spec.loader.exec_module(module)
    return module


def tensors(seed=0):
    """Random weights under BERT's names; large enough that attention and GELU matter."""
    rng = np.random.default_rng(seed)
    shapes = {
        "embeddings.word_embeddings.weight": (VOCABULARY, WIDTH),
        "embeddings.position_embeddings.weight": (POSITIONS, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        "embeddings.LayerNorm.weight": (WIDTH,),
        "embeddings.LayerNorm.bias": (WIDTH,),
    }
    for i in range(BLOCKS):
        parts = {
            "attention.self.query": (WIDTH, WIDTH),
            "attention.self.key": (WIDTH, WIDTH),
            "attention.self.value": (WIDTH, WIDTH),
            "attention.output.dense": (WIDTH, WIDTH),
            "attention.output.LayerNorm": (WIDTH,),
            "intermediate.dense": (UP, WIDTH),
            "output.dense": (WIDTH, UP),
            "output.LayerNorm": (WIDTH,),
        }
        for part, shape in parts.items():
            shapes[f"encoder.layer.{i}.{part}.weight"] = shape
            shapes[f"encoder.layer.{i}.{part}.bias"] = shape[:1]
    return {
        name: (rng.standard_normal(shape) / (2 if len(shape) > 1 else 1)).astype(np.float32)
        for name, shape in shapes.items()
    }
