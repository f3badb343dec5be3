"""Layers that both models share, and the rounding of weights in the last phase of training."""

import torch
import torch.nn.functional as F
from torch import nn

GROUP = 32


class Rounding:
    """Switches linear layers to weights rounded to four bits, as in the exported program."""

    on = False


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """The weight rounded to sixteen values per group of 32; gradients pass through unchanged."""
    if not Rounding.on or weight.shape[-1] % GROUP:
        return weight
    groups = weight.detach().float().unflatten(-1, (-1, GROUP))
    place = groups.abs().argmax(-1, keepdim=True)
    scale = groups.gather(-1, place) / -8
    scale = torch.where(scale == 0, 1.0, scale).bfloat16().float()
    grid = (groups / scale).round().clamp(-8, 7) * scale
    return weight + (grid.flatten(-2) - weight).detach()


class Linear(nn.Linear):
    def __init__(self, inputs: int, outputs: int):
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x):
        return F.linear(x, rounded(self.weight))


class RmsNorm(nn.Module):
    """`offset` 1 stores the weight as its distance from one, as the Qwen family does; `size` None has no weight."""

    def __init__(self, size: int | None, epsilon: float, offset: float = 0.0):
        super().__init__()
        self.epsilon = epsilon
        self.offset = offset
        self.weight = nn.Parameter(torch.full((size,), 1.0 - offset)) if size else None

    def forward(self, x):
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        if self.weight is not None:
            normed = normed * (self.offset + self.weight.float())
        return normed.to(x.dtype)


class GatedMlp(nn.Module):
    def __init__(self, hidden: int, inner: int, activation):
        super().__init__()
        self.gate_proj = Linear(hidden, inner)
        self.up_proj = Linear(hidden, inner)
        self.down_proj = Linear(inner, hidden)
        self.activation = activation

    def forward(self, x):
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


def rotation(length: int, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [length, 2 * frequencies]; both halves of a head rotate by the same angles."""
    angles = torch.arange(length, device=frequencies.device, dtype=torch.float32)[:, None] * frequencies
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """`x` [batch, head, position, size]; dimensions beyond the rotated part of a head pass through."""
    cosine, sine = turn
    part, rest = x[..., : cosine.shape[-1]], x[..., cosine.shape[-1] :]
    left, right = part.chunk(2, -1)
    turned = part * cosine + torch.cat((-right, left), -1) * sine
    return torch.cat((turned.to(x.dtype), rest), -1)


def attend(query, key, value, scale: float, mask: torch.Tensor | None = None):
    """Causal attention where query heads share key heads; `mask` replaces the causal one."""
    repeat = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
    mixed = F.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None, scale=scale)
    return mixed.transpose(1, 2).flatten(2)
