"""Reading a circuit: what each of its nodes does, on which words, for which example."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gradpath.circuit import Circuit
from gradpath.errors import UsageError, unknown
from gradpath.explanation.measure import Measured, measure, names_of_answers
from gradpath.explanation.roles import Role, known_head_scores, roles_of
from gradpath.formats.content import optional
from gradpath.limits import Limits
from gradpath.model.transformer import Transformer
from gradpath.sweep import Progress
from gradpath.tasks.task import Task


@dataclass(frozen=True, repr=False)
class Explanation:
    """What every node of a circuit does on a task.

    ``explanation["a5.h1"]`` is the role of one node; iteration gives all roles.

    Args:
        roles: One ``Role`` per node, the one with the strongest effect first.
        parts: The names of the parts of a prompt.
        answers: What the correct and the wrong answer are called.
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
        told = [f"  {role.node}: {role.sentence}" for role in self.roles if role.sentence]
        return "\n".join(lines + told[:8] + ([f"  ... and {len(told) - 8} more"] if len(told) > 8 else []))

    def to_json(self) -> dict[str, Any]:
        """All roles as a dictionary, as ``gradpath explain --json`` prints them."""
        return {
            "model": self.model,
            "task": self.task,
            "examples": self.examples,
            "clean": self.clean,
            "corrupted": self.corrupted,
            "parts": list(self.parts),
            "answers": list(self.answers),
            "nodes": [role.to_json() for role in self.roles],
        }

    def to_pandas(self) -> Any:
        """The roles as a pandas DataFrame, one row per node.

        Returns:
            The table. Its columns ``attends X`` are attention weights from the last token on the clean prompts.
        """
        pandas = optional("pandas", "a table of pandas")
        return pandas.DataFrame([_flat(role) for role in self.roles])


def _flat(role: Role) -> dict[str, Any]:
    row: dict[str, Any] = {"node": role.node, "effect": role.effect, "direct_effect": role.direct_effect}
    for at in ("q", "k", "v", "mlp", "logits"):
        row[f"reads {at}"] = ", ".join(f"{read.source} {read.share:.0%}" for read in role.reads.get(at, ())) or None
    if role.attends:
        row |= {f"attends {part}": weight for part, weight in role.attends[0].weights["clean"].items()}
    if role.writes is not None:
        row |= {"right answer": role.writes.right, "wrong answer": role.writes.wrong}
        row["promotes"] = [token for token, _ in role.writes.promotes]
        row["suppresses"] = [token for token, _ in role.writes.suppresses]
    if role.experts:
        row["experts"] = ", ".join(f"{expert.name} {expert.effect:+.2f}" for expert in role.experts)
    return {**row, **role.scores, "sentence": role.sentence}


def explain(
    model: Transformer,
    circuit: Circuit,
    task: Task,
    *,
    batch_size: int | None = None,
    memory: int | None = None,
    progress: Progress | None = None,
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
        progress: A function that is called with the number of examples of each finished batch.
        ablation: What edges outside the circuit carry; by default the ablation that the circuit was found with.
        mean_over: The task whose clean prompts the means are taken over; by default ``task`` itself.

    Returns:
        One row per node, the one with the strongest effect first.
    """
    measured = measure(
        model,
        circuit,
        task,
        limits=Limits(batch_size, memory),
        progress=progress,
        ablation=ablation,
        mean_over=mean_over,
    )
    return explanation_of(model, circuit, task, measured)


def explanation_of(model: Transformer, circuit: Circuit, task: Task, measured: Measured) -> Explanation:
    """The explanation of what was measured."""
    known = known_head_scores(model, measured.heads)
    return Explanation(
        roles=tuple(roles_of(model, circuit, measured, known, names_of_answers(task))),
        parts=measured.parts.names,
        answers=names_of_answers(task),
        model=model.name,
        task=task.name,
        examples=len(task),
        clean=float(measured.clean.mean()),
        corrupted=float(measured.corrupted.mean()),
    )
