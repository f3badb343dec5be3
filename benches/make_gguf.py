#!/usr/bin/env python3
"""Writes a model of a config.json's shape with random weights as GGUF, for llama.cpp: benches/make_gguf.py CONFIG OUT [--layers N]

The counterpart of `ptero bench CONFIG.json`: as many layers, experts and heads, so that both can be measured on a model that is not
downloaded. The matrices that llama.cpp quantizes have the type `--type`; embeddings and head have `--head-type`, which is the same
unless given; norms, routers and convolutions are f32. The same arguments give the same file. It has no vocabulary: `llama-bench` needs
none. Standard library only.
"""

import argparse
import array
import json
import math
import pathlib
import random
import struct

import gguf_format

# The number of each type in `general.file_type`, and the bits of its codes.
FILE_TYPES = {"q4_0": (2, 4), "q4_1": (3, 4), "q8_0": (7, 8)}
CHUNK_BLOCKS = 1 << 18


class Weights:
    """Random tensors; one generator for all, so that each is different and all are the same in every run."""

    def __init__(self, kind, seed):
        self.kind, self.random, self.tensors = kind, random.Random(seed), []

    def matrix(self, name, *shape, kind=None):
        kind = kind or self.kind
        self.tensors.append((name, kind, shape, lambda: self._quantized(kind, shape)))

    def floats(self, name, *shape, least, most):
        def chunks():
            count = math.prod(shape)
            yield array.array("f", (self.random.uniform(least, most) for _ in range(count))).tobytes()

        self.tensors.append((name, "f32", shape, chunks))

    def norm(self, name, length):
        self.floats(name, length, least=1.0, most=1.0)

    def _quantized(self, kind, shape):
        """Random codes whose values have a mean of about 0 and the variance 1 / inputs, so that activations keep their size."""
        _, elements, size = gguf_format.TYPES[kind]
        codes = 2 ** FILE_TYPES[kind][1]
        scale = 1 / math.sqrt(shape[0] * (codes**2 - 1) / 12)
        # A block begins with its scale, and in Q4_1 its least value; the codes of the other types have a zero of their own.
        head = struct.pack("<ee", scale, -7.5 * scale) if kind == "q4_1" else struct.pack("<e", scale)
        blocks = math.prod(shape) // elements
        for first in range(0, blocks, CHUNK_BLOCKS):
            count = min(CHUNK_BLOCKS, blocks - first)
            chunk = bytearray(self.random.randbytes(count * size))
            for at, byte in enumerate(head):
                chunk[at::size] = bytes([byte]) * count
            yield chunk


def common_fields(config, layers):
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head_dim = config.get("head_dim") or hidden // heads
    rope = config.get("rope_parameters") or {}
    return {
        "block_count": layers,
        "context_length": config["max_position_embeddings"],
        "embedding_length": hidden,
        "attention.head_count": heads,
        "attention.head_count_kv": config.get("num_key_value_heads", heads),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(rope.get("rope_theta") or config["rope_theta"]),
        "rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1)),
        "vocab_size": config["vocab_size"],
    }


def llama(config, layers, weights):
    fields = common_fields(config, layers) | {"feed_forward_length": config["intermediate_size"]}
    hidden, feed_forward = config["hidden_size"], config["intermediate_size"]
    queries = fields["attention.head_count"] * fields["attention.key_length"]
    keys = fields["attention.head_count_kv"] * fields["attention.key_length"]
    for layer in range(layers):
        block = f"blk.{layer}"
        weights.norm(f"{block}.attn_norm.weight", hidden)
        weights.matrix(f"{block}.attn_q.weight", hidden, queries)
        weights.matrix(f"{block}.attn_k.weight", hidden, keys)
        weights.matrix(f"{block}.attn_v.weight", hidden, keys)
        weights.matrix(f"{block}.attn_output.weight", queries, hidden)
        weights.norm(f"{block}.ffn_norm.weight", hidden)
        weights.matrix(f"{block}.ffn_gate.weight", hidden, feed_forward)
        weights.matrix(f"{block}.ffn_up.weight", hidden, feed_forward)
        weights.matrix(f"{block}.ffn_down.weight", feed_forward, hidden)
    return fields


def qwen35moe(config, layers, weights):
    hidden, experts = config["hidden_size"], config["num_experts"]
    expert, shared = config["moe_intermediate_size"], config["shared_expert_intermediate_size"]
    key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key_width = key_heads * config["linear_key_head_dim"]
    value_width = value_heads * config["linear_value_head_dim"]
    fields = common_fields(config, layers) | {
        "expert_count": experts,
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": expert,
        "expert_shared_feed_forward_length": shared,
        "rope.dimension_sections": config["rope_parameters"]["mrope_section"] + [0],
        "full_attention_interval": config["full_attention_interval"],
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.inner_size": value_width,
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.time_step_rank": value_heads,
        "ssm.group_count": key_heads,
    }
    queries = fields["attention.head_count"] * fields["attention.key_length"]
    keys = fields["attention.head_count_kv"] * fields["attention.key_length"]
    spread = 1 / math.sqrt(hidden)
    for layer in range(layers):
        block = f"blk.{layer}"
        weights.norm(f"{block}.attn_norm.weight", hidden)
        weights.norm(f"{block}.post_attention_norm.weight", hidden)
        if config["layer_types"][layer] == "full_attention":
            # Queries and their output gates.
            weights.matrix(f"{block}.attn_q.weight", hidden, 2 * queries)
            weights.matrix(f"{block}.attn_k.weight", hidden, keys)
            weights.matrix(f"{block}.attn_v.weight", hidden, keys)
            weights.matrix(f"{block}.attn_output.weight", queries, hidden)
            weights.norm(f"{block}.attn_q_norm.weight", fields["attention.key_length"])
            weights.norm(f"{block}.attn_k_norm.weight", fields["attention.key_length"])
        else:
            weights.matrix(f"{block}.attn_qkv.weight", hidden, 2 * key_width + value_width)
            weights.matrix(f"{block}.attn_gate.weight", hidden, value_width)
            width = 2 * key_width + value_width
            weights.floats(f"{block}.ssm_conv1d.weight", config["linear_conv_kernel_dim"], width, least=-0.5, most=0.5)
            weights.norm(f"{block}.ssm_dt.bias", value_heads)
            # Decay rates: negative.
            weights.floats(f"{block}.ssm_a", value_heads, least=-16.0, most=-0.1)
            weights.matrix(f"{block}.ssm_beta.weight", hidden, value_heads)
            weights.matrix(f"{block}.ssm_alpha.weight", hidden, value_heads)
            weights.norm(f"{block}.ssm_norm.weight", config["linear_value_head_dim"])
            weights.matrix(f"{block}.ssm_out.weight", value_width, hidden)
        weights.floats(f"{block}.ffn_gate_inp.weight", hidden, experts, least=-spread, most=spread)
        weights.matrix(f"{block}.ffn_gate_exps.weight", hidden, expert, experts)
        weights.matrix(f"{block}.ffn_up_exps.weight", hidden, expert, experts)
        weights.matrix(f"{block}.ffn_down_exps.weight", expert, hidden, experts)
        weights.floats(f"{block}.ffn_gate_inp_shexp.weight", hidden, least=-spread, most=spread)
        weights.matrix(f"{block}.ffn_gate_shexp.weight", hidden, shared)
        weights.matrix(f"{block}.ffn_up_shexp.weight", hidden, shared)
        weights.matrix(f"{block}.ffn_down_shexp.weight", shared, hidden)
    return fields


# By `model_type` of the configuration: the architecture's name in GGUF, and the function that lists its tensors.
FAMILIES = {"llama": ("llama", llama), "qwen3_5_moe_text": ("qwen35moe", qwen35moe)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--layers", type=int, help="leave the model its first layers only")
    parser.add_argument("--type", choices=FILE_TYPES, default="q4_0")
    parser.add_argument("--head-type", choices=FILE_TYPES)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    config = json.loads(options.config.read_text())
    config = config.get("text_config", config)
    if config["model_type"] not in FAMILIES:
        parser.error(f"`{config['model_type']}` is none of the families {', '.join(FAMILIES)}")
    layers = config["num_hidden_layers"]
    if options.layers is not None:
        if not 1 <= options.layers <= layers:
            parser.error(f"--layers is {options.layers}; the model has 1 to {layers}")
        layers = options.layers
    name, family = FAMILIES[config["model_type"]]
    weights = Weights(options.type, options.seed)
    vocabulary = config["hidden_size"], config["vocab_size"]
    weights.matrix("token_embd.weight", *vocabulary, kind=options.head_type)
    weights.norm("output_norm.weight", config["hidden_size"])
    if not config.get("tie_word_embeddings"):
        weights.matrix("output.weight", *vocabulary, kind=options.head_type)
    fields = {
        "general.architecture": name,
        "general.name": options.config.stem,
        "general.file_type": FILE_TYPES[options.type][0],
        "tokenizer.ggml.model": "no_vocab",
    } | {f"{name}.{key}": value for key, value in family(config, layers, weights).items()}
    gguf_format.write(options.out, fields, weights.tensors)


if __name__ == "__main__":
    main()
