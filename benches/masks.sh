#!/usr/bin/env bash
# Masks for JSON Schemas over a large vocabulary: benches/masks.sh TOKENIZER.JSON [LOGITS], by default 151,936 as of Qwen2.5's models.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo run -q --release -p ptero-text --example masks -- "$(realpath "$1")" "${2:-151936}" crates/text/tests/schemas/*.json
