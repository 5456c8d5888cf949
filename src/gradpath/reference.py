"""The plain model: slow, per head, one example at a time, and short enough to be checked by eye.

Every node is computed on its own, from an input that is written out as the sum of what the nodes before
it wrote. Nothing is fused, cached, batched or skipped. It shares with the engine the weights, the names of
activations, and nothing else: what tests, and ``gradpath check``, hold the engine against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gradpath.model.architecture import ACTIVATIONS, Layer
from gradpath.model.transformer import Transformer
from gradpath.tasks.task import Pairs, Task, encode

# What a target reads, given its name, what every source so far wrote, and what belongs to no edge
# (positional embeddings and biases).
ReadInput = Callable[[str, list[Tensor], Tensor], Tensor]


def everything(target: str, writes: list[Tensor], constant: Tensor) -> Tensor:
    """The unpatched model: a target reads the sum of all writes before it."""
    return torch.stack(writes).sum(0) + constant


def forward(model: Transformer, x: Tensor, read: ReadInput) -> tuple[Tensor, list[Tensor]]:
    """Logits at the last position for embeddings x (pos, d_model), and what each source wrote."""
    a = model.arch
    constant = torch.zeros_like(x) if model.positions is None else model.positions[: len(x)].to(x.dtype)
    writes = [x]
    for number, layer in enumerate(model.layers):
        before, constant_before = list(writes), constant
        ins = [
            {kind: read(f"a{number}.h{head}<{kind}>", before, constant) for kind in "qkv"} for head in range(a.n_heads)
        ]
        writes += attention(model, layer, ins)
        if layer.b_o is not None:
            constant = constant + layer.b_o.to(x.dtype)
        seen, fixed = (before, constant_before) if a.parallel else (writes, constant)
        mlp_in = read(f"m{number}", seen, fixed)
        writes.append(mlp(model, layer, mlp_in))
        if layer.b_out is not None:
            constant = constant + layer.b_out.to(x.dtype)
    final = norm(model, read("logits", writes, constant))[-1] * model.final_gain.to(x.dtype)
    if model.final_shift is not None:
        final = final + model.final_shift.to(x.dtype)
    logits = model.unembedding.to(x.dtype) @ final
    if model.unembedding_bias is not None:
        logits = logits + model.unembedding_bias.to(x.dtype)
    return capped(model, logits, a.logit_cap), writes


def held(constant: bool, x: Tensor) -> Tensor:
    """A quantity that a rule of relevance propagation holds constant on the way back (``paths.relp``)."""
    return x.detach() if constant else x


def bent(model: Transformer, f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """f(x), or by that rule x times the constant f(x) / x."""
    return x * (f(x) / x).detach() if model.rules.activation else f(x)


def norm(model: Transformer, x: Tensor) -> Tensor:
    if model.arch.norm == "layer":
        x = x - x.mean(-1, keepdim=True)
    return x / held(model.rules.norm, torch.sqrt((x**2).mean(-1, keepdim=True) + model.arch.norm_eps))


def norm_of_reads(model: Transformer, x: Tensor) -> Tensor:
    return norm(model, x) if model.arch.norm_before else x


def capped(model: Transformer, x: Tensor, cap: float | None) -> Tensor:
    return x if cap is None else bent(model, lambda x: cap * torch.tanh(x / cap), x)


def attention(model: Transformer, layer: Layer, ins: list[dict[str, Tensor]]) -> list[Tensor]:
    """What each head of a layer writes, from separate inputs for each head's query, key and value."""
    a = model.arch
    made = [projections(model, layer, head, x) for head, x in enumerate(ins)]
    for kind, gain in (("q", layer.q_gain), ("k", layer.k_gain)):
        if a.qk_norm == "head" and gain is not None:
            for one in made:
                one[kind] = norm(model, one[kind]) * gain.to(one[kind].dtype)
        if (
            a.qk_norm == "layer" and gain is not None
        ):  # one norm over what all query heads have, copies of shared keys included
            side_by_side = norm(model, torch.cat([one[kind] for one in made], -1)).chunk(a.n_heads, -1)
            for head, one in enumerate(made):
                one[kind] = side_by_side[head] * gain[head].to(one[kind].dtype)
    writes = []
    for head, one in enumerate(made):
        columns = slice(head * a.d_head, (head + 1) * a.d_head)
        z = gathered(model, layer, **one)
        writes.append(z @ layer.w_o[:, columns].T.to(z.dtype))
    if layer.attn_gain is not None:  # a norm after attention: over the sum of all heads, in this very run
        total = torch.stack(writes).sum(0)
        size = held(model.rules.norm, torch.sqrt((total**2).mean(-1, keepdim=True) + a.norm_eps))
        writes = [layer.attn_gain.to(x.dtype) * x / size for x in writes]
    return writes


def projections(model: Transformer, layer: Layer, head: int, ins: dict[str, Tensor]) -> dict[str, Tensor]:
    """One head's query, key and value, each from an input of its own; heads may share weights for k and v."""
    a = model.arch
    shared = head // (a.n_heads // a.n_kv_heads)
    first = {"q": head, "k": a.n_heads + shared, "v": a.n_heads + a.n_kv_heads + shared}
    made = {}
    for kind, x in ins.items():
        rows = slice(first[kind] * a.d_head, (first[kind] + 1) * a.d_head)
        made[kind] = norm_of_reads(model, x) @ layer.w_qkv[rows].T.to(x.dtype)
        if layer.b_qkv is not None:
            made[kind] = made[kind] + layer.b_qkv[rows].to(x.dtype)
    return made


def gathered(model: Transformer, layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What one head gathers with its pattern, (pos, d_head)."""
    logits = capped(
        model, rotated(model, layer, q) @ rotated(model, layer, k).T * layer.scale, model.arch.attention_cap
    )
    place = torch.arange(len(q), device=q.device)
    query, key = torch.meshgrid(place, place, indexing="ij")
    hidden = key > query
    if layer.window is not None:
        hidden |= key <= query - layer.window
    return held(model.rules.attention, logits.masked_fill(hidden, -torch.inf).softmax(-1)) @ v


def rotated(model: Transformer, layer: Layer, x: Tensor) -> Tensor:
    """Rotary embedding as complex numbers: pair (i, i + n) turns by position x frequency i, n frequencies.

    What is left of a head's dimensions behind the first 2 n stays as it is.
    """
    if not model.rotary:
        return x
    rotary = model.rotary[layer.rotary]
    angle = torch.arange(len(x), device=x.device)[:, None] * rotary.frequencies.to(x.dtype)
    n = len(rotary.frequencies)
    turned = torch.complex(x[:, :n], x[:, n : 2 * n]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real * rotary.gain, turned.imag * rotary.gain, x[:, 2 * n :]], -1)


def mlp(model: Transformer, layer: Layer, x: Tensor) -> Tensor:
    """What an MLP writes; its output bias belongs to no edge."""
    hidden = norm_of_reads(model, x) @ layer.w_in.T.to(x.dtype)
    if layer.b_in is not None:
        hidden = hidden + layer.b_in.to(x.dtype)
    act = ACTIVATIONS[model.arch.activation]
    if model.arch.gated:
        gate, value = hidden.chunk(2, -1)
        hidden = bent(model, act, gate) * value
        hidden = 0.5 * hidden + 0.5 * held(model.rules.gate, hidden)
    else:
        hidden = bent(model, act, hidden)
    out = hidden @ layer.w_out.T.to(x.dtype)
    return out if layer.mlp_gain is None else norm(model, out) * layer.mlp_gain.to(x.dtype)


def metric_of(task: Task, labels: Tensor, logits: Tensor) -> Tensor:
    return task.metric(logits[None], labels[None])[0]


def examples(
    model: Transformer, task: Task, dtype: torch.dtype = torch.float64
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Each pair without padding: embeddings of both prompts, (pos, d_model), and the labels."""
    pairs: Pairs = encode(task, model.tokenizer).to(model.device)
    for i in range(len(pairs)):
        length = int(pairs.last[i]) + 1
        ends = [
            model.embedding[ids[i, :length]].to(dtype) * model.embedding_scale for ids in (pairs.clean, pairs.corrupted)
        ]
        yield ends[0], ends[1], pairs.labels[i]


def slopes(model: Transformer, task: Task, labels: Tensor, point: Tensor) -> dict[str, Tensor]:
    """The gradient of the metric at what every target reads, (pos, d_model), with embeddings ``point``."""
    inputs: dict[str, Tensor] = {}

    def read(target: str, writes: list[Tensor], constant: Tensor) -> Tensor:
        inputs[target] = everything(target, writes, constant).clone()
        return inputs[target]

    logits, _ = forward(model, point.clone().requires_grad_(), read)
    found = torch.autograd.grad(metric_of(task, labels, logits), list(inputs.values()), materialize_grads=True)
    return dict(zip(inputs, found, strict=True))


def patched(model: Transformer, task: Task, labels: Tensor, mask: Tensor, ends: tuple[Tensor, Tensor]) -> Tensor:
    """The metric with every edge outside ``mask`` (source, target) corrupted; ``ends`` are both prompts."""
    column = {name: i for i, name in enumerate(model.graph.targets)}
    instead = forward(model, ends[1], everything)[1]

    def read(target: str, writes: list[Tensor], constant: Tensor) -> Tensor:
        kept = mask[: len(writes), column[target]].to(constant.dtype)[:, None, None]
        return (kept * torch.stack(writes) + (1 - kept) * torch.stack(instead[: len(writes)])).sum(0) + constant

    return metric_of(task, labels, forward(model, ends[0], read)[0])
