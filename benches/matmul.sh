#!/usr/bin/env bash
# Products of matrices on the CPU: quantized and plain, few rows and many. Each figure stands beside the bandwidth and the
# arithmetic peak of the same machine, measured in the same run. `benches/matmul.sh --json` prints lines for the ledger.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo bench -q -p ptero-cpu --bench matmul -- "$@"
