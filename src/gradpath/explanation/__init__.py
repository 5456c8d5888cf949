"""What each node of a circuit does.

``explain`` summarizes all examples. ``look_inside`` describes single examples for the report: attention patterns,
tokens that are raised, effects of edges. The effect of an edge on one example is its score there, by the method that
the circuit was found with if that follows a path, else by EAP-IG.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from gradpath import defaults
from gradpath.attribution.attribute import rows_of_examples, runs_for, score_batch
from gradpath.attribution.batch import BatchRuns
from gradpath.attribution.methods import Options, Path, find_method, recorded_method
from gradpath.circuit import Circuit
from gradpath.errors import GradpathError, UsageError, unknown
from gradpath.explanation.measure import (
    RUNS,
    BatchWork,
    Measured,
    answers_of,
    check_explainable,
    measure,
    most_changed,
    names_of_answers,
    token_logits,
)
from gradpath.explanation.roles import Role, known_head_scores, roles_of
from gradpath.model.inspection import token_text
from gradpath.model.transformer import Transformer
from gradpath.prepared import PreparedBatches
from gradpath.recipe import Recipe
from gradpath.runtime import distributed
from gradpath.runtime.progress import bars
from gradpath.sweep import Limits, own_settings
from gradpath.tasks.task import Task


@dataclass(frozen=True, repr=False)
class Explanation:
    """What every node of a circuit does on a task.

    ``explanation["a5.h1"]`` is the role of one node; iteration gives all roles.

    Args:
        roles: One ``Role`` per node, the one with the strongest effect first.
        parts: The names of the parts of a prompt.
        answers: The names of the correct and the wrong answer.
        model: The name of the model.
        task: The name of the task.
        examples: The number of examples.
        clean: The mean metric on the clean prompts.
        corrupted: The mean metric on the corrupted prompts.
    """

    roles: tuple[Role, ...]
    parts: tuple[str, ...]
    answers: tuple[str, str]
    model: str
    task: str
    examples: int
    clean: float
    corrupted: float

    def __len__(self) -> int:
        return len(self.roles)

    def __iter__(self) -> Iterator[Role]:
        return iter(self.roles)

    def __getitem__(self, node: str) -> Role:
        for role in self.roles:
            if role.node == node:
                return role
        if not isinstance(node, str):
            raise UsageError(f"a role is found by the name of its node, such as 'a0.h0': got {node!r}.")
        raise unknown("node in this circuit", node, [role.node for role in self.roles])

    def __repr__(self) -> str:
        lines = [f"<Explanation of {len(self)} nodes on {self.examples} examples of {self.task} in {self.model}>"]
        sentences = [f"  {role.title}: {role.sentence}" for role in self.roles if role.sentence]
        more = [f"  ... and {len(sentences) - 8} more"] if len(sentences) > 8 else []
        return "\n".join(lines + sentences[:8] + more)

    def to_json(self) -> dict[str, Any]:
        """All roles as a dictionary, as ``gradpath explain --json`` prints them."""
        names = ("model", "task", "examples", "clean", "corrupted", "parts", "answers")
        return {**{name: getattr(self, name) for name in names}, "nodes": [role.to_json() for role in self.roles]}


def explain(
    model: Transformer,
    circuit: Circuit,
    task: Task,
    *,
    batch_size: int | None = None,
    memory: int | None = None,
    progress: bool = False,
    ablation: str | None = None,
    mean_over: Task | None = None,
) -> Explanation:
    """Explain what each node of a circuit does: what it reads, where it attends, what it writes.

    Args:
        model: The model that the circuit is of.
        circuit: The circuit.
        task: The examples to look at.
        batch_size: The largest number of examples in a batch; by default it depends on prompt length and free memory.
        memory: A budget in bytes, weights included; by default the weights and half of the free memory.
        progress: Whether to show progress bars.
        ablation: How ablated edges are replaced; by default the ablation that the circuit was found with.
        mean_over: The task whose clean prompts the means are taken over; by default ``task`` itself.

    Returns:
        One row per node, the one with the strongest effect first.
    """
    check_explainable(model, circuit)
    limits = Limits(batch_size, memory)
    with bars(progress):
        prepared = PreparedBatches(model, task, ablation or circuit.ablation, limits, mean_over=mean_over)
        return _explanation(prepared, circuit, measure(prepared, circuit))


def _explanation(prepared: PreparedBatches, circuit: Circuit, measured: Measured) -> Explanation:
    model, task = prepared.model, prepared.task
    head_scores, answers = known_head_scores(model, measured.heads), names_of_answers(task)
    return Explanation(
        roles=tuple(roles_of(model, circuit, measured, head_scores, answers)),
        parts=measured.parts.names,
        answers=answers,
        model=model.name,
        task=task.name,
        examples=len(task),
        clean=float(measured.clean.mean()),
        corrupted=float(measured.corrupted.mean()),
    )


_TOKENS = 4  # raised, and as many lowered, for each node


@dataclass(frozen=True)
class Inside:
    """What a circuit does on single examples, and the roles of its nodes over all of them."""

    circuit: Circuit
    explanation: Explanation
    sources: list[int]  # the nodes of the circuit except ``logits``, as sources of the graph
    heads: list[int]  # the heads among them
    # For each example the attention of every head, from 0 to 255, in the clean, the corrupted and the circuit's run,
    # with the pairs of query and earlier key row by row.
    patterns: list[UInt8[Tensor, "run head pair"]]
    tokens: Int[Tensor, "example source token"]  # those that each node raises most, then those that it lowers most
    texts: Mapping[int, str]  # of these tokens
    logits: Float[Tensor, "example source token"]  # what the node adds to their logits
    answers: Float[Tensor, "example source side"] | None  # and to those of the correct and the wrong answer
    effects: Float[Tensor, "example edge"]  # in the circuit's order


def look_inside(prepared: PreparedBatches, circuit: Circuit) -> Inside:
    """Describe what a circuit does on every one of some examples, which should be few."""
    model, task, pairs = prepared.model, prepared.task, prepared.encoded
    check_explainable(model, circuit)
    with distributed.alone(), own_settings(model):
        answers, n = answers_of(task, pairs), len(task)
        shape = n, sum(node != "logits" for node in circuit.nodes)
        attention: list[Tensor] = [torch.empty(0)] * n
        n_tokens = 2 * min(_TOKENS, len(model.unembedding) // 2)
        tokens = torch.zeros(*shape, n_tokens, dtype=torch.long, device="cpu")
        logits = torch.zeros(*shape, n_tokens, device="cpu")
        sides = torch.zeros(*shape, 2, device="cpu")

        method, options = _method(circuit.recipe)
        points, whole = method.points(options), method.whole(options)
        batches, at_once = prepared.limits.attribution(model, prepared.pairs, points=points, whole=whole)
        effects = torch.zeros(n, len(circuit), device="cpu")

        def inspect(work: BatchWork) -> None:
            runs, batch = work.runs, work.runs.batch
            for row, example in enumerate(batch.index.tolist()):
                weights = [x[:, row] for x in work.whole_patterns]  # by layer (run, head, query, key)
                attention[example] = _triangle(weights, int(batch.last[row]) + 1)
            tokens[batch.index], logits[batch.index] = most_changed(model, work.writes, _TOKENS)
            if answers is not None:
                ids = answers[batch.index].to(model.device)
                added = token_logits(model, work.writes, ids).sum(-1) / (ids >= 0).sum(-1).clamp(min=1)[:, None]
                sides[batch.index] = added.float().cpu()
            runs.at_once = at_once
            effects[batch.index] = _edge_effects(runs, circuit, method, options)

        measured = measure(prepared, circuit, batches=batches, inspect=inspect)
        return Inside(
            circuit=circuit,
            texts={token: token_text(model, token) for token in sorted(set(tokens.flatten().tolist()))},
            explanation=_explanation(prepared, circuit, measured),
            sources=measured.sources,
            heads=measured.heads,
            patterns=attention,
            tokens=tokens,
            logits=logits,
            answers=None if answers is None else sides,
            effects=effects,
        )


def _triangle(weights: list[Float[Tensor, "run head query key"]], length: int) -> UInt8[Tensor, "run head pair"]:
    """The weights of a prompt of this length for every query and earlier key, from 0 to 255."""
    if not weights:  # a circuit of MLPs alone
        return torch.zeros(len(RUNS), 0, 0, dtype=torch.uint8, device="cpu")
    query, key = torch.tril_indices(length, length, device=weights[0].device)
    return (255 * torch.cat(weights, 1)[:, :, query, key]).round().clamp(0, 255).to("cpu", torch.uint8)


def _edge_effects(runs: BatchRuns, circuit: Circuit, method: Path, options: Options) -> Float[Tensor, "example edge"]:
    """The score of each edge of the circuit on each example of a batch."""
    model, (source, target) = runs.model, circuit.index.T
    # A method that moves only the suffix and does not change the backward pass can use the same runs.
    reusable = not method.whole(options) and method.rules == model.rules
    if not reusable:
        runs = runs_for(method, options, model, runs.batch, runs.metric, runs.ablation, runs.at_once)
    [(scores, _)] = score_batch(runs, method, options, split=rows_of_examples)
    return scores[:, source, target].float()


def _method(recipe: Recipe | None) -> tuple[Path, Options]:
    """The method that a circuit was found with, if it follows a path; else EAP-IG."""
    with suppress(GradpathError):  # a method of a plug-in that is not loaded, or options of another version
        method, options = recorded_method(recipe or Recipe())
        if isinstance(method, Path):
            return method, options
    default = find_method(defaults.METHOD)
    assert isinstance(default, Path)
    return default, default.options({})
