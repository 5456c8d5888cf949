r"""Evaluation: how much of the behaviour a circuit keeps.

With m the metric of an example, on the clean prompt, the corrupted one, and in the circuit::

    faithfulness = (mean m_circuit - mean m_corrupted) / (mean m_clean - mean m_corrupted)
    error        = mean |m_circuit - m_clean| / mean |m_clean - m_corrupted|

The first is the paper's normalized faithfulness score (NFS): 1 is all of the behaviour, 0 none. A mean
can hide a circuit that is too strong on one example and too weak on the next, so the paper's own
objective, per example, stands beside it: 0 is the model's behaviour, 1 is as far off as the corrupted run.
With another ablation than the corrupted prompt (``ablation``), m_corrupted is the metric of the run in which
every node is ablated. Intervals are 95% percentile bootstraps over examples.

Cost per batch: one set-up (two forward passes) for all circuits, then one run for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, overload

import torch
from jaxtyping import Float
from torch import Tensor

from gradpath import ranks
from gradpath.ablation import CORRUPTED, Ablation, ablation_of, for_ablation
from gradpath.circuit import Circuit
from gradpath.errors import InputError, UsageError
from gradpath.intervention import check_same_graph, of_circuits, plan, run_circuits, set_stage
from gradpath.memory import Progress, batch_that_fits, in_shared_batches
from gradpath.model.transformer import Transformer
from gradpath.nonfinite import Places, of_prompts, watched
from gradpath.tasks.metrics import Metric
from gradpath.tasks.spans import labels_of
from gradpath.tasks.task import Pairs, Task, encode
from gradpath.visit import check_metric

RESAMPLES = 2000
DRAWN_AT_ONCE = 2**20  # numbers of examples, in bootstrap samples


@dataclass(frozen=True)
class Result:
    """One circuit on one task: the metric of every example, and what follows from it."""

    clean_values: Float[Tensor, " example"]
    corrupted_values: Float[Tensor, " example"]
    circuit_values: Float[Tensor, " example"]
    edges_asked: int
    edges_kept: int

    @property
    def clean(self) -> float:
        return float(self.clean_values.mean())

    @property
    def corrupted(self) -> float:
        return float(self.corrupted_values.mean())

    @property
    def circuit(self) -> float:
        return float(self.circuit_values.mean())

    @property
    def faithfulness(self) -> float:
        return float(self._faithfulness(self._values))

    @property
    def error(self) -> float:
        return float(self._error(self._values))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the faithfulness."""
        return bootstrap(self._values, self._faithfulness)

    @property
    def error_interval(self) -> tuple[float, float]:
        return bootstrap(self._values, self._error)

    def plot(self, ax: Any = None) -> Any:
        """Clean, corrupted and circuit, example by example, as matplotlib axes."""
        from gradpath.report.plots import plot_result

        return plot_result(self, ax)

    def _repr_html_(self) -> str:
        from gradpath.report.cards import result_card

        return result_card(self)

    @cached_property
    def _values(self) -> Tensor:
        """(3, example): clean, corrupted, circuit."""
        return torch.stack([self.clean_values, self.corrupted_values, self.circuit_values]).double()

    @staticmethod
    def _faithfulness(values: Tensor) -> Tensor:
        clean, corrupted, circuit = values.mean(-1).unbind(0)
        return (circuit - corrupted) / (clean - corrupted)

    @staticmethod
    def _error(values: Tensor) -> Tensor:
        clean, corrupted, circuit = values.unbind(0)
        return (circuit - clean).abs().mean(-1) / (clean - corrupted).abs().mean(-1)


def bootstrap(
    values: Float[Tensor, "quantity example"], statistic: Callable[[Tensor], Tensor]
) -> tuple[float, float]:
    """The 95% interval of a statistic that takes (quantity, ..., example) and reduces the two named axes."""
    n = values.shape[1]
    generator = torch.Generator(device="cpu").manual_seed(0)
    # A part at a time: of a hundred thousand examples, all samples at once would take gigabytes. The numbers
    # drawn are the same. The results have a place from the start, or each would stay in the way of the next
    # part's memory.
    resampled = torch.empty(RESAMPLES, dtype=values.dtype, device="cpu")
    size = max(1, DRAWN_AT_ONCE // n)
    for part in (resampled[at : at + size] for at in range(0, RESAMPLES, size)):
        draws = torch.randint(n, (len(part), n), generator=generator, device="cpu")
        part.copy_(statistic(values[:, draws]))
    ends = torch.tensor([0.025, 0.975], dtype=resampled.dtype, device="cpu")
    low, high = resampled.quantile(ends).tolist()
    return low, high


@overload
def evaluate(
    model: Transformer,
    circuit: Circuit,
    task: Task,
    *,
    batch_size: int = ...,
    memory: int | None = ...,
    progress: Progress | None = ...,
    ablation: str | None = ...,
    mean_over: Task | None = ...,
) -> Result: ...
@overload
def evaluate(
    model: Transformer,
    circuit: Sequence[Circuit],
    task: Task,
    *,
    batch_size: int = ...,
    memory: int | None = ...,
    progress: Progress | None = ...,
    ablation: str | None = ...,
    mean_over: Task | None = ...,
) -> list[Result]: ...
def evaluate(
    model: Transformer,
    circuit: Circuit | Sequence[Circuit],
    task: Task,
    *,
    batch_size: int = 20,
    memory: int | None = None,
    progress: Progress | None = None,
    ablation: str | None = None,
    mean_over: Task | None = None,
) -> Result | list[Result]:
    """Run a circuit, or several for the price of one set-up, on a task and measure what is left.

    ``memory`` is a budget in bytes, weights included, by which batches are made smaller than ``batch_size``;
    ``progress`` is called with the number of examples of every finished batch. ``ablation`` is what stands in
    for a node over edges outside of the circuit: ``corrupted``, ``zero``, ``mean`` or ``mean-positional``;
    if it is not given, what the circuit was found with. Means are over the clean prompts of ``mean_over``, or
    of the task itself.
    """
    circuits = [circuit] if isinstance(circuit, Circuit) else list(circuit)
    for one in circuits:
        check_same_graph(model, one)
    name = ablation or ablation_recorded(circuits)
    instead = ablation_of(name, model, mean_over or task, batch_size=batch_size, memory=memory)
    clean, corrupted, patched = _measure(model, circuits, task, batch_size, memory, progress, instead)
    _check_behaviour(task, clean, corrupted)
    results = [
        Result(clean, corrupted, values, one.asked, len(one))
        for one, values in zip(circuits, patched, strict=True)
    ]
    return results[0] if isinstance(circuit, Circuit) else results


def ablation_recorded(circuits: Sequence[Circuit]) -> str:
    """What the circuits were found with; one word for all of them."""
    names = {str(circuit.about.get("ablation", CORRUPTED)) for circuit in circuits} or {CORRUPTED}
    if len(names) > 1:
        raise UsageError(
            f"these circuits were found with different ablations ({', '.join(sorted(names))}): measure them "
            "apart, or say which one to use."
        )
    return names.pop()


@torch.no_grad()
def _measure(
    model: Transformer,
    circuits: list[Circuit],
    task: Task,
    batch_size: int,
    memory: int | None,
    progress: Progress | None,
    ablation: Ablation | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The metric of every example, clean, corrupted (example,) and in each circuit (circuit, example)."""
    pairs = for_ablation(_named(encode(task, model.tokenizer), circuits, task, model), ablation)
    plans = [plan(model, one) for one in circuits]
    # Zeros, so that the sum over ranks puts every example's values in their place.
    values = torch.zeros(2 + len(plans), len(pairs), dtype=torch.float32, device="cpu")

    def measure(batch: Pairs) -> Tensor:
        stage = set_stage(model, batch.to(model.device), ablation)
        # One after another: the logits of many circuits at once would not fit.
        all_logits = chain((stage.clean_logits, stage.corrupted_logits), run_circuits(stage, plans))
        found = torch.stack([_judge(task.metric, logits, stage.batch.labels) for logits in all_logits])
        values[:, batch.index] = found
        return found

    def places(single: Pairs) -> Places:
        yield from of_prompts(model, task.metric, single)
        yield from of_circuits(set_stage(model, single.to(model.device), ablation), plans, task.metric)

    work = watched(measure, lambda found: [found], model=model, task=task, doing="evaluation", places=places)
    size = batch_that_fits(model, pairs, batch_size, memory)

    def asked() -> object:
        return model.identity, [one.masks.numpy().tobytes() for one in circuits], ablation is None

    for _ in in_shared_batches(work, pairs, size, progress, asked=asked):
        pass
    values = ranks.add_up(values)
    return values[0], values[1], values[2:]


def _named(pairs: Pairs, circuits: Sequence[Circuit], task: Task, model: Transformer) -> Pairs:
    """The pairs with their positions named as circuits of positions name them, if there are any."""
    kinds = {(str(one.about.get("positions")), one.spans) for one in circuits if one.spans}
    if not kinds:
        return pairs
    if len(kinds) > 1:
        raise UsageError("these circuits split positions in different ways: measure them apart.")
    [(by, names)] = kinds
    return replace(pairs, spans=labels_of(task, pairs, model.tokenizer, by).under(names).at)


def _judge(metric: Metric, logits: Tensor, labels: object) -> Tensor:
    value = metric(logits, labels)
    check_metric(value, len(logits))
    return value.float().cpu()


def _check_behaviour(task: Task, clean: Tensor, corrupted: Tensor) -> None:
    """Faithfulness is a share of the difference between clean and corrupted: there has to be one."""
    size = float(torch.maximum(clean.abs(), corrupted.abs()).mean())
    if abs(float(clean.mean() - corrupted.mean())) <= 1e-6 * size:
        raise InputError(
            f"faithfulness is undefined on the task {task.name!r}: the metric is "
            f"{float(clean.mean()):.4g} on the clean and on the corrupted prompts alike. "
            "Use prompts or a metric that the corruption changes."
        )
