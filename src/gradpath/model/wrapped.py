"""Models of other interpretability tools: TransformerLens's ``HookedTransformer`` and bridge, and nnsight's models.

None of these packages is imported: an object is recognised by its attributes. The weights of a ``HookedTransformer``
are read here as they are. Folded norms (``LNPre``, ``RMSPre``) have no gain, and centred weights compute the same as
others. A bridge and an nnsight model wrap a ``transformers`` model, which is unwrapped and read by the adapter of its
family. ``load`` then compares logits with those of the object.
"""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from gradpath.model.architecture import ACTIVATIONS, Architecture, Layer, Rotary, fold_norm
from gradpath.model.families.checkpoint import ModelReader
from gradpath.model.transformer import Transformer

# The implemented values of a HookedTransformerConfig; fields that an older version lacks have their default.
_IMPLEMENTED: dict[str, Collection[Any]] = {
    "normalization_type": ("LN", "LNPre", "RMS", "RMSPre"),
    "positional_embedding_type": ("standard", "rotary"),
    "attention_dir": ("causal", None),
    "act_fn": (*ACTIVATIONS, "gelu_fast", None),
    "rotary_adjacent_pairs": (False, None),
    "num_experts": (None,),
    "final_rms": (False, None),
    "clip_qkv": (None,),
    "use_logn_attn": (False, None),
    "use_dynamic_ntk_rope": (False, None),
    "use_attention_sinks": (False, None),
    "post_embedding_ln": (False, None),
    "use_normalization_before_and_after": (False, None),
    "load_in_4bit": (False, None),
}
_BUFFERS = ("mask", "IGNORE", "rotary_sin", "rotary_cos")
_PART = "._original_component"


def is_hooked(source: Any) -> bool:
    """Whether an object is a HookedTransformer of TransformerLens."""
    return hasattr(source, "cfg") and hasattr(source, "hook_dict") and not hasattr(source, "original_model")


def is_bridge(source: Any) -> bool:
    """Whether an object is a TransformerBridge of TransformerLens."""
    return hasattr(source, "cfg") and hasattr(source, "original_model")


def without_nnsight(source: Any) -> Any:
    """The model in an nnsight model; other objects as they are."""
    return source._module if type(source).__module__.partition(".")[0] == "nnsight" else source


def unwrap(source: Any) -> Any:
    """The ``transformers`` model in a TransformerLens bridge or an nnsight model; other objects as they are."""
    if not is_bridge(source):
        return without_nnsight(source)
    original = source.original_model
    with torch.device("meta"):
        names = type(original)(original.config).state_dict().keys()
    # A bridge wraps the modules of the model, and gives some weights a second name.
    weights = {name.replace(_PART, ""): weight for name, weight in original.state_dict().items()}
    weights = {name: weight for name, weight in weights.items() if name in names}
    return SimpleNamespace(
        config=original.config,
        base_model=original.base_model,
        base_model_prefix=original.base_model_prefix,
        state_dict=lambda: weights,
    )


def from_hooked(hooked: Any) -> Transformer:
    """The model of a HookedTransformer, with its own weights.

    Args:
        hooked: A ``transformer_lens.HookedTransformer``.

    Returns:
        A model without tokenizer and name.
    """
    state: dict[str, Tensor] = hooked.state_dict()
    state = {name: x for name, x in state.items() if name.rpartition(".")[2] not in _BUFFERS}
    weights = ModelReader("this HookedTransformer", state)
    for name, known in _IMPLEMENTED.items():
        weights.check(name, getattr(hooked.cfg, name, None), known)
    arch = _architecture(hooked.cfg)
    rotations = list[Rotary]()
    layers = tuple(_layer(hooked, weights, arch, index, rotations) for index in range(arch.n_layers))
    embedding, gain = weights.need("embed.W_E"), weights.get("ln_final.w")
    model = Transformer(
        arch=arch,
        layers=layers,
        embedding=embedding,
        unembedding=weights.need("unembed.W_U").T.contiguous(),
        unembedding_bias=weights.get("unembed.b_U"),
        final_gain=torch.ones_like(embedding[0]) if gain is None else gain,
        final_shift=weights.get("ln_final.b"),
        positions=weights.get("pos_embed.W_pos"),
        rotary=tuple(rotations),
    )
    weights.check_all_read()
    return model


def _architecture(cfg: Any) -> Architecture:
    cap, logit_cap = getattr(cfg, "attn_scores_soft_cap", -1.0), getattr(cfg, "output_logits_soft_cap", -1.0)
    return Architecture(
        family="transformer_lens",
        n_layers=cfg.n_layers,
        n_heads=cfg.n_heads,
        n_kv_heads=cfg.n_key_value_heads or cfg.n_heads,
        d_head=cfg.d_head,
        d_model=cfg.d_model,
        norm="rms" if cfg.normalization_type.startswith("RMS") else "layer",
        norm_eps=cfg.eps,
        activation="gelu_new" if cfg.act_fn == "gelu_fast" else cfg.act_fn or "relu",
        gated=bool(cfg.gated_mlp),
        parallel=bool(cfg.parallel_attn_mlp),
        qk_norm="head" if getattr(cfg, "use_qk_norm", False) else None,
        attention_cap=cap if cap and cap > 0 else None,
        logit_cap=logit_cap if logit_cap and logit_cap > 0 else None,
    )


def _layer(hooked: Any, weights: ModelReader, arch: Architecture, index: int, rotations: list[Rotary]) -> Layer:
    """One layer. Its rotation is added to ``rotations`` if it is new."""
    cfg, prefix = hooked.cfg, f"blocks.{index}"

    def after_norm(norm: str, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        gain, shift = weights.get(f"{prefix}.{norm}.w"), weights.get(f"{prefix}.{norm}.b")
        return fold_norm(weight, bias, gain, shift, centre=arch.norm == "layer")

    grouped = "_" if cfg.n_key_value_heads is not None else ""  # the names of grouped keys and values
    names = [f"{prefix}.attn.W_Q", f"{prefix}.attn.{grouped}W_K", f"{prefix}.attn.{grouped}W_V"]
    w_qkv = torch.cat([weights.need(name).mT.flatten(0, 1) for name in names])  # (head d_head, d_model)
    b_qkv = torch.cat([weights.need(name.replace("W_", "b_")).flatten() for name in names])
    w_in, b_in, w_out, b_out = w_qkv.new_empty(0, arch.d_model), None, w_qkv.new_empty(arch.d_model, 0), None
    if not cfg.attn_only:
        mlp = f"{prefix}.mlp"
        w_in, b_in = weights.need(f"{mlp}.W_in").T, weights.get(f"{mlp}.b_in")
        w_out, b_out = weights.need(f"{mlp}.W_out").T.contiguous(), weights.get(f"{mlp}.b_out")
        if arch.gated:
            w_in = torch.cat([weights.need(f"{mlp}.W_gate").T, w_in])
            if b_in is not None:  # TransformerLens adds it behind the gate
                b_out, b_in = w_out @ b_in + (0 if b_out is None else b_out), None
        w_in, b_in = after_norm("ln2", w_in, b_in)
    w_qkv, folded_bias = after_norm("ln1", w_qkv, b_qkv)
    scale = 1 / float(cfg.attn_scale) if cfg.use_attn_scale else 1.0
    local = bool(cfg.use_local_attn) and cfg.attn_types[index] == "local"
    return Layer(
        w_qkv=w_qkv,
        b_qkv=folded_bias,
        w_o=weights.need(f"{prefix}.attn.W_O").flatten(0, 1).T.contiguous(),
        b_o=weights.get(f"{prefix}.attn.b_O"),
        w_in=w_in,
        b_in=b_in,
        w_out=w_out,
        b_out=b_out,
        scale=scale / (index + 1) if cfg.scale_attn_by_inverse_layer_idx else scale,
        window=cfg.window_size if local else None,
        rotary=_rotation(hooked.blocks[index].attn, cfg, rotations),
        q_gain=weights.get(f"{prefix}.attn.q_norm.w"),
        k_gain=weights.get(f"{prefix}.attn.k_norm.w"),
    )


def _rotation(attention: Any, cfg: Any, rotations: list[Rotary]) -> int:
    """The index of a layer's rotation among ``rotations``, to which a new one is added."""
    if cfg.positional_embedding_type != "rotary":
        return 0
    half = cfg.rotary_dim // 2
    cos, sin = attention.rotary_cos[1, :half].double(), attention.rotary_sin[1, :half].double()
    gain = float((cos.square() + sin.square()).sqrt().mean())
    gain = 1.0 if abs(gain - 1) < 1e-6 else gain
    angle = torch.atan2(sin, cos)
    # The angles at position 1 are rounded: if they agree with the usual formula, its exact values replace them.
    usual = cfg.rotary_base ** -(torch.arange(half, device=angle.device).double() / half)
    angle = usual if torch.allclose(usual, angle, rtol=1e-5, atol=1e-8) else angle
    rotary = Rotary(angle.float(), gain)
    for index, known in enumerate(rotations):
        if known.gain == gain and torch.equal(known.frequencies, rotary.frequencies):
            return index
    rotations.append(rotary)
    return len(rotations) - 1
