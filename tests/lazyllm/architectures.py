"""Tiny random models of every causal-LM type that transformers knows, shrunk by the names of their settings.

A case is a type, or a type and a variant of its settings: `qwen2`, `qwen2/narrow`.
"""

import dataclasses

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

TYPES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
LAYERS = 5
PROMPT = 40
# More than the prompt and its answer, and less than the prompt.
WIDE, NARROW = 256, 16

_VALUES: list[tuple[object, str]] = [
    (97, "vocab_size"),
    (LAYERS, "num_hidden_layers n_layer n_layers num_layers"),
    (64, "hidden_size n_embd d_model emb_dim embedding_size input_embedding_size output_embedding_size"),
    (64, "word_embed_proj_dim lru_width"),
    (96, "intermediate_size n_inner ffn_dim decoder_ffn_dim encoder_ffn_dim dff dim_ff d_inner ffn_hidden_size"),
    (96, "intermediate_size_mlp feed_forward_size prefix_dense_intermediate_size dense_intermediate_size"),
    (32, "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size expert_ffn_hidden_size"),
    (32, "moe_shared_expert_intermediate_size shared_experts_intermediate_size q_lora_rank kv_lora_rank o_lora_rank"),
    (32, "hidden_size_per_layer_input router_hidden_size laurel_rank pronunciation_embed_dim shape_embed_dim"),
    (16, "head_dim d_head kv_channels dim_head swa_head_dim linear_key_head_dim linear_value_head_dim linear_head_dim"),
    (16, "attention_head_size v_head_dim query_pre_attn_scalar index_head_dim qk_head_dim mamba_d_head mamba_head_dim"),
    (8, "qk_rope_head_dim qk_nope_head_dim rotary_dim d_rel mamba_n_heads mamba_num_heads"),
    (4, "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads attention_heads"),
    (4, "num_encoder_attention_heads num_decoder_attention_heads swa_num_attention_heads linear_num_heads"),
    (4, "linear_num_value_heads num_experts n_routed_experts num_local_experts moe_num_experts index_n_heads"),
    (4, "zero_expert_num"),
    (2, "num_key_value_heads num_kv_heads swa_num_key_value_heads linear_num_key_heads num_experts_per_tok moe_topk"),
    (2, "moe_k top_k_experts n_mamba_heads first_k_dense_replace"),
    (1, "n_group topk_group n_shared_experts moe_num_shared_experts num_shared_experts mamba_n_groups n_groups"),
    (1, "num_dense_layers"),
    (512, "max_position_embeddings n_positions n_ctx max_seq_len max_target_positions max_source_positions"),
    (512, "context_length"),
    # Within the prompt, so that what depends on the position this way matters there.
    (8, "floor_scale log_scaling_n_floor"),
    # Attention that is peaked, and logits that one token more or less moves.
    (0.3, "initializer_range init_std initializer_factor embed_init_std"),
    (0.25, "attention_multiplier"),
    (1.0, "logit_scale attn_scale"),
    (0, "pad_token_id unk_index"),
    (1, "bos_token_id"),
    (2, "eos_token_id"),
    (3, "sep_token_id mask_token_id decoder_start_token_id cls_token_id eod_token_id"),
    (True, "is_decoder use_cache"),
]
_WINDOWS = "sliding_window sliding_window_size attention_chunk_size window_size local_attention attention_window_size"
_SMALL = {name: value for value, names in _VALUES for name in names.split()}
_SMALL |= dict.fromkeys(_WINDOWS.split(), WIDE)

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_INDEXER = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
    "hc_lowrank": 16,
}
_TWO_RANKS = {
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_q_lora_rank": 32,
    "swa_kv_lora_rank": 32,
    "swa_head_dim": 16,
    "swa_qk_nope_head_dim": 8,
    "swa_v_head_dim": 16,
}


_PLAIN = {"full_attention", "sliding_attention"}


def _alternating(kind: str) -> list[str]:
    """Layer types with full attention where the sweep prunes, and the other kind before it."""
    return [kind, "full_attention", kind, "full_attention", "full_attention"]


# Settings of a type beyond the small values, also where it is part of another.
_EXCEPTIONS: dict[str, dict] = {
    "bamba": {"attn_layer_indices": [1, 3, 4]},
    "blt": {
        "encoder_hash_byte_group_vocab": 97,
        **{f"{part}_config": {"hidden_size_global": 64} for part in ("encoder", "decoder")},
    },
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {**_ROPE, "mrope_section": [2, 3, 3]} for kind in ("full_attention", "sliding_attention")
        },
        "layer_types": _alternating("sliding_attention"),
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"moe_top_k": 2},
    },
    "dots3_note": {
        "text_config": _TWO_RANKS,
        "vision_config": {"adapter_in_dim": 64, "adapter_out_dim": 64},
        "audio_config": {"adapter_input_size": 64, "adapter_out_dim": 64},
    },
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3n_text": {"num_kv_shared_layers": 2},
    "gpt_neo": {"attention_types": [[["local", "global"], 2], [["global"], 1]]},
    "granitemoehybrid": {"layer_types": _alternating("linear_attention")},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": _alternating("conv")},
    "lfm2_moe": {"layer_types": _alternating("conv")},
    "longcat_flash": {"head_dim": 8},
    "mamba2": {"num_heads": 8},
    "minimax_m3_vl_text": {"layer_types": _alternating("minimax_m3_sparse"), "index_n_heads": 2},
    "ministral3": {
        "rope_parameters": {**_ROPE, "llama_4_scaling_beta": 1.0, "original_max_position_embeddings": 8},
    },
    "qwen4_exp_text": _INDEXER,
    "reformer": {"attn_layers": ["local", "lsh"] * 2 + ["local"], "axial_pos_embds": False, "num_buckets": 4},
    "zaya": {"num_experts_per_tok": 1},
}
# Types whose model is made from a part of their config that no automatic class knows.
_PARTS = {"musicgen": "decoder", "musicgen_melody": "decoder"}

# case: settings that a type may have, beyond those that every type with such settings is tried with.
_VARIANTS: dict[str, dict] = {
    "falcon/alibi": {"alibi": True},
    "gemma3_text/bidirectional": {"use_bidirectional_attention": True},
    "gemma4/dense": {"text_config": {"hidden_size_per_layer_input": 0}},
    "gemma4_text/shared": {"num_kv_shared_layers": 2},
    "gemma4_text/dense": {"hidden_size_per_layer_input": 0},
    "gemma4_text/experts": {"hidden_size_per_layer_input": 0, "enable_moe_block": True, "top_k_experts": 2},
    "gemma4_unified_text/one": {"attention_k_eq_v": True},
    "gemma4_unified_text/shared": {"num_kv_shared_layers": 2},
    "gpt2/scaled": {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    "gpt_bigcode/heads": {"multi_query": False},
    "granitemoehybrid/attention": {"layer_types": ["full_attention"] * LAYERS},
    "llama/eager": {"attn_implementation": "eager"},
    "llama4_text/full": {"layer_types": ["full_attention"] * LAYERS},
    "moshi/dynamic": {"rope_parameters": {**_ROPE, "rope_type": "dynamic", "factor": 4.0}},
    "mpt/learned": {"attn_config": {"alibi": False}},
}
_RIGHT = """
afmoe apertus apertus1p5_text arcee aria_text axk1 bitnet cohere cohere2 cohere2_moe cohere_compass_text ctrl cwm dbrx
deepseek_v2 deepseek_v3 dots1 emu3 ernie4_5 ernie4_5_moe exaone exaone4 exaone_moe flex_olmo flint fuyu gemma gemma2
gemma3 gemma3_text gemma4 gemma4_text gemma4_unified_text glm glm4 glm4_moe glm4_moe_lite got_ocr2
gpt-sw3 gpt2 gpt_bigcode gpt_neox gpt_oss granite granite_swa granitemoe granitemoe_swa granitemoeshared helium
hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax internlm3 iquestcoder jais2 jetmoe kolibri1 laguna llama mellum
mimo_v2_flash minicpm3 minimax_m2 ministral ministral3 mistral mixtral modernbert-decoder moshi moss_transcribe_diarize
nanochat nemotron olmo olmo2 olmo3 olmoe opt persimmon phi phi3 phi4_multimodal phimoe qwen2
qwen2_moe qwen3 qwen3_moe sarvam_mla sarvam_moe seed_oss smollm3 solar_open starcoder2 vaultgemma youtu
"""
RIGHT = frozenset(_RIGHT.split())
# Variants that are right though their type is not, and the other way round.
_OTHERWISE = """
gemma3_text/bidirectional gemma4_text/shared gemma4_unified_text/shared granitemoehybrid/attention
moshi/dynamic moshi/narrow
"""
# Types that transformers 5.24 cannot run on a prompt longer than their window.
_WIDE = {"dory"}
# Types that transformers itself cannot build here, and the package that they need; None: they never stand alone.
UNUSABLE = {"gemma3n": "timm", "gemma4_assistant": None, "gemma4_unified_assistant": None}


def is_right(case: str) -> bool:
    """Whether a case must be right; every other one is refused."""
    return (case.partition("/")[0] in RIGHT) != (case in _OTHERWISE.split())


def _fields(cls: type[PreTrainedConfig]) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}


def _shrunk(cls: type[PreTrainedConfig], depth: int = LAYERS) -> dict:
    """Tiny values for all settings of a config class whose names say what they are."""
    fields = _fields(cls)
    values = {name: depth if value == LAYERS else value for name, value in _SMALL.items() if name in fields}
    if {"kv_lora_rank", "num_key_value_heads"} <= fields:
        values["num_key_value_heads"] = values["num_attention_heads"]
    for name in fields & {"layer_types", "mlp_layer_types", "layers_block_type"}:
        kinds = list(dict.fromkeys(getattr(cls(), name, None) or ()))
        if "full_attention" in kinds and len(kinds) == 2:
            values[name] = _alternating(next(kind for kind in kinds if kind != "full_attention"))[:depth]
        elif kinds:
            values[name] = (kinds * depth)[:depth]
    for name, (kind, part) in _parts(cls).items():
        # Fewer layers tell the decoder from what sees and hears.
        inside = _shrunk(part, 2 if "vision" in name or "audio" in name else depth)
        values[name] = _merged({"model_type": kind, **inside}, _EXCEPTIONS.get(kind, {}))
    return values


def _parts(cls: type[PreTrainedConfig]) -> dict[str, tuple[str, type[PreTrainedConfig]]]:
    """The configs inside a config by name: their types and classes."""
    parts = {}
    for name, part in cls.sub_configs.items():
        kind = cls.sub_configs_defaults[name].model_type if part is AutoConfig else part.model_type
        parts[name] = (kind, CONFIG_MAPPING[kind] if part is AutoConfig else part)
    return parts


def _merged(values: dict, changes: dict) -> dict:
    """`values` with `changes` to them, also to the dictionaries among them."""
    merged = {**values, **changes}
    for name in values.keys() & changes.keys():
        if isinstance(values[name], dict) and isinstance(changes[name], dict):
            merged[name] = _merged(values[name], changes[name])
    return merged


def _narrowed(cls: type[PreTrainedConfig]) -> dict:
    """Windows smaller than the prompt for a config class that has windows, else nothing."""
    fields, changes = _fields(cls), {}
    for name in fields.intersection(_WINDOWS.split()):
        changes[name] = NARROW
    if changes and "layer_types" in fields and set(getattr(cls(), "layer_types", None) or ()) <= _PLAIN:
        changes["layer_types"] = _alternating("sliding_attention")
    if changes and "use_sliding_window" in fields:
        changes["use_sliding_window"] = True
    for name, (_, part) in _parts(cls).items():
        if "text" in name and (inside := _narrowed(part)):
            changes[name] = inside
    return changes


def cases() -> list[str]:
    """Every type, and every variant of one."""
    kinds = [kind for kind in TYPES if kind not in {*UNUSABLE, *_WIDE}]
    narrow = [f"{kind}/narrow" for kind in kinds if _narrowed(CONFIG_MAPPING[kind])]
    return sorted([*TYPES, *narrow, *_VARIANTS])


def build(case: str) -> PreTrainedModel:
    """The case's model with random weights, the same every time."""
    kind, _, variant = case.partition("/")
    cls = CONFIG_MAPPING[kind]
    values = _merged(_shrunk(cls), _EXCEPTIONS.get(kind, {}))
    values = _merged(values, _narrowed(cls) if variant == "narrow" else _VARIANTS.get(case, {}))
    attention = values.pop("attn_implementation", None)
    made = cls(**values)
    torch.manual_seed(0)
    if kind in _PARTS:
        model = MODEL_FOR_CAUSAL_LM_MAPPING[cls]._from_config(getattr(made, _PARTS[kind]), dtype=torch.float32)
    else:
        model = AutoModelForCausalLM.from_config(made, dtype=torch.float32, attn_implementation=attention)
    return model.eval()


def prompt() -> torch.Tensor:
    """Token ids, int64 (1, PROMPT), without special tokens."""
    return torch.randint(10, 80, (1, PROMPT), generator=torch.Generator().manual_seed(0))
