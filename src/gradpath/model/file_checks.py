"""Checks of the files of a model: they contain what they describe, and nothing in a GGUF file is ignored.

A configuration of a hundred bytes can describe a model of a terabyte. ``transformers`` would allocate it, fill in
random numbers where the file has none, and only then report missing weights. So the model is first built without
memory, on the meta device, and its size is compared with that of the files.

``transformers`` reads a few keys of a GGUF file, uses its own defaults for all others, and drops tensors that have no
place in the model. So every key about the model must be one that it reads or one that agrees with the model, and the
model must have as many numbers as the tensors. Two things are taken from the file itself: the factors by which Llama 3
divides its frequencies, which GGUF stores as a tensor, and whether prompts begin with the BOS token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import torch

from gradpath.errors import InputError, is_out_of_memory, reason
from gradpath.model.transformer import Transformer

NO_CODE = {"trust_remote_code": False}  # without it, transformers may ask at the terminal
MAX_LAYERS = 1000  # each layer is an object, even without memory
# The smallest types of GGUF have two bits per number, and tied weights are stored once.
MAX_NUMBERS_PER_BYTE = 16
# Keys that transformers reads, for every architecture that it shares with us, and some that change nothing.
_ACCEPTED = """
    attention.head_count attention.head_count_kv attention.layer_norm_epsilon attention.layer_norm_rms_epsilon
    block_count context_length embedding_length feed_forward_length rope.freq_base vocab_size
    rope.scaling.finetuned rope.scaling.original_context_length tensor_data_layout
"""
_FACTORS = "rope_freqs.weight"
# The 27B models of Gemma have their own scale of queries, and GGUF files do not contain it.
_OTHER_QUERY_SCALE = {("gemma2", 46), ("gemma3_text", 62)}


def check_claims(folder: Path, gguf_file: str | None) -> None:
    """Raise a ``ValueError`` if the folder, or the GGUF file in it, cannot contain the model that it describes."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, gguf_file=gguf_file, **NO_CODE)
    n_layers = config.get_text_config().num_hidden_layers
    if not 0 < n_layers <= MAX_LAYERS:
        raise ValueError(f"its configuration has {n_layers!r} layers, and a model has 1 to {MAX_LAYERS:,}")
    empty = empty_model(config)
    claimed = sum(parameter.numel() for parameter in empty.parameters())
    files = [file for file in folder.iterdir() if file.suffix in (".safetensors", ".bin")]
    if gguf_file is not None:  # the vocabulary of such a model comes from the tensors, not from the configuration
        claimed -= sum(x.weight.numel() for x in (empty.get_input_embeddings(), empty.get_output_embeddings()))
        files = [folder / gguf_file]
    size = sum(file.stat().st_size for file in files)
    if claimed > MAX_NUMBERS_PER_BYTE * size:
        raise ValueError(f"it describes a model of {claimed:,} numbers, and its files have only {size:,} bytes")


def empty_model(config: Any, **options: Any) -> Any:
    """A ``transformers`` model without weights, on the meta device."""
    with torch.device("meta"):
        return auto_class(config.model_type).from_config(config, **options, **NO_CODE)


def auto_class(family: str) -> Any:
    """The class of ``transformers`` that loads models of a family; some families with images need another one."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto import modeling_auto as auto

    only_with_images = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.keys() - auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    # AutoModelForCausalLM would read only the text model of llama4, and refuse the other weights in the file.
    with_images = family in only_with_images or family == "llama4"
    return AutoModelForImageTextToText if with_images else AutoModelForCausalLM


@dataclass(frozen=True)
class GgufFile:
    """The contents of a GGUF file besides its weights: values about the model by key, and the number of weights."""

    name: str
    values: dict[str, Any]
    add_bos: bool | None
    n_numbers: int
    rope_factors: torch.Tensor | None

    @classmethod
    def read(cls, file: Path) -> GgufFile:
        """Read the metadata of a file, or raise an ``InputError`` if it is damaged."""
        try:
            reader = _bounded_reader(file)

            def value(key: str) -> Any:
                return field.contents() if (field := reader.get_field(key)) is not None else None

            prefix = f"{value('general.architecture')}."
            factors = [tensor for tensor in reader.tensors if tensor.name == _FACTORS]
            return cls(
                name=file.name,
                values={key.removeprefix(prefix): value(key) for key in reader.fields if key.startswith(prefix)},
                add_bos=value("tokenizer.ggml.add_bos_token"),
                n_numbers=sum(int(tensor.n_elements) for tensor in reader.tensors if tensor.name != _FACTORS),
                rope_factors=torch.from_numpy(numpy.array(factors[0].data)).float() if factors else None,
            )
        except Exception as problem:  # a damaged file can make the library raise anything
            if is_out_of_memory(problem):
                raise
            raise InputError(
                f"no model could be loaded from {file}: it cannot be read as GGUF ({reason(problem)}). "
                "Download it again."
            ) from None

    def complete(self, model: Transformer, hf_model: Any) -> Transformer:
        """The model with the frequency factors of the file.

        ``hf_model`` is what transformers built from this file, and ``model`` was converted from it. An ``InputError``
        says which part of the file the model does not contain.
        """
        self._check_values(model, getattr(hf_model.config, "sliding_window", None))
        n_numbers = sum(parameter.numel() for parameter in hf_model.parameters())
        if self.n_numbers != n_numbers:
            self._refuse(f"tensors of {self.n_numbers:,} numbers, and the model only holds {n_numbers:,}")
        if (model.arch.family, model.arch.n_layers) in _OTHER_QUERY_SCALE:
            self._refuse("no query_pre_attn_scalar, and this size needs its own")
        if (factors := self.rope_factors) is None:
            return model
        return replace(model, rotary=tuple(replace(x, frequencies=x.frequencies / factors) for x in model.rotary))

    def _check_values(self, model: Transformer, window: int | None) -> None:
        of_model = {
            "attention.key_length": model.arch.d_head,
            "attention.value_length": model.arch.d_head,
            "attention.sliding_window": window,
            "attention.causal": True,
            "attn_logit_softcapping": model.arch.attention_cap,
            "final_logit_softcapping": model.arch.logit_cap,
            "expert_count": 0,
            "expert_used_count": 0,
            "rope.dimension_count": 2 * len(model.rotary[0].frequencies) if model.rotary else 0,
            "rope.scaling.type": "none",
            "rope.scaling.factor": 1.0,
            "rope.scaling.attn_factor": 1.0,
        }
        for key, value in self.values.items():
            if key in _ACCEPTED.split():
                continue
            if key not in of_model:
                self._refuse(f"{key} = {value!r}, which gradpath does not know")
            if value != of_model[key]:
                self._refuse(f"{key} = {value!r}, which is not read from such files: the model has {of_model[key]!r}")

    def _refuse(self, what: str) -> None:
        raise InputError(
            f"the file {self.name} has {what}. Its scores would be wrong, so it is not loaded: "
            "use the model's folder or hub name."
        )


def _bounded_reader(file: Path) -> Any:
    """The reader of the gguf library, with a check of where the file ends.

    Without it, an array with a claimed length of 2^60 would be read without end.
    """
    from gguf import GGUFReader

    class BoundedReader(GGUFReader):
        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            if offset + numpy.dtype(dtype).itemsize * int(count) > len(self.data):
                raise ValueError("it ends before its last value")
            return super()._get(offset, dtype, count, override_order)

    return BoundedReader(file)
