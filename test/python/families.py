"""Small models of every family of AutoModelForCausalLM."""

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as FAMILIES

VOCABULARY = 97
SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "n_embed", "dim", "embedding_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "decoder_ffn_dim", "dff", "ffn_hidden_size"), 48),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "encoder_attention_heads"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "state_size"), 8),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "encoder_layers", "bos_token_id"), 1),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok", "linear_num_key_heads", "eos_token_id"), 2),
    **{"vocab_size": VOCABULARY, "linear_num_value_heads": 4, "encoder_ffn_dim": 48, "max_position_embeddings": 64},
    **{"pad_token_id": 0, "sliding_window": 5},
    # What some do to their embeddings and logits.
    **{"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2, "logits_scaling": 4.0},
    "logit_scale": 0.25,
}
# Of a tower that a text does not use.
TOWER = {**SIZES, "image_size": 16, "patch_size": 8, "num_hidden_layers": 1, "depth": 1}
for key in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "sliding_window"):
    del TOWER[key]

LATENT = {"num_key_value_heads": 4}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 5}
MIXED = ["sliding_attention", "full_attention"] * 2
GEMMA4 = {
    **{"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
    **{"layer_types": MIXED, "global_head_dim": 8},
}
INDEXER = {
    **{"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8},
    **{"indexer_compress_ratio": 2, "layer_types": ["linear_attention", "indexed_attention"] * 2},
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
SPECIAL = {
    **dict.fromkeys(("axk1", "axk2", "deepseek_v2", "deepseek_v32", "glm4_moe_lite"), LATENT),
    **dict.fromkeys(("glm_moe_dsa", "minicpm3", "sarvam_mla", "youtu"), LATENT),
    **dict.fromkeys(("dots3_note", "dots3_note_text"), {**LATENT, "layer_types": ["indexed_attention"] * 4}),
    **dict.fromkeys(("codegen", "gptj"), {"rotary_dim": 4}),
    **dict.fromkeys(("gemma3", "gemma3_text"), {"final_logit_softcapping": 20.0}),
    **dict.fromkeys(("gemma4", "gemma4_text"), GEMMA4),
    **dict.fromkeys(("qwen4_exp", "qwen4_exp_text"), INDEXER),
    "afmoe": {"num_dense_layers": 1},
    "bamba": MAMBA,
    "blt": {"encoder_hash_byte_group_vocab": 101, "encoder_hash_byte_group_size": [2]},
    "cohere_compass_text": {"layer_types": MIXED, "rope_parameters": dict.fromkeys(MIXED, ROPE)},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v3": {**LATENT, "first_k_dense_replace": 1},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 64},
    "gemma3n_text": {
        **{"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": VOCABULARY},
        **{"laurel_rank": 4, "activation_sparsity_pattern": None, "layer_types": MIXED},
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 5},
    "granitemoehybrid": {**MAMBA, "layers_block_type": ["mamba", "attention"] * 2},
    "kimi_linear": {"linear_head_dim": 8, "linear_num_heads": 4},
    "lfm2_moe": {"layer_types": ["full_attention", "conv"] * 2, "num_dense_layers": 1},
    "longcat_flash": {**LATENT, "expert_ffn_hidden_size": 16, "zero_expert_num": 2, "moe_topk": 2},
    "mamba2": {"num_heads": 8, "n_groups": 1, "chunk_size": 5},
    "reformer": {
        **{"is_decoder": True, "axial_pos_embds_dim": [16, 16], "axial_pos_shape": [4, 16], "num_buckets": 4},
        "attn_layers": ["local", "lsh"] * 2,
    },
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 1, "ssm_state_size": 8, "chunk_size": 5},
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zamba2": {
        **{"layers_block_type": ["mamba", "hybrid"] * 2, "hybrid_layer_ids": [1, 3], "mamba_d_state": 8},
        **{"n_mamba_heads": 8, "mamba_headdim": 8, "mamba_ngroups": 1, "use_shared_attention_adapter": False},
        "chunk_size": 5,
    },
    "zaya": {"num_experts_per_tok": 1},
}


def known(config, sizes):
    names = {*vars(config), *getattr(type(config), "attribute_map", {})}
    return {name: size for name, size in sizes.items() if name in names}


def config_of(family):
    default = CONFIG_MAPPING[family]()
    text = default.get_text_config(decoder=True)
    special = SPECIAL.get(family, {})
    is_nested = any(text is inner for inner in vars(default).values())
    sizes = known(default, SIZES)
    if is_nested:
        sizes = {name: size for name, size in sizes.items() if name.endswith("token_id")}
    for name, inner in vars(default).items():
        if isinstance(inner, transformers.PreTrainedConfig):
            sizes[name] = {**known(inner, SIZES), **special} if inner is text else known(inner, TOWER)
    if not is_nested:
        sizes |= special
    return CONFIG_MAPPING[family](**sizes)


def model_of(family):
    """A model without random draws, whose norms and biases matter."""
    torch.manual_seed(1)
    config = config_of(family)
    made = getattr(transformers, FAMILIES[family])
    if made.config_class is not None and not isinstance(config, made.config_class):
        config = config.get_text_config(decoder=True)
    model = made(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    for module in model.modules():
        if type(module).__name__ == "PhimoeTopKRouter":  # in training it draws random numbers
            type(module).train = lambda self, mode=True: torch.nn.Module.train(self, False)
            module.train()
        for name, value in vars(module).items():
            if isinstance(value, float) and ("drop" in name or isinstance(module, torch.nn.Dropout) and name == "p"):
                setattr(module, name, 0.0)
    return model
