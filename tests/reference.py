"""Methods, ablations and patched runs by their definitions, on the slow model (``gradpath.reference``)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from gradpath import reference as slow
from gradpath.model.transformer import Transformer
from gradpath.reference import Path, examples, forward, metric_of, read_all
from gradpath.tasks.task import Task

Outputs = Callable[[Transformer, Tensor], Tensor]


# What each source writes over an edge that is left out, given a prompt's length: (pos, d_model) each.
Instead = Callable[[int], list[Tensor]]


def close(values: Tensor, expected: Tensor, tolerance: float = 1e-5) -> bool:
    """Equal to ``tolerance`` of the largest score."""
    return bool((values - expected).abs().max() <= tolerance * expected.abs().max())


def zero(model: Transformer, task: Task) -> Instead:
    return lambda length: [torch.zeros(length, model.arch.d_model).double()] * model.graph.n_sources


def mean(model: Transformer, task: Task) -> Instead:
    """The mean over all examples and positions, for every source."""
    runs = [forward(model, clean, read_all)[1] for clean, _, _ in examples(model, task)]
    means = [torch.cat([writes[u] for writes in runs]).mean(0) for u in range(model.graph.n_sources)]
    return lambda length: [one.expand(length, -1) for one in means]


def mean_positional(model: Transformer, task: Task) -> Instead:
    """The mean over the examples that have the position; the mean over all where none has it."""
    runs = [forward(model, clean, read_all)[1] for clean, _, _ in examples(model, task)]
    everywhere = mean(model, task)(1)

    def at(u: int, position: int) -> Tensor:
        rows = [writes[u][position] for writes in runs if position < len(writes[u])]
        return torch.stack(rows).mean(0) if rows else everywhere[u][0]

    return lambda length: [
        torch.stack([at(u, position) for position in range(length)]) for u in range(model.graph.n_sources)
    ]


def scores(model: Transformer, task: Task, path: Path, instead: Instead | None = None) -> Tensor:
    """score(u -> v) by its definition, one gradient per target and point, (source, target)."""
    mask = model.graph.mask
    total = torch.zeros(mask.shape, dtype=torch.float64)
    total[mask] = slow.edge_scores(model, task, mask.nonzero(), path, ablated=instead)
    return total


def straight_line(fractions: list[float]) -> Path:
    """Points x' + f (x - x')."""
    return lambda model, clean, corrupted: [corrupted + f * (clean - corrupted) for f in fractions]


def last_logits(model: Transformer, x: Tensor) -> Tensor:
    return forward(model, x, read_all)[0]


def all_logits(model: Transformer, x: Tensor) -> Tensor:
    return torch.cat([last_logits(model, x[:end]) for end in range(1, len(x) + 1)])


def slope(model: Transformer, point: Tensor, corrupted: Tensor, outputs: Outputs = last_logits) -> Tensor:
    """The gradient of ||G(gamma) - G(x')||^2 at a point."""
    leaf = point.clone().requires_grad_()
    distance = ((outputs(model, leaf) - outputs(model, corrupted)) ** 2).sum()
    return torch.autograd.grad(distance, leaf)[0]


def literal_grad_path(steps: int, outputs: Outputs = last_logits) -> Path:
    """The paper's Eq. 7-8: unit steps down the gradient of ||G(gamma) - G(x')||^2, from x."""

    def path(model: Transformer, clean: Tensor, corrupted: Tensor) -> list[Tensor]:
        gamma, points = clean, []
        for _ in range(steps):
            g = slope(model, gamma, corrupted, outputs)
            gamma = gamma - g / g.norm()
            points.append(gamma)
        return points

    return path


def grad_path(steps: int, outputs: Outputs = last_logits, *, everywhere: bool = False, start: bool = False) -> Path:
    """The same in the model's own scale: steps of ||x - x'|| / k where the prompts differ, the last one to x'."""

    def path(model: Transformer, clean: Tensor, corrupted: Tensor) -> list[Tensor]:
        gamma, moves, points = clean, steps - start, [clean] if start else []
        for _ in range(moves - 1):
            g = slope(model, gamma, corrupted, outputs)
            if not everywhere:
                g = g * (clean != corrupted).any(-1, keepdim=True)
            gamma = gamma - (clean - corrupted).norm() / moves * g / g.norm()
            points.append(gamma)
        return [*points, corrupted]

    return path


def patched_metric(model: Transformer, task: Task, circuit: Tensor, instead: Instead | None = None) -> Tensor:
    """The metric of each example with every edge outside ``circuit`` (source, target) corrupted, or ablated.

    Numbers between 0 and 1 corrupt an edge by that much less.
    """
    return slow.patched_metric(model, task, circuit, ablated=instead)


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
        x_u, x_u_corrupted = (forward(model, x, read_all)[1] for x in (clean, corrupted))
        if instead is not None:
            x_u_corrupted = instead(len(clean))
        for place in places(model):
            for j in range(1, steps + 1):
                inputs: dict[str, Tensor] = {}
                moved = {u: x_u_corrupted[u] + j / steps * (x_u[u] - x_u_corrupted[u]) for u in place}

                def read(
                    target: str, writes: list[Tensor], constant: Tensor, i: dict = inputs, m: dict = moved
                ) -> Tensor:
                    i[target] = read_all(target, [m.get(u, x) for u, x in enumerate(writes)], constant).clone()
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


def exact_scores(
    model: Transformer, task: Task, instead: Instead | None = None, edges: list[tuple[int, int]] | None = None
) -> Tensor:
    """What the metric loses when one edge alone, of all or of these, is corrupted, or ablated, (source, target)."""
    every = model.graph.mask
    clean = patched_metric(model, task, every, instead)
    exact = torch.zeros(every.shape, dtype=torch.float64)
    for u, v in every.nonzero().tolist() if edges is None else edges:
        without = every.clone()
        without[u, v] = False
        exact[u, v] = (clean - patched_metric(model, task, without, instead)).mean()
    return exact


@contextlib.contextmanager
def gathering() -> Iterator[list[Tensor]]:
    """What heads gather in the slow model, in the order in which they do."""
    seen: list[Tensor] = []
    own = slow.attend

    def gathered(*given: Any, **named: Any) -> Tensor:
        seen.append(own(*given, **named))
        return seen[-1]

    with mock.patch.object(slow, "attend", gathered):
        yield seen


def atp_star(model: Transformer, task: Task, *, drop: bool, instead: Instead | None = None) -> Tensor:
    """EAP with patterns computed anew for edges into q and k, and the mean size over dropped layers."""
    graph, n_layers, n_heads = model.graph, model.arch.n_layers, model.arch.n_heads
    total = torch.zeros(graph.mask.shape, dtype=torch.float64)
    layer_of = [int(name[1:].partition(".")[0]) if name != "input" else -1 for name in graph.sources]
    for clean, corrupted, labels in examples(model, task):
        x_u, x_u_corrupted = (forward(model, x, read_all)[1] for x in (clean, corrupted))
        if instead is not None:
            x_u_corrupted = instead(len(clean))
        found = []
        for dropped in range(n_layers) if drop else [None]:
            inputs: dict[str, Tensor] = {}

            def read(
                target: str, writes: list[Tensor], constant: Tensor, i: dict = inputs, d: int | None = dropped
            ) -> Tensor:
                through = [x.detach() if layer_of[u] == d else x for u, x in enumerate(writes)]
                i[target] = read_all(target, through, constant).clone().requires_grad_()
                return i[target]

            with gathering() as zs:
                metric = metric_of(task, labels, forward(model, clean, read)[0])
            options = {"retain_graph": True, "materialize_grads": True}
            slopes = dict(zip(inputs, torch.autograd.grad(metric, list(inputs.values()), **options), strict=True))
            pulls = torch.autograd.grad(metric, zs, **options)
            scores = torch.zeros_like(total)
            for u, v in graph.mask.nonzero().tolist():
                less, target = x_u[u] - x_u_corrupted[u], graph.targets[v]
                if target[-3:] in ("<q>", "<k>"):
                    first = n_heads * int(target[1:].partition(".")[0])
                    own = slice(first, first + n_heads)
                    lost = gathered_less(model, inputs, zs[own], target, less)
                    parts = zip(lost, pulls[own], strict=True)
                    scores[u, v] = sum((z * pull).sum() for z, pull in parts).detach()
                else:
                    scores[u, v] = (less * slopes[target]).sum()
            found.append(scores)
        total += torch.stack(found).abs().sum(0) if drop else found[0]
    if drop:
        total[:, :-1] /= n_layers - 1
        total[:, -1] /= n_layers
    return total / len(task)


@torch.no_grad()
def gathered_less(
    model: Transformer, inputs: dict[str, Tensor], gathered: list[Tensor], target: str, less: Tensor
) -> list[Tensor]:
    """What each head of the target's layer gathers, less what it gathers when the target reads less."""
    layer = target.partition(".")[0]
    ins = [
        {
            kind: inputs[name] - (less if name == target else 0)
            for kind in "qkv"
            for name in [f"{layer}.h{head}<{kind}>"]
        }
        for head in range(model.arch.n_heads)
    ]
    with gathering() as zs:
        slow.attention(model, model.layers[int(layer[1:])], ins)
    return [a - b for a, b in zip(gathered, zs, strict=True)]


def node_scores(model: Transformer, task: Task, path: Path) -> Tensor:
    """score(u) by its definition: gradients at what each source writes, (source,)."""
    total = torch.zeros(model.graph.n_sources, dtype=torch.float64)
    for clean, corrupted, labels in examples(model, task):
        x_u, x_u_corrupted = (forward(model, x, read_all)[1] for x in (clean, corrupted))
        points = path(model, clean, corrupted)
        for point in points:
            logits, writes = forward(model, point.clone().requires_grad_(), read_all)
            gradients = torch.autograd.grad(metric_of(task, labels, logits), writes)
            for u, gradient in enumerate(gradients):
                total[u] += ((x_u[u] - x_u_corrupted[u]) * gradient).sum() / len(points)
    return total / len(task)
