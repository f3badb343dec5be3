"""Writes tiny GGUF files with llama.cpp's own converter, out of the folders that `make_tiny.py` writes.

    git clone https://github.com/ggml-org/llama.cpp
    python conformance/make_tiny_gguf.py llama.cpp crates/export/tests/tiny crates/export/tests/tiny/llama3 …

makes `FOLDER/llama3_gguf` with `model.gguf` (all weights f32, so that the logits are the same) and the `golden.safetensors` of
the folder it was made from. The tiny models have no tokenizer; the files say so.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]) / "gguf-py")]
    for folder in sys.argv[3:]:
        with tempfile.TemporaryDirectory() as scratch:
            copy = shutil.copytree(folder, Path(scratch) / Path(folder).name)
            convert(copy, Path(sys.argv[2]))


def convert(folder, out):
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    out = out / f"{folder.name}_gguf"
    out.mkdir(parents=True, exist_ok=True)
    count_tokens(folder)
    hparams = ModelBase.load_hparams(folder, False)
    model_class = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    model = model_class(folder, gguf.LlamaFileType.ALL_F32, out / "model.gguf", model_name=folder.name)
    model.set_vocab = lambda: without_vocabulary(model)
    model.write()
    shutil.copyfile(folder / "golden.safetensors", out / "golden.safetensors")
    print(out, sum(file.stat().st_size for file in out.iterdir()), "bytes")


def count_tokens(folder):
    """Some families' converters cut the embedding to the tokens that a tokenizer has; here it has them all."""
    config = json.loads((folder / "config.json").read_text())
    tokens = range(config.get("text_config", config)["vocab_size"])
    tokenizer = {"model": {"vocab": {str(token): token for token in tokens}}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def without_vocabulary(model):
    model.gguf_writer.add_tokenizer_model("no_vocab")
    model.gguf_writer.add_vocab_size(model.hparams["vocab_size"])
    for kind in ("bos", "eos"):
        if (token := model.hparams.get(f"{kind}_token_id")) is not None:
            getattr(model.gguf_writer, f"add_{kind}_token_id")(token)


main()
