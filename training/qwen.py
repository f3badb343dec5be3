"""The Qwen3.5-MoE architecture for training: parameter names are those of `Qwen3_5MoeForCausalLM`."""

import torch
import torch.nn.functional as F
from parts import GatedMlp, Linear, RmsNorm, attend, rotate, rotation, rounded
from torch import nn

CHUNK = 64


def delta_rule(query, key, value, decay, rate):
    """The gated delta rule, a chunk at a time: [batch, head, position, size]; `decay` is a logarithm.

    Within a chunk, what every position writes depends on the writes before it; that triangular system is solved once,
    and the state passes from chunk to chunk.
    """
    length = query.shape[2]
    padding = -length % CHUNK
    query, key, value = (F.pad(x, (0, 0, 0, padding)).unflatten(2, (-1, CHUNK)) for x in (query, key, value))
    decay, rate = (F.pad(x, (0, padding)).unflatten(2, (-1, CHUNK)) for x in (decay, rate))
    summed = decay.cumsum(-1)
    earlier = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=query.device).tril()
    between = (summed[..., :, None] - summed[..., None, :]).masked_fill(~earlier, -torch.inf).exp()
    weighted = key * rate[..., None]
    system = (weighted @ key.mT * between).tril(-1) + torch.eye(CHUNK, device=query.device)
    sides = torch.cat((value * rate[..., None], weighted * summed.exp()[..., None]), -1)
    solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
    written, read = solved.split((value.shape[-1], key.shape[-1]), -1)
    within = query @ key.mT * between
    query = query * summed.exp()[..., None]
    key = key * (summed[..., -1:] - summed).exp()[..., None]
    fade = summed[..., -1].exp()[..., None, None]
    state = query.new_zeros(*query.shape[:2], key.shape[-1], value.shape[-1])
    results = []
    for chunk in range(query.shape[2]):
        fresh = written[:, :, chunk] - read[:, :, chunk] @ state
        results.append(query[:, :, chunk] @ state + within[:, :, chunk] @ fresh)
        state = state * fade[:, :, chunk] + key[:, :, chunk].mT @ fresh
    return torch.cat(results, 2)[:, :, :length]


class DeltaNet(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        hidden = c["hidden_size"]
        self.size_k, self.size_v = c["linear_key_head_dim"], c["linear_value_head_dim"]
        self.heads_k, self.heads_v = c["linear_num_key_heads"], c["linear_num_value_heads"]
        self.keys, self.values = self.size_k * self.heads_k, self.size_v * self.heads_v
        mixed, self.taps = 2 * self.keys + self.values, c["linear_conv_kernel_dim"]
        self.conv1d = nn.Conv1d(mixed, mixed, self.taps, groups=mixed, bias=False)
        self.dt_bias = nn.Parameter(torch.ones(self.heads_v))
        self.A_log = nn.Parameter(torch.empty(self.heads_v).uniform_(0.01, 16).log())
        self.norm = RmsNorm(self.size_v, c["rms_norm_eps"])
        self.in_proj_qkv = Linear(hidden, mixed)
        self.in_proj_z = Linear(hidden, self.values)
        self.in_proj_b = Linear(hidden, self.heads_v)
        self.in_proj_a = Linear(hidden, self.heads_v)
        self.out_proj = Linear(self.values, hidden)

    def forward(self, x):
        mixed = F.pad(self.in_proj_qkv(x).mT, (self.taps - 1, 0))
        mixed = F.silu(F.conv1d(mixed, self.conv1d.weight.to(mixed.dtype), groups=mixed.shape[1])).mT
        query, key, value = mixed.split((self.keys, self.keys, self.values), -1)
        gate = self.in_proj_z(x).unflatten(-1, (-1, self.size_v))
        rate, step = self.in_proj_b(x), self.in_proj_a(x)
        with torch.autocast(x.device.type, enabled=False):
            query, key = (y.float().unflatten(-1, (-1, self.size_k)).transpose(1, 2) for y in (query, key))
            value = value.float().unflatten(-1, (-1, self.size_v)).transpose(1, 2)
            query, key = (y * torch.rsqrt(y.pow(2).sum(-1, keepdim=True) + 1e-6) for y in (query, key))
            repeat = self.heads_v // self.heads_k
            query = query.repeat_interleave(repeat, 1) * self.size_k**-0.5
            key = key.repeat_interleave(repeat, 1)
            decay = -self.A_log.float().exp() * F.softplus(step.float() + self.dt_bias.float())
            mixed = delta_rule(query, key, value, decay.mT, rate.float().sigmoid().mT)
            mixed = self.norm(mixed.transpose(1, 2)) * F.silu(gate.float())
        return self.out_proj(mixed.flatten(2).to(x.dtype))


class Attention(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        hidden, self.size = c["hidden_size"], c["head_dim"]
        self.q_proj = Linear(hidden, c["num_attention_heads"] * self.size * 2)
        self.k_proj = Linear(hidden, c["num_key_value_heads"] * self.size)
        self.v_proj = Linear(hidden, c["num_key_value_heads"] * self.size)
        self.o_proj = Linear(c["num_attention_heads"] * self.size, hidden)
        self.q_norm = RmsNorm(self.size, c["rms_norm_eps"], 1.0)
        self.k_norm = RmsNorm(self.size, c["rms_norm_eps"], 1.0)

    def forward(self, x, turn):
        query, gate = self.q_proj(x).unflatten(-1, (-1, 2 * self.size)).chunk(2, -1)
        key, value = (p(x).unflatten(-1, (-1, self.size)) for p in (self.k_proj, self.v_proj))
        query, key = (rotate(y.transpose(1, 2), turn) for y in (self.q_norm(query), self.k_norm(key)))
        mixed = attend(query, key, value.transpose(1, 2), self.size**-0.5)
        return self.o_proj(mixed * gate.flatten(2).sigmoid())


class Router(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(c["num_experts"], c["hidden_size"]))


class Experts(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        experts, hidden, inner = c["num_experts"], c["hidden_size"], c["moe_intermediate_size"]
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * inner, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, inner))


class MixtureOfExperts(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        self.chosen = c["num_experts_per_tok"]
        self.gate, self.experts = Router(c), Experts(c)
        self.shared_expert = GatedMlp(c["hidden_size"], c["shared_expert_intermediate_size"], F.silu)
        self.shared_expert_gate = Linear(c["hidden_size"], 1)

    def forward(self, x):
        """Computes every expert for every token and masks all but the chosen ones: for experts this small, two large
        products are faster than many small ones. The second result is the load-balancing loss."""
        with torch.autocast(x.device.type, enabled=False):
            chances = F.linear(x.float(), rounded(self.gate.weight).float()).softmax(-1)
        best, which = chances.topk(self.chosen, -1)
        shares = torch.zeros_like(chances).scatter(-1, which, best / best.sum(-1, keepdim=True))
        inner = F.linear(x, rounded(self.experts.gate_up_proj).flatten(0, 1)).unflatten(-1, (chances.shape[-1], -1))
        gate, up = inner.chunk(2, -1)
        inner = (F.silu(gate) * up * shares[..., None].to(x.dtype)).flatten(-2)
        routed = F.linear(inner, rounded(self.experts.down_proj).permute(1, 0, 2).flatten(1))
        shared = self.shared_expert_gate(x).sigmoid() * self.shared_expert(x)
        load = (shares > 0).float().mean((0, 1))
        uneven = chances.shape[-1] / self.chosen * (load * chances.mean((0, 1))).sum()
        return routed + shared, uneven


class Layer(nn.Module):
    def __init__(self, c: dict, kind: str):
        super().__init__()
        self.linear = kind == "linear_attention"
        if self.linear:
            self.linear_attn = DeltaNet(c)
        else:
            self.self_attn = Attention(c)
        self.mlp = MixtureOfExperts(c)
        self.input_layernorm = RmsNorm(c["hidden_size"], c["rms_norm_eps"], 1.0)
        self.post_attention_layernorm = RmsNorm(c["hidden_size"], c["rms_norm_eps"], 1.0)
        self.drop = nn.Dropout(c.get("dropout", 0.0))

    def forward(self, x, turn):
        normed = self.input_layernorm(x)
        x = x + self.drop(self.linear_attn(normed) if self.linear else self.self_attn(normed, turn))
        mixed, uneven = self.mlp(self.post_attention_layernorm(x))
        return x + self.drop(mixed), uneven


class Body(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        every = c.get("full_attention_interval", 4)
        kinds = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(c["num_hidden_layers"])]
        self.layers = nn.ModuleList(Layer(c, kind) for kind in c.get("layer_types") or kinds)
        self.norm = RmsNorm(c["hidden_size"], c["rms_norm_eps"], 1.0)


class Qwen(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        self.config = c
        self.model = Body(c)
        if not c["tie_word_embeddings"]:
            self.lm_head = Linear(c["hidden_size"], c["vocab_size"])
        self.drop = nn.Dropout(c.get("dropout", 0.0))
        rope = c["rope_parameters"]
        size = int(c["head_dim"] * rope["partial_rotary_factor"])
        frequencies = rope["rope_theta"] ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, tokens):
        """Logits, and the mean loss of the routers."""
        x = self.drop(self.model.embed_tokens(tokens))
        turn = rotation(tokens.shape[1], self.frequencies)
        uneven = 0.0
        for layer in self.model.layers:
            x, more = layer(x, turn)
            uneven = uneven + more
        x = self.model.norm(x)
        tied = self.config["tie_word_embeddings"]
        logits = F.linear(x, self.model.embed_tokens.weight) if tied else self.lm_head(x)
        return logits, uneven / len(self.model.layers)

    @torch.no_grad()
    def start(self):
        """Small random weights; projections into the residual stream start smaller in deeper models."""
        depth = (2 * len(self.model.layers)) ** -0.5
        for name, weight in self.named_parameters():
            if weight.dim() < 2:
                continue
            if "conv1d" in name:
                nn.init.uniform_(weight, -0.5, 0.5)
                continue
            adds = any(part in name for part in ("o_proj", "out_proj", "down_proj"))
            nn.init.normal_(weight, std=0.02 * (depth if adds else 1.0))
