r"""From a circuit to a number: run it with every other edge ablated, and measure how much of the behaviour it keeps.

With m the metric of an example, on the clean prompt, the corrupted one, and in the circuit::

    faithfulness = (mean m_circuit - mean m_corrupted) / (mean m_clean - mean m_corrupted)
    error        = mean |m_circuit - m_clean| / mean |m_clean - m_corrupted|

The first is the paper's normalized faithfulness score (NFS): 1 is all of the behaviour, 0 none. A mean
can hide a circuit that is too strong on one example and too weak on the next, so the error, the paper's own
objective, is reported with it: 0 is the model's behaviour, 1 is as far off as the corrupted run. With another
ablation than the corrupted prompt (``ablation``), m_corrupted is the metric of the run in which every node is
ablated. Intervals are 95% intervals over examples (``result.ratio_interval``).

Cost per batch: one set-up (two forward passes) for all circuits, then one run for each.

``patch`` is the same with edges or nodes by name: corrupt these, or all others, and measure every example.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload

import torch
from jaxtyping import Float
from torch import Tensor

from gradpath import defaults
from gradpath._version import __version__
from gradpath.ablation import CORRUPTED
from gradpath.circuit import Circuit
from gradpath.errors import InputError, UsageError, check_names, check_type
from gradpath.evaluation.patched_run import check_same_graph, plan_of, run_circuits
from gradpath.evaluation.result import Result
from gradpath.model.tokenizer import Tokenizer
from gradpath.model.transformer import Transformer
from gradpath.prepared import PreparedBatches
from gradpath.recipe import Facts
from gradpath.runtime import distributed
from gradpath.runtime.progress import bars
from gradpath.sweep import PADDING, Limits, own_settings, sweep
from gradpath.tasks.metrics import logit_difference, probability_difference
from gradpath.tasks.task import Pairs, Task


@overload
def evaluate(
    model: Transformer,
    circuit: Circuit,
    task: Task,
    *,
    batch_size: int | None = ...,
    memory: int | None = ...,
    progress: bool = ...,
    ablation: str | None = ...,
    mean_over: Task | None = ...,
) -> Result: ...
@overload
def evaluate(
    model: Transformer,
    circuit: Sequence[Circuit],
    task: Task,
    *,
    batch_size: int | None = ...,
    memory: int | None = ...,
    progress: bool = ...,
    ablation: str | None = ...,
    mean_over: Task | None = ...,
) -> list[Result]: ...
def evaluate(
    model: Transformer,
    circuit: Circuit | Sequence[Circuit],
    task: Task,
    *,
    batch_size: int | None = None,
    memory: int | None = None,
    progress: bool = False,
    ablation: str | None = None,
    mean_over: Task | None = None,
) -> Result | list[Result]:
    """Run a circuit on a task, with every other edge ablated, and measure how much of the behaviour it keeps.

    Args:
        model: The model that the circuit is of.
        circuit: The circuit, or a list of circuits, which is faster than one call for each.
        task: The examples to measure on. Use other examples than those that were attributed.
        batch_size: The largest number of examples in a batch; by default it depends on prompt length and free memory.
        memory: A budget in bytes, weights included; by default the weights and half of the free memory.
        progress: Whether to show progress bars.
        ablation: What the other edges carry: ``corrupted``, ``zero``, ``mean`` or ``mean-positional``. By
            default the ablation that the circuit was found with.
        mean_over: The task whose clean prompts the means are taken over; by default ``task`` itself.

    Returns:
        The result, or a list of results for a list of circuits.
    """
    circuits, limits = list(circuit) if isinstance(circuit, Sequence) else [circuit], Limits(batch_size, memory)
    check_type("the model", model, Transformer)
    for one in circuits:
        check_type("the circuit", one, Circuit)
    check_type("the task", task, Task)
    with bars(progress):
        ablation = ablation or common_ablation(circuits)
        prepared = PreparedBatches(model, task, ablation, limits, mean_over=mean_over, room=0)
        results = evaluate_many(prepared, circuits)
    return results[0] if isinstance(circuit, Circuit) else results


def evaluate_many(prepared: PreparedBatches, circuits: Sequence[Circuit]) -> list[Result]:
    """The result of each circuit on examples that are prepared with their ablation and limits."""
    model, task = prepared.model, prepared.task
    for circuit in circuits:
        check_same_graph(model, circuit)
    bar = "measuring the circuit" if len(circuits) == 1 else f"measuring {len(circuits)} circuits"
    with own_settings(model):
        clean, corrupted, *patched = metric_values(prepared, circuits, bar)
    check_behaviour(task, clean, corrupted)
    clean_texts, corrupted_texts = (_texts(side, model.tokenizer) for side in (task.clean, task.corrupted))
    recipe = task.record.changed(model=model.name or None, ablation=prepared.ablation_name)
    facts = Facts(version=__version__, data=dict(task.facts))
    has_answers = task.metric in (logit_difference, probability_difference)
    sizes = [(circuit.requested, len(circuit)) for circuit in circuits]
    return [
        Result(clean, corrupted, values, *size, clean_texts, corrupted_texts, recipe, facts, has_answers)
        for size, values in zip(sizes, patched, strict=True)
    ]


def _texts(prompts: Sequence[str] | Tensor, tokenizer: Tokenizer | None) -> tuple[str, ...]:
    """The prompts as text; token ids of a model without a tokenizer as numbers."""
    if not isinstance(prompts, Tensor):
        return tuple(prompts)
    return tuple(" ".join(map(str, ids)) if tokenizer is None else tokenizer.decode(ids) for ids in prompts.tolist())


def common_ablation(circuits: Sequence[Circuit]) -> str:
    """The ablation that the circuits were found with; it has to be the same for all of them."""
    names = {circuit.ablation for circuit in circuits} or {CORRUPTED}
    if len(names) > 1:
        raise UsageError(
            f"these circuits were found with different ablations ({', '.join(sorted(names))}): measure them "
            "separately, or choose one with ablation=."
        )
    return names.pop()


@torch.no_grad()
def metric_values(
    examples: PreparedBatches, circuits: Sequence[Circuit], bar: str = "", *, batches: Sequence[Pairs] | None = None
) -> Float[Tensor, "run example"]:
    """The metric of every example on the clean and on the corrupted prompt, and in each circuit.

    ``batches`` are those of some of the examples; the others get zeros. By default all examples are measured.
    """
    model, task, pairs, limits = examples.model, examples.task, examples.pairs, examples.limits
    plans = [plan_of(model, circuit) for circuit in circuits]
    # Zeros, so that the sum over ranks puts every example's values in their place.
    values = torch.zeros(2 + len(plans), len(pairs), dtype=torch.float32, device="cpu")

    def measure(batch: Pairs) -> Tensor:
        prepared, *metrics = examples.prepare(batch)
        metrics += run_circuits(prepared, plans, task.metric)
        values[:, batch.index] = torch.stack([metric.float().cpu() for metric in metrics])
        return values[:, batch.index]

    batches = examples.batches if batches is None else batches
    if batches is None:
        batches = limits.batches(model, pairs, padding=PADDING)

    def same() -> object:
        return [circuit.mask.numpy().tobytes() for circuit in circuits], examples.ablation_name

    for _ in sweep(model, task, pairs, batches, measure, doing="evaluation", same=same, bar=bar):
        pass
    return distributed.all_sum(values)


def check_behaviour(task: Task, clean: Tensor, corrupted: Tensor) -> None:
    """Refuse a task on which faithfulness is undefined: clean and corrupted have to differ."""
    size = float(torch.maximum(clean.abs(), corrupted.abs()).mean())
    if abs(float(clean.mean() - corrupted.mean())) <= 1e-6 * size:
        raise InputError(
            f"faithfulness is undefined on the task {task.name!r}: the metric is "
            f"{float(clean.mean()):.4g} on the clean and on the corrupted prompts alike. "
            "Use prompts or a metric that the corruption changes."
        )


def patch(
    model: Transformer,
    task: Task,
    *,
    edges: Iterable[str] = (),
    nodes: Iterable[str] = (),
    keep: bool = False,
    ablation: str = defaults.ABLATION,
    batch_size: int | None = None,
    memory: int | None = None,
    mean_over: Task | None = None,
) -> Result:
    """Run a model with some edges corrupted, and measure every example.

    Args:
        model: The model.
        task: The examples to measure on.
        edges: Names of edges, such as ``a5.h1->m6`` or ``input->a0.h0<k>``.
        nodes: Names of nodes, such as ``a5.h1`` or ``m3``. They stand for all edges out of them or, with ``keep``, for
            all edges among them, ``input`` and ``logits``.
        keep: Keep these edges and corrupt all others, instead of corrupting these.
        ablation: What a corrupted edge carries: ``corrupted``, ``zero``, ``mean`` or ``mean-positional``.
        batch_size: The largest number of examples in a batch; by default it depends on prompt length and free memory.
        memory: A budget in bytes, weights included; by default the weights and half of the free memory.
        mean_over: The task whose clean prompts the means are taken over; by default ``task`` itself.

    Returns:
        The result. ``circuit_values`` has the metric of each example in the patched run, ``clean_values`` and
        ``corrupted_values`` that on the two prompts.
    """
    for name, value in (("edges", edges), ("nodes", nodes)):
        check_names(name, value)
    graph, edges, nodes = model.graph, list(edges), list(nodes)
    if not edges and not nodes:
        raise UsageError(
            "patch needs edges or nodes: got none. Name some, as in edges=['input->m0'] or nodes=['a0.h1']."
        )
    sources = [graph.source(node) for node in nodes]
    named = graph.among(sources) if keep and nodes else torch.zeros_like(graph.mask)
    if not keep:
        named[sources] = True
    for source, target in map(graph.index, edges):
        named[source, target] = True
    circuit = Circuit.of_mask(graph, graph.mask & (named if keep else ~named))
    return evaluate(model, circuit, task, ablation=ablation, batch_size=batch_size, memory=memory, mean_over=mean_over)
