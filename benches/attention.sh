#!/usr/bin/env bash
# Attention on the CPU: one token over long contexts, and prompts. Each figure stands beside the bandwidth and the arithmetic
# peak of the same machine, measured in the same run. `benches/attention.sh --json` prints lines for the ledger.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo bench -q -p ptero-cpu --bench attention -- "$@"
