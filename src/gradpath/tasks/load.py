"""One call from a name, or a user's own data, to a task that a model can run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Protocol, runtime_checkable

from gradpath.errors import InputError, UsageError, unknown
from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.builtin import built_in
from gradpath.tasks.draw import check_draw, shuffled
from gradpath.tasks.metrics import METRICS, Metric, label_tensor
from gradpath.tasks.pairs import Kept, Source, keep
from gradpath.tasks.task import Spans, Task
from gradpath.tasks.user_data import read_data

_MOST = 1_000_000  # pairs in one task: more prompts than that would not fit into memory
_FEWER = "Ask for fewer, or take both halves with the split 'all'."


@runtime_checkable
class HasTokenizer(Protocol):
    """All that a task needs of a model."""

    @property
    def tokenizer(self) -> Tokenizer | None: ...


def load_task(
    name: str | None = None,
    model: HasTokenizer | None = None,
    *,
    n: int | None = 100,
    seed: int = 0,
    split: str = "train",
    data: Any = None,
    metric: str | Metric | None = None,
) -> Task:
    """``n`` pairs of a built-in task, or of the user's own data, under the model's tokenizer.

    ``split``: "train" for attribution, "test" for evaluation, or "all". The two share no pair, and
    in the built-in tasks no name, noun or country either. ``data``: a CSV or JSONL file, a Hugging
    Face dataset or its name, or rows as dictionaries. ``metric``: another than the task's own, by name
    or as a function. ``n=None`` takes every pair there is. What was dropped, and why, is in
    ``task.about``.
    """
    check_draw(n, seed, split)
    if metric is not None and not callable(metric) and metric not in METRICS:
        raise unknown("metric", str(metric), METRICS)
    tokenizer = _tokenizer(model)
    source = _source(name, data, split, tokenizer)
    _check_number(n, len(source.found.pairs), source.name, split)
    chosen = source.metric if metric is None else metric
    many = (source.metric if callable(chosen) else chosen) != "logit-difference"
    pairs = source.found.pairs
    kept = keep((pairs[i] for i in shuffled(len(pairs), seed, split)), tokenizer, n, many=many)
    _check_kept(kept, n, source.name, split)
    return Task(
        clean=[pair.clean for pair in kept.pairs],
        corrupted=[pair.corrupted for pair in kept.pairs],
        labels=label_tensor(kept.answers, many=many),
        metric=chosen if callable(chosen) else METRICS[chosen],
        name=source.name,
        about=_about(source, kept, chosen, n=n, seed=seed, split=split),
        spans=_spans(kept),
    )


def _spans(kept: Kept) -> list[Spans] | None:
    """The spans of all pairs, if any pair has some."""
    found = [pair.spans for pair in kept.pairs]
    return [spans or {} for spans in found] if any(found) else None


def _tokenizer(model: HasTokenizer | None) -> Tokenizer:
    if model is None:
        raise UsageError("a task needs the model that will run it: got none. Give load_task(name, model).")
    if model.tokenizer is None:
        raise InputError(
            "a task needs a model with a tokenizer, to turn its words into tokens: this one has none. "
            "Load the model with load_model(..., tokenizer=...), or build a Task from token ids."
        )
    return model.tokenizer


def _source(name: str | None, data: Any, split: str, tokenizer: Tokenizer) -> Source:
    if data is not None:
        return read_data(data, name, split, tokenizer)
    if name is None:
        raise UsageError("a task needs a name or data: got neither. Give --task NAME or --data FILE.")
    return built_in(name, split, tokenizer)


def _check_number(n: int | None, offered: int, name: str, split: str) -> None:
    """Refuse before any work what cannot be had."""
    if n is None and offered > _MOST:
        raise UsageError(
            f"the task {name!r} has {offered} pairs in split {split!r}, too many to take all of them. "
            "Say how many with n."
        )
    if n is not None and n > _MOST:
        raise UsageError(f"{n} pairs were asked for, and a task holds at most {_MOST}. Ask for fewer.")
    if n is not None and n > offered:
        raise UsageError(f"{n} pairs were asked for, and the task {name!r} has {offered} in split {split!r}. {_FEWER}")


def _check_kept(kept: Kept, n: int | None, name: str, split: str) -> None:
    """Too few pairs left: say how many there are, and what became of the others."""
    found = len(kept.pairs)
    if found >= (n or 1):
        return
    reasons = "; ".join(
        f"{drop.count} dropped because {reason} (first: {drop.first})" for reason, drop in kept.dropped.items()
    )
    what = f"the task {name!r} has {found} in split {split!r} under this model's tokenizer: {reasons}"
    if found:
        raise UsageError(f"{n} pairs were asked for, and {what}. {_FEWER}")
    raise InputError(f"no pair can be used: {what}. Reword the prompts or the answers.")


def _about(source: Source, kept: Kept, chosen: str | Metric, **asked: Any) -> dict[str, Any]:
    """What saved files say about the pairs: plain values only."""
    return {
        **source.about,
        "metric": getattr(chosen, "__name__", "custom") if callable(chosen) else chosen,
        **asked,
        "kept": len(kept.pairs),
        "dropped": {reason: asdict(drop) for reason, drop in kept.dropped.items()},
        "notes": [*source.found.notes, *_left_out(kept)],
    }


def _left_out(kept: Kept) -> list[str]:
    words = sorted(kept.left_out)
    some = ", ".join(map(repr, words[:5])) + (", ..." if len(words) > 5 else "")
    return [f"answers that are no single token count for neither side: {some}"] if words else []
