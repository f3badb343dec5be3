#!/usr/bin/env bash
# How long `ptero inspect` takes on a program with 500 MB of weights, and how much of the file it touches.
#
# The file is pushed out of the page cache (`dd oflag=nocache` with nothing to copy), inspected once, and `fincore`
# (util-linux) then says how many of its bytes are resident: what inspect touched, read-ahead included. The time is the
# median of 21 runs with a warm cache and of 5 with a cold one.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build -q --release
file=target/large.pte
[ -f "$file" ] || cargo run -q --release -p ptero-pte --example large -- "$file" 500
ptero=target/release/ptero

evict() { sync "$file"; dd of="$file" oflag=nocache conv=notrunc,fdatasync count=0 status=none; }
resident() { fincore --bytes --noheadings --output RES "$file" | tr -d ' '; }
milliseconds() { # $1: runs, $2: a command to run before each
  for _ in $(seq "$1"); do
    "$2"
    start=$(date +%s%N); "$ptero" inspect "$file" > /dev/null; end=$(date +%s%N)
    echo $(((end - start) / 10000))
  done | sort -n | awk '{ t[NR] = $1 / 100 } END { printf "median %.2f ms, least %.2f, most %.2f", t[int((NR + 1) / 2)], t[1], t[NR] }'
}

evict
before=$(resident)
"$ptero" inspect "$file" | sed -n 1p
after=$(resident)
echo "file: $(stat -c %s "$file") bytes; resident before: $before, after one inspect: $after"
echo "cold: $(milliseconds 5 evict)"
echo "warm: $(milliseconds 21 true)"
