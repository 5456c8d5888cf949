"""Two more tests, which ``gradpath test --all`` runs: is the circuit of this task alone, and is it the only one?

``specificity``  Without H's edges, the model loses more of this task than of any other built-in task that it does.
                 Circuits are often not specific (arXiv 2605.08348): what one task needs, others need, too. The loss is
                 the share of a task's own behaviour, so losses of different tasks can be compared. The claim is about
                 every other task; its bounds are those of the difference of two losses.
``rivals``       How little can another circuit have in common with H, if it is found in the same way, as large and as
                 faithful? There are often such circuits (arXiv 2605.12671). There, the overlap is a penalty in a loss;
                 here, edges of H are forbidden: at first all of them, then those of smallest |score|, by bisection.
                 Rivals are chosen on the examples that H was found with, and measured on the tested ones. This decides
                 nothing: that no rival was found does not mean that there is none.

Cost: one circuit that is almost the model on all examples and on ``OTHERS`` of every other task; one attribution, and
at most ``SEARCHES`` selections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from gradpath.errors import InputError
from gradpath.evaluation.result import Result, interval_text
from gradpath.recipe import Recipe
from gradpath.tasks.builtin import TASKS, read_built_in
from gradpath.tasks.load import draw_task, shuffled
from gradpath.tasks.pairs import usable_pairs
from gradpath.tasks.task import Task
from gradpath.verdict.checks import (
    WITHOUT,
    Check,
    CircuitUnderTest,
    circuit_again,
    claim,
    decided,
    faithfulness_ratio,
    not_run,
    scores_again,
    why_not_again,
)
from gradpath.verdict.statistics import Decision, all_of, difference_bounds, enough_examples

OTHERS, TRIED = 20, 500  # examples of every other task, and pairs that are tried for them
SEARCHES = 5
ROUNDING = 0.01  # of the behaviour


def other_tasks(tested: CircuitUnderTest) -> list[Task]:
    """The other built-in tasks that the model's tokenizer can represent well enough."""
    model, tasks = tested.model, list[Task]()
    if model.tokenizer is None:
        return []
    for name in (name for name in TASKS if name != tested.task.name):
        # A draw tries all pairs until it has enough. That takes very long where hardly one is usable.
        try:
            source = read_built_in(name, "test", model.tokenizer)
        except InputError:  # it has no words for the task
            continue
        first = (source.candidates.pairs[i] for i in islice(shuffled(len(source.candidates.pairs), 0, "test"), TRIED))
        many = source.metric != "logit-difference"
        if len(usable_pairs(first, model.tokenizer, OTHERS, many=many).pairs) == OTHERS:
            tasks.append(draw_task(model, Recipe(task=name, examples=OTHERS), "test"))
    return tasks


def specificity(tested: CircuitUnderTest, others: Sequence[Task]) -> Check:
    results = [replace(tested, task=task, mean_over=task).without for task in others]
    done = {task.name: x for task, x in zip(others, results, strict=True) if x.does_task == "yes"}
    if not done:
        return not_run("needs another built-in task that the model does")
    left = faithfulness_ratio(tested.without, WITHOUT)

    def decide(times: int) -> Decision:
        pairs = [(faithfulness_ratio(x, WITHOUT).repeated(times), left.repeated(times)) for x in done.values()]
        return all_of([claim(partial(difference_bounds, *pair), 0, float("inf"), len(done)) for pair in pairs])

    losses = {name: 1 - x.faithfulness for name, x in done.items()}
    most, own, decision = max(losses, key=losses.__getitem__), 1 - tested.without.faithfulness, decide(1)
    low, high = difference_bounds(faithfulness_ratio(done[most], WITHOUT), left)
    about = (
        f"without it, {own:.3f} of the behaviour is lost; of {len(done)} other tasks that the model does, {most} loses "
        f"most, {losses[most]:.3f} (difference {own - losses[most]:+.3f} [{low:+.3f}, {high:+.3f}])"
    )
    enough = enough_examples(len(tested.task), decide) if decision == "undecided" else None
    details = {"most": most, "interval": [low, high], "losses": losses, "examples": OTHERS}
    return decided(own, losses[most], decision, about, details, enough)


def rivals(tested: CircuitUnderTest, result: Result) -> Check:
    circuit, found_on, reason = tested.circuit, tested.found_on, why_not_again(tested)
    if found_on is None or reason:
        return not_run(reason)
    first, examples = tested.where_found, tested.prepared(found_on)
    furthest = max(abs(1 - x) for x in (first.faithfulness, *(first.interval or ()))) + ROUNDING
    scores = scores_again(tested, examples)
    edges = circuit.flat[circuit.scores.abs().argsort(descending=True, stable=True)].tolist()
    rival, too_few, enough = circuit, -1, len(circuit)  # of the circuit's edges that a rival may have
    while enough - too_few > max(1, len(circuit) >> SEARCHES - 2):
        allowed = (too_few + enough) // 2 if too_few >= 0 else 0
        other = circuit_again(tested, scores, examples, edges[allowed:])
        if abs(1 - tested.measure([other.mask], examples)[0].faithfulness) <= furthest:
            rival, enough = other, allowed
        else:
            too_few = allowed
    own, others = ({*x.nodes} - {"input", "logits"} for x in (circuit, rival))
    n, shared, nodes, chance = len(circuit), len(circuit & rival), len(own & others), len(circuit) / scores.n_edges
    if rival is circuit:
        about = f"none was found: with at most {too_few} of its {n} edges, circuits are less faithful"
        return Check(1.0, chance, "undecided", about, {"nodes": 1.0, "rival": None})
    [measured] = tested.measure([rival.mask])
    interval = interval_text(measured.interval, len(tested.task), ".3f")
    about = (
        f"a rival of {len(rival)} edges shares {shared} of its {n} edges and {nodes} of its {len(own)} nodes; "
        f"faithfulness {measured.faithfulness:.3f} ({interval}), the circuit {result.faithfulness:.3f}"
    )
    details = {"nodes": nodes / len(own), "faithfulness": measured.faithfulness, "error": measured.error}
    return Check(shared / n, chance, "undecided", about, {**details, "rival": rival.edges})
