"""The slow model, and the score of an edge by its definition: what the engine is checked against.

For an edge u -> v, with L the metric, x_u and x'_u the output of u on the clean and on the corrupted prompt, in_v the
input of v, and a path of k points between the two prompts,

    score(u -> v) = mean over examples of sum over positions of (x_u - x'_u) . (1/k) sum over points of dL / d in_v

``edge_scores`` computes this. ``patched_metric`` computes L with all edges outside a circuit corrupted. Every node is
computed by itself, one example at a time, from an input that is written out as the sum of the outputs of the nodes
before it. Nothing is fused, cached, batched or skipped. Only the weights and the activation functions are shared with
the engine. Tests and ``gradpath check`` compare the engine with this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gradpath.model.architecture import ACTIVATIONS, Experts, Latent, Layer
from gradpath.model.transformer import Transformer
from gradpath.tasks.task import Task, encode

# The input of a target, given its name, the outputs of all sources before it, and the sum of what belongs to no edge
# (position embeddings and biases). All are (pos, d_model).
ReadInput = Callable[[str, list[Tensor], Tensor], Tensor]
# The points of a path between the embeddings of the clean and the corrupted prompt.
Path = Callable[[Transformer, Tensor, Tensor], Sequence[Tensor]]
# The output of every source over an ablated edge, given the number of positions.
Ablated = Callable[[int], Sequence[Tensor]]


def edge_scores(
    model: Transformer,
    task: Task,
    edges: Tensor,
    path: Path,
    *,
    ablated: Ablated | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """The scores of some edges, (edge, 2) source and target, along a path: one per edge, float64.

    ``ablated`` gives the outputs x'_u that replace those on the corrupted prompt; ``dtype`` is the precision of the
    computation.
    """
    total = torch.zeros(len(edges), dtype=torch.float64, device="cpu")
    for clean, corrupted, labels in examples(model, task, dtype):
        x = forward(model, clean, read_all)[1]
        x_corrupted = forward(model, corrupted, read_all)[1] if ablated is None else ablated(len(clean))
        points = path(model, clean, corrupted)
        gradients = [input_gradients(model, task, labels, point) for point in points]
        for i, (u, v) in enumerate(edges.tolist()):
            target = model.graph.targets[v]
            gradient = torch.stack([at_point[target] for at_point in gradients]).mean(0)  # (pos, d_model)
            total[i] += float(((x[u] - x_corrupted[u]) * gradient).sum())
    return total / len(task)


def input_gradients(model: Transformer, task: Task, labels: Tensor, point: Tensor) -> dict[str, Tensor]:
    """dL / d in_v for every target v, each (pos, d_model), at the embeddings ``point``."""
    inputs: dict[str, Tensor] = {}

    def read(target: str, outputs: list[Tensor], constant: Tensor) -> Tensor:
        inputs[target] = read_all(target, outputs, constant).clone()
        return inputs[target]

    logits, _ = forward(model, point.clone().requires_grad_(), read)
    gradients = torch.autograd.grad(metric_of(task, labels, logits), list(inputs.values()), materialize_grads=True)
    return dict(zip(inputs, gradients, strict=True))


def patched_metric(
    model: Transformer,
    task: Task,
    circuit: Tensor,
    *,
    ablated: Ablated | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """The metric of each example when every edge outside a circuit carries the corrupted output of its source.

    ``circuit`` has the edges that are kept, (source, target); values between 0 and 1 mix the two outputs.
    """
    column = {name: i for i, name in enumerate(model.graph.targets)}
    values = []
    for clean, corrupted, labels in examples(model, task, dtype):
        x_corrupted = forward(model, corrupted, read_all)[1] if ablated is None else ablated(len(clean))

        def read(target: str, x: list[Tensor], constant: Tensor, other: Sequence[Tensor] = x_corrupted) -> Tensor:
            keep = circuit[: len(x), column[target]].to(constant)[:, None, None]  # (source, 1, 1)
            return (keep * torch.stack(x) + (1 - keep) * torch.stack(list(other[: len(x)]))).sum(0) + constant

        values.append(metric_of(task, labels, forward(model, clean, read)[0]))
    return torch.stack(values)


def examples(
    model: Transformer, task: Task, dtype: torch.dtype = torch.float64
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Each example without padding: the embeddings of both prompts, (pos, d_model), and the labels."""
    pairs = encode(task, model.tokenizer).to(model.device)
    for i in range(len(pairs)):
        length = int(pairs.last[i]) + 1
        clean, corrupted = (
            model.embedding[ids[i, :length]].to(dtype) * model.embedding_scale for ids in (pairs.clean, pairs.corrupted)
        )
        yield clean, corrupted, pairs.labels[i]


def metric_of(task: Task, labels: Tensor, logits: Tensor) -> Tensor:
    """The metric of one example."""
    return task.metric(logits[None], labels[None])[0]


def read_all(target: str, outputs: list[Tensor], constant: Tensor) -> Tensor:
    """The input of a target in the unpatched model: the sum of all outputs before it."""
    return torch.stack(outputs).sum(0) + constant


def forward(model: Transformer, x: Tensor, read: ReadInput) -> tuple[Tensor, list[Tensor]]:
    """Logits at the last position for embeddings x (pos, d_model), and the output of every source."""
    a = model.arch
    constant = torch.zeros_like(x) if model.positions is None else model.positions[: len(x)].to(x.dtype)
    outputs = [x]
    for number, layer in enumerate(model.layers):
        before, constant_before = list(outputs), constant
        inputs = [
            {kind: read(f"a{number}.h{head}<{kind}>", before, constant) for kind in "qkv"} for head in range(a.n_heads)
        ]
        outputs += attention(model, layer, inputs)
        constant = plus(constant, layer.b_o)
        mlp_in = read(f"m{number}", *((before, constant_before) if a.parallel else (outputs, constant)))
        outputs.append(mlp(model, layer, mlp_in))
        constant = plus(constant, layer.b_out)
    final = norm(model, read("logits", outputs, constant))[-1] * model.final_gain.to(x.dtype)
    logits = plus(model.unembedding.to(x.dtype) @ plus(final, model.final_shift), model.unembedding_bias)
    return cap(model, logits, a.logit_cap), outputs


def attention(model: Transformer, layer: Layer, inputs: list[dict[str, Tensor]]) -> list[Tensor]:
    """The output of each head of a layer, from separate inputs for each head's query, key and value."""
    a = model.arch
    heads = [projections(model, layer, head, x) for head, x in enumerate(inputs)]
    if layer.latent is not None:
        heads = [from_latents(model, layer.latent, head, **x) for head, x in enumerate(heads)]
    for kind, gain in (("q", layer.q_gain), ("k", layer.k_gain)):
        if a.qk_norm == "head" and gain is not None:
            for head, x in enumerate(heads):
                gain_of_head = gain if gain.ndim == 1 else gain[head]
                x[kind] = norm(model, x[kind]) * gain_of_head.to(x[kind].dtype)
        if a.qk_norm == "layer" and gain is not None:  # over all query heads, copies of shared keys included
            normed = norm(model, torch.cat([x[kind] for x in heads], -1)).chunk(a.n_heads, -1)
            for head, x in enumerate(heads):
                x[kind] = normed[head] * gain[head].to(x[kind].dtype)
    outputs = []
    for head, x in enumerate(heads):
        z = attend(model, layer, head, **x)
        outputs.append(z @ layer.w_o[:, head * a.d_head : (head + 1) * a.d_head].T.to(z.dtype))
    if layer.attn_gain is not None:  # a norm after attention divides by the size of the sum over all heads
        size = root_mean_square(model, torch.stack(outputs).sum(0))
        outputs = [layer.attn_gain.to(x.dtype) * x / size for x in outputs]
    return outputs


def projections(model: Transformer, layer: Layer, head: int, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """One head's query, key and value, each from a separate input; heads may share the weights of k and v.

    In latent attention these are latents, and all heads share their weights.
    """
    a = model.arch
    shared, n_q = head // (a.n_heads // a.n_kv_heads), 1 if a.latent_queries else a.n_heads
    block = {"q": min(head, n_q - 1), "k": n_q + shared, "v": n_q + a.n_kv_heads + shared}
    projected = {}
    for kind, x in inputs.items():
        rows = slice(block[kind] * a.d_qkv, (block[kind] + 1) * a.d_qkv)
        y = read_norm(model, x) @ layer.w_qkv[rows].T.to(x.dtype)
        projected[kind] = clip(model, plus(y, None if layer.b_qkv is None else layer.b_qkv[rows]))
    return projected


def from_latents(model: Transformer, latent: Latent, head: int, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
    """One head's query, key and value from its latents, each (pos, ...); the rest of a latent is padding."""

    def up(weights: Tensor, x: Tensor) -> Tensor:
        w = weights[head].to(x.dtype)  # (out, rank)
        x = x[:, : w.shape[1]]
        return x / root_mean_square(model, x, latent.eps) @ w.T

    rank, n_rotated = latent.k_up.shape[2], latent.n_rotated
    return {
        "q": q[:, : n_rotated + latent.k_up.shape[1]] if latent.q_up is None else up(latent.q_up, q),
        "k": torch.cat([k[:, rank : rank + n_rotated], up(latent.k_up, k)], -1),
        "v": up(latent.v_up, v),
    }


def attend(model: Transformer, layer: Layer, head: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The values that one head gathers with its attention pattern, (pos, d_head)."""
    logits = halve_if(model.rules.products, rotate(model, layer, q) @ rotate(model, layer, k).T * layer.scale)
    logits = cap(model, logits, model.arch.attention_cap)
    if model.attention_bias is not None:
        logits = logits + model.attention_bias[head, : len(k)].to(k.dtype)
    position = torch.arange(len(q), device=q.device)
    query, key = torch.meshgrid(position, position, indexing="ij")
    hidden = key > query
    if layer.window is not None:
        hidden |= key <= query - layer.window
    logits = logits.masked_fill(hidden, -torch.inf)
    if layer.sinks is None:
        pattern = softmax(model, logits)
    else:  # the sink takes a share of the attention, and has no value
        sink = layer.sinks[head].to(k.dtype).expand(len(q), 1)
        pattern = softmax(model, torch.cat([sink, logits], -1))[:, 1:]
    return halve_if(model.rules.products, detach_if(model.rules.attention, pattern) @ v)


class SoftmaxAtTemperature(torch.autograd.Function):
    """A softmax whose backward pass is that of the softmax of x / t (``Rules.temperature``)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, t: float) -> Tensor:
        ctx.save_for_backward((x / t).softmax(-1))
        return x.softmax(-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (soft,) = ctx.saved_tensors
        return soft * (gradient - (soft * gradient).sum(-1, keepdim=True)), None


def softmax(model: Transformer, x: Tensor) -> Tensor:
    """The softmax over the last axis."""
    if model.rules.temperature == 1:
        return x.softmax(-1)
    pattern: Tensor = SoftmaxAtTemperature.apply(x, model.rules.temperature)  # type: ignore[no-untyped-call]
    return pattern


def rotate(model: Transformer, layer: Layer, x: Tensor) -> Tensor:
    """Rotary embedding as complex numbers: pair (i, i + n) turns by position x frequency i, n frequencies.

    The dimensions of a head from 2 n on are not rotated.
    """
    if not model.rotary or layer.rotary is None:
        return x
    rotary = model.rotary[layer.rotary]
    angle = torch.arange(len(x), device=x.device)[:, None] * rotary.frequencies.to(x.dtype)
    n = len(rotary.frequencies)
    rotated = torch.complex(x[:, :n], x[:, n : 2 * n]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([rotated.real * rotary.gain, rotated.imag * rotary.gain, x[:, 2 * n :]], -1)


def mlp(model: Transformer, layer: Layer, x: Tensor) -> Tensor:
    """The output of an MLP; its bias ``b_out`` belongs to no edge."""
    y = read_norm(model, x)
    out = feed_forward(model, y, layer.w_in, layer.b_in, layer.w_out)
    if layer.experts is not None:
        if layer.experts.shared_gate is not None:
            gate = torch.sigmoid(y @ layer.experts.shared_gate.T.to(x.dtype))
            out = detach_if(model.rules.attention, gate) * out
        out = out + torch.stack([experts_of_token(model, layer.experts, row) for row in y])
    return out if layer.mlp_gain is None else norm(model, out) * layer.mlp_gain.to(x.dtype)


def experts_of_token(model: Transformer, experts: Experts, y: Tensor) -> Tensor:
    """The weighted outputs of the experts that the router chooses for one token, y (d_model,)."""
    logits = plus(experts.router.to(y.dtype) @ y, experts.router_bias)
    weights = logits.softmax(-1) if experts.probabilities == "softmax" else logits.sigmoid()
    rank = weights if experts.choice_bias is None else weights + experts.choice_bias.to(y.dtype)
    if experts.n_groups > 1:  # only the experts of the best groups can be chosen
        groups = rank.view(experts.n_groups, -1)
        of_group = groups.sort(descending=True).values[:, : experts.group_best].sum(-1)
        best = of_group.argsort(descending=True).tolist()[: experts.groups_per_token]
        others = [g for g in range(experts.n_groups) if g not in best]
        rank = groups.index_fill(0, torch.tensor(others, device=rank.device), -torch.inf).flatten()
    chosen = rank.argsort(descending=True).tolist()[: experts.per_token]
    total = sum(weights[e] for e in chosen) if experts.sum_to_one else 1.0
    out = torch.zeros_like(y)
    for e in chosen:
        b_in, b_out = (None if bias is None else bias[e] for bias in (experts.b_in, experts.b_out))
        weight = detach_if(model.rules.attention, experts.scale * weights[e] / total)
        output = feed_forward(model, weight * y if experts.scale_input else y, experts.w_in[e], b_in, experts.w_out[e])
        output = plus(output, b_out)
        out = out + (output if experts.scale_input else weight * output)
    return out


def feed_forward(model: Transformer, y: Tensor, w_in: Tensor, b_in: Tensor | None, w_out: Tensor) -> Tensor:
    """An MLP, or an expert, on normalised inputs, without its last bias."""
    hidden = plus(y @ w_in.T.to(y.dtype), b_in)
    activation = ACTIVATIONS[model.arch.activation]
    if model.arch.gated:
        gate, value = hidden.chunk(2, -1)
        if (limit := model.arch.gate_clamp) is None:
            hidden = elementwise(model, activation, gate) * value
        else:
            value = 1 + elementwise(model, lambda x: torch.clip(x, -limit, limit), value)
            hidden = elementwise(model, lambda x: activation(torch.clip(x, None, limit)), gate) * value
        hidden = halve_if(model.rules.gate, hidden)
    else:
        hidden = elementwise(model, activation, hidden)
    return hidden @ w_out.T.to(y.dtype)


def plus(x: Tensor, bias: Tensor | None) -> Tensor:
    """x plus a bias, if there is one."""
    return x if bias is None else x + bias.to(x.dtype)


def norm(model: Transformer, x: Tensor) -> Tensor:
    """LayerNorm or RMSNorm without gain and shift."""
    if model.arch.norm == "layer":
        x = x - x.mean(-1, keepdim=True)
    return x / root_mean_square(model, x)


def read_norm(model: Transformer, x: Tensor) -> Tensor:
    """The norm before attention and MLP, if the family has one."""
    return norm(model, x) if model.arch.norm_before else x


def root_mean_square(model: Transformer, x: Tensor, eps: float | None = None) -> Tensor:
    """The denominator of a norm."""
    eps = model.arch.norm_eps if eps is None else eps
    return detach_if(model.rules.norm, torch.sqrt((x**2).mean(-1, keepdim=True) + eps))


def clip(model: Transformer, x: Tensor) -> Tensor:
    """Projected queries, keys or values, clamped if the family does so."""
    limit = model.arch.qkv_clip
    return x if limit is None else elementwise(model, lambda x: x.clamp(-limit, limit), x)


def cap(model: Transformer, x: Tensor, limit: float | None) -> Tensor:
    """limit * tanh(x / limit), if there is a limit."""
    return x if limit is None else elementwise(model, lambda x: limit * torch.tanh(x / limit), x)


def elementwise(model: Transformer, f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """f(x), or by the rule for activations x times the constant f(x) / x."""
    return x * (f(x) / x).detach() if model.rules.activation else f(x)


def halve_if(product: bool, x: Tensor) -> Tensor:
    """x, with half of its gradient where a rule says so (``Rules``)."""
    return 0.5 * x + 0.5 * x.detach() if product else x


def detach_if(constant: bool, x: Tensor) -> Tensor:
    """x, as a constant of the backward pass where a rule says so (``Rules``)."""
    return x.detach() if constant else x
