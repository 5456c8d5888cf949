"""The options of ``find``, and which combinations make no sense."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradpath import defaults
from gradpath.ablation import ABLATIONS
from gradpath.attribution.methods import find_method
from gradpath.errors import UsageError, check_choice, warn, whole_number
from gradpath.limits import Limits
from gradpath.selection import edge_count, find_selection
from gradpath.selection.faithful import check_share
from gradpath.selection.ranking import check_edges_or_nodes, check_sparsity, given_size
from gradpath.tasks.load import check_draw, check_task
from gradpath.tasks.metrics import Metric, find_metric
from gradpath.tasks.task import Task


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
    metric: str | Metric | None = None
    examples: int | None = None
    split: str = defaults.SPLITS[0]
    ablation: str = defaults.ABLATION
    limits: Limits = Limits()
    seed: int = defaults.SEED

    def __post_init__(self) -> None:
        method_options = self.method_options
        if self.steps is not None and "steps" not in method_options:
            warn(f"the method {self.method!r} has no steps: steps={self.steps} is ignored.")
        if isinstance(self.data, Task) and self.metric is not None:
            raise UsageError("a Task has its own metric: leave out `metric`, or give it to the Task.")
        check_task(self.task_name, self.data)
        if self.metric is not None:
            find_method(self.method).check_metric(find_metric(self.metric), method_options)
        check_draw(self.examples, self.seed, "train")
        sizes = {name: getattr(self, name) for name in ("faithfulness", "edges", "sparsity", "nodes")}
        given_size(**sizes)
        if self.faithfulness is not None:
            check_share(self.faithfulness)
        for name in ("edges", "nodes"):
            if sizes[name] is not None:
                whole_number(f"the number of {name}", sizes[name])
        if self.sparsity is not None:
            check_sparsity(self.sparsity)
        ABLATIONS.find(self.ablation)
        check_choice("split", self.split, defaults.SPLITS)
        find_selection(self.selection)
        check_edges_or_nodes(self.how, self.nodes)

    @property
    def method_options(self) -> dict[str, Any]:
        """All options of the method, checked."""
        method = find_method(self.method)
        steps = {} if self.steps is None or "steps" not in method.defaults else {"steps": self.steps}
        return method.options({**self.options, **steps})

    @property
    def selection(self) -> str:
        return self.how or defaults.SELECTION

    @property
    def task_name(self) -> str | None:
        return self.task or (None if self.data is not None else defaults.TASK)

    def edge_count(self, n_edges: int) -> int | None:
        """The requested number of edges, out of ``n_edges``; None if none was requested."""
        if self.edges is None and self.sparsity is None:
            return None
        return edge_count(n_edges, self.edges, self.sparsity)
