"""A loaded ``transformers`` model as an adapter reads it: nothing in it is ignored silently.

A configuration value that an adapter does not implement, or a weight that it does not read, would make every later
number wrong. So a ``Checkpoint`` records what an adapter reads, and ``check_all_read`` refuses a model with more in it:
any other weight, and any other configuration value that differs from the default of its class, unless it is known not
to affect the logits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from gradpath.errors import InputError
from gradpath.model.architecture import ACTIVATIONS, Rotary

# Rope types whose frequencies do not depend on the prompt, so that those of transformers can be used. Those of the last
# two do, but only for prompts beyond the context that the model was first made for.
KNOWN_ROPE = ("default", "linear", "llama3", "yarn", "dynamic", "longrope")
# Settings from which transformers computes the frequencies, and the type of each layer.
_ROPE = "rope_parameters rope_scaling rope_theta rope_local_base_freq partial_rotary_factor rotary_pct rotary_emb_base"
_LAYER_TYPES = "layer_types use_sliding_window max_window_layers sliding_window_pattern"
# Settings that do not affect the logits, or only through weights, all of which have to be read.
_HARMLESS = """
    vocab_size intermediate_size feed_forward_length n_inner attention_bias mlp_bias tie_word_embeddings
    n_positions n_ctx max_position_embeddings max_sequence_length max_seq_len seq_length model_max_length
    tokenizer_model_max_length tokenizer_class initializer_range initializer_factor gradient_checkpointing
    neftune_noise_alpha pretraining_tp reorder_and_upcast_attn torch_dtype use_bfloat16 quantization_config
    attn_implementation auto_map name_or_path is_decoder is_llama_config unsloth_fixed unsloth_version
    transformers.js_config task_specific_params finetuning_task num_labels predict_special_tokens torchscript prefix
"""
_HARMLESS_STARTS = ("_", "summary_")  # of private attributes, and of the head of GPT-2 for classification
_HARMLESS_ENDS = ("dropout", "_pdrop", "_token_id", "_token_ids", "_token_index")


class _Config:
    """A configuration that records the names of the attributes that are read."""

    def __init__(self, config: Any) -> None:
        self.original, self.names_read = config, set[str]()

    def __getattr__(self, name: str) -> Any:
        self.names_read.add(name)
        return getattr(self.original, name)


class Checkpoint:
    """The configuration and the weights of a loaded model, and a record of what is read of them.

    Args:
        hf_model: A ``transformers`` model for causal language modelling.
    """

    def __init__(self, hf_model: Any) -> None:
        self.config, self.body = _Config(hf_model.config), hf_model.base_model
        # The first part of the names of the body's weights, and the name of the unembedding.
        self.stem = "" if self.body is hf_model else str(hf_model.base_model_prefix)
        self.unembedding = "lm_head"
        self.max_tokens: int | None = None  # from which length on rotary frequencies change
        self.family = str(self.config.model_type)
        self._configs = [self.config]
        self._weights: dict[str, Tensor] = hf_model.state_dict()
        self._weights_read: set[str] = set()

    def enter(
        self, body: str, *, config: str | None = None, skip_config: Sequence[str] = (), skip_modules: Sequence[str] = ()
    ) -> None:
        """Continue with a part of the model; the settings and modules to skip do not affect that part."""
        self.ignore(*skip_config)
        if config is not None:
            self.config = _Config(getattr(self.config, config))
            self._configs.append(self.config)
        above = f"{self.stem}." if self.stem else ""
        skipped = tuple(f"{above}{name}." for name in skip_modules)
        self._weights_read |= {name for name in self._weights if name.startswith(skipped)}
        self.body, self.stem = getattr(self.body, body), f"{above}{body}"
        if f"{self.stem}.lm_head.weight" in self._weights:
            self.unembedding = f"{self.stem}.lm_head"

    def ignore(self, *names: str) -> None:
        """Accept any value of settings that this family does not use."""
        self.config.names_read.update(names)

    def only(self, name: str, known: Collection[Any]) -> Any:
        """The value of a setting, if it is one of those that the adapter implements."""
        return self.check(name, getattr(self.config, name, None), known)

    def check(self, name: str, value: Any, known: Collection[Any]) -> Any:
        """The value, if it is one of those that the adapter implements."""
        if value not in known:
            names = ", ".join(repr(x) for x in known)
            raise InputError(
                f"this {self.family} model has {name} = {value!r}, which gradpath does not implement: it "
                f"knows {names}. Its scores would be wrong, so the model is not loaded."
            )
        return value

    def activation(self, name: str) -> str:
        """The name of the activation function, from the setting of that name."""
        return str(self.only(name, ACTIVATIONS))

    def rotary(self, layer_type: str = "", *, known: Sequence[str] = KNOWN_ROPE) -> Rotary:
        """The rotation of queries and keys, or that of one type of layer, if its rope type is known."""
        self.ignore(*_ROPE.split())  # transformers has computed the frequencies from these
        module = self.body.rotary_emb
        kind, settings = module.rope_type, self.config.rope_parameters
        if layer_type:
            kind, settings = kind[layer_type], settings[layer_type]
        if self.check("rope_type", kind, known) == "dynamic":
            self.max_tokens = self.config.max_position_embeddings
        elif kind == "longrope":
            self.max_tokens = settings["original_max_position_embeddings"]
        prefix = f"{layer_type}_" if layer_type else ""
        gain = float(getattr(module, f"{prefix}attention_scaling"))
        # Those from before any prompt: a long one may have changed the others.
        return Rotary(getattr(module, f"{prefix}original_inv_freq"), gain)

    def windows(self) -> list[int | None]:
        """The attention window of each layer, by the type of the layer."""
        self.ignore(*_LAYER_TYPES.split())  # transformers has computed layer_types from the others
        known = ("full_attention", "sliding_attention")
        types = [self.check("layer_types", name, known) for name in self.config.layer_types]
        return [self.config.sliding_window if name == "sliding_attention" else None for name in types]

    def need(self, name: str) -> Tensor:
        """The weight of that name."""
        if name not in self._weights:
            raise InputError(f"this {self.family} model has no weight {name}. Download or convert it again.")
        self._weights_read.add(name)
        return self._weights[name]

    def get(self, name: str) -> Tensor | None:
        """The weight of that name, or None."""
        return self.need(name) if name in self._weights else None

    def linear(self, names: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        """Linear layers stacked into one: weight (out, in) and bias."""
        weight = torch.cat([self.need(f"{name}.weight") for name in names])
        biases = [bias for name in names if (bias := self.get(f"{name}.bias")) is not None]
        assert len(biases) in (0, len(names)), f"only some of {names} have a bias"
        return weight, torch.cat(biases) if biases else None

    def check_all_read(self) -> None:
        """Refuse a model with weights or settings that its adapter does not implement."""
        if unread := sorted(self._weights.keys() - self._weights_read):
            shown = ", ".join(unread[:3]) + (" and others" if len(unread) > 3 else "")
            raise InputError(
                f"this {self.family} model has weights that gradpath does not implement: {shown}. "
                "Its scores would be wrong, so the model is not loaded."
            )
        for config in self._configs:
            for name, value in _unread_settings(config).items():
                raise InputError(
                    f"this {self.family} model has {name} = {value!r} in its configuration, which gradpath does not "
                    "implement. Its scores could be wrong, so the model is not loaded. If the setting does not affect "
                    "the logits, remove it from config.json."
                )


def _unread_settings(config: _Config) -> dict[str, Any]:
    """Settings that were not read, may affect the logits, and are neither off nor at their default."""
    from transformers import GenerationConfig, PretrainedConfig

    original = config.original
    try:
        defaults = type(original)().to_dict()
    except Exception:  # a class from the checkpoint's own code may need arguments
        defaults = {}
    generation = GenerationConfig().to_dict()
    harmless = {*_HARMLESS.split(), *PretrainedConfig().to_dict(), *generation}
    harmless |= {original.attribute_map.get(name, name) for name in config.names_read}
    return {
        name: value
        for name, value in original.to_dict().items()
        if name not in harmless
        and not name.startswith(_HARMLESS_STARTS)
        and not name.endswith(_HARMLESS_ENDS)
        and (value != defaults[name] if name in defaults else bool(value))
    }
