"""A loaded ``transformers`` model as an adapter sees it: every value is asked for by name, none is ignored.

A configuration value that an adapter does not implement, or a weight that it does not read, would make every
later number wrong. So values are read through ``only``, which refuses what is not known, and weights through
``need`` and ``get``, which remember what was read; ``check_all_read`` refuses a model with more in it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from gradpath.errors import InputError
from gradpath.model.architecture import ACTIVATIONS, Rotary, folded

# Their frequencies do not depend on the prompt, so the ones that transformers computed can be taken.
STATIC_ROPE = ("default", "linear", "llama3", "yarn")


class Checkpoint:
    """The configuration and the weights of a loaded model, and how they are read."""

    def __init__(self, hf_model: Any) -> None:
        self.config, self.body = hf_model.config, hf_model.base_model
        self.stem = hf_model.base_model_prefix  # what the names of the body's weights begin with
        self.family = str(self.config.model_type)
        self._weights: dict[str, Tensor] = hf_model.state_dict()
        self._read: set[str] = set()

    def enter(self, config: str, body: str, *, leave: Sequence[str]) -> None:
        """Go on with a part of the model; the parts to ``leave`` play no role in it."""
        self.config = getattr(self.config, config)
        left = tuple(f"{self.stem}.{name}." for name in leave)
        self._read |= {name for name in self._weights if name.startswith(left)}
        self.body, self.stem = getattr(self.body, body), f"{self.stem}.{body}"

    def only(self, name: str, known: Collection[Any]) -> Any:
        """The configuration's value of ``name``, if the adapter implements it."""
        return self.check(name, getattr(self.config, name, None), known)

    def check(self, name: str, value: Any, known: Collection[Any]) -> Any:
        if value not in known:
            names = ", ".join(repr(x) for x in known)
            raise InputError(
                f"this {self.family} model has {name} = {value!r}, which gradpath does not implement: it "
                f"knows {names}. Its scores would be wrong, so the model is not loaded."
            )
        return value

    def activation(self, name: str = "hidden_act") -> str:
        return str(self.only(name, ACTIVATIONS))

    def rotary(self, layer_type: str = "") -> Rotary:
        """The rotation of queries and keys, or the one of a type of layers."""
        module = self.body.rotary_emb
        rope_type = module.rope_type[layer_type] if layer_type else module.rope_type
        self.check("rope_type", rope_type, STATIC_ROPE)
        prefix = f"{layer_type}_" if layer_type else ""
        gain = float(getattr(module, f"{prefix}attention_scaling"))
        return Rotary(getattr(module, f"{prefix}inv_freq"), gain)

    def windows(self) -> list[int | None]:
        """How far back each layer sees, by the configuration's list of layer types."""
        known = ("full_attention", "sliding_attention")
        kinds = [self.check("layer_types", kind, known) for kind in self.config.layer_types]
        return [self.config.sliding_window if kind == "sliding_attention" else None for kind in kinds]

    def need(self, name: str) -> Tensor:
        if name not in self._weights:
            raise InputError(f"this {self.family} model has no weight {name}. Download or convert it again.")
        self._read.add(name)
        return self._weights[name]

    def get(self, name: str) -> Tensor | None:
        return self.need(name) if name in self._weights else None

    def linear(self, names: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        """Linear layers stacked to one: weight (out, in) and bias."""
        weight = torch.cat([self.need(f"{name}.weight") for name in names])
        biases = [bias for name in names if (bias := self.get(f"{name}.bias")) is not None]
        assert len(biases) in (0, len(names)), f"only some of {names} have a bias"
        return weight, torch.cat(biases) if biases else None

    def behind_layer_norm(self, norm: str, linears: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        """Linear layers stacked to one, with the LayerNorm in front of them folded in."""
        gain, shift = self.need(f"{norm}.weight"), self.get(f"{norm}.bias")
        return folded(*self.linear(linears), gain, shift, centre=True)

    def check_all_read(self) -> None:
        """Refuse a model that has weights which its adapter knows nothing of."""
        if unread := sorted(self._weights.keys() - self._read):
            shown = ", ".join(unread[:3]) + (" and others" if len(unread) > 3 else "")
            raise InputError(
                f"this {self.family} model has weights that gradpath does not implement: {shown}. "
                "Its scores would be wrong, so the model is not loaded."
            )
