"""A circuit as hooks of TransformerLens, to continue work there.

In a ``HookedTransformer`` every head reads the residual stream through its own hooks for q, k and v, and every MLP
through its own hook. The hook of a target v subtracts what edges outside the circuit carry from what v reads::

    in_v = residual stream - sum over the edges u -> v outside the circuit of (x_u - x'_u)

x_u is what u writes in this run, as hooks record it, x'_u what it writes on the corrupted prompts. This is the patched
run of ``gradpath.evaluation``, so the logits are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.graph import QKV, Graph

Hooks = list[tuple[str, Callable[..., Any]]]


def circuit_hooks(hooked: Any, circuit: Circuit, corrupted: Tensor) -> Hooks:
    """A circuit as forward hooks for ``hooked.run_with_hooks(clean, fwd_hooks=...)``.

    Args:
        hooked: A ``transformer_lens.HookedTransformer``. Its switches ``use_attn_result``, ``use_split_qkv_input`` and
            ``use_hook_mlp_in`` are turned on, and ``ungroup_grouped_query_attention`` if it has grouped heads.
        circuit: The circuit.
        corrupted: The token ids of the corrupted prompts, (prompt, pos), in the order and length of the clean ones.

    Returns:
        Pairs of the name of a hook and its function, for runs on as many prompts of the same length.
    """
    graph = circuit.graph
    _prepare(hooked, graph, circuit)
    outputs = ["hook_embed"]
    for layer in range(graph.n_layers):
        outputs += [f"blocks.{layer}.attn.hook_result", f"blocks.{layer}.hook_mlp_out"]
    with torch.no_grad():
        _, cache = hooked.run_with_cache(corrupted, names_filter=lambda name: name in set(outputs))
    x_corrupted = {name: cache[name] for name in outputs if name in cache}
    differences: dict[str, Tensor] = {}  # x_u - x'_u, for the sources that this run has reached
    left_out = graph.mask & ~circuit.mask

    def record(value: Tensor, hook: Any) -> None:
        if hook.name == outputs[0]:
            differences.clear()  # a new run
        differences[hook.name] = value - x_corrupted[hook.name]

    def removed(targets: slice) -> Tensor:
        """What edges outside the circuit would carry to these targets, (target, batch, pos, d_model)."""
        known = [differences[name] for name in outputs if name in differences]
        parts = [x if x.ndim == 4 else x.unsqueeze(2) for x in known]  # the heads of a layer are in one tensor
        written = torch.cat(parts, 2)  # (batch, pos, source, d_model)
        edges = left_out[: written.shape[2], targets].to(written)
        return torch.einsum("bpsd,st->tbpd", written, edges)

    return [(name, record) for name in x_corrupted] + _read_hooks(graph, removed)


def _read_hooks(graph: Graph, removed: Callable[[slice], Tensor]) -> Hooks:
    """The hooks of all targets."""

    def heads(first: int) -> Callable[..., Tensor]:  # the value is (batch, pos, head, d_model)
        return lambda value, hook: value - removed(slice(first, first + graph.n_heads)).permute(1, 2, 0, 3)

    def single(target: int) -> Callable[..., Tensor]:
        return lambda value, hook: value - removed(slice(target, target + 1))[0]

    hooks: Hooks = []
    for layer in range(graph.n_layers):
        for i, kind in enumerate(QKV):
            hooks.append((f"blocks.{layer}.hook_{kind}_input", heads(graph.target_head(layer, i))))
        hooks.append((f"blocks.{layer}.hook_mlp_in", single(graph.target_mlp(layer))))
    return [*hooks, (f"blocks.{graph.n_layers - 1}.hook_resid_post", single(graph.logits))]


def _prepare(hooked: Any, graph: Graph, circuit: Circuit) -> None:
    """Refuse a circuit or model that hooks cannot run, and turn on the switches that the hooks need."""
    cfg = hooked.cfg
    if (cfg.n_layers, cfg.n_heads, bool(cfg.parallel_attn_mlp)) != (graph.n_layers, graph.n_heads, graph.parallel):
        raise InputError(
            f"the circuit is of a model with {graph.n_layers} layers of {graph.n_heads} heads, and this "
            f"HookedTransformer has {cfg.n_layers} of {cfg.n_heads}. Give the model that the circuit was found in."
        )
    if getattr(cfg, "use_normalization_before_and_after", False) or cfg.attn_only:
        kind = "a norm behind attention" if not cfg.attn_only else "no MLPs"
        raise InputError(f"a circuit cannot be run by hooks of this HookedTransformer, because it has {kind}.")
    hooked.set_use_attn_result(True)
    hooked.set_use_split_qkv_input(True)
    hooked.set_use_hook_mlp_in(True)
    if cfg.n_key_value_heads is not None:
        hooked.set_ungroup_grouped_query_attention(True)
