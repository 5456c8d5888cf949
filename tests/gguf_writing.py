"""A tiny model of ``transformers`` as a GGUF file, as llama.cpp's converter writes it, float32 or 8-bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import torch
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, get_tensor_name_map, quants

# What llama.cpp calls the architecture that transformers calls otherwise.
_NAMES = {"gemma3_text": "gemma3", "mistral": "llama"}


def write_gguf(model: Any, file: Path, *, quantised: bool = False, **more: Any) -> Path:
    """Write the model; ``more`` are further values of its architecture, two underscores for a dot."""
    config = model.config
    arch = _NAMES.get(config.model_type, config.model_type)
    writer = GGUFWriter(file, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_vocab_size(config.vocab_size)
    if arch == "gpt2":
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        writer.add_feed_forward_length(4 * config.hidden_size)
        writer.add_head_count(config.num_attention_heads)
    else:
        _add_rope_and_heads(writer, config, arch)
    for key, value in more.items():
        name = f"{arch}.{key.replace('__', '.')}"
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}[type(value)]
        add(name, value)
    _add_tensors(writer, model, arch, quantised)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()
    return file


def _add_rope_and_heads(writer: GGUFWriter, config: Any, arch: str) -> None:
    d_head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if arch == "llama":
        writer.add_rope_dimension_count(d_head)
    else:
        writer.add_key_length(d_head)
    if arch.startswith("gemma"):
        writer.add_sliding_window(config.sliding_window)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _add_tensors(writer: GGUFWriter, model: Any, arch: str, quantised: bool) -> None:
    config = model.config
    number = next(key for key, name in MODEL_ARCH_NAMES.items() if name == arch)
    names = get_tensor_name_map(number, config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        weight = parameter.detach().clone()
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            weight += 1
        if arch == "gpt2" and any(x in name for x in ("c_attn.w", "c_proj.w", "c_fc.w")):
            weight = weight.T
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            weight = weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(weight.shape)
        stem, _, suffix = name.rpartition(".")
        array = numpy.ascontiguousarray(weight.numpy())
        kind = GGMLQuantizationType.Q8_0 if quantised and weight.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(f"{names.get_name(stem)}.{suffix}", quants.quantize(array, kind), raw_dtype=kind)

    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "llama3":
        # llama.cpp keeps this scaling as what the plain frequencies are divided by.
        scaled = model.model.rotary_emb.inv_freq
        plain = rope["rope_theta"] ** -(torch.arange(len(scaled)) / len(scaled))
        writer.add_tensor("rope_freqs.weight", (plain / scaled).numpy())


def quantised_weights(model: Any) -> Any:
    """The model with every matrix rounded as an 8-bit file rounds it."""
    kind = GGMLQuantizationType.Q8_0
    for parameter in model.parameters():
        if parameter.ndim > 1:
            rounded = quants.dequantize(quants.quantize(parameter.detach().numpy(), kind), kind)
            parameter.data = torch.from_numpy(rounded)
    return model
