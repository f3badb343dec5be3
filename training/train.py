"""Trains one of the models and saves it as a Hugging Face folder. Needs PyTorch and numpy, nothing else.

    python train.py qwen --data data --out out/qwen            one GPU, a few minutes

The first part of the schedule reads everything, the last part stories only. The very last part computes with weights
rounded to four bits, so that the exported program loses little.
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
from configs import GEMMA, QWEN
from gemma import Gemma
from parts import Rounding
from qwen import Qwen

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


def loss_of(model, window: torch.Tensor, device: str):
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        logits, uneven = model(window[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten()), uneven


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


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("model", choices=("qwen", "gemma"))
    arguments.add_argument("--data", type=Path, default=Path(__file__).parent / "data")
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--steps", type=int, default=3000)
    arguments.add_argument("--batch", type=int, default=64)
    arguments.add_argument("--length", type=int, default=512)
    arguments.add_argument("--rate", type=float, default=1.5e-3)
    arguments.add_argument("--decay", type=float, default=0.1)
    arguments.add_argument("--dropout", type=float, default=0.25)
    arguments.add_argument("--settle", type=float, default=0.2, help="share of the steps with rounded weights")
    arguments.add_argument("--mixed", type=float, default=0.4, help="share of the steps that read addresses too")
    arguments.add_argument("--limit", type=float, default=math.inf, help="seconds that the schedule is fitted into")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--plain", action="store_true", help="do not compile")
    a = arguments.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    config = QWEN if a.model == "qwen" else GEMMA
    raw = (Qwen if a.model == "qwen" else Gemma)(config | {"dropout": a.dropout})
    raw.start()
    raw.to(device).train()
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
    if not a.plain:
        # Layer by layer: layers of one kind share what is compiled.
        torch._dynamo.config.cache_size_limit = 64
        for layer in raw.model.layers:
            layer.compile()
    balance = config.get("router_aux_loss_coef", 0.0)
    everything = batches(torch.cat((addresses, stories)), a.batch, a.length, a.seed)
    only = batches(stories, a.batch, a.length, a.seed + 1)
    warm = max(1, a.steps // 20)
    started, shown, done, step = time.time(), (time.time(), 0), 0.0, 0
    while done < 1.0:
        # Where time runs out before the steps do, the schedule goes by time.
        done = max(done, (step + 1) / a.steps, (time.time() - started) / a.limit)
        Rounding.on = done > 1 - a.settle
        share = min((step + 1) / warm, 0.02 + 0.98 * (1 + math.cos(math.pi * min(done, 1.0))) / 2)
        for group in optimizer.param_groups:
            group["lr"] = a.rate * share
        loss, uneven = loss_of(raw, next(everything if done < a.mixed else only), device)
        (loss + balance * uneven).backward()
        torch.nn.utils.clip_grad_norm_(raw.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 200 == 0 or done >= 1.0 or step < 3:
            found, now = loss.item(), time.time()
            speed = (step - shown[1]) * a.batch * a.length / (now - shown[0])
            held = check(raw, valid, a.length, device) if step > 2 else math.nan
            print(f"step {step} loss {found:.3f} held out {held:.3f} uneven {float(uneven.detach()):.3f} "
                  f"{speed:.0f} tokens/s {now - started:.0f} s")  # fmt: skip
            shown = (time.time(), step)
    Rounding.on = True
    four = check(raw, valid, a.length, device)
    Rounding.on = False
    print(f"held out: {check(raw, valid, a.length, device):.4f} as trained, {four:.4f} rounded to four bits")
    if device == "cuda":
        print(f"memory: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    save(raw, config, a.data, a.out)


if __name__ == "__main__":
    main()
