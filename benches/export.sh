#!/usr/bin/env bash
# How fast `ptero export` writes, and how much memory it takes, on a random checkpoint of 8 GB whose largest tensor has 1 GB.
# Needs 25 GB of disk under target/; give a folder to use another disk.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-target}/synthetic-8g
cargo build -q --release
[ -e "$folder/model.safetensors.index.json" ] ||
  cargo run -q --release -p ptero-export --example synthetic -- "$folder" 15 4096 11008 122000
echo "checkpoint: $(du -sb "$folder" | cut -f1) bytes"
for form in none int8 int4; do
  rm -f "$folder/out.pte"
  /usr/bin/time -f "%M" -o "$folder/peak" target/release/ptero export "$folder" -o "$folder/out.pte" --quantize "$form" --quiet --json \
    > "$folder/report.json"
  awk -v form="$form" -v peak="$(cat "$folder/peak")" -F'[:,]' '/"bytes"/ { b = $2 } /"seconds"/ { s = $2 }
    END { printf "%s: %.2f GB in %.1f s, %.0f MB/s written, peak memory %.0f MB\n", form, b / 1e9, s, b / s / 1e6, peak / 1e3 }' "$folder/report.json"
  rm -f "$folder/out.pte"
done
