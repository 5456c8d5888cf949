r"""Which experts of a mixture the effect of an MLP node comes from.

The MLP of a layer writes a sum over its experts, so the effect of its node u (``measure``) is a sum, too::

    effect_e   sum over positions of (w_e f_e - w'_e f'_e) . g_u

w_e f_e is the output of expert e times its weight on the clean prompt, and w'_e f'_e on the corrupted one, each zero
where the router does not choose e; g_u as in ``measure``. With the shared expert, whose weight is 1 or its own gate,
these add up to the effect of the node. Under another ablation, the ablated output belongs to no expert: its part,
-x'_u . g_u, has a separate row.

Cost per batch: the MLPs of these layers once more, on both prompts; nothing in a model without experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor

from gradpath.attribution.contraction import NodeReads
from gradpath.model.architecture import Experts, Layer, expert_outputs
from gradpath.model.transformer import Transformer, at_least_float32

if TYPE_CHECKING:
    from gradpath.explanation.measure import BatchWork

NUMBERS = ("effect", "clean", "corrupted")  # the effect, and how many tokens choose an expert on either prompt
_SHARED, _ABLATION = -2, -1  # the last columns; in front of them is one for each expert


@dataclass(frozen=True)
class Expert:
    """The part of one expert in the effect of an MLP node.

    Args:
        name: ``m3.e5``, ``m3.shared``, or ``ablation`` for the output of an ablation other than ``corrupted``.
        effect: Its part of the node's effect: the parts add up to it.
        share: Its share of the sum of the parts' sizes.
        clean: The share of tokens, from the first changed one on, that choose it on the clean prompts.
        corrupted: The same on the corrupted prompts.
    """

    name: str
    effect: float
    share: float
    clean: float | None
    corrupted: float | None


def mixtures_of(model: Transformer, sources: Sequence[int]) -> list[int]:
    """The MLPs with experts among the nodes."""
    places = [(source, *model.graph.place_of_source(source)) for source in sources if source]
    mlps = [(source, layer) for source, layer, head in places if head == model.arch.n_heads]
    return [source for source, layer in mlps if model.layers[layer].experts is not None]


def n_columns(model: Transformer, mixtures: Sequence[int]) -> int:
    """The largest number of columns of a node: one per expert, one for the shared expert, one for the ablation."""
    return max((len(_experts(model, source).router) + 2 for source in mixtures), default=0)


@torch.no_grad()
def expert_parts(
    work: BatchWork, reads: NodeReads, mixtures: Sequence[int], n: int
) -> Float[Tensor, "batch number mixture expert"]:
    """The effect of every expert, and the tokens that choose it (``NUMBERS``), for each example."""
    model, runs, prepared = work.model, work.runs, work.prepared
    size, length = runs.clean.suffix.shape[:2]
    position = torch.arange(runs.start, runs.start + length, device=model.device)
    first, last = runs.batch.first.to(model.device), runs.batch.last
    counted = ((position >= first[:, None]) & (position <= last[:, None])).float()  # (batch, pos)
    parts = torch.zeros(size, len(NUMBERS), len(mixtures), n, device=model.device)
    for column, source in enumerate(mixtures):
        index, _ = model.graph.place_of_source(source)
        grad_out = reads.mlps[index].view(size, length, -1) / reads.n_points
        numbers = parts[:, :, column]  # (batch, number, expert)
        for end, run in enumerate((runs.clean.run, runs.corrupted.run)):
            effects, chosen = _effects(model, model.layers[index], run.layers[index].mlp_in, grad_out)
            slots = F.one_hot(chosen, n).float()  # (batch, pos, chosen, expert)
            numbers[:, 1 + end] = torch.einsum("bp,bpke->be", counted, slots)
            if end == 0 or not prepared.ablated:
                sign = -1 if end else 1
                numbers[:, 0] += sign * torch.einsum("bpk,bpke->be", effects[..., :-1], slots)
                numbers[:, 0, _SHARED] += sign * effects[..., -1].sum(1)
        if prepared.ablated:
            ablated = at_least_float32(work.corrupted.layers[index].mlp_out)
            numbers[:, 0, _ABLATION] = -(ablated * grad_out).sum((1, 2))
    return parts


def _effects(model: Transformer, layer: Layer, x: Tensor, grad_out: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs of the chosen experts and, last, the shared one times a gradient; and the chosen experts.

    Both are (batch, pos, ...), for a residual stream x (batch, pos, d_model).
    """
    assert layer.experts is not None
    y = model.read_norm(x)[0]
    weights, chosen, outputs = expert_outputs(layer.experts, y.flatten(0, 1), model.feed_forward)
    routed = (weights[..., None] * outputs).view(*y.shape[:2], -1, y.shape[-1])
    written = torch.cat([routed, model.shared_expert(layer, y)[..., None, :]], -2)  # (batch, pos, chosen + 1, d_model)
    if layer.mlp_gain is not None:
        # The norm after the MLP divides the sum over experts by one number, so each expert's part is divided by it.
        grad_out = grad_out * layer.mlp_gain * model.norm(written.sum(-2))[1]
        grad_out = grad_out - grad_out.mean(-1, keepdim=True) if model.arch.norm == "layer" else grad_out
    effects = torch.einsum("bpkd,bpd->bpk", at_least_float32(written), at_least_float32(grad_out))
    return effects, chosen.view(*y.shape[:2], -1)


def experts_of(
    model: Transformer, source: int, numbers: Float[Tensor, "number expert"], n_examples: int, n_tokens: int
) -> list[Expert]:
    """The experts of a node that any token chooses, the one with the largest part of the effect first.

    ``numbers`` are those of ``expert_parts``, summed over the examples; ``n_tokens`` is the number of tokens that were
    counted. Every token uses the shared expert.
    """
    node, layer = model.graph.sources[source], model.layers[model.graph.place_of_source(source)[0]]
    effects, clean, corrupted = numbers.tolist()
    total = sum(map(abs, effects)) or 1.0
    rows = []

    def add(name: str, column: int, *shares: float | None) -> None:
        rows.append(Expert(name, effects[column] / n_examples, abs(effects[column]) / total, *shares))

    for column in range(len(_experts(model, source).router)):
        if clean[column] or corrupted[column]:
            add(f"{node}.e{column}", column, clean[column] / n_tokens, corrupted[column] / n_tokens)
    if layer.w_out.shape[1]:
        add(f"{node}.shared", _SHARED, 1.0, 1.0)
    if effects[_ABLATION]:
        add("ablation", _ABLATION, None, None)
    return sorted(rows, key=lambda row: -abs(row.effect))


def _experts(model: Transformer, source: int) -> Experts:
    experts = model.layers[model.graph.place_of_source(source)[0]].experts
    assert experts is not None
    return experts
