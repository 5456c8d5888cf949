"""Small random models of the real configuration classes, and prompts of numbers for them."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import transformers

from gradpath.model.families import convert
from gradpath.model.tokenizer import Tokenizer
from gradpath.model.transformer import Transformer
from gradpath.tasks.task import Task

VOCAB = 61
Settings = dict[str, Any]


def settings(*bases: Settings, **more: Any) -> Settings:
    """All of the bases together, and more; later ones win."""
    return {name: value for one in (*bases, more) for name, value in one.items()}


def rope(kind: str, theta: float, **more: Any) -> Settings:
    return settings(rope_type=kind, rope_theta=theta, **more)


def tiny(model_class: str, *bases: Settings, **more: Any) -> tuple[str, Settings]:
    return model_class, settings(*bases, **more)


_LLAMA = settings(
    num_hidden_layers=3, hidden_size=24, intermediate_size=40, vocab_size=VOCAB, bos_token_id=1, eos_token_id=2
)
_GPT2 = settings(n_layer=3, n_head=3, n_embd=24, n_positions=32, vocab_size=VOCAB, bos_token_id=1, eos_token_id=2)
_NEOX = settings(_LLAMA, num_attention_heads=3, rotary_pct=0.5, max_position_embeddings=32)
# Two query heads to a key head, and wider together than the residual stream.
_GROUPED = settings(_LLAMA, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
_GEMMA = settings(
    _GROUPED,
    sliding_window=3,
    query_pre_attn_scalar=12,
    pad_token_id=0,
    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
)
# Each token uses two of five experts.
_EXPERTS = settings(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=12)
_TWO = settings(_LLAMA, num_hidden_layers=2, num_attention_heads=4, pad_token_id=0)
_OPT = settings(_TWO, ffn_dim=40, word_embed_proj_dim=24, max_position_embeddings=32)
_TWO_GROUPED = settings(_TWO, num_key_value_heads=2)
_TWO_TYPES = settings(sliding_window=3, layer_types=["sliding_attention", "full_attention"])
# Four of the six dimensions of a head are rotated.
_PARTIAL = settings(rope_parameters=rope("default", 100.0, partial_rotary_factor=0.67))
_LONGROPE = rope(
    "longrope", 10000.0, short_factor=[1.0, 1.2, 1.5], long_factor=[2.0, 3.0, 4.0], original_max_position_embeddings=16
)
# One layer with rotary embeddings and an ordinary MLP, and one without and with experts.
_LLAMA4 = settings(
    _TWO_GROUPED,
    head_dim=8,
    intermediate_size=12,
    intermediate_size_mlp=20,
    num_local_experts=5,
    num_experts_per_tok=1,
    moe_layers=[1],
    no_rope_layers=[1, 0],
    attention_chunk_size=16,
    floor_scale=32,
)
# Latent attention, with queries and keys that are wider than values.
_LATENT = settings(_TWO, num_key_value_heads=4, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5)
# One layer with an ordinary MLP, and one with six experts in groups, if there are any.
_DEEPSEEK = settings(
    _LATENT,
    n_routed_experts=6,
    num_experts_per_tok=2,
    moe_intermediate_size=12,
    n_shared_experts=2,
    first_k_dense_replace=1,
    n_group=3,
    topk_group=2,
)
_MINISTRAL3 = settings(
    _TWO_GROUPED,
    head_dim=8,
    rope_parameters=rope(
        "yarn",
        10000.0,
        factor=4.0,
        original_max_position_embeddings=16,
        max_position_embeddings=64,
        llama_4_scaling_beta=0.1,
    ),
)
_VISION = settings(
    hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=28, patch_size=14
)

# The class of transformers and the settings of its configuration.
TINY: dict[str, tuple[str, Settings]] = {
    "gpt2": tiny("GPT2LMHeadModel", _GPT2),
    "gpt2-variant": tiny(
        "GPT2LMHeadModel", _GPT2, scale_attn_by_inverse_layer_idx=True, activation_function="relu", n_inner=33
    ),
    "llama-grouped": tiny("LlamaForCausalLM", _GROUPED),
    "llama-biased": tiny(
        "LlamaForCausalLM",
        _LLAMA,
        num_attention_heads=3,
        num_key_value_heads=3,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
    ),
    "llama3-rope": tiny(
        "LlamaForCausalLM",
        _LLAMA,
        num_attention_heads=3,
        num_key_value_heads=1,
        rope_parameters=rope(
            "llama3", 10000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8
        ),
    ),
    "mistral": tiny(
        "MistralForCausalLM", _LLAMA, num_attention_heads=4, num_key_value_heads=2, head_dim=6, sliding_window=4
    ),
    "neox": tiny("GPTNeoXForCausalLM", _NEOX),
    "neox-sequential": tiny(
        "GPTNeoXForCausalLM", _NEOX, use_parallel_residual=False, rotary_pct=1.0, attention_bias=False
    ),
    "qwen2": tiny(
        "Qwen2ForCausalLM",
        _LLAMA,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_sliding_window=True,
        sliding_window=3,
        max_window_layers=2,
    ),
    "qwen2-yarn": tiny(
        "Qwen2ForCausalLM",
        _LLAMA,
        num_attention_heads=3,
        num_key_value_heads=3,
        rope_parameters=rope("yarn", 10000.0, factor=4.0, original_max_position_embeddings=8),
    ),
    "qwen3": tiny("Qwen3ForCausalLM", _GROUPED, tie_word_embeddings=True),
    "qwen3-biased": tiny("Qwen3ForCausalLM", _GROUPED, attention_bias=True),
    "gemma2": tiny(
        "Gemma2ForCausalLM",
        _GEMMA,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
        attn_implementation="eager",
    ),
    "gemma3": tiny(
        "Gemma3ForCausalLM",
        _GEMMA,
        rope_parameters=settings(
            full_attention=rope("linear", 1000.0, factor=8.0), sliding_attention=rope("default", 10.0)
        ),
    ),
    "gemma3-with-images": tiny(
        "Gemma3ForConditionalGeneration",
        text_config=settings(_GEMMA, rope_local_base_freq=20.0),
        vision_config=_VISION,
        mm_tokens_per_image=4,
        image_token_index=60,
    ),
    "phi": tiny("PhiForCausalLM", _LLAMA, num_attention_heads=3, partial_rotary_factor=0.5),
    "olmo2": tiny("Olmo2ForCausalLM", _LLAMA, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0),
    "mixtral": tiny("MixtralForCausalLM", _GROUPED, _EXPERTS, intermediate_size=12, sliding_window=4),
    "olmoe": tiny(
        "OlmoeForCausalLM", _LLAMA, _EXPERTS, num_attention_heads=4, num_key_value_heads=2, intermediate_size=12
    ),
    "qwen2-moe": tiny(
        "Qwen2MoeForCausalLM",
        _LLAMA,
        _EXPERTS,
        num_attention_heads=3,
        num_key_value_heads=3,
        shared_expert_intermediate_size=14,
        mlp_only_layers=[1],
    ),
    "qwen3-moe": tiny(
        "Qwen3MoeForCausalLM", _GROUPED, _EXPERTS, norm_topk_prob=True, use_sliding_window=True, sliding_window=5
    ),
    "glm4-moe": tiny(
        "Glm4MoeForCausalLM",
        _GROUPED,
        _EXPERTS,
        n_routed_experts=5,
        routed_scaling_factor=2.5,
        use_qk_norm=True,
        attention_bias=True,
    ),
    "gpt-neo": tiny(
        "GPTNeoForCausalLM",
        num_layers=2,
        num_heads=3,
        hidden_size=24,
        max_position_embeddings=32,
        vocab_size=VOCAB,
        attention_types=[[["global", "local"], 1]],
        window_size=4,
    ),
    "gptj": tiny("GPTJForCausalLM", _GPT2, n_layer=2, n_head=2, rotary_dim=8),
    "opt": tiny("OPTForCausalLM", _OPT),
    "opt-bare": tiny(
        "OPTForCausalLM", _OPT, activation_function="gelu", enable_bias=False, layer_norm_elementwise_affine=False
    ),
    "gemma": tiny("GemmaForCausalLM", _TWO, num_key_value_heads=1, head_dim=8),
    "phi3": tiny("Phi3ForCausalLM", _TWO_GROUPED, sliding_window=4),
    "phi3-longrope": tiny(
        "Phi3ForCausalLM",
        _TWO,
        num_attention_heads=3,
        max_position_embeddings=64,
        original_max_position_embeddings=16,
        rope_parameters=settings(_LONGROPE, partial_rotary_factor=0.75),
    ),
    "olmo": tiny("OlmoForCausalLM", _TWO_GROUPED, clip_qkv=1.0),
    "olmo3": tiny("Olmo3ForCausalLM", _TWO_GROUPED, _TWO_TYPES),
    "stablelm": tiny("StableLmForCausalLM", _TWO_GROUPED, _PARTIAL, use_qkv_bias=True),
    "stablelm-parallel": tiny(
        "StableLmForCausalLM",
        _TWO_GROUPED,
        _PARTIAL,
        num_hidden_layers=3,
        use_parallel_residual=True,
        qk_layernorm=True,
    ),
    "starcoder2": tiny("Starcoder2ForCausalLM", _TWO_GROUPED, sliding_window=4),
    "granite": tiny(
        "GraniteForCausalLM",
        _TWO_GROUPED,
        embedding_multiplier=2.0,
        attention_multiplier=0.3,
        residual_multiplier=0.7,
        logits_scaling=1.5,
        attention_bias=True,
        mlp_bias=True,
    ),
    "bloom": tiny("BloomForCausalLM", n_layer=2, n_head=3, hidden_size=24, vocab_size=VOCAB, seq_length=32),
    "mpt": tiny(
        "MptForCausalLM",
        n_layers=3,
        n_heads=3,
        d_model=24,
        max_seq_len=32,
        vocab_size=VOCAB,
        attn_config=settings(clip_qkv=1.5, softmax_scale=0.4),
    ),
    "falcon": tiny("FalconForCausalLM", _TWO, bias=True),
    "falcon-new": tiny("FalconForCausalLM", _TWO, num_kv_heads=2, new_decoder_architecture=True),
    "falcon-one-norm": tiny(
        "FalconForCausalLM", _TWO, num_kv_heads=2, new_decoder_architecture=True, num_ln_in_parallel_attn=1
    ),
    "falcon-alibi": tiny(
        "FalconForCausalLM", _TWO, num_attention_heads=3, alibi=True, multi_query=False, parallel_attn=False, bias=True
    ),
    "cohere": tiny("CohereForCausalLM", _TWO_GROUPED, logit_scale=0.5, use_qk_norm=True),
    "cohere2": tiny("Cohere2ForCausalLM", _TWO_GROUPED, _TWO_TYPES),
    "smollm3": tiny(
        "SmolLM3ForCausalLM", _TWO_GROUPED, no_rope_layers=[0, 1], use_sliding_window=True, sliding_window=4
    ),
    "glm": tiny("GlmForCausalLM", _TWO_GROUPED, head_dim=8),
    "glm4": tiny("Glm4ForCausalLM", _TWO_GROUPED, head_dim=8),
    "deepseek-v2": tiny(
        "DeepseekV2ForCausalLM",
        _DEEPSEEK,
        q_lora_rank=None,
        topk_method="group_limited_greedy",
        routed_scaling_factor=1.5,
    ),
    "deepseek-v3": tiny(
        "DeepseekV3ForCausalLM",
        _DEEPSEEK,
        q_lora_rank=9,
        attention_bias=True,
        rope_parameters=rope(
            "yarn", 10000.0, factor=4.0, mscale=1.0, mscale_all_dim=0.8, original_max_position_embeddings=8
        ),
    ),
    "glm4-moe-lite": tiny("Glm4MoeLiteForCausalLM", _DEEPSEEK, q_lora_rank=11, n_group=1, topk_group=1),
    "minicpm3": tiny(
        "MiniCPM3ForCausalLM",
        _LATENT,
        q_lora_rank=8,
        dim_model_base=12,
        scale_emb=2,
        max_position_embeddings=64,
        rope_parameters=settings(_LONGROPE, short_factor=[1.0, 1.2], long_factor=[2.0, 3.0]),
    ),
    "youtu": tiny("YoutuForCausalLM", _LATENT, q_lora_rank=None, rope_interleave=False, pad_token_id=None),
    "llama-dynamic-rope": tiny(
        "LlamaForCausalLM", _TWO_GROUPED, max_position_embeddings=16, rope_parameters=rope("dynamic", 100.0, factor=4.0)
    ),
    "llama4": tiny("Llama4ForCausalLM", _LLAMA4),
    "llama4-with-images": tiny(
        "Llama4ForConditionalGeneration",
        text_config=settings(_LLAMA4, use_qk_norm=False, num_experts_per_tok=2),
        vision_config=settings(
            _VISION, intermediate_size=32, vision_output_dim=8, projector_input_dim=8, projector_output_dim=8
        ),
    ),
    "gpt-oss": tiny(
        "GptOssForCausalLM",
        _TWO_GROUPED,
        _TWO_TYPES,
        head_dim=8,
        num_local_experts=5,
        num_experts_per_tok=2,
        intermediate_size=12,
        swiglu_limit=1.5,
        attn_implementation="eager",
    ),
    "ministral": tiny("MinistralForCausalLM", _TWO_GROUPED, _TWO_TYPES, head_dim=8),
    "ministral3": tiny("Ministral3ForCausalLM", _MINISTRAL3),
    "mistral3": tiny(
        "Mistral3ForConditionalGeneration",
        text_config=settings(_MINISTRAL3, model_type="ministral3"),
        vision_config=settings(_VISION, model_type="pixtral", head_dim=8),
        image_token_index=60,
    ),
}


@cache
def tiny_hf(kind: str) -> Any:
    """A transformers model with weights large enough that every part of it matters."""
    return random_hf(*TINY[kind])


def random_hf(name: str, *bases: Settings, **more: Any) -> Any:
    """A model of a class of transformers, which is imported only now."""
    torch.manual_seed(7)
    model_class = getattr(transformers, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = model_class(model_class.config_class(**settings(*bases, **more))).eval()
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        size = 0.35 if "experts." in name else 0.25
        parameter.data = size * noise if parameter.ndim > 1 else parameter.data + 0.2 * noise
        if any(x in name for x in ("wte", "embed_in", "embed_tokens", "word_embeddings.")):
            parameter.data = noise  # far apart, so that a unit step of GradPath is a small one
    for name, buffer in model.named_buffers():
        if "e_score_correction_bias" in name:  # of a router: it decides some choices, and not all
            buffer.data = 0.1 * torch.randn_like(buffer)
    return model


def tiny_model(name: str) -> Transformer:
    return replace(convert(tiny_hf(name)), tokenizer=Tokenizer(Numbers()), name=name)


class Numbers:
    """A tokenizer whose text is its token ids: '5 17 3'. The word 'the' is token 0."""

    bos_token_id = 1

    def __call__(self, texts: Any, add_special_tokens: bool = True) -> dict[str, Any]:
        if isinstance(texts, str):
            return {"input_ids": self._ids(texts)}
        return {"input_ids": [self._ids(text) for text in texts]}

    @staticmethod
    def _ids(text: str) -> list[int]:
        return [int(word) if word.isdigit() else 0 for word in text.split()]

    def decode(self, ids: list[int], clean_up_tokenization_spaces: bool = False) -> str:
        return " ".join("the" if i == 0 else str(i) for i in ids)


def prompts(lengths: list[int], differ: list[list[int]], seed: int = 0) -> Task:
    """Pairs of random prompts; pair i has ``lengths[i]`` tokens and differs at positions ``differ[i]``."""
    generator = torch.Generator().manual_seed(seed)

    def draw(n: int) -> list[int]:
        return torch.randint(3, VOCAB, (n,), generator=generator).tolist()

    clean, corrupted = [], []
    for length, positions in zip(lengths, differ, strict=True):
        ids = draw(length)
        other = list(ids)
        for position in positions:
            other[position] = 3 + (ids[position] + 11) % (VOCAB - 3)
        clean.append(" ".join(map(str, ids)))
        corrupted.append(" ".join(map(str, other)))
    labels = torch.randint(3, VOCAB, (len(lengths), 2), generator=generator)
    right, wrong = labels.T
    labels[right == wrong, 1] = 3 + (wrong[right == wrong] - 2) % (VOCAB - 3)  # the next token: answers have to differ
    return Task(clean, corrupted, labels)
