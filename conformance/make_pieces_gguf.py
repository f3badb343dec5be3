"""Trains a SentencePiece vocabulary on the files it is given, and writes it as a GGUF file without weights.

    pip install sentencepiece gguf
    python conformance/make_pieces_gguf.py OUT.gguf README.md docs/*.md crates/*/src/*.rs

For `check_tokenizer.py`: the kind of tokenizer that Llama 2 and Mistral have (pairs by score, bytes for what has no token).
"""

import io
import sys
from pathlib import Path

import gguf
import sentencepiece

TYPES = gguf.TokenType


def train(files):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for file in files for line in Path(file).read_text().splitlines() if line),
        model_writer=model,
        model_type="bpe",
        vocab_size=4000,
        byte_fallback=True,
        character_coverage=0.9995,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        split_digits=True,
        user_defined_symbols=["<|tool|>", "<|end of tool|>"],
        num_threads=1,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def kind(pieces, at):
    for name, what in (("unknown", TYPES.UNKNOWN), ("control", TYPES.CONTROL), ("unused", TYPES.UNUSED), ("byte", TYPES.BYTE)):
        if getattr(pieces, f"is_{name}")(at):
            return what
    return TYPES.USER_DEFINED if pieces.id_to_piece(at).startswith("<|") else TYPES.NORMAL


def main():
    pieces = train(sys.argv[2:])
    writer = gguf.GGUFWriter(sys.argv[1], "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    ids = range(pieces.get_piece_size())
    writer.add_token_list([pieces.id_to_piece(at) for at in ids])
    writer.add_token_scores([pieces.get_score(at) for at in ids])
    writer.add_token_types([kind(pieces, at) for at in ids])
    writer.add_unk_token_id(pieces.unk_id())
    writer.add_bos_token_id(pieces.bos_id())
    writer.add_eos_token_id(pieces.eos_id())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


main()
