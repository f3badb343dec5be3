#!/usr/bin/env bash
# Sampling on the CPU, one row of logits beside a sampler that sorts; then on a CUDA device, if there is one, as replays of a
# captured graph. `benches/sampling.sh --json` prints lines for the ledger; `benches/sampling_llama.py` measures llama.cpp beside it.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo bench -q -p ptero-cpu --bench sampling -- "$@"
cargo bench -q -p ptero-cuda --bench sampling -- "$@"
