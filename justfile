# Every command of the project. `just check` is what CI runs.

corpus := "target/corpus"

_list:
    @just --list

# Exactly CI: tests, format, lints, documentation
check:
    .ci/run

# All tests
test:
    cargo test --workspace

# Unpack ExecuTorch's op suite (made by conformance/, or handed to you) for `just conformance`
corpus archive:
    mkdir -p {{corpus}}
    tar -xJf {{archive}} -C {{corpus}}

# Open, verify, count and rewrite every program of the corpus
conformance folder=(corpus / "ops"):
    PTERO_CORPUS={{absolute_path(folder)}} cargo test -p ptero-pte --test corpus

# Let ExecuTorch's own runtime and flatc read what we write (needs Python with executorch==1.5.1)
executorch python folder=(corpus / "ops"):
    cargo build --release
    cargo run -q -p ptero-pte --example random -- target/random 8 200
    {{python}} conformance/opens_in_executorch.py --ptero target/release/ptero --corpus {{folder}} \
        --metadata models/bigram.pte target/random/*.pte
    cargo run -q -p ptero-pte --example table > target/rows.txt
    {{python}} conformance/check_table.py target/rows.txt

# Fuzz one target (open, read_write_read, inspect) for so many inputs
fuzz target runs="10000000":
    mkdir -p fuzz/corpus/{{target}}
    cd fuzz && cargo +nightly fuzz run --sanitizer none {{target}} corpus/{{target}} seeds -- \
        -dict=program.dict -max_len=8192 -rss_limit_mb=256 -timeout=5 -runs={{runs}} -print_final_stats=1

# The seeds of the fuzzer, from the table's random program generator
seeds:
    cargo run -q -p ptero-pte --example random -- fuzz/seeds 24 12

# The program in models/, from the example that writes it
models:
    cargo run -q -p ptero-pte --example bigram -- models/bigram.pte

# Measurements: inspect
bench name:
    benches/{{name}}.sh
