#!/usr/bin/env bash
# A model out of a GGUF file beside llama.cpp on the same file: benches/llama.sh PYTHON GGUF [options of llama.py].
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
python=$1 gguf=$2
shift 2
cargo build -q --release
program=$target/$(basename "$gguf" .gguf).int4.pte
[ "$program" -nt "$gguf" ] || "$target/release/ptero" export "$gguf" -o "$program" -q int4 --sample --quiet > /dev/null
"$python" benches/llama.py --ptero "$target/release/ptero" "$@" "$gguf" "$program"
