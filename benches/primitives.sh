#!/usr/bin/env bash
# Primitives on the CPU, each as a plan of one step: experts, stacks, sorting, the delta rule, sums, convolutions, rows, maps.
# Bytes are those read and written; the bandwidth and the arithmetic peak beside them were measured in the same run.
# `benches/primitives.sh --json` prints lines for the ledger.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo bench -q -p ptero-cpu --bench primitives -- "$@"
