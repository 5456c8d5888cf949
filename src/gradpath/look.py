"""Looking at a circuit: how far it is off on each example, and what each edge does or would do about it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gradpath import ranks
from gradpath.ablation import CORRUPTED, Ablation, ablation_of, for_ablation
from gradpath.effects import edge_effects
from gradpath.intervention import of_circuits, plan, set_stage
from gradpath.memory import batch_that_fits, in_shared_batches
from gradpath.model.transformer import Transformer
from gradpath.nonfinite import Places, of_prompts, watched
from gradpath.scores import Scores
from gradpath.selection import Order, circuit_of
from gradpath.tasks.task import Pairs, Task, encode

MOST_EFFECTS = 2**27  # kept at once, one for every example and edge: half a gigabyte

# Takes a pruned circuit's edges, and those whose effects are asked for; gives how far each example is off,
# (example,), and the effects, (example, edge).
Look = Callable[[Order, Order], tuple[Tensor, Tensor]]


def looking(
    model: Transformer,
    task: Task,
    scores: Scores,
    most_edges: int,
    *,
    batch_size: int = 20,
    memory: int | None = None,
) -> Look:
    """A function that looks at circuits of these scores, at so many edges at once at most.

    It looks at the examples of ``task``, or at as many as memory has room for.
    """
    name = scores.about.get("ablation", CORRUPTED)
    ablation = ablation_of(name, model, task, batch_size=batch_size, memory=memory)
    pairs = for_ablation(_some(encode(task, model.tokenizer), most_edges), ablation).in_order()
    size = batch_that_fits(model, pairs, batch_size, memory)
    return partial(_look, model, task, pairs, size, ablation, scores)


def _some(pairs: Pairs, most_edges: int) -> Pairs:
    """The examples, or of very many some that are spread evenly."""
    most = max(1, MOST_EFFECTS // most_edges)
    if len(pairs) <= most:
        return pairs
    return pairs.rows(torch.linspace(0, len(pairs) - 1, most, device="cpu").round().long())


def _look(
    model: Transformer,
    task: Task,
    pairs: Pairs,
    size: int,
    ablation: Ablation | None,
    scores: Scores,
    edges: Int[Tensor, " own"],
    asked: Int[Tensor, " edge"],
) -> tuple[Float[Tensor, " example"], Float[Tensor, "example edge"]]:
    todo = plan(model, circuit_of(scores, edges, prune=False))
    # Zeros, so that the sum over ranks puts every example's values in their place.
    off = torch.zeros(len(pairs), device="cpu")
    effects = torch.zeros(len(pairs), len(asked), device="cpu")

    row = {int(example): row for row, example in enumerate(pairs.index)}

    def measure(batch: Pairs) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            stage = set_stage(model, batch.to(model.device), ablation)
            goal = task.metric(stage.clean_logits, stage.batch.labels)
        value, found = edge_effects(stage, todo, task.metric, asked)
        rows = [row[int(example)] for example in batch.index]
        off[rows], effects[rows] = far, found = (value - goal).float().cpu(), found.float().cpu()
        return far, found

    def places(single: Pairs) -> Places:
        yield from of_prompts(model, task.metric, single)
        with torch.no_grad():
            stage = set_stage(model, single.to(model.device), ablation)
            yield from of_circuits(stage, [todo], task.metric)
        yield "the gradients in the circuit", measure(single)[1]

    work = watched(
        measure, lambda found: found, model=model, task=task, doing="the choice of edges", places=places
    )

    def unlike() -> object:
        return model.identity, edges.numpy().tobytes(), asked.numpy().tobytes()

    for _ in in_shared_batches(work, pairs, size, asked=unlike):
        pass
    return ranks.add_up(off), ranks.add_up(effects)
