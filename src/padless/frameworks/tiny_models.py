"""Tiny random models of the architectures that Transformers ships, to test an idea on all of them in seconds.

A tiny model keeps what makes its architecture special (windows, sinks, softcaps, chunks, recurrent layers, experts,
learned positions, head counts, ...) and shrinks everything else: two to four layers of width 64. Weights are drawn wide
enough that a leak between segments moves the outputs by much more than rounding does.
"""

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

from padless.errors import PadlessError, require

VOCABULARY = 96
WINDOW = 6  # shorter than the segments that tests use, so that a wrong window shows
CHUNK = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """How to shrink one architecture of Transformers.

    Attributes:
        config: What differs from the common tiny sizes, by the names of the model's own config.
        auto: The auto class that builds it.
        common: Whether the config takes Llama's names for sizes; otherwise `config` gives all of them.
    """

    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    auto: str = "AutoModelForCausalLM"
    common: bool = True


COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

_ENCODER: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_MAMBA2: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_chunk_size": 16,
}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_WINDOWS: dict[str, Any] = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_GATED_DELTA: dict[str, Any] = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
_MLA: dict[str, Any] = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}

IMAGE_TOKENS: dict[str, int] = {
    "image_token_id": 90,
    "video_token_id": 91,
    "vision_start_token_id": 92,
    "vision_end_token_id": 93,
}


def _qwen_vl(vision: dict[str, Any], **text: Any) -> Architecture:
    """A vision-language model: three axes of rotary positions, and a tower that packs its images by itself."""
    rotary = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    vision = {"depth": 2, "num_heads": 2, "patch_size": 4, **vision}
    sizes = {"text_config": {**COMMON, "rope_parameters": rotary, **text}, "vision_config": vision, **IMAGE_TOKENS}
    return Architecture(auto="AutoModelForImageTextToText", common=False, config=sizes)


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(),
    "qwen2": Architecture(),
    "qwen3": Architecture(config={"head_dim": 16}),
    "mistral": Architecture(config={"sliding_window": WINDOW}),
    "gemma2": Architecture(
        config={**_WINDOWS, "head_dim": 16, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0}
    ),
    "gemma3_text": Architecture(config={**_WINDOWS, "head_dim": 16, "query_pre_attn_scalar": 16}),
    "phi": Architecture(config={"attention_dropout": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}),
    "phi3": Architecture(config={"sliding_window": WINDOW}),
    "olmo2": Architecture(),
    "olmo3": Architecture(config=_WINDOWS),
    "smollm3": Architecture(config={"no_rope_layers": [1, 0]}),
    "glm4": Architecture(config={"head_dim": 16}),
    "starcoder2": Architecture(
        config={
            "sliding_window": WINDOW,
            "embedding_dropout": 0.0,
            "residual_dropout": 0.0,
            "attention_dropout": 0.0,
        }
    ),
    "stablelm": Architecture(),
    "cohere2": Architecture(config={**_WINDOWS, "head_dim": 16}),
    "granite": Architecture(config={"attention_multiplier": 0.25}),
    "mixtral": Architecture(config={"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen3_moe": Architecture(config={**_EXPERTS, "head_dim": 16}),
    "gpt_oss": Architecture(config={**_WINDOWS, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "llama4_text": Architecture(
        config={
            "head_dim": 16,
            "intermediate_size_mlp": 96,
            "num_local_experts": 2,
            "attention_chunk_size": CHUNK,
            "no_rope_layers": [1, 0],
            "layer_types": ["chunked_attention", "full_attention"],
        }
    ),
    "deepseek_v2": Architecture(config={**_MLA, "n_group": 1, "topk_group": 1}),
    "deepseek_v3": Architecture(config={**_MLA, "n_group": 2, "topk_group": 1}),
    "gpt2": Architecture(
        common=False,
        config={
            "vocab_size": VOCABULARY,
            "n_embd": 64,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 128,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "gpt_neox": Architecture(),
    "gptj": Architecture(
        common=False,
        config={
            "vocab_size": VOCABULARY,
            "n_embd": 64,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 128,
            "rotary_dim": 8,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "opt": Architecture(
        config={"ffn_dim": 96, "word_embed_proj_dim": 64, "dropout": 0.0, "attention_dropout": 0.0, "layerdrop": 0.0}
    ),
    "falcon": Architecture(config={"multi_query": True, "new_decoder_architecture": False}),
    "bloom": Architecture(
        common=False,
        config={"vocab_size": VOCABULARY, "hidden_size": 64, "n_layer": 2, "n_head": 4, "pad_token_id": 0},
    ),
    "mpt": Architecture(
        common=False,
        config={"vocab_size": VOCABULARY, "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 128},
    ),
    "bert": Architecture(auto="AutoModelForMaskedLM", config=_ENCODER),
    "roberta": Architecture(auto="AutoModelForMaskedLM", config=_ENCODER),
    "modernbert": Architecture(
        auto="AutoModelForMaskedLM",
        config={
            "local_attention": 2 * WINDOW,
            "layer_types": ["full_attention", "sliding_attention"],
            "cls_token_id": 1,
            "sep_token_id": 2,
        },
    ),
    "mamba": Architecture(config={"state_size": 8, "time_step_rank": 8}),
    "mamba2": Architecture(config={"num_heads": 8, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 16}),
    "bamba": Architecture(config={**_MAMBA2, "attn_layer_indices": [1]}),
    "falcon_h1": Architecture(config={**_MAMBA2, "mamba_d_ssm": 128}),
    "granitemoehybrid": Architecture(
        config={
            **_MAMBA2,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 32,
            "layer_types": ["linear_attention", "full_attention"],
            "position_embedding_type": "rope",
        }
    ),
    "nemotron_h": Architecture(
        config={
            "layers_block_type": ["linear_attention", "full_attention", "mlp"],
            "head_dim": 16,
            "ssm_state_size": 8,
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 1,
            "chunk_size": 16,
        }
    ),
    "zamba2": Architecture(
        config={
            "mamba_d_state": 8,
            "mamba_expand": 2,
            "n_mamba_heads": 8,
            "mamba_headdim": 16,
            "mamba_ngroups": 1,
            "chunk_size": 16,
            "num_key_value_heads": 4,
            "attention_head_dim": 32,
            "num_mem_blocks": 1,
            "layers_block_type": ["mamba", "hybrid"],
            "adapter_rank": 8,
        }
    ),
    "jamba": Architecture(
        config={
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "mamba_d_state": 8,
            "mamba_dt_rank": 8,
            "use_mamba_kernels": False,
        }
    ),
    "minimax": Architecture(
        config={
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "layer_types": ["linear_attention", "full_attention"],
        }
    ),
    "qwen3_next": Architecture(config={**_GATED_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 32}),
    "qwen3_5_text": Architecture(config=_GATED_DELTA),
    "olmo_hybrid": Architecture(config={**_GATED_DELTA, "linear_num_value_heads": 2, "num_key_value_heads": 4}),
    "lfm2": Architecture(config={"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
    "recurrent_gemma": Architecture(
        config={
            "lru_width": 64,
            "attention_window_size": WINDOW,
            "block_types": ["recurrent", "attention"],
            "num_key_value_heads": 4,
            "head_dim": 16,
        }
    ),
    "rwkv": Architecture(
        common=False,
        config={
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "attention_hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "context_length": 128,
        },
    ),
    "qwen2_vl": _qwen_vl({"embed_dim": 32, "hidden_size": 64}),
    "qwen2_5_vl": _qwen_vl(
        {
            "hidden_size": 32,
            "intermediate_size": 48,
            "out_hidden_size": 64,
            "window_size": 16,
            "fullatt_block_indexes": [1],
        }
    ),
    "qwen3_vl": _qwen_vl(
        {
            "hidden_size": 32,
            "intermediate_size": 48,
            "out_hidden_size": 64,
            "deepstack_visual_indexes": [0],
            "num_position_embeddings": 16,
        },
        head_dim=16,
    ),
    "qwen3_5": _qwen_vl(
        {
            "hidden_size": 32,
            "intermediate_size": 48,
            "out_hidden_size": 64,
            "num_position_embeddings": 16,
        },
        **_GATED_DELTA,
    ),
    "deberta-v2": Architecture(auto="AutoModelForMaskedLM", config=_ENCODER),
    "fnet": Architecture(auto="AutoModelForMaskedLM", config={"hidden_dropout_prob": 0.0}),
    "deepseek_v4": Architecture(
        config={
            "head_dim": 16,
            "moe_intermediate_size": 32,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "q_lora_rank": 32,
        }
    ),
    "t5": Architecture(
        auto="AutoModelForSeq2SeqLM",
        common=False,
        config={
            "vocab_size": VOCABULARY,
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 96,
            "num_layers": 2,
            "num_heads": 4,
            "dropout_rate": 0.0,
            "decoder_start_token_id": 0,
        },
    ),
    "bart": Architecture(
        auto="AutoModelForSeq2SeqLM",
        common=False,
        config={
            "vocab_size": VOCABULARY,
            "d_model": 64,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 96,
            "decoder_ffn_dim": 96,
            "max_position_embeddings": 128,
            "dropout": 0.0,
        },
    ),
}


def tiny_model(
    name: str, *, seed: int = 0, dtype: Any = None, attention: str | None = None, vocabulary: int | None = None
) -> Any:
    """Build a tiny random model of a named architecture, in evaluation mode.

    Args:
        name: A key of `ARCHITECTURES`: Transformers' own `model_type`.
        seed: Of the weights. Same seed, same weights; torch's global generator is left as it was.
        dtype: A torch dtype; float64 unless given, so that equality can be asked to 1e-10.
        attention: `attn_implementation` as in `from_pretrained`; the model's own default unless given.
        vocabulary: Token ids it must know, when 96 are too few.

    Raises:
        PadlessError: For a name this file does not know.

    Example:
        >>> model = tiny_model("llama")
        >>> type(model).__name__, model.dtype
        ('LlamaForCausalLM', torch.float64)
    """
    require("transformers", extra="hf", feature="padless.frameworks.tiny_models")
    import torch
    import transformers

    if name not in ARCHITECTURES:
        raise PadlessError(f"no tiny model of {name!r}; known: {', '.join(sorted(ARCHITECTURES))}")
    architecture = ARCHITECTURES[name]
    sizes = (COMMON if architecture.common else {}) | dict(architecture.config)
    config = transformers.AutoConfig.for_model(name, **sizes)
    if vocabulary is not None:
        config.get_text_config().vocab_size = vocabulary
    config._experts_implementation = "eager"  # the grouped kernel has no float64
    build = getattr(transformers, architecture.auto)
    options = {} if attention is None else {"attn_implementation": attention}
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        model = build.from_config(config, **options).to(dtype or torch.float64).eval()
        _widen(model)
    return model


def _widen(model: Any) -> None:
    """Draw matrices with standard deviation 0.25 (embeddings 1), so that every token matters to those it may reach."""
    import torch

    with torch.no_grad():
        for module in model.modules():
            for name, weight in module.named_parameters(recurse=False):
                if isinstance(module, torch.nn.Embedding):
                    weight.normal_(0.0, 1.0)
                elif weight.ndim >= 2 and not _keeps_its_scale(name):
                    weight.normal_(0.0, 0.25 if weight.ndim == 2 else 0.15)
                elif name == "sinks":
                    weight.normal_(0.0, 1.0)


def _keeps_its_scale(name: str) -> bool:
    """State-space decay rates and the like are bounded by design; widening them makes the state explode."""
    return name in {"A_log", "recurrent_param", "time_decay", "time_first", "D", "dt_bias"}
