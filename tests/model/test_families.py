"""Each family's logits against transformers, and refusals of what is not implemented."""

from __future__ import annotations

import copy
from functools import reduce

import pytest
import torch
from covering import FAMILIES, covering
from small_models import VOCAB, tiny_hf, tiny_model

from gradpath.errors import InputError
from gradpath.model.families import FAMILIES as READ
from gradpath.model.families import REFUSED, check_family, convert

IDS = torch.randint(3, VOCAB, (3, 12), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("kind", FAMILIES)
def test_logits_equal_the_original_models(kind):
    with torch.no_grad():
        expected = tiny_hf(kind)(IDS).logits
    assert float((tiny_model(kind).logits(IDS) - expected).abs().max()) <= 1e-4


@pytest.mark.parametrize(("kind", "start"), covering(FAMILIES, [1, 6, 11]))
def test_a_prompt_in_two_parts_is_the_whole_prompt(kind, start):
    model = tiny_model(kind)
    past = model.prefix(model.embed(IDS[:, :start]))
    run = model.run(model.embed(IDS[:, start:]), start=start, past=past)
    assert torch.allclose(model.unembed(run.final_in), model.logits(IDS)[:, start:], atol=1e-4)


def test_converting_does_not_change_the_original():
    model = tiny_hf("gpt2")
    before = copy.deepcopy(model.state_dict())
    convert(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("kind", FAMILIES)
def test_half_precision_is_close_and_frequencies_stay_exact(kind):
    half, whole = tiny_model(kind).to(dtype=torch.bfloat16), tiny_model(kind)
    assert half.dtype == torch.bfloat16
    assert all(rotary.frequencies.dtype == torch.float32 for rotary in half.rotary)
    expected = whole.logits(IDS)
    off = (half.logits(IDS).float() - expected).norm(dim=-1) / expected.norm(dim=-1)  # (prompt, pos)
    # Rounding sends a few tokens of a mixture of experts to another expert, where two are nearly tied.
    assert float(off.quantile(0.75 if any(layer.experts for layer in whole.layers) else 1.0)) < 0.05


def test_embeddings_are_scaled_as_transformers_scales_them_in_every_precision():
    for dtype in (torch.float32, torch.bfloat16):
        original = copy.deepcopy(tiny_hf("gemma3")).to(dtype)
        with torch.no_grad():
            expected = original.model.embed_tokens(IDS)
        assert torch.equal(convert(original).embed(IDS), expected)


@pytest.mark.parametrize(
    ("kind", "setting", "value"),
    [
        ("gpt2", "activation_function", "mish"),
        ("gpt2", "add_cross_attention", True),
        ("llama-grouped", "hidden_act", "tanh"),
        ("neox", "hidden_act", "tanh"),
        ("qwen2", "layer_types", ["full_attention", "chunked_attention", "full_attention"]),
        ("qwen3", "layer_types", ["full_attention", "linear_attention", "full_attention"]),
        ("gemma2", "use_bidirectional_attention", True),
        ("gemma2", "attention_bias", True),
        ("gemma3", "attn_logit_softcapping", 50.0),
        ("gemma3", "hidden_activation", "mish"),
        ("phi", "qk_layernorm", True),
        ("olmo2", "attention_bias", True),
        ("olmo3", "attention_bias", True),
        ("opt", "do_layer_norm_before", False),
        ("opt", "_remove_final_layer_norm", True),
        ("opt", "word_embed_proj_dim", 12),
        ("gptj", "rotary_dim", 7),
        ("gemma", "use_bidirectional_attention", True),
        ("gpt-neo", "attention_layers", ["global", "strided"]),
        ("bloom", "apply_residual_connection_post_layernorm", True),
        ("falcon-new", "parallel_attn", False),
        ("falcon-alibi", "num_kv_heads", 1),
        ("mpt", "expansion_ratio", 3),
        ("cohere2", "layer_types", ["full_attention", "chunked_attention"]),
        ("mpt", "attn_config.alibi", False),
        ("mpt", "attn_config.alibi_bias_max", 16),
        ("mpt", "attn_config.qk_ln", True),
        ("mpt", "attn_config.prefix_lm", True),
        # Settings that no adapter reads.
        ("gpt2", "embedding_multiplier", 12.0),
        ("llama-grouped", "foo", 3),
        ("llama-grouped", "rope_interleaved", True),
        ("llama-grouped", "layer_types", ["full_attention"] * 3),
        ("mistral", "attention_sinks", 4),
        ("neox", "head_mixing", "dense"),
        ("gemma3-with-images", "some_gate", True),
    ],
)
def test_settings_that_are_not_implemented_are_refused_by_name(kind, setting, value):
    model = copy.deepcopy(tiny_hf(kind))
    *parts, name = setting.split(".")
    setattr(reduce(getattr, parts, model.config), name, value)
    with pytest.raises(InputError, match=f"has {name} = .*which gradpath does not implement"):
        convert(model)


def test_settings_of_the_part_that_reads_text_are_checked_too():
    model = copy.deepcopy(tiny_hf("gemma3-with-images"))
    model.config.text_config.some_gate = True
    with pytest.raises(InputError, match="this gemma3 model has some_gate = True"):
        convert(model)


def test_a_setting_of_the_class_that_is_not_read_may_only_have_its_default(monkeypatch):
    """As if a new version of the class had a setting that its adapter does not know."""
    model = copy.deepcopy(tiny_hf("llama-grouped"))
    config_class = type(model.config)
    original = config_class.to_dict
    monkeypatch.setattr(config_class, "to_dict", lambda self: {"residual_multiplier": 1.0, **original(self)})
    convert(model)
    model.config.residual_multiplier = 0.5
    with pytest.raises(InputError, match=r"residual_multiplier = 0\.5"):
        convert(model)


# What config.json of checkpoints on the hub has besides the attributes of its class.
_ANY = {
    "architectures": ["SomeForCausalLM"],
    "attention_dropout": 0.1,
    "attn_implementation": "eager",
    "bos_token_id": 3,
    "do_sample": True,
    "id2label": {"0": "YES"},
    "initializer_range": 0.5,
    "max_length": 50,
    "name_or_path": "somebody/model",
    "num_labels": 1,
    "some_feature_that_is_off": False,
    "some_feature_without_value": None,
    "temperature": 0.6,
    "tokenizer_class": "SomeTokenizer",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.31.0",
    "use_cache": False,
}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("gpt2", {"n_ctx": 1024, "resid_pdrop": 0.2, "summary_type": "first", "task_specific_params": {"a": 1}}),
        ("gpt2", {"predict_special_tokens": True, "gradient_checkpointing": True, "n_positions": 999}),
        (
            "llama-grouped",
            {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"}},
        ),
        ("llama-grouped", {"pretraining_tp": 2, "max_sequence_length": 2048, "pad_token_id": 0}),
        ("llama-grouped", {"quantization_config": {"bits": 4}, "unsloth_version": "2025.1", "unsloth_fixed": True}),
        ("neox", {"classifier_dropout": 0.3, "hidden_dropout": 0.1, "rotary_emb_base": 10000}),
        ("qwen2", {"use_mrope": False, "max_window_layers": 70, "use_sliding_window": False}),
        ("qwen3", {"max_window_layers": 36}),
        ("gemma2", {"hidden_act": "gelu", "cache_implementation": "hybrid"}),
        ("gemma3", {"hidden_act": "gelu", "cache_implementation": "hybrid", "sliding_window_pattern": 6}),
        ("gemma3-with-images", {"boi_token_index": 5, "mm_tokens_per_image": 256}),
        ("phi", {"auto_map": {"AutoModel": "x"}, "embd_pdrop": 0.1, "resid_pdrop": 0.1}),
        ("olmo2", {}),
        ("gpt-neo", {"embed_dropout": 0.1, "activation_function": "gelu_new", "task_specific_params": {"a": 1}}),
        ("gptj", {"embd_pdrop": 0.1, "gradient_checkpointing": True, "scale_attn_weights": None}),
        ("opt", {"layerdrop": 0.1, "init_std": 0.5, "prefix": "</s>", "ffn_dim": 7}),
        ("phi3", {"auto_map": {"AutoModel": "x"}, "original_max_position_embeddings": 4}),
        ("stablelm", {"use_qkv_bias": False, "rope_theta": 10000}),
        ("granite", {"attention_bias": False, "mlp_bias": False}),
        ("bloom", {"masked_softmax_fusion": True, "offset_alibi": 100, "pretraining_tp": 4, "slow_but_exact": True}),
        ("falcon", {"bias": False, "ffn_hidden_size": 5, "num_kv_heads": 7}),
        ("mpt", {"learned_pos_emb": False, "init_device": "meta", "resid_pdrop": 0.1}),
        ("cohere2", {"use_parallel_block": True, "layer_switch": 4, "position_embedding_type": "rope_gptj"}),
        ("smollm3", {"no_rope_layer_interval": 3, "max_window_layers": 36}),
        ("mistral3", {"vision_feature_layer": -1, "spatial_merge_size": 3}),
    ],
)
def test_settings_that_do_not_affect_the_logits_are_accepted(kind, settings):
    model = copy.deepcopy(tiny_hf(kind))
    for name, value in (_ANY | settings).items():
        setattr(model.config, name, value)
    assert torch.equal(convert(model).logits(IDS), tiny_model(kind).logits(IDS))


@pytest.mark.parametrize("kind", ["llama-grouped", "neox", "qwen2", "gemma3", "phi", "olmo2"])
def test_a_rope_type_that_is_not_implemented_is_refused_by_name(kind):
    model = copy.deepcopy(tiny_hf(kind))
    rotary = model.base_model.rotary_emb
    rotary.rope_type = {"full_attention": "proportional"} if kind == "gemma3" else "proportional"
    with pytest.raises(InputError, match="rope_type = 'proportional'"):
        convert(model)


@pytest.mark.parametrize("kind", FAMILIES)
def test_weights_that_an_adapter_does_not_read_are_refused_by_name(kind):
    model = copy.deepcopy(tiny_hf(kind))
    model.base_model.register_parameter("surprise", torch.nn.Parameter(torch.zeros(2)))
    with pytest.raises(InputError, match=r"weights that gradpath does not implement: .*surprise"):
        convert(model)


def test_a_weight_that_is_missing_is_named():
    model = copy.deepcopy(tiny_hf("qwen3"))
    del model.model.layers[1].self_attn.q_norm
    with pytest.raises(InputError, match=r"no weight model.layers.1.self_attn.q_norm.weight"):
        convert(model)


def test_parallel_blocks_have_no_edge_from_heads_to_their_own_mlp():
    edge = "a0.h0->m0"
    assert tiny_model("neox-sequential").graph.index(edge)
    for kind in ("neox", "phi", "gptj", "falcon", "cohere", "stablelm-parallel"):
        with pytest.raises(InputError, match=r"m0 does not read what a0\.h0 writes"):
            tiny_model(kind).graph.index(edge)


@pytest.mark.parametrize("kind", FAMILIES)
def test_what_the_nodes_write_adds_up_to_what_logits_read(kind):
    """Also where a norm divides the sum of the heads: then each head writes its share of it."""
    model = tiny_model(kind).to(dtype=torch.float64)
    a, x = model.arch, model.embed(IDS)
    run = model.run(x)
    total = x if model.positions is None else x + model.positions[: x.shape[1]]
    for layer, seen in zip(model.layers, run.layers, strict=True):
        heads = layer.w_write.view(a.d_model, a.n_heads, a.d_head)
        total = total + torch.einsum("bphd,mhd->bpm", seen.written, heads) + seen.mlp_out
        total = total if layer.b_o is None else total + layer.b_o
    assert torch.allclose(total, run.final_in, atol=1e-10)


def test_an_unknown_family_is_refused_with_the_known_ones():
    model = copy.deepcopy(tiny_hf("gpt2"))
    model.config.model_type = "something_new"
    known = r"'something_new' are not supported: gradpath reads .*gpt2, gpt_neo, gpt_neox, .*--plugin FILE\.py"
    with pytest.raises(InputError, match=known):
        convert(model)


@pytest.mark.parametrize(("name", "why"), [("deepseek_v32", "picks"), ("mamba", "recurrent"), ("bert", "next token")])
def test_a_family_that_does_not_fit_is_refused_with_the_reason(name, why):
    with pytest.raises(InputError, match=f"'{name}' are not supported: they|their .*{why}"):
        check_family(name)


def test_no_family_is_both_read_and_refused():
    assert not set(REFUSED) & set(READ)


@pytest.mark.parametrize(
    "kind", ["phi3-longrope", "minicpm3", "ministral3", "llama4", "llama-dynamic-rope", "gptj", "opt", "mpt", "bloom"]
)
def test_prompts_are_read_up_to_the_length_from_which_on_positions_are_computed_differently(kind):
    model, original = tiny_model(kind), tiny_hf(kind)
    limit = model.max_positions
    assert limit in (16, 32)
    ids = torch.randint(3, VOCAB, (1, limit), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        expected = original(ids).logits
    assert torch.allclose(model.logits(ids), expected, atol=1e-4)
    with pytest.raises(InputError, match=f"reads at most {limit} tokens: a prompt has {limit + 1}"):
        model.logits(torch.cat([ids, ids[:, :1]], 1))


@pytest.mark.parametrize("kind", ["phi3-longrope", "llama-dynamic-rope"])
def test_a_longer_prompt_before_does_not_change_what_is_read_of_a_model(kind):
    """transformers replaces the frequencies of LongRoPE, and of dynamic ones, when it meets a long prompt."""
    original = copy.deepcopy(tiny_hf(kind))
    before = original.base_model.rotary_emb.inv_freq.clone()
    with torch.no_grad():
        original(IDS.repeat(1, 2))
    assert not torch.equal(original.base_model.rotary_emb.inv_freq, before)
    assert torch.equal(convert(original).logits(IDS), tiny_model(kind).logits(IDS))
