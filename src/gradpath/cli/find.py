"""``gradpath find``: score every edge, select a circuit, measure it on held-out examples."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradpath import defaults
from gradpath.cli import options as opt
from gradpath.cli.progress import lines_of, note, numbers_of, print_result
from gradpath.errors import UsageError, unknown_option
from gradpath.registry import option_value
from gradpath.runtime import distributed

if TYPE_CHECKING:
    from gradpath.pipeline.found import Found


@click.command(name="find")
@opt.model_option
@opt.task_option
@click.option(
    "--method", default=defaults.METHOD, show_default=True, help="How edges are scored (gradpath ls methods)."
)
@click.option("--steps", type=click.IntRange(min=1), help="Number of points on the path.  [depends on the method]")
@click.option(
    "-o", "--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of the method or selection."
)
@click.option(
    "--faithfulness",
    type=float,
    metavar="SHARE",
    help="Share of the behaviour to keep: select the smallest circuit that keeps it on the attributed examples.  "
    f"[{defaults.FAITHFULNESS}]",
)
@click.option("--edges", type=int, metavar="N", help="Number of edges, instead of --faithfulness.")
@click.option("--sparsity", type=float, help="Share of edges to leave out, instead of --faithfulness.")
@click.option("--nodes", type=int, metavar="N", help="Number of heads and MLPs, with all edges between them.")
@click.option("--how", help=f"How edges are selected (gradpath ls selections).  [{defaults.SELECTION}]")
@opt.metric_option("the task's own")
@opt.examples_option("Pairs for attribution; the same number is held out for evaluation.")
@click.option(
    "--split",
    type=opt.Choice(defaults.SPLITS),
    default=defaults.SPLITS[0],
    show_default=True,
    help="Measure the circuit on held-out examples or on the attributed ones; all: use every example for both.",
)
@opt.ablation_option(defaults.ABLATION)
@opt.data_option
@opt.batch_options
@opt.seed_option
@opt.plugin_option
@opt.out_option("Folder for the scores, the circuit and the report.  [a new one, named after model and task]")
@opt.json_option
@opt.load_options
def find_command(
    options: tuple[str, ...], batch_size: int | None, memory: str | None, out: Path | None, as_json: bool, **values: Any
) -> None:
    """Score every edge of a model on a task, select a circuit and measure how much it keeps.

    \b
    gradpath find --model smollm2 --task ioi --faithfulness 0.85 --out out/ioi
    gradpath find --model smollm2 --task ioi --method eap-gp --how top --steps 5
    gradpath find --model ./my-model --data pairs.csv --edges 500 --json
    """
    begin = time.monotonic()
    opt.check_folder(out)
    from gradpath.pipeline import run_find
    from gradpath.pipeline.found import default_folder
    from gradpath.pipeline.request import FindRequest
    from gradpath.runtime.files import lock_folder

    loading = opt.pick(opt.ModelOptions, values)
    method_options, values["how"] = _parse_options(options, values["method"], values["how"])
    request = FindRequest(options=method_options, limits=opt.limits_of(batch_size, memory), **values)
    with lock_folder(out):
        model, command_line = loading.load(), opt.command_line()
        found = run_find(model, request, curve=True, note=note)
        summary = _summary(found, request.seed, time.monotonic() - begin)

        def save() -> str:
            folder = out or default_folder(model, found.attributed)
            found.save(folder, command=command_line, seconds=summary["seconds"])
            return str(folder)

        folder = Path(distributed.on_first_rank(save))
    # Files have the model's name without the folders of this machine.
    printed = {**summary, "model": loading.model, "out": str(folder)}
    print_result(printed if as_json else _text(printed, folder))


def _parse_options(texts: tuple[str, ...], method: str, how: str | None) -> tuple[dict[str, Any], str | None]:
    """``-o stride=unit`` as options of the method, or as part of the selection: ``acdc+threshold=0.01``."""
    from gradpath.attribution.methods import METHODS
    from gradpath.selection import SELECTIONS

    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"an option is written NAME=VALUE, such as stride=unit: got {text!r}.")
        options[name] = option_value(value)
    selection = (how or "").partition("+")[0]
    known = SELECTIONS[selection].defaults if selection in SELECTIONS else {}
    if known and method in METHODS:
        owners = {f"the method {method!r}": METHODS[method].defaults, f"the selection {selection!r}": known}
        for name in options:
            if not any(name in its_options for its_options in owners.values()):
                raise unknown_option(name, owners)
    for name in [name for name in options if name in known]:
        value = options.pop(name)
        # A value that is not JSON, such as several thresholds with commas between them, is still a string.
        how = f"{how}+{name}={value if isinstance(value, str) else json.dumps(value)}"
    return options, how


def _summary(found: Found, seed: int, seconds: float) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    provenance = found.scores.provenance
    return {
        "version": provenance.version,
        "model": provenance.model,
        "task": provenance.task,
        "method": provenance.method,
        "steps": provenance.steps,
        "options": provenance.options,
        "ablation": provenance.ablation,
        "selection": found.circuit.provenance.how,
        "metric": found.measured.about["metric"],
        "seed": seed,
        "examples": provenance.examples,
        "examples_measured": len(found.measured),
        "held_out": found.measured is not found.attributed,
        **numbers_of(found.circuit, found.result),
        **({"circuits": _circuits(found)} if found.others else {}),
        "batch_size": provenance.batch_size,
        "passes": provenance.passes,
        "seconds": round(seconds, 2),
    }


def _circuits(found: Found) -> list[dict[str, Any]]:
    """The circuits of all thresholds, the smallest first."""
    from gradpath.pipeline.found import other_file

    rows = list[dict[str, Any]]()
    for circuit, result in zip([found.circuit, *found.others], [found.result, *found.curve], strict=True):
        file = "circuit.json" if circuit is found.circuit else other_file(circuit)
        rows.append({"selection": circuit.provenance.how, "file": file, **numbers_of(circuit, result)})
    return sorted(rows, key=lambda row: int(row["edges_kept"]))


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each of the circuits."""
    wide = max(len(row["selection"]) for row in rows)
    lines = [f"  {'':<{wide}}  {'edges':>8}  {'faithfulness [95%]':<20}error"]
    for row in rows:
        low, high = row["faithfulness_interval"] or (None, None)
        ends = "" if low is None else f" [{100 * low:.0f}, {100 * high:.0f}]"
        share = f"{row['faithfulness']:.1%}{ends}"
        chosen = "  <- selected" if row["file"] == "circuit.json" else ""
        lines.append(f"  {row['selection']:<{wide}}  {row['edges_kept']:>8,}  {share:<20}{row['error']:.3f}{chosen}")
    return lines


def _text(s: dict[str, Any], out: Path) -> str:
    """The result for people."""
    examples = f"{s['examples']} for attribution, {s['examples_measured']} held out"
    if not s["held_out"]:
        examples = f"{s['examples']} for both attribution and evaluation: nothing is held out"
    steps = f"{s['steps']} step{'' if s['steps'] == 1 else 's'}"
    lines = [
        f"The {s['task']} circuit of {s['model']}, found by {s['method']} ({steps}, {s['selection']}):",
        *lines_of(s, s["examples_measured"]),
        f"  examples      {examples}",
        f"  took          {s['seconds']:.0f} s",
    ]
    if "circuits" in s:
        lines += ["All circuits, on the measured examples:", *_table(s["circuits"])]
        lines.append("  The smallest circuit that keeps the requested share on the attributed examples is selected,")
        lines.append("  or the closest one if none does.")
    lines.append(f"Wrote {out / 'scores.safetensors'} and {out / 'circuit.json'}")
    if others := [row["file"] for row in s.get("circuits", ()) if row["file"] != "circuit.json"]:
        lines.append(f"The other circuits: {', '.join(others)}")
    page = out / "report.html"
    if page.exists():
        lines.append(f"Open {page} in a browser.")
    return "\n".join(lines)
