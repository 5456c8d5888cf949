"""``gradpath find``: score every edge, select a circuit, measure it on held-out examples."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradpath import ranks
from gradpath.cli.options import (
    ablation_option,
    data_options,
    json_option,
    load,
    memory_budget,
    method_option,
    model_options,
)
from gradpath.cli.summary import lines, numbers
from gradpath.errors import UsageError

if TYPE_CHECKING:
    from gradpath.cli.finding import Found

DEFAULT_SPARSITY = 0.975
Size = tuple[int | None, float | None, int | None]  # edges, sparsity or nodes


@click.command(name="find")
@click.option(
    "--model",
    default="smollm2",
    show_default=True,
    help="Hub name, folder, .gguf file, smollm2 or gemma3-270m.",
)
@click.option("--task", help="A built-in task (see gradpath ls tasks).  [ioi, if there is no --data]")
@click.option("--method", default="eap-ig", show_default=True, help="See gradpath ls methods.")
@click.option("--steps", type=click.IntRange(min=1), help="Points of the path.  [the method's own]")
@click.option(
    "-o", "--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of the method."
)
@click.option("--edges", type=int, metavar="N", help="Edges of the circuit.")
@click.option("--sparsity", type=float, help=f"Share of edges left out, instead.  [{DEFAULT_SPARSITY}]")
@click.option("--nodes", type=int, metavar="N", help="Heads and MLPs, and all edges among them, instead.")
@click.option("--how", help="How edges are chosen (gradpath ls selections).  [refined; with --positions top]")
@click.option(
    "--positions",
    type=click.Choice(["span", "token"]),
    help="Tell edges apart by where in the prompt they are.  [off]",
)
@click.option(
    "--examples", type=click.IntRange(min=1), default=100, show_default=True, help="Pairs to attribute."
)
@click.option(
    "--split",
    type=click.Choice(["held-out", "same"]),
    default="held-out",
    show_default=True,
    help="Measure the circuit on other examples than it was found on, or on the same.",
)
@ablation_option("corrupted")
@data_options
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Keep scores, circuit and report."
)
@json_option
@model_options
def command(
    model: str,
    task: str | None,
    method: str,
    steps: int | None,
    options: tuple[str, ...],
    edges: int | None,
    sparsity: float | None,
    nodes: int | None,
    how: str | None,
    positions: str | None,
    examples: int,
    split: str,
    ablation: str,
    data: Path | None,
    batch_size: int,
    memory: str | None,
    seed: int,
    out: Path | None,
    as_json: bool,
    **load_options: Any,
) -> None:
    """Score every edge of a model on a task, select a circuit and measure how much it keeps.

    \b
    gradpath find --model smollm2 --task ioi --sparsity 0.975 --out out/ioi
    gradpath find --model smollm2 --task ioi --method eap-gp --how top --steps 5
    gradpath find --model ./my-model --data pairs.csv --edges 500 --json
    gradpath find --model smollm2 --task sva --positions span --edges 2000 --out out/where
    """
    begin = time.monotonic()
    sizes = {"--edges": edges, "--sparsity": sparsity, "--nodes": nodes}
    given_sizes = [name for name, value in sizes.items() if value is not None]
    if len(given_sizes) > 1:
        raise UsageError(
            f"{' and '.join(given_sizes)} both say how large the circuit should be: give one of them."
        )
    if nodes is not None and positions is not None:
        raise UsageError("--nodes and --positions cannot be had together: give --edges or --sparsity.")
    size = (edges, DEFAULT_SPARSITY if not given_sizes else sparsity, nodes)
    how = how or ("top" if positions else "refined")
    _check_early(method, how, size, out)
    budget = memory_budget(memory)
    given = method_option(options) | ({} if steps is None else {"steps": steps})

    from gradpath.cli.finding import Request, find, keep
    from gradpath.cli.progress import result
    from gradpath.files import held

    name = task or (None if data else "ioi")
    request = Request(
        name, data, method, given, size, how, positions, examples, split, ablation, batch_size, budget, seed
    )
    with held(out):
        loaded = load(model, **load_options)
        found = find(loaded, request, with_curve=out is not None)
        summary = _summary(found, seed, time.monotonic() - begin)
        if out is not None:
            ranks.from_first(lambda: keep(found, out, command_line(), summary["seconds"]))
    result(json.dumps(summary, indent=1) if as_json else _told(summary, out))


def _check_early(method: str, how: str, size: Size, out: Path | None) -> None:
    """Refuse what can be refused before a model is loaded."""
    from gradpath.measured import WAYS
    from gradpath.methods import find_method
    from gradpath.selection import check_way

    find_method(method)
    check_way(how, WAYS)
    edges, sparsity, nodes = size
    for option, n in (("--edges", edges), ("--nodes", nodes)):
        if n is not None and n < 1:
            raise UsageError(f"{option} must be at least 1: got {n}.")
    if sparsity is not None and not 0 <= sparsity < 1:
        raise UsageError(
            f"--sparsity is the share of edges left out, from 0 up to but not including 1: got {sparsity}."
        )
    if out is not None and out.exists() and not out.is_dir():
        raise UsageError(f"--out has to be a folder: {out} is a file.")


def _summary(found: Found, seed: int, seconds: float) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    about = found.scores.about
    return {
        "version": about["version"],
        "model": about["model"],
        "task": about["task"],
        "method": about["method"],
        "steps": about["steps"],
        "options": about["options"],
        "ablation": about["ablation"],
        "selection": found.circuit.about["selection"]["how"],
        "seed": seed,
        "examples": about["examples"],
        "examples_measured": len(found.tested_on),
        "held_out": found.tested_on is not found.trained_on,
        **({"positions": found.by_span} if found.by_span else {}),
        **numbers(found.model.graph, found.result, max(1, len(found.circuit.spans))),
        "batch_size": about["batch_size"],
        "passes": about.get("passes"),
        "seconds": round(seconds, 2),
    }


def _told(s: dict[str, Any], out: Path | None) -> str:
    """The result for people."""
    where = "held-out" if s["held_out"] else "the same"
    made = f"{s['method']} ({s['steps']} steps, {s['selection']})"
    told = [
        f"The {s['task']} circuit of {s['model']}, found by {made}:",
        *lines(s),
        f"  examples      {s['examples']} to attribute, {s['examples_measured']} {where} ones to measure",
        f"  took          {s['seconds']:.0f} s",
    ]
    if "positions" in s:
        where = ", ".join(f"{count:,} at {name}" for name, count in s["positions"].items())
        told.insert(2, f"  positions     {where}")
    if out is not None:
        told.append(f"Kept in {out}: scores.safetensors, circuit.json")
        seen = "Look at the figure: " if "positions" in s else "Open the report: "
        told.append(seen + str(out / ("positions.svg" if "positions" in s else "report.html")))
    return "\n".join(told)


def command_line() -> str:
    """What was typed, to be typed again."""
    return shlex.join(["gradpath", *sys.argv[1:]])
