"""Tiny models of Qwen3.5: gated delta nets and gated attention in turn, with routed experts or with a plain MLP.

The published checkpoints hold every expert's matrix in one tensor, under `model.language_model.` beside a vision tower and a
draft head (`mtp.`). Fine-tunes saved as text models, and those that transformers 5.3.0 itself saves, hold a tensor per expert.
"""

import json

import torch
from safetensors.torch import save_file
from transformers import (
    Qwen3_5Config,
    Qwen3_5ForCausalLM,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
)

from tiny.common import VOCABULARY, Variant

SHAPE = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    num_hidden_layers=3,
    layer_types=["linear_attention", "full_attention", "linear_attention"],
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=10,
    linear_conv_kernel_dim=4,
    max_position_embeddings=64,
    rms_norm_eps=1e-6,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=None,
)
EXPERTS = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=8, shared_expert_intermediate_size=12)
# Three sections of positions, which are the same position in text; a tiny rotary part has a pair for each.
ROTARY = dict(
    rope_type="default",
    rope_theta=100.0,
    partial_rotary_factor=0.5,
    mrope_interleaved=True,
    mrope_section=[2, 1, 1],
)
VISION = dict(
    depth=1,
    hidden_size=8,
    intermediate_size=8,
    num_heads=2,
    in_channels=1,
    patch_size=2,
    spatial_merge_size=1,
    temporal_patch_size=1,
    out_hidden_size=32,
    num_position_embeddings=4,
)


def shape(*parts, **changes):
    together = SHAPE | dict(rope_parameters=dict(ROTARY))
    for part in parts:
        together |= part
    return together | changes


def special(name, tensor, generator):
    """Norms here multiply by one and the weight, all but the one in the delta net; its decays must neither keep nor forget all."""
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        return 0.3 * torch.randn(tensor.shape, generator=generator).clamp(-2, 2)
    if name.endswith("A_log"):
        return torch.empty(tensor.shape).uniform_(0.05, 2.0, generator=generator).log()
    # The few rows that choose experts: far enough apart that no rounding chooses others.
    if name.endswith("mlp.gate.weight"):
        return torch.randn(tensor.shape, generator=generator) * 0.5
    return None


def without_layer_types(config):
    """As the first published configurations: only the interval says which layers attend to everything."""
    for part in (config, config.get("text_config", {})):
        part.pop("layer_types", None)


def per_expert(tensors):
    """A tensor for each expert and matrix, as transformers 5.3.0 saves them."""
    apart = {}
    for name, tensor in tensors.items():
        if name.endswith("mlp.experts.gate_up_proj"):
            for expert, both in enumerate(tensor):
                for kind, half in zip(("gate", "up"), both.chunk(2)):
                    apart[name.replace("gate_up_proj", f"{expert}.{kind}_proj.weight")] = half
        elif name.endswith("mlp.experts.down_proj"):
            for expert, down in enumerate(tensor):
                apart[name.replace("down_proj", f"{expert}.down_proj.weight")] = down
        else:
            apart[name] = tensor
    return apart


def with_draft_head(tensors):
    return tensors | {"mtp.fc.weight": torch.ones(4, 8), "mtp.layers.0.input_layernorm.weight": torch.ones(4)}


def maker(kind, layout=lambda tensors: tensors, configured=lambda config: None):
    """Builds a model of the class `kind` which saves its tensors under their own names, changed by `layout` alone."""

    def build(config):
        model = kind._from_config(config, attn_implementation="eager")

        def save_pretrained(folder):
            written = json.loads(config.to_json_string(use_diff=False))
            written["architectures"] = [kind.__name__]
            configured(written)
            (folder / "config.json").write_text(json.dumps(written, indent=2) + "\n")
            tensors = model.state_dict()
            if written["tie_word_embeddings"]:
                del tensors["lm_head.weight"]
            tensors = {name: tensor.contiguous().clone() for name, tensor in layout(tensors).items()}
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

        model.save_pretrained = save_pretrained
        return model

    return build


def logits(model, tokens):
    """One expert after the other: the fast way of transformers knows no f64."""
    if hasattr(model.config.get_text_config(), "num_experts"):
        model.set_experts_implementation("eager")
    return model(tokens, use_cache=False).logits[0]


VARIANTS = [
    Variant(
        "qwen3_5_moe",
        "three delta nets and an attention, as the interval says; experts of one tensor under `model.layers.`",
        Qwen3_5MoeTextConfig(
            **shape(
                EXPERTS,
                num_hidden_layers=4,
                layer_types=None,
                full_attention_interval=4,
                num_experts=4,
                shared_expert_intermediate_size=8,
                linear_value_head_dim=8,
                rope_parameters=dict(rope_type="default", rope_theta=100.0, partial_rotary_factor=0.25),
            )
        ),
        off=dict(num_experts_per_tok=1),
        special=special,
        logits=logits,
        build=maker(Qwen3_5MoeForCausalLM, configured=without_layer_types),
    ),
    Variant(
        "qwen3_5_moe_vision",
        "the published form: `text_config`, `model.language_model.`, a vision tower and a draft head to leave out",
        Qwen3_5MoeConfig(text_config=shape(EXPERTS), vision_config=VISION),
        special=special,
        logits=logits,
        build=maker(Qwen3_5MoeForConditionalGeneration, layout=with_draft_head),
        idle=("visual",),
    ),
    Variant(
        "qwen3_5_moe_split",
        "a tensor per expert, biases in the attention, a head that is the embedding, a delta net whose keys are not shared",
        Qwen3_5MoeTextConfig(
            **shape(
                EXPERTS,
                tie_word_embeddings=True,
                attention_bias=True,
                num_key_value_heads=1,
                num_experts_per_tok=3,
                linear_num_key_heads=3,
                linear_num_value_heads=3,
                linear_key_head_dim=12,
                linear_value_head_dim=8,
                linear_conv_kernel_dim=3,
                rms_norm_eps=1e-5,
                rope_parameters=dict(rope_type="default", rope_theta=100.0, partial_rotary_factor=1.0),
            )
        ),
        off=dict(rms_norm_eps=1e-1),
        special=special,
        logits=logits,
        build=maker(Qwen3_5MoeForCausalLM, layout=per_expert),
    ),
    Variant(
        "qwen3_5_moe_groups",
        "every matrix's rows are whole groups of 32, so that all of them can be quantized",
        Qwen3_5MoeTextConfig(
            **shape(
                EXPERTS,
                num_hidden_layers=2,
                layer_types=["linear_attention", "full_attention"],
                num_experts=3,
                moe_intermediate_size=32,
                shared_expert_intermediate_size=32,
                num_attention_heads=2,
                linear_value_head_dim=8,
            )
        ),
        off=dict(num_experts_per_tok=1),
        special=special,
        logits=logits,
        build=maker(Qwen3_5MoeForCausalLM),
    ),
    Variant(
        "qwen3_5",
        "a plain MLP in the place of the experts, a head that is the embedding, YaRN for the part of a head that rotates",
        Qwen3_5TextConfig(
            **shape(
                intermediate_size=40,
                tie_word_embeddings=True,
                # Said twice: other types than the default take it from here, whatever their own parameters say.
                partial_rotary_factor=ROTARY["partial_rotary_factor"],
                rope_parameters=ROTARY | dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
            )
        ),
        off=dict(rope_parameters=ROTARY),
        special=special,
        logits=logits,
        build=maker(Qwen3_5ForCausalLM),
    ),
    Variant(
        "qwen3_5_vision",
        "a plain MLP in the published form, whose head is the embedding only by the outer configuration",
        Qwen3_5Config(
            text_config=shape(intermediate_size=40),
            vision_config=VISION,
            tie_word_embeddings=True,
        ),
        special=special,
        logits=logits,
        build=maker(Qwen3_5ForConditionalGeneration, layout=with_draft_head),
        idle=("visual",),
    ),
]
