"""Writes a tiny GGUF file whose weights are k-quant blocks of random bits, and the logits that transformers gives it.

    python conformance/make_tiny_blocks.py crates/export/tests/tiny

makes `FOLDER/qwen2_blocks` with `model.gguf` (Q4_K, Q5_K and Q6_K, mixed within a layer as llama.cpp mixes them) and
`golden.safetensors`. Needs transformers, gguf and torch.
"""

import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

WIDTH, VOCABULARY, SEQUENCE = 256, 96, 16
SIZES = {Kind.Q4_K: 144, Kind.Q5_K: 176, Kind.Q6_K: 210}


def blocks(random, kind, rows, columns):
    """Random codes and scales; the factors of a block are such that weights are small and have no mean."""
    data = random.integers(0, 256, (rows, columns // 256, SIZES[kind]), dtype=np.uint8)

    def put(at, value):
        data[:, :, at : at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)

    if kind == Kind.Q6_K:
        data[:, :, 192:208] = random.integers(-16, 17, data[:, :, 192:208].shape, dtype=np.int8).view(np.uint8)
        put(208, 4e-4)
    else:
        put(0, 4e-4 if kind == Kind.Q4_K else 2e-4)
        put(2, 3e-3)
    return data.reshape(rows, -1)


def main():
    out = Path(sys.argv[1]) / "qwen2_blocks"
    out.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(5)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=WIDTH, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=True, rms_norm_eps=1e-6, rope_theta=1000.0,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = Qwen2ForCausalLM._from_config(config, attn_implementation="eager").eval()
    layer = model.model.layers[0]
    matrices = {
        "token_embd": (model.model.embed_tokens, Kind.Q6_K),
        "blk.0.attn_q": (layer.self_attn.q_proj, Kind.Q4_K),
        "blk.0.attn_k": (layer.self_attn.k_proj, Kind.Q4_K),
        "blk.0.attn_v": (layer.self_attn.v_proj, Kind.Q6_K),
        "blk.0.attn_output": (layer.self_attn.o_proj, Kind.Q5_K),
        "blk.0.ffn_gate": (layer.mlp.gate_proj, Kind.Q4_K),
        "blk.0.ffn_up": (layer.mlp.up_proj, Kind.Q4_K),
        "blk.0.ffn_down": (layer.mlp.down_proj, Kind.Q5_K),
    }
    vectors = {
        "output_norm.weight": model.model.norm.weight,
        "blk.0.attn_norm.weight": layer.input_layernorm.weight,
        "blk.0.ffn_norm.weight": layer.post_attention_layernorm.weight,
        "blk.0.attn_q.bias": layer.self_attn.q_proj.bias,
        "blk.0.attn_k.bias": layer.self_attn.k_proj.bias,
        "blk.0.attn_v.bias": layer.self_attn.v_proj.bias,
    }
    writer = gguf.GGUFWriter(out / "model.gguf", "qwen2")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(4)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1000.0)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")
    with torch.no_grad():
        for name, (module, kind) in matrices.items():
            rows, columns = module.weight.shape
            data = blocks(random, kind, rows, columns)
            weights = gguf.quants.dequantize(data, kind)
            print(f"{name}: {kind.name}, deviation {weights.std():.3f}, mean {weights.mean():.3f}")
            module.weight.copy_(torch.from_numpy(weights.copy()))
            writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
        for name, vector in vectors.items():
            values = (1.0 if "norm" in name else 0.0) + 0.3 * random.standard_normal(vector.shape)
            vector.copy_(torch.from_numpy(values))
            writer.add_tensor(name, vector.numpy().astype(np.float32))
        tokens = torch.from_numpy(random.integers(0, VOCABULARY, SEQUENCE))
        model.tie_weights()
        logits = model.double()(tokens[None], use_cache=False).logits[0].float()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = {"exercises": "k-quant blocks, kept or read, in kinds that differ within a layer"}
    save_file({"tokens": tokens, "logits": logits.contiguous()}, out / "golden.safetensors", metadata)
    print(out, sum(file.stat().st_size for file in out.iterdir()), "bytes")


main()
