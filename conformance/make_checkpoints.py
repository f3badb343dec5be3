"""Writes the small checkpoints in crates/checkpoint/tests/goldens with the Python packages `safetensors` and `gguf`.

Usage: make_checkpoints.py FOLDER        (needs torch, safetensors and gguf)

The GGUF files are seeds of the fuzzer too: copies of them lie in fuzz/seeds.

`expected.safetensors` holds, as f32 and under the same names, what those packages read from `tiny.gguf`.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import save_file


def folder_of_shards(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    numbers = torch.arange(6).reshape(2, 3)
    first = {
        "f32": numbers.to(torch.float32) / 4,
        "f16": numbers.to(torch.float16) / 4,
        "bf16": numbers.to(torch.bfloat16) / 4,
        "f64": numbers.to(torch.float64) / 4,
        "f8": numbers.to(torch.float8_e4m3fn),
    }
    second = {
        "i8": -numbers.to(torch.int8),
        "u8": numbers.to(torch.uint8),
        "i32": -numbers.to(torch.int32),
        "i64": -numbers.to(torch.int64),
        "bool": numbers % 2 == 1,
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(3, 0),
    }
    names = [f"model-{at:05}-of-00002.safetensors" for at in (1, 2)]
    for name, tensors in zip(names, (first, second)):
        save_file(tensors, root / name, metadata={"format": "pt"})
    weight_map = {tensor: name for name, tensors in zip(names, (first, second)) for tensor in tensors}
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (root / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    (root / "config.json").write_text(json.dumps({"architectures": ["TinyForCausalLM"], "hidden_size": 3}))
    (root / "generation_config.json").write_text(json.dumps({"temperature": 0.6}))
    templates = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ messages }}"}]
    (root / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))


def metadata(writer: gguf.GGUFWriter) -> None:
    writer.add_uint8("t.u8", 200)
    writer.add_int8("t.i8", -100)
    writer.add_uint16("t.u16", 60000)
    writer.add_int16("t.i16", -30000)
    writer.add_uint32("t.u32", 4000000000)
    writer.add_int32("t.i32", -2000000000)
    writer.add_uint64("t.u64", 1 << 60)
    writer.add_int64("t.i64", -(1 << 60))
    writer.add_float32("t.f32", 0.25)
    writer.add_float64("t.f64", 0.1)
    writer.add_bool("t.bool", True)
    writer.add_string("t.string", "äöü")
    writer.add_array("t.bools", [True, False])
    writer.add_array("t.nested", [[1, 2], [3]])
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "a", "Ġb"])
    writer.add_string("tokenizer.chat_template", "{{ messages }}")


def tiny_gguf(path: Path, expected: Path) -> None:
    rng = np.random.default_rng(2026)
    writer = gguf.GGUFWriter(path, "tiny")
    writer.add_custom_alignment(64)
    metadata(writer)
    read = {}
    for kind in (Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0):
        packed = gguf.quants.quantize(rng.standard_normal((3, 32), dtype=np.float32), kind)
        name = f"blk.0.{kind.name.lower()}.weight"
        writer.add_tensor(name, packed, raw_dtype=kind)
        read[name] = gguf.quants.dequantize(packed, kind)
    # The package does not quantize to k-quants: random codes, with factors that are small numbers.
    for kind, factors in ((Type.Q4_K, (0, 2)), (Type.Q5_K, (0, 2)), (Type.Q6_K, (208,))):
        packed = rng.integers(0, 256, (2, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
        for at in factors:
            packed[:, at : at + 2] = rng.uniform(0.001, 0.1, (2, 1)).astype(np.float16).view(np.uint8)
        name = f"blk.0.{kind.name.lower()}.weight"
        writer.add_tensor(name, packed, raw_dtype=kind)
        read[name] = gguf.quants.dequantize(packed, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file({name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in read.items()}, expected)


def llama_gguf(path: Path) -> None:
    """The smallest file of a known architecture, with a vocabulary: a seed of the fuzzer too."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(4)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_feed_forward_length(4)
    writer.add_block_count(1)
    writer.add_context_length(16)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100.0)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(4)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<s>", "</s>", "a", "b", "Ġ", "Ġa", "ab", "<tool>"])
    writer.add_token_types([3, 3, 1, 1, 1, 1, 1, 4])
    writer.add_token_merges(["Ġ a", "a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)
    rng = np.random.default_rng(2026)
    for name, shape in (("token_embd", (8, 4)), ("blk.0.attn_q", (4, 4)), ("blk.0.attn_norm", (4,)), ("rope_freqs", (1,))):
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pieces_gguf(path: Path) -> None:
    """A SentencePiece vocabulary and no weights: a seed of the fuzzer too."""
    writer = gguf.GGUFWriter(path, "none")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", "<0x0A>", "▁", "a", "b", "ab", "▁ab", "▁a", "<tool>"])
    writer.add_token_scores([0.0, 0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0, 0.0])
    writer.add_token_types([2, 3, 3, 6, 1, 1, 1, 1, 1, 1, 4])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def main() -> None:
    root = Path(sys.argv[1])
    pieces_gguf(root / "pieces.gguf")
    llama_gguf(root / "llama.gguf")
    folder_of_shards(root / "folder")
    tiny_gguf(root / "tiny.gguf", root / "expected.safetensors")


if __name__ == "__main__":
    main()
