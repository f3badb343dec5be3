#!/usr/bin/env bash
# Decoding with tokens drawn in the program, beside drawing them on the host: the same programs, settings and tokens, in turns in
# one process (`ptero bench --sampling`). Random models of one shape whose vocabularies have 32,000, 151,936 and 262,144 tokens;
# needs 1.5 GB under target/. `just bench generate --json` prints lines for the ledger (needs jq).
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
cargo build -q --release
machine=$(sed -n 's/^model name[^:]*: *//p;T;q' /proc/cpuinfo 2> /dev/null || true)
machine=${machine:-$(uname -m)}
for vocabulary in 32000 151936 262144; do
  folder=$target/synthetic-$vocabulary
  if [ ! -e "$folder/logits.pte" ]; then
    cargo run -q --release -p ptero-export --example synthetic -- "$folder" 8 512 2048 "$vocabulary"
    "$target/release/ptero" export "$folder" -o "$folder/logits.pte" -q int4 --quiet > "$folder/report.txt"
    rm "$folder"/*.safetensors
  fi
  run=("$target/release/ptero" bench "$folder/logits.pte" -p 0 -n 32 -d 128 -r 15 --sampling)
  if [ "${1:-}" = --json ]; then
    "${run[@]}" --json | jq -c --arg case "vocabulary $vocabulary, 8 layers of 512, int4" \
      --arg commit "$(git rev-parse --short HEAD)" --arg date "$(date +%F)" --arg machine "$machine" '
      def rounded: walk(if type == "number" then . * 1000 | round / 1000 else . end);
      .runs[0] | {
      bench: "generate", command: "just bench generate", $commit, $date, machine: "\(.threads) threads, \($machine)",
      case: $case, threads, settings: (.sampling | {temperature, top_k, top_p}),
      ms_per_token: (.sampling.samplers | map({(.sampler): .ms_per_token}) | add),
      program_is_faster_percent: (.sampling.samplers[1:] | map({(.sampler): .program_is_faster_percent}) | add)
      } | rounded'
  else
    echo "vocabulary $vocabulary"
    "${run[@]}"
  fi
done
