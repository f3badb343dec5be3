"""The Gemma 4 architecture (dense text) for training: parameter names are those of `Gemma4ForCausalLM`."""

import functools

import torch
import torch.nn.functional as F
from parts import GatedMlp, Linear, RmsNorm, attend, rotate, rotation
from torch import nn


class Attention(nn.Module):
    def __init__(self, c: dict, sliding: bool):
        super().__init__()
        hidden, heads, epsilon = c["hidden_size"], c["num_attention_heads"], c["rms_norm_eps"]
        self.size = c["head_dim"] if sliding else c["global_head_dim"]
        keys = c["num_key_value_heads"] if sliding else c["num_global_key_value_heads"]
        self.q_proj = Linear(hidden, heads * self.size)
        self.k_proj = Linear(hidden, keys * self.size)
        # Layers with full attention use the keys as values too, before either is normalized.
        self.v_proj = Linear(hidden, keys * self.size) if sliding or not c["attention_k_eq_v"] else None
        self.o_proj = Linear(heads * self.size, hidden)
        self.q_norm = RmsNorm(self.size, epsilon)
        self.k_norm = RmsNorm(self.size, epsilon)
        self.v_norm = RmsNorm(None, epsilon)

    def forward(self, x, turn, mask):
        query, key = (p(x).unflatten(-1, (-1, self.size)) for p in (self.q_proj, self.k_proj))
        value = key if self.v_proj is None else self.v_proj(x).unflatten(-1, (-1, self.size))
        query, key = (rotate(y.transpose(1, 2), turn) for y in (self.q_norm(query), self.k_norm(key)))
        return self.o_proj(attend(query, key, self.v_norm(value).transpose(1, 2), 1.0, mask))


class Layer(nn.Module):
    def __init__(self, c: dict, sliding: bool):
        super().__init__()
        hidden, epsilon = c["hidden_size"], c["rms_norm_eps"]
        self.sliding = sliding
        self.self_attn = Attention(c, sliding)
        self.mlp = GatedMlp(hidden, c["intermediate_size"], functools.partial(F.gelu, approximate="tanh"))
        self.input_layernorm = RmsNorm(hidden, epsilon)
        self.post_attention_layernorm = RmsNorm(hidden, epsilon)
        self.pre_feedforward_layernorm = RmsNorm(hidden, epsilon)
        self.post_feedforward_layernorm = RmsNorm(hidden, epsilon)
        self.register_buffer("layer_scalar", torch.ones(1))
        self.drop = nn.Dropout(c.get("dropout", 0.0))

    def forward(self, x, turn, mask):
        mixed = self.self_attn(self.input_layernorm(x), turn, mask)
        x = x + self.drop(self.post_attention_layernorm(mixed))
        mixed = self.mlp(self.pre_feedforward_layernorm(x))
        x = x + self.drop(self.post_feedforward_layernorm(mixed))
        return x * self.layer_scalar


class Body(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c, kind == "sliding_attention") for kind in c["layer_types"])
        self.norm = RmsNorm(c["hidden_size"], c["rms_norm_eps"])


class Gemma(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        self.config = c
        self.model = Body(c)
        self.drop = nn.Dropout(c.get("dropout", 0.0))
        near, far = c["rope_parameters"]["sliding_attention"], c["rope_parameters"]["full_attention"]
        size, wide = c["head_dim"], c["global_head_dim"]
        self.register_buffer("near", near["rope_theta"] ** (-torch.arange(0, size, 2) / size), persistent=False)
        frequencies = far["rope_theta"] ** (-torch.arange(0, wide, 2) / wide)
        # The pairs beyond the rotated share do not rotate.
        turning = torch.arange(wide // 2) < int(far["partial_rotary_factor"] * wide // 2)
        self.register_buffer("far", frequencies * turning, persistent=False)

    def forward(self, tokens):
        """Logits, and a loss of routers that is always 0 here."""
        x = self.model.embed_tokens(tokens) * self.config["hidden_size"] ** 0.5
        x = self.drop(x)
        length = tokens.shape[1]
        near, far = rotation(length, self.near), rotation(length, self.far)
        places = torch.arange(length, device=tokens.device)
        distance = places[:, None] - places[None, :]
        window = (distance >= 0) & (distance < self.config["sliding_window"])
        for layer in self.model.layers:
            x = layer(x, near, window) if layer.sliding else layer(x, far, None)
        logits = F.linear(self.model.norm(x), self.model.embed_tokens.weight)
        cap = self.config["final_logit_softcapping"]
        return torch.tanh(logits.float() / cap) * cap, x.new_zeros(())

    @torch.no_grad()
    def start(self):
        """Small random weights; the norms set the initial scale of each block and the initial sharpness of attention."""
        depth = (2 * len(self.model.layers)) ** -0.5
        for name, weight in self.named_parameters():
            if weight.dim() >= 2:
                nn.init.normal_(weight, std=0.02)
            elif "q_norm" in name:
                weight.fill_(weight.shape[0] ** -0.5)
            elif "post_" in name:
                weight.fill_(depth)
