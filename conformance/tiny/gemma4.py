"""Tiny models of the shape of Gemma 4's dense text model. Needs a transformers that knows it (made with 5.22.2).

Layers are of two kinds, which differ in their heads, their rotary positions and in what they see. Windows are far shorter than
the sequence, so that a cache that goes round has to go round.
"""

import json

from safetensors.torch import load_file, save_file
from transformers import (
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4TextConfig,
    Gemma4UnifiedConfig,
    Gemma4UnifiedForConditionalGeneration,
    Gemma4UnifiedTextConfig,
)

from tiny.common import VOCABULARY, Variant

SLIDING, FULL = "sliding_attention", "full_attention"
ROPE = {
    SLIDING: dict(rope_type="default", rope_theta=100.0),
    FULL: dict(rope_type="proportional", rope_theta=1000.0, partial_rotary_factor=0.25),
}
SHAPE = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    global_head_dim=16,
    layer_types=[SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL],
    sliding_window=6,
    rope_parameters=ROPE,
    max_position_embeddings=64,
    hidden_size_per_layer_input=0,
    vocab_size_per_layer_input=VOCABULARY,
    bos_token_id=2,
    eos_token_id=1,
    pad_token_id=0,
)
# What the model of 31 billion parameters has, and that of 12.
LARGE = dict(attention_k_eq_v=True, num_global_key_value_heads=1, final_logit_softcapping=3.0)
SMALL = dict(hidden_size_per_layer_input=4, num_kv_shared_layers=3, use_double_wide_mlp=True)


def text(kind=Gemma4TextConfig, without=(), **changes):
    return kind(**{key: value for key, value in (SHAPE | changes).items() if key not in without})


def scalars(name, tensor, generator):
    """Layer scalars lie around one; a usual vector around zero would silence the layers."""
    if name.endswith("layer_scalar"):
        return 0.7 + 0.6 * tensor.new_empty(tensor.shape).uniform_(generator=generator)
    if tensor.dim() == 1 and ("vision" in name or "audio" in name):
        return tensor.detach().clone()
    return None


def as_published(folder):
    """The keys of the published files: those of layers that see everything have names of their own."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    inner = config.get("text_config", config)
    layers = inner.pop("per_layer_config")
    (overrides,) = {json.dumps(layer) for layer in layers.values()}
    overrides = json.loads(overrides)
    inner["global_head_dim"] = overrides["head_dim"]
    inner["num_global_key_value_heads"] = overrides.get("num_key_value_heads")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def with_keys_of_sharing_layers(folder):
    """Published files hold keys and values also for the layers that read those of another."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for source, layer in ((1, 3), (1, 4), (2, 5)):
        for part in ("k_proj", "v_proj", "k_norm"):
            name = "model.layers.{}.self_attn." + part + ".weight"
            tensors[name.format(layer)] = tensors[name.format(source)] + 1.0
    save_file(tensors, path, metadata={"format": "pt"})


EYES = dict(
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=8,
    patch_size=2,
    position_embedding_size=4,
)
EARS = dict(
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    subsampling_conv_channels=[4, 4],
    conv_kernel_size=3,
    output_proj_dims=8,
)


def variant(name, exercises, config, off, **others):
    # The last norm takes away the scale of the last layer.
    idle = ("layers.5.layer_scalar", "vision", "audio")
    return Variant(name, exercises, config, off, special=scalars, idle=idle, **others)


VARIANTS = [
    variant(
        "gemma4",
        "the shape of 31B: values from the keys' projection on layers that see everything, soft capped logits",
        text(**LARGE),
        off=dict(sliding_window=24),
        finish=as_published,
    ),
    variant(
        "gemma4_capped",
        "per-layer settings as newer files have them, a window that no chunk divides, a tight cap",
        text(**LARGE | dict(final_logit_softcapping=1.0, sliding_window=5)),
        off=dict(final_logit_softcapping=None),
    ),
    variant(
        "gemma4_values",
        "projections of values on every layer, biases, a head of its own, a rope of longer reach, no cap",
        text(
            intermediate_size=16,
            attention_bias=True,
            tie_word_embeddings=False,
            hidden_activation="silu",
            rope_parameters={
                SLIDING: dict(rope_type="linear", rope_theta=50.0, factor=2.0),
                FULL: dict(rope_type="proportional", rope_theta=500.0, partial_rotary_factor=0.5, factor=4.0),
            },
        ),
        off=dict(hidden_activation="gelu_pytorch_tanh"),
    ),
    variant(
        "gemma4_biases",
        "biases where the values come from the keys' projection, a rope over all of a global head, erf in the gelu",
        text(
            **LARGE
            | dict(
                intermediate_size=24,
                attention_bias=True,
                hidden_activation="gelu",
                rope_parameters=ROPE | {FULL: dict(rope_type="default", rope_theta=1000.0)},
            )
        ),
        off=dict(attention_k_eq_v=False),
    ),
    variant(
        "gemma4_shared",
        "late layers read the keys and values of the last layer of their kind, and have wider feed forwards",
        text(num_kv_shared_layers=3, use_double_wide_mlp=True, intermediate_size=16),
        off=dict(sliding_window=24),
        finish=with_keys_of_sharing_layers,
    ),
    variant(
        "gemma4_per_layer",
        "each layer gets an input of its own from a second embedding",
        text(hidden_size_per_layer_input=4, sliding_window=2, intermediate_size=16),
        off=dict(hidden_size_per_layer_input=0),
    ),
    variant(
        "gemma4_small",
        "the shape of E2B inside a model that also sees and hears: inputs per layer, shared keys, wider feed forwards",
        Gemma4Config(
            text_config=text(**SMALL | dict(intermediate_size=8, final_logit_softcapping=3.0)).to_dict(),
            vision_config=EYES,
            audio_config=EARS,
            image_token_id=VOCABULARY,
            video_token_id=VOCABULARY + 1,
            audio_token_id=VOCABULARY + 2,
        ),
        off=None,
        build=lambda config: Gemma4ForConditionalGeneration._from_config(config, attn_implementation="eager"),
        finish=as_published,
    ),
    variant(
        "gemma4_unified",
        "the shape of 12B: as 31B, in a model whose eyes and ears are single layers",
        Gemma4UnifiedConfig(
            text_config=text(
                Gemma4UnifiedTextConfig,
                ("hidden_size_per_layer_input", "vocab_size_per_layer_input"),
                **LARGE | dict(intermediate_size=24),
            ).to_dict(),
            vision_config=dict(patch_size=2, pooling_kernel_size=1, mm_embed_dim=8, mm_posemb_size=4, output_proj_dims=8),
            audio_config=None,
            image_token_id=VOCABULARY,
            video_token_id=VOCABULARY + 1,
            audio_token_id=VOCABULARY + 2,
        ),
        off=None,
        build=lambda config: Gemma4UnifiedForConditionalGeneration._from_config(config, attn_implementation="eager"),
    ),
]
