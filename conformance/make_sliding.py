"""Makes programs whose key-value cache lies outside the graph and whose layers differ: some see a window, one sees all.

    .venv/bin/python conformance/make_sliding.py conformance

writes `conformance/sliding`, one folder per case: `model.pte`, which describes its layers in its metadata as upstream's language model
export does, and per call `input_I.bin` and `expected_output_I.bin`. What is expected comes from ExecuTorch's reference cache in
eager PyTorch, which keeps the whole history. The environment is that of `make_corpus.py`.
"""

import json
import pathlib
import sys

LAYERS, HEADS, KV_HEADS, HEAD_DIM, CAPACITY = 3, 4, 2, 8, 200
WINDOWS = [6, 0, 6]


def model():
    import torch

    class Attention(torch.nn.Module):
        def forward(self, q, k, v, position):
            attend = torch.ops.kvcache.update_and_attend
            scale = HEAD_DIM**-0.5
            layer = lambda at: attend(q, k * (at + 1), v * (at + 1), position, at, scale, torch.float32)
            return tuple(layer(at) for at in range(LAYERS))

    return Attention()


def inputs(start, count):
    import torch

    heads = [torch.randn(1, heads, count, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    return (*heads, torch.arange(start, start + count).reshape(count, 1))


def export(path, chunk):
    """The program; `chunk` is the most positions that a call may bring."""
    import torch
    from executorch import exir
    from executorch.backends.mlx import MLXPartitioner
    from executorch.backends.mlx.passes import get_default_passes

    count = torch.export.Dim("count", min=1, max=chunk)
    shapes = {"q": {2: count}, "k": {2: count}, "v": {2: count}, "position": {0: count}}
    exported = torch.export.export(model(), inputs(0, 3), dynamic_shapes=shapes, strict=True)
    ints = lambda values: torch.tensor(values, dtype=torch.int32)
    metadata = {
        "get_n_caches": LAYERS,
        "get_kv_heads": ints([KV_HEADS] * LAYERS),
        "get_head_dims": ints([HEAD_DIM] * LAYERS),
        "get_windows": ints(WINDOWS),
        "get_prefill_chunk_size": chunk,
    }
    edge = exir.to_edge_transform_and_lower(
        {"forward": exported},
        transform_passes=get_default_passes(),
        constant_methods=metadata,
        partitioner=[MLXPartitioner()],
        compile_config=exir.EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True),
    )
    path.write_bytes(edge.to_executorch().buffer)


def case(folder, chunk, counts):
    from executorch.backends.mlx.test.test_utils import save_tensors_to_bin
    from executorch.extension.llm.cache import reference_cache as reference
    from executorch.extension.llm.cache.update_and_attend import REGISTRY

    folder.mkdir(parents=True, exist_ok=True)
    export(folder / "model.pte", chunk)
    layers = [reference.LayerPolicy.ring(window) if window else reference.LayerPolicy.flat() for window in WINDOWS]
    config = reference.CacheConfig(LAYERS, KV_HEADS, HEAD_DIM, CAPACITY, layers=layers)
    REGISTRY.install(folder.name, reference.ContiguousReferenceCache(config))
    start = 0
    for call, count in enumerate(counts):
        given = inputs(start, count)
        with REGISTRY.active(folder.name):
            results = model()(*given)
        save_tensors_to_bin(list(given), folder / f"input_{call}.bin")
        save_tensors_to_bin(list(results), folder / f"expected_output_{call}.bin")
        start += count
    facts = {"name": folder.name, "calls": len(counts), "rtol": 1e-5, "atol": 1e-5, "kv_cache": str(CAPACITY)}
    (folder / "case.json").write_text(json.dumps(facts, indent=1) + "\n")


def main():
    import torch

    torch.manual_seed(7)
    corpus = pathlib.Path(sys.argv[1]) / "sliding"
    case(corpus / "chunks_of_a_window", 6, [6, 6, 3, 1, 1, 1, 6, 2] + [1] * 30)
    case(corpus / "chunks_below_a_window", 4, [4] * 9 + [1] * 20 + [3, 4, 4])
    case(corpus / "chunks_of_any_length", 150, [40, 1, 1, 13, 7] + [1] * 9 + [60])


if __name__ == "__main__":
    main()
