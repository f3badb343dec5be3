#!/usr/bin/env bash
# A model beside llama.cpp: benches/llama.sh LLAMA_BENCH MODEL [options of llama.py]. MODEL is a GGUF file or a config.json.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build -q --release
python3 benches/llama.py --ptero "${CARGO_TARGET_DIR:-target}/release/ptero" "$@"
