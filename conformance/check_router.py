"""Do ptero, MLX and torch choose other experts in a bf16 mixture only where rounding decides?

Builds the tiny Qwen3.5 MoE of `make_models.py` with a seed each, and exports it with ExecuTorch's exporter such that the router's
logits and the chosen experts of every layer are outputs too. The same random tokens, a prompt and then one by one, go through
torch (the very module that is exported), through MLX (node by node, as in `run_in_mlx.py`) and through ptero.

    .venv/bin/pip install 'mlx[cpu]'
    .venv/bin/python conformance/check_router.py --ptero target/release/ptero target/router

The rest of the environment is that of `make_corpus.py`. The folder keeps the programs; a later run only makes what is missing.

Of every choice in which two of them differ, it prints how far the last chosen and the first spurned logit are apart in the second
of the two (in ulps of bf16 at that size, and at the size of the token's largest logit), and how far the experts' logits moved
against each other between the two. A choice is a first one if none before it differed from which it could follow (an earlier
layer of the same or an earlier token).

Then each of the three is compared with the truth: the module in f32, told to take the experts that it took. What is left is
rounding; whoever has more of it than the others has a bug. "Expected" is how many choices of f32 that much normal noise on two
logits would turn.

The exit status is 1 if somebody takes experts that are not its best, or if ptero is farther from the truth than both others by a
quarter (root mean square of some layer's router, or of the logits).

MLX on a CPU runs no Metal kernels and multiplies matrices that indices choose only in f32: here the gated delta rule is written
down as the kernel in the program computes it, and such products are rounded to bf16 after f32.
"""

import argparse
import ast
import contextlib
import copy
import io
import itertools
import logging
import math
import pathlib
import subprocess
import sys
import tempfile
import types

import make_corpus
import mlx.core as mx
import numpy as np
import torch

CHOSEN = 2
NEVER, NOW = "no choice differed so far", "some choice differs at this token"
AGO = [(1, "the last one differed a token ago"), (4, "2 to 4 tokens ago"), (64, "5 tokens ago or more")]
WORSE = 1.25


def routed(mlp, x):
    """What upstream's block does, which also tells its router's logits and its choice, and takes the choice it is told."""
    flat = x.view(-1, x.shape[-1])
    logits = mlp.gate(flat)
    weights, choice = torch.topk(logits, mlp.top_k, dim=-1)
    if mlp.told is not None:
        choice = mlp.told
        weights = logits.gather(-1, choice)
    mixed = mlp.experts(flat, weights.softmax(dim=-1), choice, mlp.top_k)
    shared = torch.sigmoid(mlp.shared_expert_gate(flat)) * mlp.shared_expert(flat)
    return (mixed + shared).view(x.shape), logits, choice


def forward(model, tokens, input_pos):
    x, told = model.embed_tokens(tokens), []
    for layer in model.layers:
        x = x + layer.attn(layer.ln_1(x), input_pos)
        y, logits, choice = layer.mlp(layer.ln_2(x))
        x = x + y
        told += [logits, choice]
    return (model.lm_head(model.norm(x)[:, -1, :]), *told)


def tap(model):
    for layer in model.layers:
        layer.mlp.told = None
        layer.mlp.forward = types.MethodType(routed, layer.mlp)
    model.forward = types.MethodType(forward, model)


def make(seed, folder):
    """The eager model, and the program in the folder."""
    from executorch.examples.models.qwen3_5_moe import export

    names = "prequantized qembedding qembedding_group_size model_id model_dir dense_prefill qlinear qlinear_group_size".split()
    args = argparse.Namespace(**dict.fromkeys(names))
    vars(args).update(tiny_test=True, backend="mlx", max_seq_len=64, output_dir=str(folder), sample=False)
    vars(args).update(use_splitk_decode=True, hqq=False, turboquant=False)
    # The exporter always takes the same seed, and puts its own forward in place.
    seeds, strips = torch.manual_seed, export._strip_sampler_from_forward
    torch.manual_seed, export._strip_sampler_from_forward = lambda _: seeds(seed), tap
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            model, config = export.load_and_quantize(args)
            eager = copy.deepcopy(model)
            tap(eager)
            if not (folder / "model.pte").exists():
                export.export_and_lower(model, config, args)
    finally:
        torch.manual_seed, export._strip_sampler_from_forward = seeds, strips
    return eager


class Run:
    """What came out: the logits of every call, the router's logits and the choice of every layer and token."""

    def __init__(self, calls):
        calls = [[torch.as_tensor(one) for one in call] for call in calls]
        self.logits = torch.stack([call[0].reshape(-1).double() for call in calls])
        join = lambda first: torch.stack([torch.cat([c[i] for c in calls]) for i in range(first, len(calls[0]), 2)])
        self.router, self.choice = join(1).double(), join(2).long().sort(-1).values

    def differs(self, other):
        """Per layer and token: is it another set of experts?"""
        return (self.choice != other.choice).any(-1)


def in_torch(model, calls, told=None):
    model, outputs = copy.deepcopy(model), []
    for tokens, position in calls:
        for index, layer in enumerate(model.layers):
            layer.mlp.told = None if told is None else told.choice[index, position]
        with torch.no_grad():
            outputs.append(model(tokens[None], position))
    return Run(outputs)


def in_ptero(ptero, device, path, calls):
    from executorch.backends.mlx.test.test_utils import load_tensors_from_bin, save_tensors_to_bin

    with tempfile.TemporaryDirectory() as scratch:
        scratch, command = pathlib.Path(scratch), [ptero, "exec", "--device", device, "--pte", path]
        for index, (tokens, position) in enumerate(calls):
            save_tensors_to_bin([tokens[None], position], scratch / f"in_{index}")
            command += ["--input", scratch / f"in_{index}", "--output", scratch / f"out_{index}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return Run([load_tensors_from_bin(scratch / f"out_{index}") for index in range(len(calls))])


def interpreter():
    """`run_in_mlx.py` without its last line, which runs it."""
    path = pathlib.Path(__file__).with_name("run_in_mlx.py")
    tree = ast.parse(path.read_text())
    tree.body.pop()
    module = types.ModuleType("run_in_mlx")
    exec(compile(tree, path, "exec"), vars(module))
    return module


def gather(f):
    product = mx.gather_mm(f["a"].astype(mx.float32), f["b"].astype(mx.float32), f["lhs_indices"], f["rhs_indices"])
    return product.astype(f["a"].dtype)


def take(f):
    # MLX takes no single place from the end.
    index = f["index"] % f["x"].shape[f["axis"]] if isinstance(f["index"], int) else f["index"]
    return mx.take(f["x"], index, axis=f["axis"])


def delta(q, k, v, g, beta, state, _):
    """The kernel `gated_delta_step`: f32 inside, rounded where it stores."""
    kind, heads = q.dtype, v.shape[2] // q.shape[2]
    q, k, v, g, beta, state = (one.astype(mx.float32) for one in (q, k, v, g, beta, state))
    q, k, steps = mx.repeat(q, heads, axis=2), mx.repeat(k, heads, axis=2), []
    for t in range(q.shape[1]):
        state = state * g[:, t, :, None, None]
        wrong = (v[:, t] - (state * k[:, t, :, None]).sum(-1)) * beta[:, t, :, None]
        state = state + k[:, t, :, None] * wrong[..., None]
        steps.append((state * q[:, t, :, None]).sum(-1))
    return mx.stack(steps, axis=1).astype(kind), state.astype(kind)


def in_mlx(interpreter, ptero, path, calls):
    class Program(interpreter.Program):
        def chain(self, index):
            chains = self.graph["chains"]
            for node in chains[index]:
                fields = node["fields"]
                if node["op"] == "IfNode":
                    self.chain(fields["then_chain_idx" if self.value(fields["cond"]) else "else_chain_idx"])
                elif node["op"] == "MetalKernelNode":
                    assert fields["name"] == "gated_delta_step", node["text"]
                    for slot, result in zip(fields["outputs"], delta(*self.value(fields["inputs"]))):
                        self.held[slot] = result
                else:
                    # The interpreter runs chains: one of this node alone.
                    self.graph["chains"] = [[node]]
                    super().chain(0)
                    self.graph["chains"] = chains

        def outcome(self):
            # Slots are in the order of the graph, which has the logits last.
            return [np.array(self.held[slot].astype(mx.float32)) for slot in self.outputs[-1:] + self.outputs[:-1]]

    interpreter.PLAIN["bf16"] = "<u2"
    interpreter.NODES.update(
        GatherMm=gather,
        Take=take,
        Partition=lambda f: mx.partition(f["x"], f["kth"], axis=f["axis"]),
        Sort=lambda f: mx.sort(f["x"], axis=f["axis"]),
        Argsort=lambda f: mx.argsort(f["x"], axis=f["axis"]),
        Contiguous=lambda f: mx.contiguous(f["x"]),
        Full=lambda f: mx.full(f["shape"], f["v"], dtype=interpreter.TYPES[f["scalar_type"]]),
        FullLike=lambda f: mx.full(f["x"].shape, f["v"], dtype=f["x"].dtype),
    )
    program, outputs = Program(ptero, path), []
    for tensor in program.graph["tensors"]:
        if tensor["role"] == "constant" and tensor["dtype"] == "bf16":
            program.slots[tensor["slot"]] = program.slots[tensor["slot"]].view(mx.bfloat16)
    for tokens, position in calls:
        program.call(tokens.numpy(), position.numpy())
        outputs.append(program.outcome())
    return Run(outputs)


def edge(router):
    """How far the last chosen logit is above the first spurned one."""
    best = router.sort(-1, descending=True).values
    return best[..., CHOSEN - 1] - best[..., CHOSEN]


def ulp(number):
    return 2.0 ** (math.floor(math.log2(abs(number))) - 7)


def around(router):
    """Which logits are above the last chosen one, and which are equal to it."""
    last = router.topk(CHOSEN, -1).values[..., -1:]
    return router > last, router == last


def follows(differs):
    """Per layer and token: does a choice before it differ from which it could follow?"""
    before = differs.cummax(1).values.cummax(0).values
    return torch.cat([torch.zeros_like(before[:1]), before[:-1]])


def percent(numbers, part):
    return numbers.flatten().float().quantile(part).item()


def rms(numbers):
    return numbers.square().mean().sqrt().item()


class Pair:
    """What two of them do differently, over all models."""

    def __init__(self):
        self.layers, self.first, self.places, self.tied, self.turned, self.lines = 0, 0, 0, 0, 0, []
        self.far = {text: [] for text in (NEVER, NOW, *(text for _, text in AGO))}

    def add(self, seed, one, other, prompt):
        differs = one.differs(other)
        follow = follows(differs)
        gap, moved = edge(other.router), one.router - other.router
        (above, level), (other_above, other_level) = (around(run.router) for run in (one, other))
        tied = (gap == 0) & (above == other_above).all(-1) & (level == other_level).all(-1)
        self.tied, self.turned = self.tied + tied.sum().item(), self.turned + (tied & differs).sum().item()
        self.layers = self.layers + differs.sum(1)
        self.first += (differs & ~follow).sum().item()
        self.places += differs.numel()
        for layer, token in differs.nonzero().tolist():
            mine, theirs = (set(run.choice[layer, token].tolist()) for run in (one, other))
            mine, theirs = sorted(mine - theirs), sorted(theirs - mine)
            most = (moved[layer, token, mine].max() - moved[layer, token, theirs].min()).item()
            row, apart = other.router[layer, token], gap[layer, token].item()
            ulps = [apart / ulp(size.item()) for size in (row.topk(CHOSEN).values[-1], row.abs().max())]
            place = (follow[layer, token].item(), apart, *ulps, most, seed, layer, token)
            self.lines.append((*place, f"{mine} for {theirs}"))
        changed = differs.any(0)
        for call, far in enumerate((one.logits - other.logits).abs().amax(1).tolist()):
            token = prompt + call - 1
            since = changed[: token + 1].nonzero()
            ago = token - since[-1].item() if len(since) else None
            text = NEVER if ago is None else NOW if ago == 0 else next(text for most, text in AGO if ago <= most)
            self.far[text].append(far)

    def print(self, name):
        firsts = [line for line in self.lines if not line[0]]
        counts = f"{len(self.lines)} of {self.places} choices differ, {self.layers.tolist()} by layer"
        print(f"\n{name}: {counts}; {self.first} are first ones")
        print("  first ones:    gap   ulps ulps of largest   moved  seed layer token  experts")
        for _, gap, here, largest, most, seed, layer, token, experts in sorted(firsts):
            print(f"  {gap:16.5f} {here:6.1f} {largest:15.1f} {most:7.5f} {seed:5} {layer:5} {token:5}  {experts}")
        follow = [line for line in self.lines if line[0]]
        if follow:
            gap, most = max(line[1] for line in follow), max(line[4] for line in follow)
            print(f"  the other {len(follow)}: a gap of at most {gap:.5f}, moved by at most {most:.5f}")
        print(f"  choices between the same experts with equal logits in both: {self.tied}, of which {self.turned} differ")
        for text, calls in self.far.items():
            if calls:
                far = torch.tensor(calls)
                print(f"  logits, {text}: {len(far)} calls, median {percent(far, 0.5):.4f}, most {far.max():.4f}")


class Truth:
    """What one of them has that the module in f32 with the same experts has not."""

    def __init__(self):
        self.router, self.logits, self.eager, self.other, self.ties, self.wrong, self.gaps = [], [], [], [], 0, 0, []

    def add(self, run, truth, eager):
        self.router.append((run.router - truth.router).abs())
        self.logits.append((run.logits - truth.logits).abs())
        self.eager.append((run.logits - eager.logits).abs())
        chosen = torch.zeros_like(run.router, dtype=torch.bool).scatter(-1, run.choice, True)
        worst = run.router.masked_fill(~chosen, torch.inf).amin(-1)
        self.wrong += (worst < run.router.masked_fill(chosen, -torch.inf).amax(-1)).sum().item()
        self.ties += (edge(run.router) == 0).sum().item()
        would = truth.router.topk(CHOSEN, -1).indices.sort(-1).values
        self.other += edge(truth.router)[(would != run.choice).any(-1)].tolist()
        self.gaps.append(edge(truth.router))

    def print(self, name):
        router, logits, eager = torch.cat(self.router, 1), torch.cat(self.logits), torch.cat(self.eager)
        self.rms = [*map(rms, router), rms(logits)]
        layers = " ".join(f"{one:.5f}" for one in self.rms[:-1])
        print(f"\n{name} against f32 with its choices:")
        print(f"  router: rms {rms(router):.5f} ({layers} by layer), 99% {percent(router, 0.99):.5f}, most {router.max():.5f}")
        print(f"  logits: rms {rms(logits):.5f}, 99% {percent(logits, 0.99):.5f}, most {logits.max():.5f}")
        print(f"  logits against torch in bf16 with its choices: rms {rms(eager):.5f}, most {eager.max():.5f}")
        gaps, most = torch.cat(self.gaps, 1), max(self.other, default=0.0)
        expected = sum(torch.erfc(gap / (2 * rms(layer))).sum().item() / 2 for gap, layer in zip(gaps, router))
        print(f"  choices that f32 would not make: {len(self.other)} of {gaps.numel()} (expected {expected:.1f})")
        print(f"    with a gap there of at most {most:.5f}; as near are {(gaps <= most).sum().item()}")
        print(f"  choices between equal logits: {self.ties}; choices that are not its best logits: {self.wrong}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ptero", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--prompt", type=int, default=8)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("folder", type=pathlib.Path)
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    make_corpus.prepare()
    sys.meta_path.append(make_corpus.StubFinder)
    mx.set_default_device(mx.cpu)
    nodes, prompt = interpreter(), arguments.prompt
    pairs, truths = {}, {}
    for seed in range(arguments.seeds):
        folder = arguments.folder / str(seed)
        model, path = make(seed, folder), folder / "model.pte"
        tokens = torch.randint(0, 256, (prompt + arguments.steps,), generator=torch.Generator().manual_seed(seed))
        position = torch.arange(len(tokens))
        parts = [slice(0, prompt), *(slice(at, at + 1) for at in range(prompt, len(tokens)))]
        calls = [(tokens[part], position[part]) for part in parts]
        runs = {
            "ptero": in_ptero(arguments.ptero, arguments.device, path, calls),
            "MLX": in_mlx(nodes, arguments.ptero, path, calls),
            "torch": in_torch(model, calls),
        }
        precise = copy.deepcopy(model).float()
        for name, run in runs.items():
            truths.setdefault(name, Truth()).add(run, in_torch(precise, calls, run), in_torch(model, calls, run))
        for one, other in itertools.combinations(runs, 2):
            pairs.setdefault(f"{one} and {other}", Pair()).add(seed, runs[one], runs[other], prompt)
        print(f"{seed + 1} of {arguments.seeds}", end="\r", file=sys.stderr, flush=True)
    for name, found in (pairs | truths).items():
        found.print(name)
    ours, *others = (truths[name].rms for name in ("ptero", "MLX", "torch"))
    is_far = any(mine > WORSE * max(theirs) for mine, *theirs in zip(ours, *others))
    sys.exit(is_far or any(truth.wrong for truth in truths.values()))


if __name__ == "__main__":
    main()
