"""The options of ``find``, and which combinations make no sense."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradpath import defaults
from gradpath.ablation import ABLATIONS
from gradpath.attribution.methods import find_method
from gradpath.errors import UsageError, check_choice, whole_number
from gradpath.limits import Limits
from gradpath.selection import edge_count, find_selection, swept
from gradpath.selection.faithful import check_share
from gradpath.tasks.load import check_draw, check_task
from gradpath.tasks.metrics import Metric, find_metric


@dataclass(frozen=True)
class FindRequest:
    """The options of ``find``, which describes them. Wrong ones are refused before a model is loaded."""

    task: str | None = None
    data: Any = None
    method: str = defaults.METHOD
    steps: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    faithfulness: float | None = None
    edges: int | None = None
    sparsity: float | None = None
    nodes: int | None = None
    how: str | None = None
    positions: str | None = None
    metric: str | Metric | None = None
    examples: int | None = None
    split: str = defaults.SPLITS[0]
    ablation: str = defaults.ABLATION
    limits: Limits = Limits()
    seed: int = defaults.SEED

    def __post_init__(self) -> None:
        method_options = self.method_options
        check_task(self.task_name, self.data)
        if self.metric is not None:
            find_method(self.method).check_metric(find_metric(self.metric), method_options)
        check_draw(self.examples, self.seed, "train")
        sizes = {name: getattr(self, name) for name in ("faithfulness", "edges", "sparsity", "nodes")}
        set_by = [name for name, value in sizes.items() if value is not None]
        if len(set_by) > 1:
            raise UsageError(f"{' and '.join(set_by)} both set the size of the circuit: give one of them.")
        if self.faithfulness is not None:
            check_share(self.faithfulness)
        for name in ("edges", "nodes"):
            if sizes[name] is not None:
                whole_number(f"the number of {name}", sizes[name])
        if self.sparsity is not None and not 0 <= self.sparsity < 1:
            raise UsageError(
                f"the sparsity is the share of edges left out, from 0 up to but not including 1: got {self.sparsity}."
            )
        ABLATIONS.find(self.ablation)
        check_choice("split", self.split, defaults.SPLITS)
        if self.positions is not None:
            check_choice("positions", self.positions, defaults.POSITIONS)
        selection, _ = find_selection(self.selection, spans=self.positions is not None)
        if not selection.sized and set_by and (set_by != ["faithfulness"] or not self.several):
            hint = ""
            if set_by == ["faithfulness"] and selection.sweep is not None:
                hint = f", or give several values of {selection.sweep} to choose from"
            raise UsageError(f"{selection.name} decides itself how many edges it keeps: leave {set_by[0]} out{hint}.")
        if self.faithfulness is not None and selection.sized and not selection.nested:
            raise UsageError(
                f"faithfulness searches the circuits of one order, and those of how={self.how} are not parts of each "
                "other: give edges or sparsity instead, or another selection."
            )
        if self.nodes is not None and self.positions is not None:
            raise UsageError("nodes and positions cannot be combined: give edges or sparsity instead of nodes.")
        if self.nodes is not None and self.how is not None:
            raise UsageError(f"how={self.how} selects edges, and nodes selects nodes: leave one of them out.")

    @property
    def method_options(self) -> dict[str, Any]:
        """All options of the method, checked."""
        method = find_method(self.method)
        steps = {} if self.steps is None or "steps" not in method.defaults else {"steps": self.steps}
        return method.options({**self.options, **steps})

    @property
    def selection(self) -> str:
        return self.how or (defaults.SELECTION if self.positions is None else defaults.RANKING)

    @property
    def task_name(self) -> str | None:
        return self.task or (None if self.data is not None else defaults.TASK)

    @property
    def share(self) -> float | None:
        """The share of the behaviour to keep, if that sets the size of the circuit."""
        if (self.edges, self.sparsity, self.nodes, self.positions) != (None,) * 4:
            return self.faithfulness
        nested = find_selection(self.selection)[0].nested
        return self.faithfulness or (defaults.FAITHFULNESS if nested or self.several else None)

    @property
    def several(self) -> bool:
        """Whether the selection gives several circuits, such as one for each threshold."""
        return not find_selection(self.selection)[0].sized and len(swept(self.selection)) > 1

    def edge_count(self, n_edges: int) -> int:
        """The number of edges to select, out of ``n_edges``."""
        sparsity = defaults.SPARSITY if self.edges is None and self.sparsity is None else self.sparsity
        return edge_count(n_edges, self.edges, sparsity)
