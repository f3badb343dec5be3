"""Tiny models of the shape of Llama: SmolLM2, Llama 3, Mistral, Qwen2, Qwen3, SmolLM3, each with its own switch."""

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
)
PLAIN = dict(rope_type="default", rope_theta=100.0)


def shape(**changes):
    return SHAPE | dict(rope_parameters=PLAIN) | changes


VARIANTS = [
    Variant(
        "llama",
        "the plain shape with grouped heads and an embedding that is also the head, as SmolLM2",
        LlamaConfig(**shape(tie_word_embeddings=True)),
        off=dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
    ),
]
