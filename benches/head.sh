#!/usr/bin/env bash
# Prefill of 1,505 tokens with the head on the last position only, beside the head on every position, on a random model whose
# vocabulary dominates; or on the checkpoint that is given. Both programs run in turn in one process.
set -euo pipefail
cd "$(dirname "$0")/.."
checkpoint=${1:-target/synthetic-head}
[ -e "$checkpoint" ] || cargo run -q --release -p ptero-export --example synthetic -- "$checkpoint" 6 512 1536 131072
cargo bench -q -p ptero-export --bench head -- "$checkpoint" 1505
