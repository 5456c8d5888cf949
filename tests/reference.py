"""The plain reference: slow, per head, one example at a time, and short enough to be checked by eye.

Every node is computed on its own, from an input that is written out as the sum of what the nodes before
it wrote. Nothing is fused, cached, batched or skipped. It shares with the engine the weights and nothing
else.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from gradpath.model.transformer import ACTIVATIONS, Layer, Transformer
from gradpath.tasks.task import Pairs, Task, encode

# What a target reads, given its name, what every source so far wrote, and what belongs to no edge
# (positional embeddings and biases).
Reader = Callable[[str, list[Tensor], Tensor], Tensor]


def everything(target: str, writes: list[Tensor], constant: Tensor) -> Tensor:
    """The unpatched model: a target reads the sum of all writes before it."""
    return sum(writes) + constant


def forward(model: Transformer, x: Tensor, read: Reader) -> tuple[Tensor, list[Tensor]]:
    """Logits at the last position for embeddings x (pos, d_model), and what each source wrote."""
    a = model.arch
    constant = torch.zeros_like(x) if model.positions is None else model.positions[: len(x)].to(x.dtype)
    writes = [x]
    for number, layer in enumerate(model.layers):
        before, constant_before = list(writes), constant
        ins = [
            {kind: read(f"a{number}.h{head}<{kind}>", before, constant) for kind in "qkv"}
            for head in range(a.n_heads)
        ]
        writes += attention(model, layer, ins)
        if layer.b_o is not None:
            constant = constant + layer.b_o.to(x.dtype)
        if a.parallel:
            mlp_in = read(f"m{number}", before, constant_before)
        else:
            mlp_in = read(f"m{number}", writes, constant)
        writes.append(mlp(model, layer, mlp_in))
        if layer.b_out is not None:
            constant = constant + layer.b_out.to(x.dtype)
    final = norm(model, read("logits", writes, constant))[-1] * model.final_gain.to(x.dtype)
    if model.final_shift is not None:
        final = final + model.final_shift.to(x.dtype)
    logits = model.unembedding.to(x.dtype) @ final
    if model.unembedding_bias is not None:
        logits = logits + model.unembedding_bias.to(x.dtype)
    return capped(logits, a.logit_cap), writes


# What is held constant in the backward pass: names of the rules of relevance propagation.
HELD: set[str] = set()


@contextlib.contextmanager
def holding(*rules: str) -> Iterator[None]:
    HELD.update(rules)
    try:
        yield
    finally:
        HELD.clear()


def held(rule: str, x: Tensor) -> Tensor:
    return x.detach() if rule in HELD else x


def norm(model: Transformer, x: Tensor) -> Tensor:
    if model.arch.norm == "layer":
        x = x - x.mean(-1, keepdim=True)
    return x / held("norm", torch.sqrt((x**2).mean(-1, keepdim=True) + model.arch.norm_eps))


def norm_of_reads(model: Transformer, x: Tensor) -> Tensor:
    return norm(model, x) if model.arch.norm_before else x


def capped(x: Tensor, cap: float | None) -> Tensor:
    return x if cap is None else bent(lambda x: cap * torch.tanh(x / cap), x)


def bent(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """f(x), or x times the constant f(x) / x."""
    return x * (f(x) / x).detach() if "activation" in HELD else f(x)


def attention(model: Transformer, layer: Layer, ins: list[dict[str, Tensor]]) -> list[Tensor]:
    """What each head of a layer writes, from separate inputs for each head's query, key and value."""
    a = model.arch
    made = [projections(model, layer, head, x) for head, x in enumerate(ins)]
    for kind, gain in (("q", layer.q_gain), ("k", layer.k_gain)):
        if a.qk_norm == "head":
            for one in made:
                one[kind] = norm(model, one[kind]) * gain.to(one[kind].dtype)
        if a.qk_norm == "layer":  # one norm over what all query heads have, copies of shared keys included
            side_by_side = norm(model, torch.cat([one[kind] for one in made], -1)).chunk(a.n_heads, -1)
            for head, one in enumerate(made):
                one[kind] = side_by_side[head] * gain[head].to(one[kind].dtype)
    writes = []
    for head, one in enumerate(made):
        columns = slice(head * a.d_head, (head + 1) * a.d_head)
        z = gathered(model, layer, **one)
        writes.append(z @ layer.w_o[:, columns].T.to(z.dtype))
    if layer.attn_gain is not None:  # a norm after attention: over the sum of all heads, in this very run
        total = sum(writes)
        size = held("norm", torch.sqrt((total**2).mean(-1, keepdim=True) + a.norm_eps))
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
        rotated(model, layer, q) @ rotated(model, layer, k).T * layer.scale, model.arch.attention_cap
    )
    query, key = torch.meshgrid(torch.arange(len(q)), torch.arange(len(q)), indexing="ij")
    hidden = key > query
    if layer.window is not None:
        hidden |= key <= query - layer.window
    return held("attention", logits.masked_fill(hidden, -torch.inf).softmax(-1)) @ v


def rotated(model: Transformer, layer: Layer, x: Tensor) -> Tensor:
    """Rotary embedding as complex numbers: pair (i, i + n) turns by position x frequency i, n frequencies.

    What is left of a head's dimensions behind the first 2 n stays as it is.
    """
    if not model.rotary:
        return x
    rotary = model.rotary[layer.rotary]
    angle = torch.arange(len(x))[:, None] * rotary.frequencies.to(x.dtype)
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
        hidden = bent(act, gate) * value
        hidden = 0.5 * hidden + 0.5 * held("gate", hidden)
    else:
        hidden = bent(act, hidden)
    out = hidden @ layer.w_out.T.to(x.dtype)
    return out if layer.mlp_gain is None else norm(model, out) * layer.mlp_gain.to(x.dtype)


def metric_of(task: Task, labels: Tensor, logits: Tensor) -> Tensor:
    return task.metric(logits[None], labels[None])[0]


def examples(model: Transformer, task: Task, dtype: torch.dtype = torch.float64) -> Iterable[tuple]:
    """Each pair without padding: embeddings of both prompts, (pos, d_model), and the labels."""
    pairs: Pairs = encode(task, model.tokenizer)
    for i in range(len(pairs)):
        length = int(pairs.last[i]) + 1
        ends = [
            model.embedding[ids[i, :length]].to(dtype) * model.embedding_scale
            for ids in (pairs.clean, pairs.corrupted)
        ]
        yield (*ends, pairs.labels[i])


Path = Callable[[Transformer, Tensor, Tensor], list[Tensor]]
Outputs = Callable[[Transformer, Tensor], Tensor]


# What each source writes over an edge that is left out, given a prompt's length: (pos, d_model) each.
Instead = Callable[[int], list[Tensor]]


def zero(model: Transformer, task: Task) -> Instead:
    return lambda length: [torch.zeros(length, model.arch.d_model).double()] * model.graph.n_sources


def mean(model: Transformer, task: Task) -> Instead:
    """The mean over all examples and positions, for every source."""
    runs = [forward(model, clean, everything)[1] for clean, _, _ in examples(model, task)]
    means = [torch.cat([writes[u] for writes in runs]).mean(0) for u in range(model.graph.n_sources)]
    return lambda length: [one.expand(length, -1) for one in means]


def mean_positional(model: Transformer, task: Task) -> Instead:
    """The mean over the examples that have the position; the mean over all where none has it."""
    runs = [forward(model, clean, everything)[1] for clean, _, _ in examples(model, task)]
    everywhere = mean(model, task)(1)

    def at(u: int, position: int) -> Tensor:
        rows = [writes[u][position] for writes in runs if position < len(writes[u])]
        return torch.stack(rows).mean(0) if rows else everywhere[u][0]

    return lambda length: [
        torch.stack([at(u, position) for position in range(length)]) for u in range(model.graph.n_sources)
    ]


def scores(model: Transformer, task: Task, path: Path, instead: Instead | None = None) -> Tensor:
    """score(u -> v) by its definition, one gradient per target and point, (source, target)."""
    graph = model.graph
    total = torch.zeros(graph.n_sources, graph.n_targets, dtype=torch.float64)
    for clean, corrupted, labels in examples(model, task):
        x_u, x_u_corrupted = (forward(model, x, everything)[1] for x in (clean, corrupted))
        if instead is not None:
            x_u_corrupted = instead(len(clean))
        points = path(model, clean, corrupted)
        for point in points:
            inputs: dict[str, Tensor] = {}

            def read(target: str, writes: list[Tensor], constant: Tensor, inputs: dict = inputs) -> Tensor:
                inputs[target] = everything(target, writes, constant).clone()
                return inputs[target]

            logits, _ = forward(model, point.clone().requires_grad_(), read)
            gradients = torch.autograd.grad(
                metric_of(task, labels, logits), list(inputs.values()), materialize_grads=True
            )
            for target, gradient in zip(inputs, gradients, strict=True):
                v = graph.targets.index(target)
                for u in range(int(graph.sources_before_target[v])):
                    total[u, v] += ((x_u[u] - x_u_corrupted[u]) * gradient).sum() / len(points)
    return total / len(task)


def straight_line(fractions: list[float]) -> Path:
    """Points x' + f (x - x')."""
    return lambda model, clean, corrupted: [corrupted + f * (clean - corrupted) for f in fractions]


def last_logits(model: Transformer, x: Tensor) -> Tensor:
    return forward(model, x, everything)[0]


def all_logits(model: Transformer, x: Tensor) -> Tensor:
    return torch.cat([last_logits(model, x[:end]) for end in range(1, len(x) + 1)])


def slope(model: Transformer, point: Tensor, corrupted: Tensor, outputs: Outputs = last_logits) -> Tensor:
    """The gradient of ||G(gamma) - G(x')||^2 at a point."""
    leaf = point.clone().requires_grad_()
    distance = ((outputs(model, leaf) - outputs(model, corrupted)) ** 2).sum()
    return torch.autograd.grad(distance, leaf)[0]


def grad_path(steps: int, outputs: Outputs = last_logits) -> Path:
    """The paper's Eq. 7-8: unit steps down the gradient of ||G(gamma) - G(x')||^2, from x."""

    def path(model: Transformer, clean: Tensor, corrupted: Tensor) -> list[Tensor]:
        gamma, points = clean, []
        for _ in range(steps):
            g = slope(model, gamma, corrupted, outputs)
            gamma = gamma - g / g.norm()
            points.append(gamma)
        return points

    return path


def boxed(steps: int) -> Path:
    """The same with steps of ||x - x'|| / k; coordinates at a wall are left out, and no wall is crossed."""

    def path(model: Transformer, clean: Tensor, corrupted: Tensor) -> list[Tensor]:
        low, high = torch.minimum(clean, corrupted), torch.maximum(clean, corrupted)
        gamma, points = clean, []
        for _ in range(steps):
            g = slope(model, gamma, corrupted)
            g[(g > 0) & (gamma == low)] = 0
            g[(g < 0) & (gamma == high)] = 0
            gamma = (gamma - (clean - corrupted).norm() / steps * g / g.norm()).clamp(low, high)
            points.append(gamma)
        return points

    return path


def monotone(steps: int) -> Path:
    """From x on, coordinates of smallest slope go to x', in each step a k-th of the whole way."""

    def path(model: Transformer, clean: Tensor, corrupted: Tensor) -> list[Tensor]:
        gamma, points = clean.clone(), [clean]
        whole = (clean - corrupted).abs().sum()
        for step in range(1, steps):
            g = slope(model, gamma, corrupted).abs().flatten()
            gamma, behind = gamma.clone(), whole - (gamma - corrupted).abs().sum()
            for i in g.argsort(stable=True).tolist():
                behind += (gamma.flatten()[i] - corrupted.flatten()[i]).abs()
                if behind <= whole * step / steps:
                    gamma.view(-1)[i] = corrupted.flatten()[i]
            points.append(gamma)
        return points

    return path


def where_it_moves(steps: int) -> Path:
    """On the line, at equal shares of the way of the logits, as 2 k pieces of the line measure it."""

    def path(model: Transformer, clean: Tensor, corrupted: Tensor) -> list[Tensor]:
        line = [corrupted + i / (2 * steps) * (clean - corrupted) for i in range(2 * steps + 1)]
        logits = [last_logits(model, x) for x in line]
        way = [0.0]
        for a, b in itertools.pairwise(logits):
            way.append(way[-1] + float((a - b).norm()))
        at = [(j + 0.5) / steps * way[-1] for j in range(steps)]
        fractions = np.interp(at, way, np.linspace(0, 1, len(way)))
        return [corrupted + f * (clean - corrupted) for f in fractions]

    return path


def patched_metric(model: Transformer, task: Task, circuit: Tensor, instead: Instead | None = None) -> Tensor:
    """The metric of each example with every edge outside ``circuit`` (source, target) corrupted, or ablated.

    Numbers between 0 and 1 corrupt an edge by that much less.
    """
    position = {name: i for i, name in enumerate(model.graph.targets)}
    values = []
    for clean, corrupted, labels in examples(model, task):
        x_corrupted = forward(model, corrupted, everything)[1] if instead is None else instead(len(clean))

        def read(target: str, writes: list[Tensor], constant: Tensor, x_c: list = x_corrupted) -> Tensor:
            kept = circuit[:, position[target]].double()
            return sum(kept[u] * x + (1 - kept[u]) * x_c[u] for u, x in enumerate(writes)) + constant

        values.append(metric_of(task, labels, forward(model, clean, read)[0]))
    return torch.stack(values)


def places(model: Transformer) -> list[list[int]]:
    """The sources that are moved together: input; the heads of a layer; its MLP."""
    groups: dict[str, list[int]] = {}
    for u, name in enumerate(model.graph.sources):
        groups.setdefault(name.partition(".h")[0], []).append(u)
    return list(groups.values())


def scores_over_activations(
    model: Transformer, task: Task, steps: int, *, own: bool, instead: Instead | None = None
) -> Tensor:
    """Integrated gradients over what one place after the other writes, everything else being clean."""
    graph = model.graph
    total = torch.zeros(graph.n_sources, graph.n_targets, dtype=torch.float64)
    weight = steps if own else steps * len(places(model))
    for clean, corrupted, labels in examples(model, task):
        x_u, x_u_corrupted = (forward(model, x, everything)[1] for x in (clean, corrupted))
        if instead is not None:
            x_u_corrupted = instead(len(clean))
        for place in places(model):
            for j in range(1, steps + 1):
                inputs: dict[str, Tensor] = {}
                moved = {u: x_u_corrupted[u] + j / steps * (x_u[u] - x_u_corrupted[u]) for u in place}

                def read(
                    target: str, writes: list[Tensor], constant: Tensor, i: dict = inputs, m: dict = moved
                ) -> Tensor:
                    i[target] = everything(
                        target, [m.get(u, x) for u, x in enumerate(writes)], constant
                    ).clone()
                    return i[target].requires_grad_()

                logits, _ = forward(model, clean.clone(), read)
                gradients = torch.autograd.grad(
                    metric_of(task, labels, logits), list(inputs.values()), materialize_grads=True
                )
                for target, gradient in zip(inputs, gradients, strict=True):
                    v = graph.targets.index(target)
                    for u in range(int(graph.sources_before_target[v])):
                        if u in place or not own:
                            total[u, v] += ((x_u[u] - x_u_corrupted[u]) * gradient).sum() / weight
    return total / len(task)


def exact_scores(model: Transformer, task: Task, instead: Instead | None = None) -> Tensor:
    """What the metric loses when one edge alone is corrupted, or ablated, (source, target)."""
    every = model.graph.mask
    clean = patched_metric(model, task, every, instead)
    exact = torch.zeros(every.shape, dtype=torch.float64)
    for u, v in every.nonzero().tolist():
        without = every.clone()
        without[u, v] = False
        exact[u, v] = (clean - patched_metric(model, task, without, instead)).mean()
    return exact
