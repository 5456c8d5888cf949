"""``gradpath eval``: measure a saved circuit again, on its own model and task or on others."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gradpath.cli import options as opt
from gradpath.cli.progress import Screen, lines_of, numbers_of, print_result
from gradpath.errors import InputError


@click.command(name="eval")
@click.argument("circuit_file", type=opt.FILE, metavar="CIRCUIT.json")
@click.option("--model", help="Another model of the same shape.  [the circuit's own]")
@click.option("--task", help="Another task.  [the circuit's own]")
@opt.examples_option("Examples to measure on.")
@click.option(
    "--split",
    type=click.Choice(["train", "test", "all"]),
    default="test",
    show_default=True,
    help="Which examples: train are those that find attributes.",
)
@opt.ablation_option(None)
@opt.data_option
@opt.batch_options
@opt.seed_option
@opt.json_option
@opt.load_options
def command(
    circuit_file: Path,
    task: str | None,
    examples: int,
    split: str,
    ablation: str | None,
    data: Path | None,
    batch_size: int,
    memory: str | None,
    seed: int,
    as_json: bool,
    **given: Any,
) -> None:
    """Run a saved circuit with every other edge corrupted and measure what is left.

    \b
    gradpath eval out/ioi/circuit.json
    gradpath eval out/ioi/circuit.json --data pairs.csv --json
    """
    from gradpath.circuit import load_circuit
    from gradpath.evaluation.evaluate import evaluate
    from gradpath.evaluation.plan import check_same_graph
    from gradpath.tasks import load_task

    begin, limits = time.monotonic(), opt.limits_of(batch_size, memory)
    circuit = load_circuit(circuit_file)
    about, made = circuit.about, circuit.provenance
    loading = opt.pick(opt.ModelOptions, given)
    if loading.model is None:
        # A circuit that was found with a BOS token is measured with one, unless told otherwise.
        bos = about.get("bos") if loading.bos is None else loading.bos
        loading = replace(loading, model=_recorded(made.model, "model", circuit_file), bos=bos)
    task = task or (None if data else _recorded(made.task, "task", circuit_file))
    loaded = loading.load()
    check_same_graph(loaded, circuit)
    pairs = load_task(task, loaded, n=examples, seed=seed, split=split, data=data)
    ablation, mean_over = ablation or made.ablation, None
    if ablation.startswith("mean"):
        # Over the examples that the circuit was found on, or as many of another task.
        drawn = {"n": about.get("examples", examples), "seed": about.get("data", {}).get("seed", seed)}
        mean_over = load_task(task, loaded, split="train", data=data, **drawn)
    with Screen().counting("measuring the circuit", len(pairs)) as progress:
        result = evaluate(
            loaded,
            circuit,
            pairs,
            batch_size=limits.batch_size,
            memory=limits.memory,
            progress=progress,
            ablation=ablation,
            mean_over=mean_over,
        )
    summary = {
        "version": about.get("version"),
        "circuit_file": str(circuit_file),
        "model": loaded.name,
        "task": pairs.name,
        "method": about.get("method"),
        "steps": about.get("steps"),
        "ablation": ablation,
        "seed": seed,
        "split": split,
        "examples": len(pairs),
        **numbers_of(circuit.graph, result, max(1, len(circuit.spans))),
        "seconds": round(time.monotonic() - begin, 2),
    }
    print_result(json.dumps(summary, indent=1) if as_json else _text(summary))


def _recorded(value: str | None, what: str, file: Path) -> str:
    if value is None:
        raise InputError(f"{file} does not say which {what} it is for. Give it with --{what}.")
    return value


def _text(s: dict[str, Any]) -> str:
    where = f"{s['examples']} examples of {s['task']} ({s['split']}) in {s['model']}"
    return "\n".join([f"{s['circuit_file']} on {where}:", *lines_of(s)])
