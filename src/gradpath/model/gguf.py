"""What a GGUF file says that ``transformers`` does not read from it, so that none of it is ignored.

``transformers`` builds a model from the few keys of a GGUF file that it knows, and from its own defaults for
all others; it drops tensors that have no place in that model. So a file is compared with the model that came
out: every key about the model has to be one that is read or one that agrees, and every number of its tensors
has to be in the model. Two things are taken from the file: the factors that Llama 3 divides its frequencies
by, which GGUF keeps as a tensor, and whether prompts begin with the BOS token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import torch

from gradpath.errors import InputError, reason
from gradpath.model.transformer import Transformer

# Keys that transformers reads, for every architecture that it shares with us.
_READ = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.freq_base",
    "vocab_size",
}
# Keys that say nothing about the computation.
_IDLE = {"rope.scaling.finetuned", "rope.scaling.original_context_length", "tensor_data_layout"}
# Keys that only have to agree with the model that was made: what it has there.
_AGREE: dict[str, Callable[[Transformer, Any], Any]] = {
    "attention.key_length": lambda model, config: model.arch.d_head,
    "attention.value_length": lambda model, config: model.arch.d_head,
    "attention.sliding_window": lambda model, config: getattr(config, "sliding_window", None),
    "attention.causal": lambda model, config: True,
    "attn_logit_softcapping": lambda model, config: model.arch.attention_cap,
    "final_logit_softcapping": lambda model, config: model.arch.logit_cap,
    "expert_count": lambda model, config: 0,
    "expert_used_count": lambda model, config: 0,
    "rope.dimension_count": lambda model, config: 2 * len(model.rotary[0].frequencies),
    "rope.scaling.type": lambda model, config: "none",
    "rope.scaling.factor": lambda model, config: 1.0,
    "rope.scaling.attn_factor": lambda model, config: 1.0,
}
_FACTORS = "rope_freqs.weight"
# Gemma's 27B models scale their queries unlike the smaller ones, and the file does not say so.
_OTHER_QUERY_SCALE = {("gemma2", 46), ("gemma3_text", 62)}


def _bounded_reader(file: Path) -> Any:
    """The library's reader, which does not look where the file ends, made to look.

    An array that is said to have 2^60 values would be read for ever. What this one has read, the library's
    own reads as well.
    """
    from gguf import GGUFReader

    class BoundedReader(GGUFReader):
        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            if offset + numpy.dtype(dtype).itemsize * int(count) > len(self.data):
                raise ValueError("it ends before its last value")
            return super()._get(offset, dtype, count, override_order)

    return BoundedReader(file)


@dataclass(frozen=True)
class GgufFile:
    """The facts of a GGUF file: values about the model by their short key, and the size of its tensors."""

    name: str
    values: dict[str, Any]
    add_bos: bool | None
    n_numbers: int
    rope_factors: torch.Tensor | None

    @classmethod
    def read(cls, file: Path) -> GgufFile:
        try:
            return cls._read(file)
        except InputError:
            raise
        except Exception as problem:  # a damaged file can make the library raise anything
            raise InputError(
                f"no model could be loaded from {file}: it cannot be read as GGUF ({reason(problem)}). "
                "Download it again."
            ) from None

    @classmethod
    def _read(cls, file: Path) -> GgufFile:
        reader = _bounded_reader(file)

        def value(key: str) -> Any:
            field = reader.get_field(key)
            return None if field is None else field.contents()

        own = f"{value('general.architecture')}."
        factors = [tensor for tensor in reader.tensors if tensor.name == _FACTORS]
        return cls(
            name=file.name,
            values={key.removeprefix(own): value(key) for key in reader.fields if key.startswith(own)},
            add_bos=value("tokenizer.ggml.add_bos_token"),
            n_numbers=sum(int(tensor.n_elements) for tensor in reader.tensors if tensor.name != _FACTORS),
            rope_factors=torch.from_numpy(numpy.array(factors[0].data)).float() if factors else None,
        )

    def complete(self, model: Transformer, hf_model: Any) -> Transformer:
        """The model that was made of this file with what was left out of it, or a refusal that names why."""
        self._check(model, hf_model)
        if self.rope_factors is None:
            return model
        factors = self.rope_factors
        return replace(model, rotary=tuple(replace(x, frequencies=x.frequencies / factors) for x in model.rotary))

    def _check(self, model: Transformer, hf_model: Any) -> None:
        for key, value in self.values.items():
            if key in _READ or key in _IDLE:
                continue
            if key not in _AGREE:
                self._refuse(f"{key} = {value!r}, which gradpath does not know")
            ours = _AGREE[key](model, hf_model.config)
            if value != ours:
                self._refuse(f"{key} = {value!r}, which is not read from such files: the model has {ours!r}")
        n_ours = sum(parameter.numel() for parameter in hf_model.parameters())
        if self.n_numbers != n_ours:
            self._refuse(f"tensors of {self.n_numbers:,} numbers, and the model only holds {n_ours:,}")
        if (model.arch.family, model.arch.n_layers) in _OTHER_QUERY_SCALE:
            self._refuse("no query_pre_attn_scalar, and this size needs its own")

    def _refuse(self, what: str) -> None:
        raise InputError(
            f"the file {self.name} has {what}. Its scores would be wrong, so it is not loaded: "
            "use the model's folder or hub name."
        )
