"""Circuits of ``top``, ``refined``, ``learned`` and ``random`` on examples that none of them saw.

    python benchmarks/learned.py measure OUT --model smollm2 --tasks ioi,sva    one JSON file for each task; continues
    python benchmarks/learned.py table OUT                                      the tables of all files, in Markdown
    python benchmarks/learned.py steps OUT --tasks ioi,hypernymy                OUT/steps: other numbers of steps
    python benchmarks/learned.py figure OUT                                     error against CPU time

EAP-IG scores 100 examples of a task's training words, seed 0; all selections start from these scores. Circuits are
measured on three kinds of examples:

    same words       pairs of the training words that nothing was learned from
    held-out words   the task's test split, which shares no name, noun or country with the training words
    other templates  the split ``reworded``: the words of the test split in templates that no other split has

Sizes are MIB's fractions of all edges and 2.5%; ``learned`` is told those of the tables, 1% and 2.5%. Circuits of 10%
and more are those of ``top`` for all but ``random``. Time is CPU time of one thread. The orders of edges are kept in
OUT/orders, so that a run that was stopped goes on after the last selection that was made, and another kind of examples
can be added without selecting again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import gradpath as gp
from gradpath.evaluation import mib
from gradpath.evaluation.result import bootstrap, error_difference
from gradpath.report.style import BLUE, FAINT, GREY, INK, TITLES, panels, save
from gradpath.runtime import files as runtime_files
from gradpath.runtime.files import write_atomically
from gradpath.scores import Scores
from gradpath.selection import Order, rank
from gradpath.selection.probe import start_size
from gradpath.study.outcome import commit
from gradpath.tasks.load import more_examples

TASKS = ("ioi", "sva", "gender-bias", "capital-country", "hypernymy", "greater-than")
MODELS = {"smollm2": "SmolLM2", "gemma3-270m": "Gemma 3 270M"}
SELECTIONS = ("top", "refined", "learned", "random")
ASKED = (0.01, 0.025)
FRACTIONS = tuple(sorted({*mib.FRACTIONS[:-1], *ASKED}))
BY_STEPS = {f"learned+steps={n}": n for n in (30, 60, 120, 180)}
KINDS = ("same words", "held-out words", "other templates")
OTHER_SEED = 1000  # of the pairs of the same words
MOST = 1112  # examples that ``learned`` can have drawn: none of them is measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "steps", "table", "figure"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--examples", type=int, default=100, help="that are attributed")
    parser.add_argument("--measured", type=int, default=100, help="of each kind")
    parser.add_argument("--learned", default="learned", help="with options: learned+steps=200")
    parser.add_argument("--selections", help="by default those of the tables, or of the figure by steps")
    parser.add_argument("--only-asked", action="store_true", help="the sizes of the tables alone, without CMD")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    shown = ("top", "refined", *BY_STEPS) if args.what == "steps" else SELECTIONS
    args.selections = args.selections or ",".join(shown)
    if args.what in ("table", "figure"):
        print(tables(args.out)) if args.what == "table" else draw(args.out)
        return
    torch.set_num_threads(1)
    runtime_files.STORED_EVERY = math.inf  # a run that is stopped starts again, so that the time is that of all steps
    model = gp.load_model(args.model)
    for name in args.tasks.split(","):
        file = args.out / ("steps" if args.what == "steps" else "") / f"{args.model}-{name}.json"
        if file.exists():
            continue
        measured = measure_steps(model, name, args) if args.what == "steps" else measure(model, name, args)
        about = {
            "commit": commit(),
            "version": gp.__version__,
            **{k: str(v) for k, v in vars(args).items() if k not in ("what", "out")},
        }
        file.parent.mkdir(exist_ok=True)
        write_atomically(file, json.dumps({"model": args.model, "task": name, "about": about, **measured}))
        print(f"{file}: {summary(measured)}", flush=True)


def measure(model: Any, name: str, args: Any) -> dict[str, Any]:
    """All selections of a task, measured on every kind of examples."""
    train = gp.load_task(name, model, n=args.examples, seed=args.seed)
    orders, seconds = select_all(model, train, args)
    same = unseen(model, train, args.measured)
    held_out, reworded = (
        gp.load_task(name, model, n=args.measured, seed=args.seed, split=split) for split in ("test", "reworded")
    )
    sets = {} if same is None else {"same words": (same, ASKED)}
    sizes = ASKED if args.only_asked else FRACTIONS
    sets |= {"held-out words": (held_out, sizes), "other templates": (reworded, ASKED)}
    return {"seconds": seconds, "sets": evaluate_all(model, orders, sets)}


def measure_steps(model: Any, name: str, args: Any) -> dict[str, Any]:
    """``learned`` with several numbers of steps, next to ``top`` and ``refined``, on new pairs of the same words."""
    train = gp.load_task(name, model, n=args.examples, seed=args.seed)
    orders, seconds = select_all(model, train, args)
    return {
        "seconds": seconds,
        "sets": evaluate_all(model, orders, {"same words": (unseen(model, train, args.measured), ASKED)}),
    }


def unseen(model: Any, train: gp.Task, n: int) -> gp.Task | None:
    """Pairs of the same words that no selection can have drawn; None if the task has too few."""
    seen = more_examples(train, model, MOST)
    known = set(zip(seen.clean, seen.corrupted, strict=True))
    drawn = more_examples(gp.load_task(train.name, model, n=1, seed=OTHER_SEED), model, 4 * n)
    rows = [i for i, pair in enumerate(zip(drawn.clean, drawn.corrupted, strict=True)) if pair not in known]
    return drawn.take(rows[:n]) if len(rows) >= n // 4 else None


def select_all(model: Any, task: gp.Task, args: Any) -> tuple[dict[str, Order], dict[str, float]]:
    """The order of edges of every selection, and what each took."""
    folder = args.out / "orders" / f"{args.model}-{task.name}"
    folder.mkdir(parents=True, exist_ok=True)
    began = time.process_time()
    if not (folder / "scores.safetensors").exists():
        gp.attribute(model, task).save(folder / "scores.safetensors")
        note(folder / "eap-ig.json", [], began)
    scores = gp.load_scores(folder / "scores.safetensors")
    seconds, orders = {"eap-ig": json.loads((folder / "eap-ig.json").read_text())["seconds"]}, {}
    sizes = [sized(scores, fraction) for fraction in ASKED]
    for how in args.selections.split(","):
        began, file = time.process_time(), folder / f"{how}.json"
        full = args.learned if how == "learned" else how
        own = min(sizes) if how.startswith("learned") else sized(scores, min(FRACTIONS))
        smallest = 1 if how in ("top", "random") else own
        if not file.exists():
            order = rank(scores, full, model, task, sizes=sizes, smallest=smallest, largest=scores.n_edges)
            note(file, order.edges.tolist(), began)
        stored = json.loads(file.read_text())
        orders[how], seconds[how] = Order(scores, torch.tensor(stored["edges"]), how), stored["seconds"]
    return orders, seconds


def note(file: Path, edges: list[int], began: float) -> None:
    """Keep an order of edges, and what it took."""
    write_atomically(file, json.dumps({"seconds": time.process_time() - began, "edges": edges}))
    print(f"{file.parent.name}: {file.stem}, {time.process_time() - began:.0f} CPU s", flush=True)


def sized(scores: Scores, fraction: float) -> int:
    return mib.edges_at(scores.graph, fraction)


def evaluate_all(model: Any, orders: Mapping[str, Order], sets: Mapping[str, Any]) -> dict[str, Any]:
    """The values of every example in every circuit."""
    done = {}
    for kind, (task, fractions) in sets.items():
        cells = []
        for how, order in orders.items():
            own = [
                x
                for x in fractions
                if how in ("top", "random") or sized(order.scores, x) < start_size(order.scores.graph.n_edges)
            ]
            circuits = [order.circuit(sized(order.scores, x)) for x in own]
            for fraction, result in zip(own, gp.evaluate(model, circuits, task), strict=True):
                values = {"values": result.circuit_values.tolist()}
                cells.append(
                    {
                        "how": how,
                        "fraction": fraction,
                        "faithfulness": result.faithfulness,
                        "error": result.error,
                        **values,
                    }
                )
        ends = {"clean_values": result.clean_values.tolist(), "corrupted_values": result.corrupted_values.tolist()}
        done[kind] = {"examples": len(task), **ends, "cells": cells}
    return done


def summary(measured: Mapping[str, Any]) -> str:
    """One line: the error at 1% of every selection and kind of examples."""
    parts = []
    for kind, one in measured["sets"].items():
        errors = [f"{c['how']} {c['error']:.3f}" for c in one["cells"] if c["fraction"] == ASKED[0]]
        parts.append(f"{kind}: {', '.join(errors)}")
    return "; ".join(parts) + f"; seconds {json.dumps({k: round(v) for k, v in measured['seconds'].items()})}"


def tables(folder: Path) -> str:
    """All tables of the files in a folder, as a page."""
    lines = [
        "# Learned circuits: all tables",
        "",
        "A cell is NFS / error; [the page](README.md) says how they were measured.",
    ]
    for model, title in MODELS.items():
        runs = load_runs(folder, model)
        if runs:
            lines += [f"\n## {title}: mean error over the tasks\n", *mean_table(runs)]
        for kind in KINDS:
            having = [run for run in runs if kind in run["sets"]]
            for fraction in ASKED if having else ():
                lines += [f"\n## {title}, {kind}, {1 - fraction:.1%} sparsity\n"]
                lines += faithfulness_table(having, kind, fraction)
        if whole := [run for run in runs if run["about"].get("only_asked") != "True"]:
            lines += [f"\n## {title}, held-out words: CMD\n", *cmd_table(whole)]
            lines += [f"\n## {title}, held-out words: larger circuits\n", *larger_table(whole)]
        if runs:
            lines += [f"\n## {title}: CPU seconds of one thread\n", *cost_table(runs)]
    return "\n".join(lines)


def draw(folder: Path) -> None:
    """Error at 99% sparsity against the CPU time of scores and selection, a panel for each task.

    ``cost`` has the selections on held-out words, ``steps`` learned with several numbers of steps on the same words.
    """
    hows = ("top", "refined", "learned")
    print(*save(panel_for_each(load_runs(folder, "smollm2"), "held-out words", hows), folder / "cost"))
    if runs := load_runs(folder / "steps", "smollm2"):
        print(*save(panel_for_each(runs, "same words", ("top", "refined", *BY_STEPS)), folder / "steps"))


def panel_for_each(runs: list[Any], kind: str, hows: Sequence[str]) -> Any:
    columns, rows = min(3, len(runs)), math.ceil(len(runs) / 3)
    figure, axes = panels(rows, columns, (3.2 * columns, 2.8 * rows), sharey=True)
    for axis, run in zip(axes, runs, strict=False):
        steps = [how for how in ("learned", *BY_STEPS) if how in hows and how in run["seconds"]]
        points = {
            how: (run["seconds"]["eap-ig"] + run["seconds"][how], cell_of(run, kind, how, ASKED[0])["error"])
            for how in ("top", "refined", *steps)
        }
        axis.plot(*points["top"], "o", color=GREY, label="top")
        axis.plot(*points["refined"], "s", color=INK, label="refined")
        label = "learned, by steps" if len(steps) > 1 else "learned"
        axis.plot(*zip(*[points[how] for how in steps], strict=True), "D-", color=BLUE, label=label)
        for i, how in enumerate(steps if len(steps) > 1 else ()):
            above = (0, 7 if i % 2 else -12)  # in turns, since two can take the same time
            axis.annotate(f"{BY_STEPS[how]}", points[how], above, textcoords="offset points", ha="center", fontsize=7)
        axis.axhline(0.15, color=FAINT, zorder=0)
        axis.set_title(TITLES[run["task"]])
        axis.set_xlim(left=0)
    for axis in axes[len(runs) :]:
        axis.axis("off")
    axes[0].set_ylim(0, None)
    axes[len(runs) - 1].legend()
    axes[0].set_ylabel("error")
    figure.supxlabel("CPU seconds of scores and selection")
    return figure


def load_runs(folder: Path, model: str) -> list[Any]:
    """The measurements of a model in a folder, in the order of the tasks."""
    files = [folder / f"{model}-{task}.json" for task in TASKS]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]


def cell_of(run: Mapping[str, Any], kind: str, how: str, fraction: float) -> dict[str, Any]:
    """One circuit with all values; large circuits of selections that start from a tenth are those of top."""
    one = run["sets"][kind]
    for name in (how, "top"):
        for cell in one["cells"]:
            if (cell["how"], cell["fraction"]) == (name, fraction):
                return {**cell, "clean_values": one["clean_values"], "corrupted_values": one["corrupted_values"]}
    raise KeyError((how, fraction))


def faithfulness_table(runs: list[Any], kind: str, fraction: float) -> list[str]:
    lines = [
        "| task | examples | top | refined | learned | random | learned - refined |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for run in runs:
        cells = {how: cell_of(run, kind, how, fraction) for how in SELECTIONS}
        shown = [f"{cells[how]['faithfulness']:.0%} / {cells[how]['error']:.3f}" for how in SELECTIONS]
        gap = error_difference([cells["learned"]], [cells["refined"]])
        text = f"{gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
        shown.append(f"**{text}**" if gap.is_clear else text)
        lines.append(f"| {TITLES[run['task']]} | {run['sets'][kind]['examples']} | {' | '.join(shown)} |")
    return lines


def mean_table(runs: list[Any]) -> list[str]:
    """The mean error over the tasks; the intervals of the tasks, which are independent, add in squares."""
    lines = [
        "| sparsity | examples | tasks | top | refined | learned | learned - refined |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for fraction in ASKED:
        for kind in KINDS:
            having = [run for run in runs if kind in run["sets"]]
            cells = {
                how: [cell_of(run, kind, how, fraction) for run in having] for how in ("top", "refined", "learned")
            }
            shown = [f"{sum(cell['error'] for cell in own) / len(own):.3f}" for own in cells.values()]
            gaps = [error_difference([a], [b]) for a, b in zip(cells["learned"], cells["refined"], strict=True)]
            mean = sum(gap.value for gap in gaps) / len(gaps)
            half = math.hypot(*((gap.high - gap.low) / 2 for gap in gaps)) / len(gaps)
            text = f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"
            shown.append(f"**{text}**" if abs(mean) > half else text)
            lines.append(f"| {1 - fraction:.1%} | {kind} | {len(having)} | {' | '.join(shown)} |")
    return lines


def cmd_table(runs: list[Any]) -> list[str]:
    head = [*SELECTIONS, "learned - refined"]
    lines = [f"| task | {' | '.join(head)} |", "|---|" + "---:|" * len(head)]
    for run in runs:
        one = run["sets"]["held-out words"]
        ends = [torch.tensor(one[name]) for name in ("clean_values", "corrupted_values")]
        by_how = {
            how: [torch.tensor(cell_of(run, "held-out words", how, x)["values"]) for x in mib.FRACTIONS[:-1]]
            for how in SELECTIONS
        }
        shown = [f"{mib.areas(*ends, by_how[how]).cmd:.4f}" for how in SELECTIONS]
        shown.append(cmd_difference(ends, by_how["learned"], by_how["refined"]))
        lines.append(f"| {TITLES[run['task']]} | {' | '.join(shown)} |")
    return lines


def larger_table(runs: list[Any]) -> list[str]:
    """How low the error goes with more edges; at 90% sparsity all selections but random have the circuit of top."""
    columns = [(how, x) for x in (*ASKED, 0.05) for how in ("refined", "learned")] + [("top", 0.1), ("top", 0.2)]
    head = [f"{how}, {1 - x:.1%}" if how != "top" else f"all, {1 - x:.1%}" for how, x in columns]
    lines = [f"| task | {' | '.join(head)} |", "|---|" + "---:|" * len(head)]
    for run in runs:
        cells = [cell_of(run, "held-out words", how, x) for how, x in columns]
        shown = [f"{cell['faithfulness']:.0%} / {cell['error']:.3f}" for cell in cells]
        lines.append(f"| {TITLES[run['task']]} | {' | '.join(shown)} |")
    return lines


def cmd_difference(ends: list[torch.Tensor], ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> str:
    """CMD minus that of another selection, with the interval of the difference over examples."""
    fractions = torch.tensor(mib.FRACTIONS, dtype=torch.float64)

    def areas(values: torch.Tensor) -> torch.Tensor:
        clean, corrupted, *circuits = values.mean(-1).unbind(0)
        away = torch.stack([((clean - x) / (clean - corrupted)).abs() for x in circuits])
        away = torch.cat([away, torch.zeros_like(away[:1])])
        return torch.trapezoid(away, fractions, dim=0)

    def difference(values: torch.Tensor) -> torch.Tensor:
        n = 2 + len(ours)
        return areas(values[:n]) - areas(torch.cat([values[:2], values[n:]]))

    values = torch.stack([*ends, *ours, *theirs]).double()
    low, high = bootstrap(values, difference)
    text = f"{float(difference(values)):+.4f} [{low:+.4f}, {high:+.4f}]"
    return f"**{text}**" if low > 0 or high < 0 else text


def cost_table(runs: list[Any]) -> list[str]:
    lines = ["| task | EAP-IG | refined | learned | learned / refined |", "|---|---:|---:|---:|---:|"]
    for run in runs:
        s = run["seconds"]
        shown = [f"{s[how]:.0f}" for how in ("eap-ig", "refined", "learned")] + [f"{s['learned'] / s['refined']:.1f}"]
        lines.append(f"| {TITLES[run['task']]} | {' | '.join(shown)} |")
    return lines


if __name__ == "__main__":
    main()
