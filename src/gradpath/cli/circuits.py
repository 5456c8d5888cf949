"""Commands that start from a saved circuit: ``eval``, ``test``, ``explain``, ``show`` and ``compare``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gradpath import defaults
from gradpath._version import __version__
from gradpath.cli import options as opt
from gradpath.cli.options import lines_of, note, numbers_of, print_result
from gradpath.errors import InputError, UsageError, warn
from gradpath.recipe import PROMPT, Recipe
from gradpath.runtime import distributed

if TYPE_CHECKING:
    from gradpath.circuit import Circuit
    from gradpath.explanation import Explanation
    from gradpath.explanation.roles import Role
    from gradpath.model.transformer import Transformer
    from gradpath.sweep import Limits
    from gradpath.tasks import Task

T = TypeVar("T")

circuit_argument = click.argument("circuit_file", type=opt.CIRCUIT, metavar="CIRCUIT.json")
_COLUMNS = ("node", "effect", "direct", "resamples", "attends", "reads most from", "adds to the answers' logits")


def saved_options(about_examples: str) -> opt.Decorator:
    """The options of ``open_circuit``; ``about_examples`` is the help of --examples."""
    own = dict.fromkeys(("model", "seed", "ablation"), "the circuit's own")
    return opt.together(
        opt.recipe_options("model", "task", "data", model=own["model"], task=own["model"]),
        opt.recipe_option("metric", default="the circuit's own; with another --task, that task's"),
        opt.recipe_option("first_token", default="as when the circuit was found"),
        click.option(
            "--examples", type=int, metavar="N", help=f"{about_examples}  [as many as when the circuit was found]"
        ),
        click.option(
            "--split",
            type=opt.Choice([*defaults.TASK_SPLITS, defaults.REWORDED]),
            help="train: examples that find attributes; test: held-out ones; reworded: as test, in other templates.  "
            "[those that find measured on]",
        ),
        opt.recipe_options("ablation", "seed", **own),
        opt.batch_options,
        opt.plugin_option,
        opt.json_option,
        opt.load_options(dtype=own["model"], bos=own["model"]),
    )


@dataclass(frozen=True)
class OpenedCircuit:
    """A circuit from a file, its model, and the examples to run it on.

    Its recipe is that of the file, with what the user typed in its place.
    """

    circuit: Circuit
    recipe: Recipe
    model: Transformer
    task: Task
    split: str  # of the task
    limits: Limits
    begin: float  # when the command was called

    @property
    def found_on(self) -> Task | None:
        """The examples that the circuit was found on; None if they cannot be drawn again, or are of another task."""
        found = self.circuit.recipe
        if found is None or found.task != self.recipe.task or not _same_data(found.data, self.recipe.data):
            return None
        return self.draw(found.attributed_split, found)

    @property
    def mean_over(self) -> Task | None:
        """The examples that means of an ablation are over: those that the circuit was found on, or as many others."""
        if self.recipe.ablation in ("corrupted", "zero"):
            return None
        return self.found_on or self.draw(self.recipe.attributed_split, self.recipe)

    def told(self, file: str | Path) -> dict[str, Any]:
        """What --json says of every command."""
        return {
            "version": __version__,
            "circuit_file": str(file),
            "model": self.model.name,
            "task": self.task.name,
            "metric": self.task.record.metric,
            "ablation": self.recipe.ablation,
            "seed": self.recipe.seed,
            "split": self.split,
            "examples": len(self.task),
            "seconds": round(time.monotonic() - self.begin, 2),
        }

    def draw(self, split: str, recipe: Recipe) -> Task:
        """The examples of a split, with the number and the seed of a recipe, and the metric of this one."""
        from gradpath.tasks.load import draw_task

        return draw_task(self.model, recipe.changed(metric=self.recipe.metric), split, data=self.recipe.data)

    def run(self, function: Callable[..., T]) -> T:
        """Call ``evaluate`` or ``explain`` for the circuit and the examples."""
        return function(
            self.model,
            self.circuit,
            self.task,
            batch_size=self.limits.batch_size,
            memory=self.limits.memory,
            ablation=self.recipe.ablation,
            mean_over=self.mean_over,
        )


def open_circuit(file: str | Path, values: dict[str, Any]) -> OpenedCircuit:
    """Load a circuit, its model and examples; ``values`` are those of ``saved_options``.

    An option without a value is as when the circuit was found.
    """
    from gradpath.circuit import load_circuit
    from gradpath.evaluation.patched_run import check_same_graph
    from gradpath.pipeline.examples import notices
    from gradpath.tasks.load import WARNING, check_task, draw_task

    begin, limits = time.monotonic(), opt.limits_of(values.get("batch_size"), values.get("memory"))
    split, typed, circuit = values.pop("split", None), opt.typed(values), load_circuit(file)
    found = circuit.recipe or Recipe()
    recipe = _recipe(circuit, typed, file)
    if recipe.clean is None:
        check_task(recipe.task, recipe.data)
    model = opt.load(recipe, values, circuit.facts.weights)
    check_same_graph(model, circuit)
    if "model" not in typed and recipe.dtype == found.dtype and circuit.facts.weights not in (None, model.digest):
        warn(f"{file} was found in other weights: {model.name} has changed since, or another model has its name now.")
    split = split or recipe.measured_split
    task = draw_task(model, recipe, split, data=recipe.data)
    opened = OpenedCircuit(circuit, recipe, model, task, split, limits, begin)
    if recipe.data is not None:
        for line in notices(None, opened.task):
            # Of a circuit that was found on other data, none of these pairs was attributed.
            if found.data is not None or not line.startswith(WARNING):
                note(line)
    return opened


def _same_data(a: str | None, b: str | None) -> bool:
    """Whether two paths name the same data, wherever it is now."""
    return a == b if a is None or b is None else Path(a).name == Path(b).name


def _recipe(circuit: Circuit, typed: dict[str, Any], file: str | Path) -> Recipe:
    """The recipe of a circuit with what the user typed. Another task has its own metric and number of examples."""
    from gradpath.tasks import METRICS, TASKS, find_metric

    found, data = circuit.recipe or Recipe(), typed.get("data")
    if data is not None and _same_data(data, found.data):
        typed = {**typed, "task": found.task, "data": data}  # the same data, wherever it is now
        found = found.changed(data=data)
    elif "task" in typed or data is not None:
        dropped = {"task", "data", "metric", "first_token", "clean", "corrupted", "answer", "wrong"}
        dropped |= {"examples"} if (data is None) != (found.data is None) else set()
        found = Recipe(**{name: value for name, value in found.recorded.items() if name not in dropped})
    recipe = found.changed(**typed)
    for name, value in (("model", recipe.model), ("task", recipe.task or recipe.data)):
        if value is None:
            raise InputError(f"{file} does not say which {name} it is for. Give it with --{name}.")
    if data is None and recipe.data is not None and not Path(recipe.data).is_file():
        raise UsageError(
            f"{file} was found on your own data, {recipe.data}, which is not here. Give it with --data, or name a "
            "--task."
        )
    if recipe.data is None and recipe.task not in (*TASKS, PROMPT) and circuit.facts.plugins:
        raise UsageError(
            f"{file} was found on the task {recipe.task!r}, which is not built in. Give the plug-in that adds it "
            f"({', '.join(circuit.facts.plugins)}) with --plugin, or name another --task."
        )
    if "metric" not in typed and recipe.metric is not None and recipe.metric not in METRICS:
        raise UsageError(
            f"{file} was found with the metric {recipe.metric!r}, which is your own: give it again with --metric "
            "FILE.py:FUNCTION or with its --plugin, or name another."
        )
    if recipe.metric is not None:
        find_metric(recipe.metric)
    return recipe


@click.command(name="eval")
@circuit_argument
@saved_options("Examples to measure on.")
def eval_command(circuit_file: str | Path, as_json: bool, **values: Any) -> None:
    """Run a saved circuit with all edges outside it ablated, and measure its faithfulness.

    \b
    gradpath eval out/ioi/circuit.json
    gradpath eval out/ioi/circuit.json --data pairs.csv --json
    """
    from gradpath.evaluation import evaluate

    saved = open_circuit(circuit_file, values)
    numbers, recipe, n = numbers_of(saved.circuit, saved.run(evaluate)), saved.recipe, len(saved.task)
    summary = {**saved.told(circuit_file), "method": recipe.method, "steps": recipe.steps, **numbers}
    where = f"{n} example{'' if n == 1 else 's'} of {saved.task.name} ({saved.split}) in {saved.model.name}"
    print_result(summary if as_json else "\n".join([f"{circuit_file} on {where}:", *lines_of(summary, n)]))


@click.command(name="test")
@circuit_argument
@click.option(
    "--out", type=opt.FILE, metavar="PAGE.html", help="Write the report of the circuit, with the verdict at the top."
)
@click.option("--all", "everything", is_flag=True, help="Also test whether it is of this task alone, and the only one.")
@saved_options("Examples to test on.")
def test_command(circuit_file: str | Path, out: Path | None, everything: bool, as_json: bool, **values: Any) -> None:
    """Stress-test a saved circuit: is it better than chance, equivalent to the model, necessary, minimal, stable?

    \b
    gradpath test out/ioi/circuit.json
    gradpath test out/ioi/circuit.json --all --json
    gradpath test out/ioi/circuit.json --out out/ioi/verdict.html
    """
    from gradpath.report import verdict_report, write
    from gradpath.tasks import TASKS
    from gradpath.verdict import test

    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"the verdict is written as an HTML page: --out has to end in .html, got {out.name}.")
    saved = open_circuit(circuit_file, values)
    recipe, found_on, name = saved.recipe, saved.found_on, saved.task.name
    circuit = replace(saved.circuit, recipe=(saved.circuit.recipe or recipe).changed(ablation=recipe.ablation))
    has_templates = recipe.data is None and name in TASKS and TASKS[name].reworded
    verdict = test(
        saved.model,
        circuit,
        saved.task,
        found_on=found_on or saved.draw("train", recipe),
        attributed=found_on,
        draw=None if recipe.data else saved.draw("train", recipe.changed(seed=recipe.seed + 1)),
        reworded=saved.draw(defaults.REWORDED, recipe) if has_templates else None,
        mean_over=saved.mean_over,
        all=everything,
        seed=recipe.seed,
        batch_size=saved.limits.batch_size,
        memory=saved.limits.memory,
    )
    if out is not None:
        distributed.on_first_rank(lambda: write(verdict_report(circuit, verdict, opt.command_line()), out))
    wrote = "" if out is None else f"\nOpen {out} in a browser."
    print_result(
        {**saved.told(circuit_file), **verdict.to_json()} if as_json else f"{circuit_file}:\n{verdict!r}{wrote}"
    )


@click.command(name="explain")
@circuit_argument
@click.option("--top", type=opt.COUNT, default=25, help="Nodes to show in the table.  [25]")
@saved_options("Examples to explain the circuit on.")
def explain_command(circuit_file: str | Path, top: int, as_json: bool, **values: Any) -> None:
    """Explain what each node of a saved circuit reads, where it attends and what it writes.

    \b
    gradpath explain out/ioi/circuit.json
    gradpath explain out/ioi/circuit.json --examples 20 --json
    """
    from gradpath.explanation import explain

    saved = open_circuit(circuit_file, values)
    explanation = saved.run(explain)
    told = {**saved.told(circuit_file), **explanation.to_json()}
    print_result(told if as_json else _roles_text(explanation, circuit_file, top))


def _roles_text(explanation: Explanation, file: str | Path, top: int) -> str:
    """A table of the strongest nodes, then the sentences about them."""
    roles = explanation.roles[:top]
    rows = [_COLUMNS, *map(_cells, roles)]
    if not any(role.frequency is not None for role in roles):
        rows = [(*row[:3], *row[4:]) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        f"{file} on {explanation.examples} example{'' if explanation.examples == 1 else 's'} of {explanation.task} "
        f"in {explanation.model} "
        f"(metric: clean {explanation.clean:.3f}, corrupted {explanation.corrupted:.3f}):",
        "",
        *("  ".join(["", *map(str.ljust, row, widths)]).rstrip() for row in rows),
    ]
    if sentences := [f"  {role.title:9s} {role.sentence}" for role in roles if role.sentence]:
        lines += ["", "In words, where the numbers are clear:", *sentences]
    if rest := len(explanation) - len(roles):
        lines += ["", f"{rest} more nodes: --top {len(explanation)} shows all, --json has every number."]
    return "\n".join(lines)


def _cells(role: Role) -> tuple[str, ...]:
    effect, direct = ("" if x is None else f"{x:+.2f}" for x in (role.effect, role.direct_effect))
    attends = ""
    if role.attends:
        strongest = max(role.attends, key=lambda pattern: pattern.share)
        weights = sorted(strongest.weights["clean"].items(), key=lambda item: -item[1])
        attends = f"{strongest.start}: " + ", ".join(f"{part} {weight:.2f}" for part, weight in weights[:2])
    kinds = {"mlp": "", "logits": ""}
    reads = [f"{kinds.get(at, f'{at} ')}{edges[0].source} {edges[0].share:.0%}" for at, edges in role.reads.items()]
    added = ""
    if role.writes is not None and role.writes.right is not None:
        added = f"right {role.writes.right:+.2f}, wrong {role.writes.wrong:+.2f}"
    elif role.writes is not None:
        added = " ".join(repr(token) for token, _ in role.writes.promotes[:3])
    frequency = "" if role.frequency is None else f"{role.frequency:.0%}"
    return role.title, effect, direct, frequency, attends, ", ".join(reads), added


@click.command(name="show")
@circuit_argument
@click.option("--out", type=opt.FILE, metavar="FILE", help="The file to write.  [CIRCUIT.html]")
@click.option("--edges", type=opt.COUNT, help="Draw only the first N edges of the file.")
@opt.plugin_option
def show_command(circuit_file: str | Path, out: Path | None, edges: int | None) -> None:
    """Draw a saved circuit, with its notes: .html (interactive), .svg, .png, .pdf, .dot or .graphml, by the suffix.

    \b
    gradpath show out/ioi/circuit.json
    gradpath show out/ioi/circuit.json --out figure.svg
    gradpath show out/ioi/circuit.json --edges 50 --out figure.pdf
    """
    from gradpath.circuit import is_hub_address
    from gradpath.report import show

    local = Path(Path(circuit_file).name if is_hub_address(circuit_file) else circuit_file)
    target = out or local.with_suffix(".html")
    show(circuit_file, target, edges=edges)
    click.echo(target)


@click.command(name="compare")
@click.argument("file_a", type=opt.CIRCUIT, metavar="A.json")
@click.argument("file_b", type=opt.CIRCUIT, metavar="B.json")
@click.option("--out", type=opt.FILE, metavar="FILE.html", help="Write a page that shows both in one drawing.")
@opt.plugin_option
@opt.json_option
def compare_command(file_a: str | Path, file_b: str | Path, out: Path | None, as_json: bool) -> None:
    """Compare two saved circuits of the same model, or of models of the same shape.

    \b
    gradpath compare out/ioi/circuit.json out/sva/circuit.json
    gradpath compare out/eap/circuit.json out/eap-ig/circuit.json --out compare.html
    """
    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--out has to be a page, a file that ends in .html: got {out.name!r}.")
    from gradpath.circuit import load_circuit

    a, b = load_circuit(file_a), load_circuit(file_b)
    comparison = a.compare(b)
    if out is not None:
        comparison.report(out, _names(file_a, file_b))
    if as_json:
        files = {"file_a": str(file_a), "file_b": str(file_b), "out": None if out is None else str(out)}
        print_result({**files, **comparison.to_json()})
        return
    wrote = "" if out is None else f"\nOpen {out} in a browser."
    print_result(f"A  {_described(file_a, a)}\nB  {_described(file_b, b)}\n{comparison}{wrote}")


def _names(file_a: str | Path, file_b: str | Path) -> tuple[str, str]:
    """The names of both files for the page, with the folder that each is in if they would be the same."""
    from gradpath.runtime.files import ELSEWHERE, readable, recorded_path

    names = recorded_path(file_a), recorded_path(file_b)
    if names[0] != names[1]:
        return names
    a, b = (readable(f"{ELSEWHERE}{Path(file).absolute().parent.name}/{Path(file).name}") for file in (file_a, file_b))
    return a, b


def _described(file: str | Path, circuit: Circuit) -> str:
    return f"{file}: {circuit.recipe or 'not recorded'}"
