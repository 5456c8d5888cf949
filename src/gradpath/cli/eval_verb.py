"""``gradpath eval``: measure a saved circuit again, on its own model and task or on others."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from gradpath.cli.options import (
    ablation_option,
    data_options,
    json_option,
    load,
    memory_budget,
    model_options,
)
from gradpath.cli.summary import lines, numbers
from gradpath.errors import InputError


@click.command(name="eval")
@click.argument("circuit_file", type=click.Path(path_type=Path), metavar="CIRCUIT.json")
@click.option("--model", help="Another model of the same shape.  [the circuit's own]")
@click.option("--task", help="Another task.  [the circuit's own]")
@click.option("--examples", type=click.IntRange(min=1), default=100, show_default=True)
@click.option(
    "--split",
    type=click.Choice(["train", "test", "all"]),
    default="test",
    show_default=True,
    help="Which examples.",
)
@ablation_option(None)
@data_options
@json_option
@model_options
def command(
    circuit_file: Path,
    model: str | None,
    task: str | None,
    examples: int,
    split: str,
    ablation: str | None,
    data: Path | None,
    batch_size: int,
    memory: str | None,
    seed: int,
    as_json: bool,
    bos: bool | None,
    **load_options: Any,
) -> None:
    """Run a saved circuit with every other edge corrupted and measure what is left.

    \b
    gradpath eval out/ioi/circuit.json
    gradpath eval out/ioi/circuit.json --data pairs.csv --json
    """
    from gradpath.circuit import load_circuit
    from gradpath.cli import progress as screen
    from gradpath.evaluation import ablation_recorded, evaluate
    from gradpath.intervention import check_same_graph
    from gradpath.tasks import load_task

    begin = time.monotonic()
    budget = memory_budget(memory)
    circuit = load_circuit(circuit_file)
    about = circuit.about
    name = model or _recorded(about, "model", circuit_file)
    task = task or (None if data else _recorded(about, "task", circuit_file))
    # A circuit found with a BOS token is measured with one, unless told otherwise.
    loaded = load(name, bos=about.get("bos") if bos is None and model is None else bos, **load_options)
    check_same_graph(loaded, circuit)
    pairs = load_task(task, loaded, n=examples, seed=seed, split=split, data=data)
    instead = ablation or ablation_recorded([circuit])
    if instead.startswith("mean"):
        # Over the examples that the circuit was found on, or as many of another task.
        drawn = {"n": about.get("examples", examples), "seed": about.get("data", {}).get("seed", seed)}
        mean_over = load_task(task, loaded, split="train", data=data, **drawn)
    else:
        mean_over = None
    limits: Any = {"batch_size": batch_size, "memory": budget, "ablation": instead, "mean_over": mean_over}
    with screen.counting("measuring the circuit", len(pairs)) as progress:
        result = evaluate(loaded, circuit, pairs, progress=progress, **limits)
    summary = {
        "version": about.get("version"),
        "circuit_file": str(circuit_file),
        "model": loaded.name,
        "task": pairs.name,
        "method": about.get("method"),
        "steps": about.get("steps"),
        "ablation": instead,
        "seed": seed,
        "split": split,
        "examples": len(pairs),
        **numbers(circuit.graph, result, max(1, len(circuit.spans))),
        "seconds": round(time.monotonic() - begin, 2),
    }
    screen.result(json.dumps(summary, indent=1) if as_json else _told(summary))


def _recorded(about: Any, what: str, file: Path) -> str:
    value = about.get(what)
    if not isinstance(value, str) or not value:
        raise InputError(f"{file} does not say which {what} it is of. Give it with --{what}.")
    return value


def _told(s: dict[str, Any]) -> str:
    where = f"{s['examples']} examples of {s['task']} ({s['split']}) in {s['model']}"
    return "\n".join([f"{s['circuit_file']} on {where}:", *lines(s)])
