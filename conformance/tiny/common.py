"""What every family of tiny models shares: random weights, the logits, the files, and the proof that nothing is idle."""

import copy
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

SEQUENCE = 24
VOCABULARY = 96
LARGEST_FOLDER = 200_000

torch.set_num_threads(2)


@dataclass
class Variant:
    """One tiny model.

    name       of the folder
    exercises  a sentence: what a wrong exporter would get wrong here
    config     a transformers config
    off        config keys that switch the exercised thing off; the logits must then differ (None: nothing to switch)
    special    gives the value of a parameter that the usual rule would not suit: (name, tensor, generator) -> tensor or None
    build      makes the model of the config; it must be in f32
    logits     runs it: (model, tokens [1, S]) -> [S, V]
    idle       parts of names of tensors that need not matter to the logits
    finish     changes the folder's files once they are written; the model read back must still give the same logits
    """

    name: str
    exercises: str
    config: object
    off: dict | None = None
    special: Callable = lambda name, tensor, generator: None
    build: Callable = lambda config: AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    logits: Callable = lambda model, tokens: model(tokens, use_cache=False).logits[0]
    idle: tuple = ()
    finish: Callable = lambda folder: None


def randomise(model, special, seed):
    """Fills every parameter and every saved buffer: nothing is left at one or zero, where it would hide a mistake."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict(keep_vars=True).items():
        value = special(name, tensor, generator)
        if value is None:
            value = usual(name, tensor, generator)
        with torch.no_grad():
            tensor.copy_(value)
    model.tie_weights()


def usual(name, tensor, generator):
    noise = torch.randn(tensor.shape, generator=generator)
    if name.endswith("norm.weight"):
        return 1.0 + 0.3 * noise.clamp(-2, 2)
    if tensor.dim() < 2:
        return 0.3 * noise
    if "embed_tokens" in name:
        return 0.5 * noise
    # A little more than preserves the scale, so that attention is not nearly flat.
    return 1.4 * noise / tensor.shape[-1] ** 0.5


def evaluate(variant, model, tokens):
    """Logits with f64 matrices (transformers itself keeps norms, softmax and rotary angles in f32), rounded to f32."""
    with torch.no_grad():
        return variant.logits(model.double(), tokens[None]).to(torch.float32)


def build(variant, config):
    model = variant.build(copy.deepcopy(config)).eval()
    assert all(tensor.dtype in (torch.float32, torch.int64) for tensor in model.state_dict().values()), "model is not f32"
    return model


def write(variant, folder: Path) -> str:
    """Writes the folder; answers a line about it."""
    seed = zlib.crc32(variant.name.encode())
    tokens = torch.randint(VOCABULARY, (SEQUENCE,), generator=torch.Generator().manual_seed(seed))
    torch.manual_seed(seed)
    model = build(variant, variant.config)
    randomise(model, variant.special, seed)

    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    weights = copy.deepcopy(model.state_dict())
    logits = evaluate(variant, model, tokens)
    variant.finish(folder)
    again = type(model).from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    assert torch.equal(evaluate(variant, again, tokens), logits), f"{variant.name}: the written files are another model"
    assert logits.shape == (SEQUENCE, VOCABULARY) and logits.isfinite().all()
    save_file(
        {"tokens": tokens, "logits": logits.contiguous()},
        folder / "golden.safetensors",
        metadata={"exercises": variant.exercises},
    )
    prove_nothing_is_idle(variant, model, weights, tokens, logits)
    switched = prove_the_switch(variant, weights, tokens, logits)

    for file in folder.iterdir():
        file.chmod(0o644)
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert size <= LARGEST_FOLDER, f"{variant.name}: {size} bytes"
    return f"{variant.name}: {size} bytes, logits' deviation {logits.std():.2f}, switch changes up to {switched}"


def prove_nothing_is_idle(variant, model, weights, tokens, logits):
    state = model.state_dict(keep_vars=True)
    for name, weight in weights.items():
        if any(part in name for part in variant.idle):
            continue
        with torch.no_grad():
            kept = state[name].clone()
            state[name].copy_(weight * 1.5 + 0.1)
            changed = (evaluate(variant, model, tokens) - logits).abs().max()
            state[name].copy_(kept)
        assert changed > 1e-3, f"{variant.name}: tensor {name} hardly matters ({changed})"


def prove_the_switch(variant, weights, tokens, logits):
    if variant.off is None:
        return "nothing (no switch)"
    config = copy.deepcopy(variant.config)
    for key, value in variant.off.items():
        setattr(config, key, value)
    model = build(variant, config)
    model.load_state_dict(weights, strict=False)
    changed = (evaluate(variant, model, tokens) - logits).abs().max()
    assert changed > 1e-2, f"{variant.name}: its switch hardly matters ({changed})"
    return f"{changed:.2f}"
