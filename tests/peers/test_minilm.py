"""The encoder of `examples/minilm.py` against PyTorch's, on random weights."""

import numpy as np
import torch

import tiny_bert

minilm = tiny_bert.example()


def block(tensors, i):
    """A block of the encoder as PyTorch has it, in float64."""
    get = {
        name.removeprefix(f"encoder.layer.{i}."): torch.from_numpy(a).double()
        for name, a in tensors.items()
        if name.startswith(f"encoder.layer.{i}.")
    }
    layer = torch.nn.TransformerEncoderLayer(
        tiny_bert.WIDTH, tiny_bert.HEADS, tiny_bert.UP, dropout=0.0, activation="gelu",
        layer_norm_eps=tiny_bert.EPS, batch_first=True, dtype=torch.float64,
    )  # fmt: skip
    state = {}
    for kind in ("weight", "bias"):
        three = [get[f"attention.self.{n}.{kind}"] for n in ("query", "key", "value")]
        state |= {
            f"self_attn.in_proj_{kind}": torch.cat(three),
            f"self_attn.out_proj.{kind}": get[f"attention.output.dense.{kind}"],
            f"norm1.{kind}": get[f"attention.output.LayerNorm.{kind}"],
            f"linear1.{kind}": get[f"intermediate.dense.{kind}"],
            f"linear2.{kind}": get[f"output.dense.{kind}"],
            f"norm2.{kind}": get[f"output.LayerNorm.{kind}"],
        }
    layer.load_state_dict(state)
    return layer.train()  # which keeps PyTorch from a path of its own; there is no dropout


def vectors(tensors, sentences):
    """Padding, masks and all: what the example does without."""
    length = max(map(len, sentences))
    ids = torch.tensor([s + [0] * (length - len(s)) for s in sentences])
    padding = torch.tensor([[i >= len(s) for i in range(length)] for s in sentences])
    embedded = {
        name.removeprefix("embeddings."): torch.from_numpy(a).double()
        for name, a in tensors.items()
        if name.startswith("embeddings.")
    }
    x = embedded["word_embeddings.weight"][ids]
    x = x + embedded["position_embeddings.weight"][:length]
    x = x + embedded["token_type_embeddings.weight"][0]
    x = torch.nn.functional.layer_norm(
        x, x.shape[-1:], embedded["LayerNorm.weight"], embedded["LayerNorm.bias"], tiny_bert.EPS
    )
    for i in range(tiny_bert.BLOCKS):
        x = block(tensors, i)(x, src_key_padding_mask=padding)
    there = (~padding).unsqueeze(-1).double()
    return torch.nn.functional.normalize((x * there).sum(1) / there.sum(1)).detach().numpy()


def test_the_encoder_is_pytorchs():
    tensors = tiny_bert.tensors()
    encoder = minilm.Encoder(tensors, tiny_bert.HEADS, tiny_bert.EPS)

    def layer(name, x):
        return minilm.linear(x, [tensors[f"{name}.weight"]], tensors[f"{name}.bias"])

    (found,) = minilm.encode(encoder, tiny_bert.SENTENCES, 1, layer)
    expected = vectors(tensors, tiny_bert.SENTENCES)
    assert np.abs(found - expected).max() <= tiny_bert.NEAR
