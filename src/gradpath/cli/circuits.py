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
from gradpath.cli.progress import lines_of, note, numbers_of, print_result
from gradpath.errors import InputError, UsageError, warn
from gradpath.runtime import distributed

if TYPE_CHECKING:
    from gradpath.circuit import Circuit
    from gradpath.explanation import Explanation
    from gradpath.explanation.experts import Expert
    from gradpath.explanation.roles import Role
    from gradpath.limits import Limits
    from gradpath.model.transformer import Transformer
    from gradpath.report.figure import Attention
    from gradpath.scores import Provenance
    from gradpath.tasks import Task

T = TypeVar("T")

circuit_argument = click.argument("circuit_file", type=opt.CIRCUIT, metavar="CIRCUIT.json")
_COLUMNS = ("node", "effect", "direct", "attends", "reads most from", "adds to the answers' logits")
_EXPERTS = 4  # listed for a node


def saved_options(about_examples: str) -> opt.Decorator:
    """The options of ``open_circuit``; ``about_examples`` is the help of --examples."""
    examples = click.option(
        "--examples", type=click.IntRange(min=1), help=f"{about_examples}  [as many as when the circuit was found]"
    )
    return opt.together(
        click.option("--model", help="Another model of the same shape.  [the circuit's own]"),
        click.option("--task", help="Another task.  [the circuit's own]"),
        opt.metric_option("the circuit's own; with another --task, that task's"),
        examples,
        click.option(
            "--split",
            type=opt.Choice([*defaults.TASK_SPLITS, defaults.REWORDED]),
            help="train: examples that find attributes; test: held-out ones; reworded: as test, in other templates.  "
            "[test; all for a circuit that was found with --split all]",
        ),
        opt.ablation_option(None),
        opt.data_option,
        opt.batch_options,
        click.option("--seed", type=int, help="Seed for drawing the examples.  [the circuit's own]"),
        opt.plugin_option,
        opt.json_option,
        opt.load_options,
    )


@dataclass(frozen=True)
class ExampleOptions:
    """Which examples to run a saved circuit on, and the ablation of the edges outside of it."""

    task: str | None = None
    data: Path | None = None
    metric: str | None = None
    examples: int | None = None
    seed: int | None = None
    split: str | None = None
    ablation: str | None = None


@dataclass(frozen=True)
class SavedCircuit:
    """A circuit from a file, its model, the examples, and the ablation of the edges outside of it."""

    circuit: Circuit
    model: Transformer
    task: Task
    seed: int
    split: str
    ablation: str
    mean_over: Task | None
    draw: Callable[[str, int], Task]  # examples of a split, drawn by another seed
    attributed: Callable[[], Task | None]  # the examples that the circuit was found on, if they can be drawn again
    options: ExampleOptions
    limits: Limits

    def run(self, function: Callable[..., T]) -> T:
        """Call ``evaluate`` or ``explain`` for the circuit and the examples."""
        return function(
            self.model,
            self.circuit,
            self.task,
            batch_size=self.limits.batch_size,
            memory=self.limits.memory,
            ablation=self.ablation,
            mean_over=self.mean_over,
        )


def open_circuit(file: str | Path, values: dict[str, Any]) -> SavedCircuit:
    """Load a circuit, its model and examples; ``values`` are those of ``saved_options``.

    An option without a value is as when the circuit was found.
    """
    from gradpath.ablation import CORRUPTED
    from gradpath.circuit import load_circuit
    from gradpath.evaluation.plan import check_same_graph
    from gradpath.pipeline import notices
    from gradpath.tasks.load import WARNING, check_task, draw_task

    limits = opt.limits_of(values.get("batch_size"), values.get("memory"))
    options, loading = opt.pick(ExampleOptions, values), opt.pick(opt.ModelOptions, values)
    data, circuit = options.data, load_circuit(file)
    provenance = circuit.provenance
    same_model = loading.model is None
    if same_model:
        loading = _recorded(opt.as_recorded(loading, provenance), "model", file)
    metric = _metric(circuit, options.metric, file, same_task=options.task is None)
    task = options.task or (None if data else _task(circuit, file))
    check_task(task, data)
    model = loading.load()
    check_same_graph(model, circuit)
    # Files from before 0.2.0 have no digest, and that of another precision differs.
    same_dtype, digest = provenance.dtype == model.dtype_name, provenance.weights
    if same_model and same_dtype and digest is not None and digest != model.digest:
        warn(f"{file} was found in other weights: {model.name} has changed since, or another model has its name now.")
    n, seed, split = _draw_of(options, provenance)

    def draw(split: str, seed: int) -> Task:
        return draw_task(task, model, n=n, seed=seed, split=split, data=data, metric=metric)

    pairs = draw(split, seed)
    if data is not None:
        for line in notices(None, pairs):
            # Of a circuit that was found on other data, none of these pairs was attributed.
            if provenance.own_data or not line.startswith(WARNING):
                note(line)
    ablation, mean_over = options.ablation or provenance.ablation, None
    if ablation not in (CORRUPTED, "zero"):
        # Over the examples that the circuit was found on, or as many of another task.
        found_seed = seed if provenance.seed is None else provenance.seed
        found_split = (provenance.split if options.task is None else None) or "train"
        mean_over = draw_task(task, model, n=provenance.examples or n, seed=found_seed, split=found_split, data=data)

    def attributed() -> Task | None:
        same = provenance.source == pairs.about.get("source") and (data is not None or pairs.name == provenance.task)
        n, seed, split = provenance.examples, provenance.seed, provenance.split
        # A Task that was given to find is not in the file.
        if not same or provenance.half or n is None or seed is None or split is None:
            return None
        return draw_task(task, model, n=n, seed=seed, split=split, data=data, metric=metric)

    return SavedCircuit(circuit, model, pairs, seed, split, ablation, mean_over, draw, attributed, options, limits)


def _draw_of(options: ExampleOptions, provenance: Provenance) -> tuple[int | None, int, str]:
    """How many examples to draw, the seed and the split: as typed, or else as when the circuit was found."""
    own_data = options.data is not None
    if provenance.seed is not None and own_data == provenance.own_data:
        n = provenance.requested
    else:  # nothing is recorded, or it is about a task of another kind
        n = None if own_data else defaults.EXAMPLES
    n = n if options.examples is None else options.examples
    seed = next(x for x in (options.seed, provenance.seed, defaults.SEED) if x is not None)
    return n, seed, options.split or ("all" if provenance.split == "all" else "test")


def _task(circuit: Circuit, file: str | Path) -> str:
    """The task that the circuit was found on, unless that was the user's own data, which the file does not have."""
    from gradpath.tasks import TASKS

    name = _recorded(circuit.provenance.task, "task", file)
    if circuit.provenance.own_data:  # the task may have the name of a built-in one
        raise UsageError(f"{file} was found on your own data, {name!r}. Give it again with --data, or name a --task.")
    if name not in TASKS and (plugins := circuit.provenance.plugins):
        raise UsageError(
            f"{file} was found on the task {name!r}, which is not built in. Give the plug-in that adds it "
            f"({', '.join(plugins)}) with --plugin, or name another --task."
        )
    return name


def _metric(circuit: Circuit, metric: str | None, file: str | Path, *, same_task: bool) -> str | None:
    """The requested metric, or on the same task the one that the circuit was found with."""
    from gradpath.tasks import METRICS, find_metric

    recorded = circuit.provenance.metric if same_task else None
    if metric is None and recorded is not None and recorded not in METRICS:
        raise UsageError(
            f"{file} was found with the metric {recorded!r}, which is your own: give it again with --metric "
            "FILE.py:FUNCTION or with its --plugin, or name another."
        )
    metric = metric or recorded
    if metric is not None:
        find_metric(metric)
    return metric


def _recorded(value: T | None, what: str, file: str | Path) -> T:
    if value is None:
        raise InputError(f"{file} does not say which {what} it is for. Give it with --{what}.")
    return value


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

    begin, saved = time.monotonic(), open_circuit(circuit_file, values)
    result = saved.run(evaluate)
    provenance = saved.circuit.provenance
    summary = {
        "version": provenance.version,
        "circuit_file": str(circuit_file),
        "model": saved.model.name,
        "task": saved.task.name,
        "method": provenance.method,
        "steps": provenance.steps,
        "ablation": saved.ablation,
        "metric": saved.task.about["metric"],
        "seed": saved.seed,
        "split": saved.split,
        "examples": len(saved.task),
        **numbers_of(saved.circuit, result),
        "seconds": round(time.monotonic() - begin, 2),
    }
    where = f"{len(saved.task)} examples of {saved.task.name} ({saved.split}) in {saved.model.name}"
    print_result(
        summary if as_json else "\n".join([f"{circuit_file} on {where}:", *lines_of(summary, len(saved.task))])
    )


@click.command(name="test")
@circuit_argument
@click.option(
    "--out", type=opt.FILE, metavar="PAGE.html", help="Write the report of the circuit, with the verdict at the top."
)
@saved_options("Examples to test on.")
def test_command(circuit_file: str | Path, out: Path | None, as_json: bool, **values: Any) -> None:
    """Test a saved circuit: is it better than chance, equivalent to the model, necessary, minimal, stable?

    \b
    gradpath test out/ioi/circuit.json
    gradpath test out/ioi/circuit.json --examples 50 --json
    gradpath test out/ioi/circuit.json --out out/ioi/verdict.html
    """
    from gradpath.report import verdict_report, write
    from gradpath.tasks import TASKS
    from gradpath.verdict import test

    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"the verdict is written as an HTML page: --out has to end in .html, got {out.name}.")
    saved = open_circuit(circuit_file, values)
    data, seed = saved.options.data, saved.seed
    circuit = replace(saved.circuit, about={**saved.circuit.about, "ablation": saved.ablation})
    name, found_on = saved.task.name, saved.attributed()
    has_templates = data is None and name in TASKS and TASKS[name].reworded
    verdict = test(
        saved.model,
        circuit,
        saved.task,
        found_on=found_on or saved.draw("train", seed),
        attributed=found_on,
        draws=[] if data else [saved.draw("train", seed + 1)],
        reworded=saved.draw(defaults.REWORDED, seed) if has_templates else None,
        mean_over=saved.mean_over,
        seed=seed,
        batch_size=saved.limits.batch_size,
        memory=saved.limits.memory,
    )
    facts = {"circuit_file": str(circuit_file), "seed": seed, "split": saved.split}
    if out is not None:
        distributed.on_first_rank(lambda: write(verdict_report(circuit, verdict, opt.command_line()), out))
    wrote = "" if out is None else f"\nOpen {out} in a browser."
    print_result({**facts, **verdict.to_json()} if as_json else f"{circuit_file}:\n{verdict!r}{wrote}")


@click.command(name="explain")
@circuit_argument
@click.option("--top", type=click.IntRange(min=1), default=25, show_default=True, help="Nodes to show in the table.")
@saved_options("Examples to explain the circuit on.")
def explain_command(circuit_file: str | Path, top: int, as_json: bool, **values: Any) -> None:
    """Say what each node of a saved circuit reads, where it attends and what it writes.

    \b
    gradpath explain out/ioi/circuit.json
    gradpath explain out/ioi/circuit.json --examples 20 --json
    """
    from gradpath.explanation import explain

    begin, saved = time.monotonic(), open_circuit(circuit_file, values)
    explanation = saved.run(explain)
    if not as_json:
        print_result(_roles_text(explanation, circuit_file, top))
        return
    facts = {
        "version": __version__,
        "circuit_file": str(circuit_file),
        "seed": saved.seed,
        "split": saved.split,
        "ablation": saved.ablation,
        "seconds": round(time.monotonic() - begin, 2),
    }
    print_result({**facts, **explanation.to_json()})


def _roles_text(explanation: Explanation, file: str | Path, top: int) -> str:
    """A table of the strongest nodes, then the sentences about them."""
    roles = explanation.roles[:top]
    rows = [_COLUMNS, *map(_cells, roles)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        f"{file} on {explanation.examples} examples of {explanation.task} in {explanation.model} "
        f"(metric: clean {explanation.clean:.3f}, corrupted {explanation.corrupted:.3f}):",
        "",
        *("  ".join(["", *map(str.ljust, row, widths)]).rstrip() for row in rows),
    ]
    if mixtures := [role for role in roles if role.experts]:
        lines += ["", "Experts, by their part of the node's effect (chosen by clean / corrupted tokens):"]
        lines += [f"  {role.node:9s} {', '.join(map(_expert, role.experts[:_EXPERTS]))}" for role in mixtures]
    if sentences := [f"  {role.node:9s} {role.sentence}" for role in roles if role.sentence]:
        lines += ["", "In words, where the numbers are clear:", *sentences]
    if rest := len(explanation) - len(roles):
        lines += ["", f"{rest} more nodes: --top {len(explanation)} shows all, --json has every number."]
    return "\n".join(lines)


def _expert(expert: Expert) -> str:
    name = expert.name.partition(".")[2] or expert.name
    chosen = "" if expert.clean is None else f" ({expert.clean:.0%} / {expert.corrupted:.0%})"
    return f"{name} {expert.effect:+.2f}{chosen}"


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
    return role.node, effect, direct, attends, ", ".join(reads), added


@click.command(name="show")
@circuit_argument
@click.option("--out", type=opt.FILE, metavar="FILE", help="The file to write.  [CIRCUIT.html]")
@click.option("--notes", type=opt.FILE, metavar="NOTES.json", help="Names, colours and groups, saved in the report.")
@click.option("--edges", type=click.IntRange(min=1), metavar="N", help="Draw only the first N edges of the file.")
@click.option("--rows", is_flag=True, help="Draw a figure with the circuit's nodes only, in rows by depth.")
@click.option(
    "--attention",
    multiple=True,
    metavar="HEAD",
    help="Add the attention pattern of a head on one example to the figure; may be repeated. Loads the model.",
)
@opt.plugin_option
def show_command(
    circuit_file: str | Path,
    out: Path | None,
    notes: Path | None,
    edges: int | None,
    rows: bool,
    attention: tuple[str, ...],
) -> None:
    """Draw a saved circuit: .html (interactive), .svg, .png, .pdf, .dot or .graphml, by the suffix of --out.

    \b
    gradpath show out/ioi/circuit.json
    gradpath show out/ioi/circuit.json --out figure.svg
    gradpath show out/ioi/circuit.json --edges 200 --notes notes.json --attention a23.h0 --out figure.pdf
    """
    from gradpath.circuit import is_hub_address
    from gradpath.report import show

    local = Path(Path(circuit_file).name if is_hub_address(circuit_file) else circuit_file)
    target = out or local.with_suffix(".html")
    patterns = _patterns(circuit_file, attention) if attention else None
    show(circuit_file, target, notes=notes, edges=edges, rows=rows, attention=patterns)
    click.echo(target)


def _patterns(circuit_file: str | Path, heads: tuple[str, ...]) -> Attention:
    """The attention of these heads on the first held-out example of the circuit's task."""
    from gradpath.model.inspection import token_text
    from gradpath.model.tokenizer import prompt_ids

    saved = open_circuit(circuit_file, {"model": None, "examples": 1})
    model, prompt = saved.model, saved.task.clean[:1]
    tokens = [token_text(model, token) for token in prompt_ids(prompt, model.tokenizer)[0]]
    return {head: (model.attention(prompt, head)[0], tokens) for head in heads}


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
    origin = circuit.provenance
    facts = [origin.task, origin.model and f"in {origin.model}", origin.method and f"by {origin.method}", origin.how]
    return " ".join([f"{file}:", *(fact for fact in facts if fact)])
