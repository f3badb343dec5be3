"""The two models and their teacher: what `config.json` will say."""

VOCABULARY = 4096
SHARED = {
    "vocab_size": VOCABULARY, "hidden_size": 384, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "attention_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02, "max_position_embeddings": 2048,
    "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None, "dtype": "bfloat16", "use_cache": True,
}  # fmt: skip

QWEN = SHARED | {
    "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "hidden_act": "silu",
    "num_hidden_layers": 8, "full_attention_interval": 4,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_num_key_heads": 3,
    "linear_num_value_heads": 6, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64,
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "shared_expert_intermediate_size": 256,
    "router_aux_loss_coef": 0.01, "output_router_logits": False, "partial_rotary_factor": 0.25,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
}  # fmt: skip

GEMMA = SHARED | {
    "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "hidden_activation": "gelu_pytorch_tanh",
    "num_hidden_layers": 10, "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 2,
    "sliding_window": 256, "intermediate_size": 896, "num_attention_heads": 6, "num_key_value_heads": 2,
    "num_global_key_value_heads": 1, "head_dim": 64, "global_head_dim": 128, "attention_k_eq_v": True,
    "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": VOCABULARY,
    "num_kv_shared_layers": 0, "use_double_wide_mlp": False, "enable_moe_block": False, "num_experts": None,
    "top_k_experts": None, "moe_intermediate_size": None, "use_bidirectional_attention": None, "pad_token_id": 0,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "proportional", "rope_theta": 100000.0, "partial_rotary_factor": 0.25},
    },
}  # fmt: skip

# Reads the same text and tells the two what it thinks of every next token; it is not kept.
TEACHER = GEMMA | {
    "hidden_size": 768, "num_hidden_layers": 10, "intermediate_size": 2048, "num_attention_heads": 12,
    "num_key_value_heads": 4, "num_global_key_value_heads": 2,
}  # fmt: skip
CONFIGS = {"qwen": QWEN, "gemma": GEMMA, "teacher": TEACHER}
