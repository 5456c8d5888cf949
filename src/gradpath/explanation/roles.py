"""What each node of a circuit does: numbers from the measurements, and a sentence if the numbers are clear.

Heads also have scores for the kinds of heads known from the literature, on synthetic prompts of the model's
vocabulary. A prompt is a sequence of different random tokens, twice: ``s_1 ... s_n s_1 ... s_n``, after the BOS token
if prompts of the model begin with one. Scores are mean attention weights (Olsson et al. 2022, Wang et al. 2023)::

    previous token   from every token to the one before it
    duplicate token  from every token of the second copy to the same token in the first
    induction        from every token of the second copy to the one after the same token in the first
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gradpath.circuit import Circuit
from gradpath.explanation.measure import AFTER, END, FIRST, RUNS, UNNAMED, Measured, most_changed
from gradpath.graph import kind, node_of
from gradpath.model.inspection import patterns, token_text
from gradpath.model.transformer import Transformer

SCORES = ("previous_token", "duplicate_token", "induction")
_PROMPTS, _LENGTH = 8, 24
_TOKENS = 5  # promoted and suppressed tokens of a row
_SOURCES = 3  # incoming edges of a row, for each of q, k and v

# When a number is clear enough for a sentence.
CLEAR_WEIGHT = 0.4  # of attention, to one named part
CLEAR_SCORE = 0.4  # of a known kind of head
CLEAR_SHARE = 0.5  # of a node's effect that comes from one part of the prompt
CLEAR_EFFECT = 0.02  # of what corruption changes
CLEAR_DIFFERENCE = 0.25  # of two answers, in shares of what one of them gets
CLEAR_SIGN = 0.8  # of the examples, in which a number has the same sign


@dataclass(frozen=True)
class Read:
    """One incoming edge: its source, its score, and its share of the node's |scores| at the same q, k or v."""

    source: str
    score: float
    share: float


@dataclass(frozen=True)
class Attends:
    """Where a head attends from one part of the prompt: mean weights by part, in the three runs.

    ``share`` is the share of the head's effect that comes from what it writes there.
    """

    start: str
    share: float
    weights: Mapping[str, Mapping[str, float]]  # run -> part -> weight

    def to_json(self) -> dict[str, Any]:
        return {"from": self.start, "share": self.share, **self.weights}


@dataclass(frozen=True)
class Writes:
    """What a node adds to logits at the last position: of the answers, and of the tokens that change most."""

    right: float | None
    wrong: float | None
    promotes: Sequence[tuple[str, float]]
    suppresses: Sequence[tuple[str, float]]


@dataclass(frozen=True)
class Role:
    """What one node does, over all examples.

    Args:
        node: Its name.
        effect: Its contribution to the metric, to first order, summed over the prompt.
        direct_effect: The drop of the metric when only its edge to ``logits`` is corrupted; None for ``logits``.
        reads: Its strongest incoming edges in the circuit, by ``q``, ``k``, ``v``, ``mlp`` or ``logits``.
        attends: Where a head attends, from the last token and from the part of the prompt that matters most to it.
        writes: What it adds to logits at the last position; None for ``logits``.
        scores: Scores of a head as a previous-token, duplicate-token and induction head.
        sentence: What it does, in words, if the numbers are clear.
        frequency: The highest frequency of its edges: at least so many resamples of the examples have the node; None if
            the circuit is not a consensus.
        notes: Your notes on it, as in ``Circuit.notes``.
    """

    node: str
    effect: float | None = None
    direct_effect: float | None = None
    reads: Mapping[str, Sequence[Read]] = field(default_factory=dict)
    attends: Sequence[Attends] = ()
    writes: Writes | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    sentence: str | None = None
    frequency: float | None = None
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Its name, with the name or the group that your notes give it."""
        own = self.notes.get("name") or self.notes.get("group")
        return f"{self.node} ({own})" if own else self.node

    def to_json(self) -> dict[str, Any]:
        """The role as a dictionary."""
        return {**asdict(self), "attends": [x.to_json() for x in self.attends]}


def roles_of(
    model: Transformer, circuit: Circuit, measured: Measured, head_scores: Tensor, answers: tuple[str, str]
) -> list[Role]:
    """The role of every node, the one with the strongest effect first and ``logits`` last.

    ``head_scores`` are those of ``known_head_scores``, ``answers`` the names of the correct and the wrong answer.
    """
    reads, writes = reads_of(circuit), _writes(model, measured)
    effects = measured.effect.mean(0)  # (source, part)
    behaviour = abs(float((measured.clean - measured.corrupted).mean()))
    roles = []
    for row, source in enumerate(measured.sources):
        node, direct = model.graph.sources[source], measured.direct[:, row]
        mean = direct.mean()
        role = Role(node, float(effects[row].sum()), float(mean), reads.get(node, {}), writes=writes[row])
        if source in measured.heads:
            column = measured.heads.index(source)
            scores = dict(zip(SCORES, head_scores[column].tolist(), strict=True))
            scores = {name: score for name, score in scores.items() if not math.isnan(score)}
            role = replace(role, attends=_attends(measured, column, effects[row]), scores=scores)
        same_sign = float((direct.sign() == mean.sign()).float().mean())
        clear = abs(float(mean)) >= CLEAR_EFFECT * behaviour and same_sign >= CLEAR_SIGN
        roles.append(replace(role, sentence=sentence(role, answers, direct_is_clear=clear)))
    roles.sort(key=lambda role: -abs(role.effect or 0.0))
    roles += [Role("logits", reads=reads.get("logits", {}))] if "logits" in circuit.nodes else []
    frequencies = frequencies_of(circuit)
    return [
        replace(role, frequency=frequencies.get(role.node), notes=circuit.notes.get(role.node, {})) for role in roles
    ]


def frequencies_of(circuit: Circuit) -> dict[str, float]:
    """The highest frequency of the edges of every node; empty if the circuit is not a consensus."""
    frequencies = dict[str, float]()
    if circuit.frequency is not None:
        for (source, target, _), frequency in zip(circuit.named_edges(), circuit.frequency.tolist(), strict=True):
            for node in (source, node_of(target)):
                frequencies[node] = max(frequency, frequencies.get(node, 0.0))
    return frequencies


def reads_of(circuit: Circuit) -> dict[str, dict[str, list[Read]]]:
    """The strongest incoming edges of every node, by q, k, v, mlp or logits."""
    incoming = dict[str, dict[str, list[tuple[float, str]]]]()
    for source, target, score in circuit.named_edges():
        incoming.setdefault(node_of(target), {}).setdefault(kind(target), []).append((score, source))
    reads = dict[str, dict[str, list[Read]]]()
    for node, kinds in incoming.items():
        for at, edges in sorted(kinds.items(), key=lambda item: "qkv".find(item[0])):
            total = sum(abs(score) for score, _ in edges) or 1.0
            best = sorted(edges, key=lambda edge: -abs(edge[0]))[:_SOURCES]
            reads.setdefault(node, {})[at] = [Read(source, score, abs(score) / total) for score, source in best]
    return reads


def _attends(measured: Measured, column: int, effects: Float[Tensor, " part"]) -> list[Attends]:
    """Where a head attends from the last token, and from the part of the prompt that its effect mostly comes from."""
    parts, attends = measured.parts, []
    shares = effects.abs() / effects.abs().sum().clamp(min=1e-12)
    for start in dict.fromkeys([parts.names.index(END), int(shares.argmax())]):
        has_part = (parts.at == start).any(1)  # (example,)
        weights = measured.attention[has_part, :, column, start].mean(0).tolist()  # (run, part)
        by_run = {run: dict(zip(parts.names, row, strict=True)) for run, row in zip(RUNS, weights, strict=True)}
        attends.append(Attends(parts.names[start], float(shares[start]), by_run))
    return attends


def _writes(model: Transformer, measured: Measured) -> list[Writes]:
    """What each node adds to the logits of the answers, and of the tokens that it raises and lowers most."""
    right_wrong = [(None, None)] * len(measured.sources)
    if measured.answers is not None and measured.answer_logits is not None:
        count = (measured.answers >= 0).sum(-1).clamp(min=1)  # (example, side)
        right_wrong = (measured.answer_logits.sum(-1) / count[:, None]).mean(0).tolist()  # (source, side)
    [ids], [logits] = most_changed(model, measured.mean_write[None].to(model.device), _TOKENS)
    rows = []
    for row in range(len(measured.sources)):
        tokens = [token_text(model, token) for token in ids[row].tolist()]
        changed = list(zip(tokens, logits[row].tolist(), strict=True))
        half = len(changed) // 2
        rows.append(Writes(*right_wrong[row], changed[:half], changed[half:]))
    return rows


def sentence(role: Role, answers: tuple[str, str], *, direct_is_clear: bool) -> str | None:
    """What a node does, in words: the facts that are clear; None if none is."""
    scores = [(name.replace("_", "-"), score) for name, score in role.scores.items() if score >= CLEAR_SCORE]
    kinds = [f"{name} head ({score:.2f})" for name, score in scores]
    attends, attended = _attends_phrase(role)
    writes = _writes_phrase(role, answers, attended) if direct_is_clear else None
    phrases = [phrase for phrase in (attends, writes) if phrase]
    return ": ".join(part for part in (", ".join(kinds), " and ".join(phrases)) if part) or None


def _attends_phrase(role: Role) -> tuple[str | None, str | None]:
    """Where a head attends from the part of the prompt that its effect comes from, and that part's name."""
    for attends in sorted(role.attends, key=lambda attends: -attends.share):
        part, weight = max(attends.weights["clean"].items(), key=lambda item: item[1])
        if attends.share >= CLEAR_SHARE and weight >= CLEAR_WEIGHT and part not in UNNAMED:
            if part == FIRST:
                return None, None  # it rests there
            itself = "themselves" if _the(part).endswith("words") else "itself"
            where = itself if part == attends.start else _the(part)
            return f"attends from {_the(attends.start)} to {where} ({weight:.2f})", part
    return None, None


def _writes_phrase(role: Role, answers: tuple[str, str], attended: str | None) -> str | None:
    """Which answer a node raises or lowers most, in the direction in which it moves the metric."""
    if role.writes is None or role.writes.right is None or role.writes.wrong is None or role.direct_effect is None:
        return None
    sign = 1 if role.direct_effect > 0 else -1
    value, name = max((sign * role.writes.right, answers[0]), (-sign * role.writes.wrong, answers[1]))
    # The direct effect is a difference from the corrupted prompt. On the clean one, both answers may move alike.
    if value <= 0 or sign * (role.writes.right - role.writes.wrong) < CLEAR_DIFFERENCE * value:
        return None
    raises = (name == answers[0]) == (sign > 0)
    whose = "its" if name == attended else f"{_the(name)}'s"
    return f"{'raises' if raises else 'lowers'} {whose} logit ({value if raises else -value:+.2f})"


def _the(part: str) -> str:
    """The name of a part in a sentence; without named spans, the part that differs is ``changed``."""
    if part.startswith(AFTER):
        return f"the token after {_the(part.removeprefix(AFTER))}"
    return {END: "the last token", "changed": "the changed words"}.get(part, f"the {part}")


@torch.no_grad()
def known_head_scores(model: Transformer, heads: Sequence[int]) -> Float[Tensor, "head score"]:
    """Scores of heads, given as sources of the graph: from 0 to 1, in the order of ``SCORES``.

    They are NaN for a model with too few tokens or positions.
    """
    ids, front = _repeated_tokens(model)
    length = (ids.shape[1] - front) // 2
    scores = torch.full((len(heads), len(SCORES)), torch.nan, device="cpu")
    if length < 2:
        return scores
    run, info = model.run(model.embed(ids.to(model.device))), model.position_info(0, ids.shape[1])
    second = torch.arange(front + length, front + 2 * length, device=model.device)
    every = torch.arange(front + 1, front + 2 * length, device=model.device)
    queries_and_keys = ((every, every - 1), (second, second - length), (second, second - length + 1))
    places = [model.graph.place_of_source(source) for source in heads]
    for layer in sorted({layer for layer, _ in places}):
        weights = patterns(model, layer, run.layers[layer], info)  # (prompt, head, query, key)
        for row, (layer_of_head, head) in enumerate(places):
            if layer_of_head == layer:
                attended = [float(weights[:, head, query, key].mean()) for query, key in queries_and_keys]
                scores[row] = torch.tensor(attended, device="cpu")
    return scores


def _repeated_tokens(model: Transformer) -> tuple[Int[Tensor, "prompt pos"], int]:
    """Sequences of different random tokens, each twice, and the number of tokens in front of them."""
    tokenizer, limit = model.tokenizer, model.max_positions
    front = [] if tokenizer is None or tokenizer.prepend is None else [tokenizer.prepend]
    special = set(front) | set(getattr(getattr(tokenizer, "hf", None), "all_special_ids", None) or [])
    usable = torch.tensor([i for i in range(len(model.embedding)) if i not in special], device="cpu")
    longest = len(usable) if limit is None else min(len(usable), (limit - len(front)) // 2)
    generator = torch.Generator(device="cpu").manual_seed(0)
    rows = []
    for _ in range(_PROMPTS):
        order = torch.randperm(len(usable), generator=generator, device="cpu")[: max(0, min(_LENGTH, longest))]
        rows.append(torch.cat([torch.tensor(front, dtype=torch.long, device="cpu"), usable[order], usable[order]]))
    return torch.stack(rows), len(front)
