"""A saved circuit with the model and the examples to run it on: what ``eval``, ``explain`` and ``test`` start from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gradpath.cli import options as opt
from gradpath.cli.progress import Screen
from gradpath.errors import InputError, UsageError, warn

if TYPE_CHECKING:
    from gradpath.circuit import Circuit
    from gradpath.limits import Limits
    from gradpath.model.transformer import Transformer
    from gradpath.tasks import Task

T = TypeVar("T")


def saved_options(examples: str) -> opt.Decorator[Any]:
    """The options that say which model and which examples; ``examples`` is the help of --examples."""
    return opt.together(
        click.option("--model", help="Another model of the same shape.  [the circuit's own]"),
        click.option("--task", help="Another task.  [the circuit's own]"),
        opt.metric_option,
        opt.examples_option(examples),
        click.option(
            "--split",
            type=click.Choice(["train", "test", "all", "reworded"]),
            default="test",
            show_default=True,
            help="train: examples that find attributes; test: held-out ones; reworded: as test, in other templates.",
        ),
        opt.ablation_option(None),
        opt.data_option,
        opt.batch_options,
        opt.seed_option,
        opt.plugin_option,
        opt.json_option,
        opt.load_options,
    )


@dataclass(frozen=True)
class ExampleOptions:
    """Which examples to run a saved circuit on, and what edges outside of it carry."""

    task: str | None
    data: Path | None
    metric: str | None
    examples: int | None
    seed: int
    split: str
    ablation: str | None


@dataclass(frozen=True)
class SavedCircuit:
    """A circuit from a file, its model, the examples, and what edges outside of it carry."""

    circuit: Circuit
    model: Transformer
    task: Task
    ablation: str
    mean_over: Task | None
    draw: Callable[[str, int], Task]  # examples of a split, drawn by another seed
    options: ExampleOptions
    limits: Limits

    def run(self, function: Callable[..., T], what: str) -> T:
        """What ``evaluate`` or ``explain`` gives for the circuit on the examples, with a progress bar."""
        with Screen().counting(what, len(self.task)) as progress:
            return function(
                self.model,
                self.circuit,
                self.task,
                batch_size=self.limits.batch_size,
                memory=self.limits.memory,
                progress=progress,
                ablation=self.ablation,
                mean_over=self.mean_over,
            )

    @property
    def has_templates(self) -> bool:
        """Whether the task has other templates, for the split "reworded"."""
        from gradpath.tasks import TASKS

        return self.options.data is None and self.task.name in TASKS and TASKS[self.task.name].reworded


def open_circuit(file: str | Path, given: dict[str, Any]) -> SavedCircuit:
    """Load a circuit, its model and examples; what is not given is as the circuit was found.

    Args:
        file: The circuit.
        given: What click gave for ``saved_options``.
    """
    from gradpath.ablation import CORRUPTED
    from gradpath.circuit import load_circuit
    from gradpath.evaluation.plan import check_same_graph
    from gradpath.pipeline.notices import notices
    from gradpath.tasks import load_task
    from gradpath.tasks.load import check_task

    chosen, limits = opt.pick(ExampleOptions, given), opt.limits_of(given.get("batch_size"), given.get("memory"))
    data, seed, split = chosen.data, chosen.seed, chosen.split
    circuit = load_circuit(file)
    about, made = circuit.about, circuit.provenance
    loading = opt.pick(opt.ModelOptions, given)
    own_model = loading.model is None
    if own_model:
        # A circuit that was found with a BOS token is measured with one, unless told otherwise.
        bos = about.get("bos") if loading.bos is None else loading.bos
        loading = replace(loading, model=_recorded(opt.recorded_model(made), "model", file), bos=bos)
    metric = _metric(circuit, chosen.metric, file, own_task=chosen.task is None)
    task = chosen.task or (None if data else _task(circuit, file))
    check_task(task, data)
    model = loading.load()
    check_same_graph(model, circuit)
    if own_model and about.get("dtype") == str(model.dtype).removeprefix("torch."):
        _check_weights(model, about.get("weights"), file)
    n = opt.examples_or_default(chosen.examples, data)

    def draw(split: str, seed: int) -> Task:
        return load_task(task, model, n=n, seed=seed, split=split, data=data, metric=metric)

    pairs = draw(split, seed)
    if data is not None:
        for line in notices(pairs, pairs):
            Screen().note(line)
    ablation, mean_over = chosen.ablation or made.ablation, None
    if ablation not in (CORRUPTED, "zero"):
        # Over the examples that the circuit was found on, or as many of another task.
        drawn = {"n": about.get("examples", n), "seed": about.get("data", {}).get("seed", seed)}
        mean_over = load_task(task, model, split="train", data=data, **drawn)
    return SavedCircuit(circuit, model, pairs, ablation, mean_over, draw, chosen, limits)


def _task(circuit: Circuit, file: str | Path) -> str:
    """The circuit's own task, which has to be a built-in one: the user's own data has to be given again."""
    from gradpath.tasks import TASKS

    name = _recorded(circuit.provenance.task, "task", file)
    if name not in TASKS and "rows_read" in circuit.about.get("data", {}):
        raise UsageError(f"{file} was found on your own data, {name!r}. Give it again with --data, or name a --task.")
    plugins = circuit.about.get("plugins")
    if name not in TASKS and isinstance(plugins, dict):
        raise UsageError(
            f"{file} was found on the task {name!r}, which is not built in. Give the plug-in that adds it "
            f"({', '.join(plugins)}) with --plugin, or name another --task."
        )
    return name


def _metric(circuit: Circuit, metric: str | None, file: str | Path, *, own_task: bool) -> str | None:
    """The requested metric, or on the circuit's own task the one that it was found with."""
    from gradpath.tasks import METRICS, find_metric

    recorded = circuit.about.get("data", {}).get("metric") if own_task else None
    if metric is None and isinstance(recorded, str) and recorded not in METRICS:
        raise UsageError(
            f"{file} was found with the metric {recorded!r}, which is your own: give it again with --metric "
            "FILE.py:FUNCTION or with its --plugin, or name another."
        )
    chosen = metric or recorded
    if chosen is not None:
        find_metric(chosen)
    return chosen


def _check_weights(model: Transformer, digest: Any, file: str | Path) -> None:
    if digest is not None and digest != model.digest:  # files from before 0.2.0 have none
        warn(f"{file} was found in other weights: {model.name} has changed since, or another model has its name now.")


def _recorded(value: str | None, what: str, file: str | Path) -> str:
    if value is None:
        raise InputError(f"{file} does not say which {what} it is for. Give it with --{what}.")
    return value
