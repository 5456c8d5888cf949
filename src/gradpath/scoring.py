"""The scores of one batch: walk the method's path, sum gradients, contract them with differences of writes.

``attribution`` has the formula and goes over the batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from gradpath.ablation import Ablation
from gradpath.contraction import Reads, Writes, contract
from gradpath.errors import UsageError
from gradpath.increments import terms
from gradpath.memory import SUM_AT_ONCE
from gradpath.method import Method
from gradpath.model.transformer import Transformer
from gradpath.nodes import NodeReads, contract_nodes
from gradpath.paths import Path
from gradpath.tasks.metrics import Metric
from gradpath.tasks.task import Pairs
from gradpath.visit import Ground, Passes, walk

# Groups of a batch's rows, (batch, suffix position) flattened, which are scored apart.
Split = Callable[[Pairs], list[Tensor]]


def score_batch(
    model: Transformer,
    metric: Metric,
    method: Method,
    options: dict[str, Any],
    ablation: Ablation | None,
    batch: Pairs,
    *,
    stops: frozenset[int] = frozenset(),
    split: Split | None = None,
) -> list[tuple[Tensor, Passes]]:
    """The batch's summed scores, (source, target), and the passes so far: at each stop and at the end.

    With ``split`` there is one such sum for each group of rows, (group, source, target).
    """
    if isinstance(method, Path):
        model = replace(model, rules=method.rules(options))
    with torch.enable_grad():
        ground = Ground(model, batch.to(model.device), metric, method.whole(options), ablation)
        if split is not None and (not isinstance(method, Path) or method.of == "nodes"):
            raise UsageError(
                f"{method.name} is no path with scores of edges, which alone can be taken apart. Use eap-ig."
            )
        if isinstance(method, Path):
            return _score_path(ground, method, options, stops, None if split is None else split(batch))
        return [(method.build(ground, **options).detach().cpu(), ground.passes)]


def _score_path(
    ground: Ground,
    path: Path,
    options: dict[str, Any],
    stops: frozenset[int],
    groups: list[Tensor] | None,
) -> list[tuple[Tensor, Passes]]:
    def product(writes: Writes, reads: Reads | NodeReads) -> Tensor:
        if isinstance(reads, NodeReads):
            return contract_nodes(ground.model, writes, reads)
        if groups is None:
            return contract(ground.model, writes, reads)
        parts = [contract(ground.model, writes, reads, rows.to(ground.model.device)) for rows in groups]
        return torch.stack(parts)

    if path.increments:
        terms_ = (product(*term) for term in terms(ground, path, options))
        return [(reduce(torch.add, terms_).cpu(), ground.passes)]
    found, total, n_points = [], None, 0
    for reads in _summed_gradients(ground, path, options, stops):
        part = product(ground.writes, reads)
        total = part if total is None else total + part
        n_points += reads.n_points
        del reads  # before the next ones are summed
        if n_points in stops:
            found.append(((total / n_points).cpu(), replace(ground.passes)))
    if total is None:
        raise UsageError(f"the method {path.name!r} yielded no point to take a gradient at.")
    return [*found, ((total / n_points).cpu(), ground.passes)]


def by_example(batch: Pairs) -> list[Tensor]:
    """The rows of each example of a batch."""
    length = batch.clean.shape[1] - batch.start
    return [torch.arange(i * length, (i + 1) * length, device="cpu") for i in range(len(batch))]


def _summed_gradients(
    ground: Ground, path: Path, options: dict[str, Any], stops: frozenset[int]
) -> Iterator[Reads | NodeReads]:
    """Walk the path and sum the gradients at its points: to the next stop, or as many as memory holds."""
    summing = NodeReads if path.of == "nodes" else Reads
    reads, n_before = summing(), 0
    for visit, scored in walk(ground, path, options):
        if scored:
            reads.add(ground.model, visit.run, ground.judge(visit))
            ground.passes.backward += len(visit.suffix) // len(ground.batch)
        del visit  # before the next one is made
        n_points = n_before + reads.n_points
        if scored and (n_points in stops or reads.n_points >= SUM_AT_ONCE):
            yield reads
            reads, n_before = summing(), n_points
    if reads.n_points:
        yield reads
