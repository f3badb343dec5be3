"""Tiny models of the shape of Llama: SmolLM2, Llama 3, Mistral, Qwen2, Qwen3, SmolLM3, each with its own switch."""

import json

from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, SmolLM3Config

from tiny.common import VOCABULARY, Variant

SHAPE = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=56,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=None,
    tie_word_embeddings=False,
)
# A small base turns even the slowest pair noticeably within a short sequence.
PLAIN = dict(rope_type="default", rope_theta=100.0)


def shape(**changes):
    return SHAPE | dict(rope_parameters=PLAIN) | changes


def as_before_version_5(folder):
    """The keys as transformers 4 wrote them and nearly every published checkpoint still has them."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config.pop("layer_types", None)
    config["torch_dtype"] = config.pop("dtype")
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def scaled(name, exercises, rope, **changes):
    """A Llama whose rotary frequencies are scaled; switched off, they are the plain ones of the same base."""
    plain = dict(rope_type="default", rope_theta=rope["rope_theta"])
    config = LlamaConfig(**shape(rope_parameters=rope, **changes))
    return Variant(name, exercises, config, off=dict(rope_parameters=plain), finish=as_before_version_5)


VARIANTS = [
    Variant(
        "llama",
        "the plain shape with grouped heads and an embedding that is also the head, as SmolLM2",
        LlamaConfig(**shape(tie_word_embeddings=True)),
        off=dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
    ),
    scaled(
        "llama3",
        "llama3 scaling of rotary frequencies with pairs in all three bands, a head of its own, heads wider than "
        "hidden_size / num_attention_heads, rope_theta and rope_scaling as transformers 4 wrote them",
        # Wavelengths are 6.3, 15 (kept), 35 (between) and 84 to 2650 (divided by the factor).
        dict(
            rope_type="llama3",
            rope_theta=1000.0,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
        head_dim=16,
        max_position_embeddings=512,
    ),
    scaled(
        "llama_linear",
        "linear scaling of rotary positions",
        dict(rope_type="linear", rope_theta=100.0, factor=4.0),
        max_position_embeddings=256,
    ),
    scaled(
        "llama_yarn",
        "yarn scaling of rotary frequencies, with its factor on the cosines and sines",
        # Of the eight pairs the first is kept, two lie on the ramp, five are divided by the factor.
        dict(
            rope_type="yarn",
            rope_theta=10000.0,
            factor=4.0,
            beta_fast=8.0,
            beta_slow=1.0,
            original_max_position_embeddings=128,
        ),
        head_dim=16,
        max_position_embeddings=512,
    ),
    Variant(
        "llama_biases",
        "biases of all four projections of attention and all three of the feed-forward part",
        LlamaConfig(**shape(attention_bias=True, mlp_bias=True)),
        off=dict(attention_bias=False, mlp_bias=False),
    ),
    Variant(
        "mistral",
        "a sliding window of 7 in every layer, heads wider than hidden_size / num_attention_heads",
        MistralConfig(**shape(sliding_window=7, head_dim=12)),
        off=dict(sliding_window=None),
    ),
    Variant(
        "qwen2",
        "biases of query, key and value alone; use_sliding_window: layers from max_window_layers on see a window of 6",
        Qwen2Config(**shape(use_sliding_window=True, sliding_window=6, max_window_layers=1)),
        off=dict(layer_types=["full_attention"] * 3),
        finish=as_before_version_5,
    ),
    Variant(
        "qwen3",
        "norms of each head's query and key, a head_dim of its own, a tied embedding",
        Qwen3Config(**shape(head_dim=16, tie_word_embeddings=True)),
        off=dict(rms_norm_eps=0.1),
    ),
    Variant(
        "smollm3",
        "no_rope_layers: its zeroes name the layers without rotary positions (here the second of three)",
        SmolLM3Config(**shape(no_rope_layers=[1, 0, 1], tie_word_embeddings=True)),
        off=dict(no_rope_layers=[1, 1, 1]),
    ),
]
