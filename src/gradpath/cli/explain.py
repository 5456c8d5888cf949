"""``gradpath explain``: what each node of a saved circuit does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradpath._version import __version__
from gradpath.cli import options as opt
from gradpath.cli.progress import print_result
from gradpath.cli.saved import open_circuit, saved_options

if TYPE_CHECKING:
    from gradpath.explanation import Explanation
    from gradpath.explanation.experts import Expert
    from gradpath.explanation.roles import Role

_COLUMNS = ("node", "effect", "direct", "attends", "reads most from", "adds to the answers' logits")
_EXPERTS = 4  # of a node in the table


@click.command(name="explain")
@click.argument("circuit_file", type=opt.CIRCUIT, metavar="CIRCUIT.json")
@click.option("--top", type=click.IntRange(min=1), default=25, show_default=True, help="Nodes to show in the table.")
@saved_options("Examples to look at.")
def command(circuit_file: str | Path, top: int, as_json: bool, **given: Any) -> None:
    """Say what each node of a saved circuit reads, where it attends and what it writes.

    \b
    gradpath explain out/ioi/circuit.json
    gradpath explain out/ioi/circuit.json --examples 20 --json
    """
    from gradpath.explanation import explain

    begin, saved = time.monotonic(), open_circuit(circuit_file, given)
    explanation = saved.run(explain, "looking at the nodes")
    if not as_json:
        print_result(_text(explanation, circuit_file, top))
        return
    facts: dict[str, Any] = {"version": __version__, "circuit_file": str(circuit_file)}
    facts |= {"seed": saved.options.seed, "split": saved.options.split, "ablation": saved.ablation}
    facts |= {"seconds": round(time.monotonic() - begin, 2)}
    print_result({**facts, **explanation.to_json()})


def _text(explanation: Explanation, file: str | Path, top: int) -> str:
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
    if told := [f"  {role.node:9s} {role.sentence}" for role in roles if role.sentence]:
        lines += ["", "In words, where the numbers are clear:", *told]
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
        one = max(role.attends, key=lambda one: one.share)
        weights = sorted(one.weights["clean"].items(), key=lambda item: -item[1])
        attends = f"{one.start}: " + ", ".join(f"{part} {weight:.2f}" for part, weight in weights[:2])
    kinds = {"mlp": "", "logits": ""}
    reads = [f"{kinds.get(at, f'{at} ')}{edges[0].source} {edges[0].share:.0%}" for at, edges in role.reads.items()]
    writes = role.writes
    added = "" if writes is None else " ".join(repr(token) for token, _ in writes.promotes[:3])
    if writes is not None and writes.right is not None:
        added = f"right {writes.right:+.2f}, wrong {writes.wrong:+.2f}"
    return role.node, effect, direct, attends, ", ".join(reads), added
