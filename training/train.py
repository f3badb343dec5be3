"""Trains one of the models and saves it as a Hugging Face folder. Needs PyTorch, numpy and safetensors.

    python train.py teacher --out out/teacher                  one GPU, a few minutes each
    python train.py qwen --teacher out/teacher --out out/qwen

The first part of the schedule reads everything, the last part stories only. The very last part computes with weights
rounded to four bits, so that the exported program loses little; of that part, the best state is kept.
"""

import argparse
import json
import math
import struct
import time
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from configs import CONFIGS
from gemma import Gemma
from parts import Rounding
from qwen import Qwen
from safetensors.torch import load_file

TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
    "clean_up_tokenization_spaces": False, "model_max_length": 2048,
}  # fmt: skip
GENERATION = {"bos_token_id": 0, "eos_token_id": 0, "do_sample": True, "temperature": 0.8, "top_p": 0.95}


def batches(tokens: torch.Tensor, size: int, length: int, seed: int):
    """Endless windows of `length` + 1 tokens; every pass starts at another offset and has another order."""
    order = torch.Generator().manual_seed(seed)
    while True:
        offset = int(torch.randint(length, (1,), generator=order))
        count = (len(tokens) - offset - 1) // length
        starts = offset + torch.randperm(count, generator=order) * length
        for at in range(0, count - size + 1, size):
            places = starts[at : at + size, None] + torch.arange(length + 1)
            yield tokens[places.to(tokens.device)].long()


def loss_of(model, window: torch.Tensor, device: str, teacher=None, share: float = 0.0):
    """The cross entropy with the next tokens, mixed by `share` with that of a teacher; and the loss of the routers."""
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        logits, uneven = model(window[:, :-1])
    logits = logits.float().flatten(0, 1)
    loss = F.cross_entropy(logits, window[:, 1:].flatten())
    if teacher is not None:
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            expected = teacher(window[:, :-1])[0].float().flatten(0, 1).softmax(-1)
        loss = (1 - share) * loss + share * F.cross_entropy(logits, expected)
    return loss, uneven


@torch.no_grad()
def check(model, tokens: torch.Tensor, length: int, device: str) -> float:
    """The mean loss on text that was never trained on, in whole windows."""
    model.eval()
    count = (len(tokens) - 1) // length
    places = torch.arange(count)[:, None] * length + torch.arange(length + 1)
    windows = tokens[places.to(tokens.device)].long()
    # Compiling this too would take longer than it saves.
    with torch.compiler.set_stance("force_eager"):
        losses = [loss_of(model, part, device)[0].item() * len(part) for part in windows.split(32)]
    model.train()
    return sum(losses) / count


def save(model, config: dict, data: Path, out: Path) -> None:
    """A folder that `transformers` and `ptero export` read; weights in bf16."""
    out.mkdir(parents=True, exist_ok=True)
    header, bodies, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, tensor in sorted(model.state_dict().items()):
        body = tensor.detach().cpu().bfloat16().contiguous().view(torch.int16).numpy().tobytes()
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [at, at + len(body)]}
        bodies.append(body)
        at += len(body)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (out / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(bodies))
    for name, value in (("config", config), ("tokenizer_config", TOKENIZER), ("generation_config", GENERATION)):
        (out / f"{name}.json").write_text(json.dumps(value, indent=2) + "\n")
    if (data / "tokenizer.json").exists():
        (out / "tokenizer.json").write_bytes((data / "tokenizer.json").read_bytes())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=CONFIGS)
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--teacher", type=Path, help="the folder of a trained model to learn from")
    parser.add_argument("--share", type=float, default=0.8, help="how much of the loss is the teacher's")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--settle", type=float, default=0.2, help="share of the steps with rounded weights")
    parser.add_argument("--mixed", type=float, default=0.3, help="share of the steps that read addresses too")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds that the schedule is fitted into")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="do not compile")
    return parser.parse_args()


def build(config: dict, plain: bool):
    model = (Qwen if config["model_type"].startswith("qwen") else Gemma)(config)
    model.start()
    if not plain:
        # Layer by layer: layers of one kind share their compiled code.
        torch._dynamo.config.cache_size_limit = 64
        for layer in model.model.layers:
            layer.compile()
    return model


def load(folder: Path, plain: bool):
    """A model that was saved here, for inference."""
    model = build(json.loads((folder / "config.json").read_text()), plain)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.requires_grad_(False).eval()


class Best:
    """The state with the least loss so far."""

    def __init__(self):
        self.loss, self.step, self.state = math.inf, 0, None

    def offer(self, model, loss: float, step: int) -> None:
        if loss < self.loss:
            self.loss, self.step = loss, step
            self.state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def main() -> None:
    a = arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    config = CONFIGS[a.model]
    raw = build(config | {"dropout": a.dropout}, a.plain).to(device).train()
    teacher = load(a.teacher, a.plain).to(device) if a.teacher else None
    count = sum(weight.numel() for weight in raw.parameters())
    stories, addresses, valid = (
        torch.from_numpy(numpy.load(a.data / f"{part}.npy").astype(numpy.int32)).to(device)
        for part in ("stories", "addresses", "valid")
    )
    print(f"{a.model}: {count} parameters, {len(stories)} + {len(addresses)} tokens, on {device}")
    matrices = [weight for weight in raw.parameters() if weight.dim() >= 2]
    vectors = [weight for weight in raw.parameters() if weight.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": a.decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=a.rate, betas=(0.9, 0.95), fused=device == "cuda",
    )  # fmt: skip
    balance = config.get("router_aux_loss_coef", 0.0)
    everything = batches(torch.cat((addresses, stories)), a.batch, a.length, a.seed)
    only = batches(stories, a.batch, a.length, a.seed + 1)
    warm, best = max(1, a.steps // 20), Best()
    started, shown, done, step = time.time(), (time.time(), 0), 0.0, 0
    while done < 1.0:
        # If time runs out before the steps do, the schedule follows the time.
        done = max(done, (step + 1) / a.steps, (time.time() - started) / a.limit)
        Rounding.on = done > 1 - a.settle
        share = min((step + 1) / warm, 0.02 + 0.98 * (1 + math.cos(math.pi * min(done, 1.0))) / 2)
        for group in optimizer.param_groups:
            group["lr"] = a.rate * share
        window = next(everything if done < a.mixed else only)
        loss, uneven = loss_of(raw, window, device, teacher, a.share)
        (loss + balance * uneven).backward()
        torch.nn.utils.clip_grad_norm_(raw.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % (100 if Rounding.on else 200) == 0 or done >= 1.0 or step < 3:
            found, now = loss.item(), time.time()
            speed = (step - shown[1]) * a.batch * a.length / (now - shown[0])
            held = check(raw, valid, a.length, device) if step > 2 else math.nan
            if Rounding.on or a.settle == 0:
                best.offer(raw, held, step)
            print(f"step {step} loss {found:.3f} held out {held:.3f} uneven {float(uneven.detach()):.3f} "
                  f"{speed:.0f} tokens/s {now - started:.0f} s", flush=True)  # fmt: skip
            shown = (time.time(), step)
    raw.load_state_dict(best.state)
    Rounding.on = False
    held = check(raw, valid, a.length, device)
    print(f"held out: {held:.4f} as trained, {best.loss:.4f} as computed while settling, at step {best.step}")
    if device == "cuda":
        print(f"memory: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    save(raw, config, a.data, a.out)


if __name__ == "__main__":
    main()
