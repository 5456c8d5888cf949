"""What adapters read: the configuration of a loaded ``transformers`` model, and its layers by the names of weights.

A configuration value that an adapter does not implement, or a weight that it does not read, would make every later
number wrong. So a ``Checkpoint`` records what an adapter reads, and ``check_all_read`` refuses any other weight, and
any other configuration value that differs from the default of its class, unless it is known not to affect the logits.

An adapter says which architecture a checkpoint has (``read_architecture``), under which names its weights are stored
(``Names``, Llama's by default), and how its layers differ (``read_model``).

Two differences between families are removed here, because they only concern the order of rows in the projection of
queries, keys and values. Some store one fused matrix, group by group. Some rotate neighbouring dimensions of a head,
2 i and 2 i + 1, where others rotate i and i + n: reordering the rows of queries and keys alike turns one into the
other, and does not change the products of queries and keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from gradpath.errors import InputError
from gradpath.model.architecture import ACTIVATIONS, Architecture, Experts, Layer, Rotary, fold_norm
from gradpath.model.transformer import Transformer

# Rope types whose frequencies do not depend on the prompt, so that those of transformers can be used. The last two
# depend on it only beyond the context that the model was first trained with.
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
    router_aux_loss_coef output_router_logits router_jitter_noise num_mtp_layers num_nextn_predict_layers
    num_experts num_local_experts n_routed_experts moe_intermediate_size shared_expert_intermediate_size
    decoder_sparse_step mlp_only_layers first_k_dense_replace n_shared_experts
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
        self.family = str(self.config.model_type)
        self._weights: dict[str, Tensor] = dict(hf_model.state_dict())
        self._weights_read = set[str]()
        # The first part of the names of the body's weights, and the name of the unembedding.
        self.stem = "" if self.body is hf_model else str(hf_model.base_model_prefix)
        self.unembedding = "lm_head"
        self.max_tokens: int | None = None  # rotary frequencies change for longer prompts
        self._configs = [self.config]

    def enter(self, part: str) -> None:
        """Continue with a part of the body."""
        self.body, self.stem = getattr(self.body, part), self._name(part)
        if f"{self.stem}.lm_head.weight" in self._weights:
            self.unembedding = f"{self.stem}.lm_head"

    def enter_text_model(self, *ignored: str) -> None:
        """Continue with the part that reads text. What reads images does not affect it, nor do the settings given."""
        self.ignore("vision_config", *ignored)
        images = tuple(f"{self._name(x)}." for x in ("vision_tower", "vision_model", "multi_modal_projector"))
        self._weights_read |= {name for name in self._weights if name.startswith(images)}
        self.config = _Config(self.config.text_config)
        self._configs.append(self.config)
        self.enter("language_model")

    def _name(self, part: str) -> str:
        """The first part of the names of a part's weights."""
        return f"{self.stem}.{part}" if self.stem else part

    def transpose(self, *linears: str) -> None:
        """Take the weights of these modules as (out, in), if the family stores them as (in, out)."""
        ends = tuple(f".{linear}.weight" for linear in linears)
        self._weights |= {name: x.T for name, x in self._weights.items() if name.endswith(ends)}

    def need(self, name: str) -> Tensor:
        """The weight of that name."""
        if name not in self._weights:
            raise InputError(f"this {self.family} model has no weight {name}. Download or convert it again.")
        self._weights_read.add(name)
        return self._weights[name]

    def get(self, name: str) -> Tensor | None:
        """The weight of that name, or None."""
        return self.need(name) if name in self._weights else None

    def check(self, name: str, value: Any, known: Collection[Any]) -> Any:
        """The value of a setting, if it is one of those that are implemented."""
        if value not in known:
            names = ", ".join(repr(x) for x in known)
            raise InputError(
                f"this {self.family} model has {name} = {value!r}, which gradpath does not implement: it knows "
                f"{names}. Its scores would be wrong, so the model is not loaded."
            )
        return value

    def ignore(self, *names: str) -> None:
        """Accept any value of settings that this family does not use."""
        self.config.names_read.update(names)

    def only(self, name: str, known: Collection[Any]) -> Any:
        """The value of a setting of the configuration, if it is one of those that the adapter implements."""
        return self.check(name, getattr(self.config, name, None), known)

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
        # The original frequencies: a long prompt may have changed the current ones.
        return Rotary(getattr(module, f"{prefix}original_inv_freq"), gain)

    def rotary_by_type(self) -> tuple[list[Rotary], list[int]]:
        """The rotation of each type of layer, and for each layer the index of its own."""
        self.windows()  # refuses unknown types
        types = sorted(set(self.config.layer_types))
        return [self.rotary(name) for name in types], [types.index(name) for name in self.config.layer_types]

    def windows(self) -> list[int | None]:
        """The attention window of each layer, by the type of the layer."""
        self.ignore(*_LAYER_TYPES.split())  # transformers has computed layer_types from the others
        known = ("full_attention", "sliding_attention")
        types = [self.check("layer_types", name, known) for name in self.config.layer_types]
        return [self.config.sliding_window if name == "sliding_attention" else None for name in types]

    def linear(self, names: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        """Linear layers stacked into one: weight (out, in) and bias."""
        weights, biases = [self.need(f"{x}.weight") for x in names], [self.get(f"{x}.bias") for x in names]
        if len(names) == 1:
            return weights[0], biases[0]
        present = [bias for bias in biases if bias is not None]
        assert len(present) in (0, len(names)), f"only some of {names} have a bias"
        return torch.cat(weights), torch.cat(present) if present else None

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


@dataclass(frozen=True)
class Names:
    """The names of a family's weights; None for norms that it does not have, or that have no weights.

    The names in a layer are relative to the layer, the others to the body of the model.
    """

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None
    qkv: Sequence[str] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    q_norm: str | None = None
    k_norm: str | None = None
    attention_out: str = "self_attn.o_proj"
    mlp_in: Sequence[str] = ("mlp.gate_proj", "mlp.up_proj")
    mlp_out: str | None = "mlp.down_proj"  # None: no MLP that every token uses; its weights are 0 wide
    layers: str = "layers"
    embedding: str = "embed_tokens"
    final_norm: str | None = "norm"
    grouped: bool = False  # ``qkv`` is one matrix with the queries, the key and the value of every group together
    gain: Callable[[Tensor], Tensor] = lambda weight: weight  # what the weight of a norm stands for


LLAMA = Names()


@dataclass(frozen=True)
class Mixture:
    """What differs in layers with experts: they have a weight of the name ``router``.

    ``experts`` makes them of the prefix of the layer's names, the router, and the gain of the norm before the MLP,
    which is to be folded into router and experts.
    """

    router: str
    names: Names
    experts: Callable[[str, Tensor, Tensor], Experts]


_EPS = {"rms": ("rms_norm_eps",), "layer": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "rms_norm_eps")}


def read_architecture(
    source: Checkpoint,
    *,
    norm: Literal["layer", "rms"] = "rms",
    eps: float | None = None,
    activation: str | None = None,
    gated: bool = True,
    n_kv_heads: int | None = None,
    parallel: bool = False,
) -> Architecture:
    """The architecture of a checkpoint, by the usual names of settings where no value is given.

    Args:
        source: The checkpoint.
        norm: The kind of its norms.
        eps: The constant in the norms; by default ``rms_norm_eps``, or ``layer_norm_eps`` and the like.
        activation: The activation of the MLP; by default ``hidden_act`` or ``activation_function``.
        gated: Whether the MLP has a gate.
        n_kv_heads: The number of heads with keys and values of their own; by default ``num_key_value_heads``, or all.
        parallel: Whether attention and MLP read the same residual stream.

    Returns:
        The architecture.
    """
    config = source.config
    if eps is None:
        eps = next(getattr(config, name) for name in _EPS[norm] if hasattr(config, name))
    if activation is None:
        activation = source.activation("hidden_act" if hasattr(config, "hidden_act") else "activation_function")
    return Architecture(
        family=source.family,
        n_layers=config.num_hidden_layers,
        n_heads=config.num_attention_heads,
        n_kv_heads=n_kv_heads or getattr(config, "num_key_value_heads", config.num_attention_heads),
        d_head=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        d_model=config.hidden_size,
        norm=norm,
        norm_eps=eps,
        activation=activation,
        gated=gated,
        parallel=parallel,
    )


def read_model(
    source: Checkpoint,
    arch: Architecture,
    names: Names = LLAMA,
    *,
    mixture: Mixture | None = None,
    windows: Sequence[int | None] | int | None = None,
    scale: float | Sequence[float] | None = None,
    rotary: Sequence[Rotary] | None = None,
    rotary_of: Sequence[int | None] | None = None,
    interleaved: bool = False,
) -> Transformer:
    """The model of a checkpoint.

    Args:
        source: The checkpoint.
        arch: Its architecture. Names of norms of queries and keys imply ``qk_norm="head"``.
        names: The names of the weights.
        mixture: What differs in layers with experts.
        windows: How many positions each layer's attention sees; one number for all, None for all positions.
        scale: The scale of the attention logits, or of each layer's; by default one over the root of d_head.
        rotary: The rotations that layers choose from; by default the one of the configuration.
        rotary_of: The index of each layer's rotation, or None if it has none; by default the first.
        interleaved: Whether neighbours (2 i, 2 i + 1) are rotated, instead of the pairs (i, i + n).

    Returns:
        The model, with the norms before attention and MLP folded in.
    """
    if arch.qk_norm is None and names.q_norm is not None:
        arch = replace(arch, qk_norm="head")
    rotary = [source.rotary()] if rotary is None else rotary
    width = 2 * len(rotary[0].frequencies) if interleaved else 0
    scale = arch.d_head**-0.5 if scale is None else scale
    layers = [
        replace(
            _read_layer(source, arch, f"{source.stem}.{names.layers}.{index}", names, width, mixture),
            window=windows[index] if isinstance(windows, Sequence) else windows,
            scale=scale[index] if isinstance(scale, Sequence) else scale,
            rotary=0 if rotary_of is None else rotary_of[index],
        )
        for index in range(arch.n_layers)
    ]
    embedding = source.need(f"{source.stem}.{names.embedding}.weight")
    final, ones = f"{source.stem}.{names.final_norm}", torch.ones_like(embedding[0])
    return Transformer(
        arch=arch,
        layers=tuple(layers),
        embedding=embedding,
        unembedding=source.need(f"{source.unembedding}.weight"),
        unembedding_bias=source.get(f"{source.unembedding}.bias"),
        final_gain=ones if names.final_norm is None else names.gain(source.need(f"{final}.weight")),
        final_shift=source.get(f"{final}.bias"),
        rotary=tuple(rotary),
    )


def _read_layer(
    source: Checkpoint, arch: Architecture, prefix: str, names: Names, interleaved: int, mixture: Mixture | None
) -> Layer:
    """One layer; ``interleaved`` is the number of dimensions of a head that are rotated as neighbours."""
    router = None if mixture is None else source.get(f"{prefix}.{mixture.router}.weight")
    if mixture is not None and router is not None:
        gain_before = source.need(f"{prefix}.{mixture.names.before_mlp}.weight")
        layer = _read_layer(source, arch, prefix, mixture.names, interleaved, None)
        return replace(layer, experts=mixture.experts(prefix, router, gain_before))

    def gain(norm: str | None) -> Tensor | None:
        return None if norm is None else names.gain(source.need(f"{prefix}.{norm}.weight"))

    def after_norm(norm: str | None, linears: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        weight, bias = source.linear([f"{prefix}.{linear}" for linear in linears])
        if not arch.norm_before:
            return weight, bias
        shift = None if norm is None else source.get(f"{prefix}.{norm}.bias")
        return fold_norm(weight, bias, gain(norm), shift, centre=arch.norm == "layer")

    w_qkv, b_qkv = after_norm(names.before_attention, names.qkv)
    w_in, b_in, w_out, b_out = w_qkv.new_empty(0, arch.d_model), None, w_qkv.new_empty(arch.d_model, 0), None
    if names.mlp_out is not None:
        w_in, b_in = after_norm(names.before_mlp, names.mlp_in)
        w_out, b_out = source.linear([f"{prefix}.{names.mlp_out}"])
    if names.grouped or interleaved:
        rows = _row_order(arch, grouped=names.grouped, interleaved=interleaved).to(w_qkv.device)
        w_qkv, b_qkv = w_qkv[rows], None if b_qkv is None else b_qkv[rows]
    w_o, b_o = source.linear([f"{prefix}.{names.attention_out}"])
    return Layer(
        w_qkv=w_qkv,
        b_qkv=b_qkv,
        w_o=w_o.contiguous(),
        b_o=b_o,
        w_in=w_in,
        b_in=b_in,
        w_out=w_out.contiguous(),
        b_out=b_out,
        scale=1.0,
        window=None,
        q_gain=_per_head(gain(names.q_norm), arch, interleaved),
        k_gain=_per_head(gain(names.k_norm), arch, interleaved),
        attn_gain=gain(names.after_attention),
        mlp_gain=gain(names.after_mlp),
    )


def with_layers(model: Transformer, change: Callable[[int, Layer], Layer]) -> Transformer:
    """The model with each layer changed, given its index."""
    return replace(model, layers=tuple(change(index, layer) for index, layer in enumerate(model.layers)))


def _row_order(arch: Architecture, *, grouped: bool, interleaved: int) -> Tensor:
    """The rows of a checkpoint's queries, keys and values in the order of ``Layer.w_qkv``."""
    n_heads, n_kv, d_head = arch.n_heads, arch.n_kv_heads, arch.d_head
    rows = torch.arange((n_heads + 2 * n_kv) * d_head).view(-1, d_head)
    if grouped:
        group = rows.view(n_kv, n_heads // n_kv + 2, d_head)
        rows = torch.cat([group[:, :-2].flatten(0, 1), group[:, -2], group[:, -1]])
    rotated, values = rows[: n_heads + n_kv], rows[n_heads + n_kv :]
    return torch.cat([rotated[:, halves(d_head, interleaved)], values]).flatten()


def halves(d_head: int, interleaved: int) -> Tensor:
    """The dimensions of a head with the first ``interleaved`` of them reordered: even ones, then odd ones."""
    even = torch.arange(0, interleaved, 2)
    return torch.cat([even, even + 1, torch.arange(interleaved, d_head)])


def _per_head(gain: Tensor | None, arch: Architecture, interleaved: int) -> Tensor | None:
    """The gain of a norm of queries or keys: (d_head,) if all heads share it, else (head, d_head)."""
    if gain is None:
        return None
    order = halves(arch.d_head, interleaved).to(gain.device)
    if arch.qk_norm == "head" and gain.ndim == 1:
        return gain[order] if interleaved else gain  # a wrong length is refused by name elsewhere
    gains = gain.view(-1, arch.d_head)[:, order]
    return gains.repeat_interleave(arch.n_heads // len(gains), 0)
