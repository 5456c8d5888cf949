"""``gradpath run``: a study from a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradpath.cli import options as opt
from gradpath.cli.progress import GridBar, Screen, print_result

if TYPE_CHECKING:
    from gradpath.grid.study import Study
    from gradpath.grid.study_report import Estimate
    from gradpath.model.transformer import Transformer


@click.command(name="run")
@click.argument("study_file", type=opt.FILE, metavar="STUDY.yaml")
@click.option("--dry-run", is_flag=True, help="Check the file, and print what would be measured and how long it takes.")
@opt.plugin_option
@opt.load_options
@opt.out_option("Write measurements and the report to this folder.  [out/NAME, for NAME.yaml]")
@opt.json_option
def command(study_file: Path, dry_run: bool, out: Path | None, as_json: bool, **given: Any) -> None:
    """Measure circuits for all combinations of models, tasks, methods, selections and sizes that a file lists.

    An interrupted run continues where it stopped. All mistakes in the file are listed at once. --device and --dtype
    override the file.

    \b
    gradpath run study.yaml --dry-run
    gradpath run study.yaml --out out/study
    """
    opt.check_folder(out)
    from gradpath.grid.study import read_study
    from gradpath.grid.study_report import estimate, run_study
    from gradpath.runtime.files import lock_folder

    study = read_study(study_file, device=given["device"], dtype=given["dtype"])
    folder = out or Path("out") / study_file.stem
    # A map of devices takes the place of the file's device; --device beside it is refused when a model is loaded.
    device = study.device if given["device_map"] is None else given["device"]

    def load(name: str) -> Transformer:
        return opt.ModelOptions(**{**given, "model": name, "device": device, "dtype": study.dtype}).load()

    if dry_run:
        estimates = estimate(study, folder, load)
        print_result(_estimate_json(study, estimates) if as_json else _estimate_text(study, estimates))
        return
    with lock_folder(folder):
        written = run_study(study, folder, load, command=opt.command_line(), watch=GridBar, note=Screen().note)
    if as_json:
        files = [str(file) for file in written.files]
        print_result({**written.record, "files": files, "rows": written.outcome.rows})
    else:
        names = ", ".join(file.name for file in written.files)
        print_result(
            f"{written.outcome.page}\nWrote to {folder}:\n  {names}\nOpen {folder / 'study.html'} in a browser."
        )


def _estimate_json(study: Study, estimates: list[Estimate]) -> dict[str, Any]:
    return {"study": dict(study.plain), "circuits": study.n_cells, "models": [vars(one) for one in estimates]}


def _estimate_text(study: Study, estimates: list[Estimate]) -> str:
    """What would be measured, and how long it takes."""
    parts = {
        "models": [one.model for one in estimates],
        "tasks": [*study.tasks, *(file.name for file in study.data)],
        "methods": [method.label for method in study.methods],
        "selections": study.selections,
        "sizes": [f"{size:,} edges" if size >= 1 else f"{size:.2%} sparsity" for size in study.sizes],
        "seeds": study.seeds,
    }
    lines = [f"{study.title}: {study.n_cells:,} circuits, each measured on {study.request.examples} examples"]
    lines += [f"  {name:<11} {len(values):>3}  {', '.join(map(str, values))}" for name, values in parts.items()]
    lines += ["", "Left to do, at the speed of this machine now:"]
    for one in estimates:
        work = f"{one.passes:,.0f} passes over an example, about {_time(one.seconds)}" if one.passes else "nothing"
        lines.append(f"  {one.model}: {one.circuits:,} circuits, {work}")
    return "\n".join(lines)


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
