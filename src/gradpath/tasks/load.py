"""``load_task``: from a name, or the user's own data, to a task that a model can run.

At most ``_MAX_ROWS`` rows of the user's own data are read, which bounds time and memory for any file; a note says if
there were more. Half of the distinct pairs are for attribution (train), half for evaluation (test). With fewer than
``LEAST`` usable pairs nothing is held out: both splits have all pairs.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from gradpath import defaults
from gradpath.defaults import REWORDED, TASK_SPLITS
from gradpath.errors import InputError, UsageError, check_choice, warn, whole_number
from gradpath.model.tokenizer import Tokenizer, padded, prompt_ids
from gradpath.model.transformer import Transformer
from gradpath.recipe import IN_MEMORY, Recipe
from gradpath.runtime.files import recorded_path
from gradpath.tasks.builtin import TASKS, find_task, read_built_in
from gradpath.tasks.data_layouts import AnswerReader, Layout, recognise
from gradpath.tasks.data_rows import Row, Table, is_file, open_table
from gradpath.tasks.metrics import (
    METRICS,
    Metric,
    find_metric,
    kl_divergence,
    label_tensor,
    logit_difference,
    metric_name,
    probability_difference,
)
from gradpath.tasks.pairs import NO_TOKEN, REPEATED, Answers, Candidates, Ids, Pair, Source, UsablePairs, usable_pairs
from gradpath.tasks.task import Task, judged_by_kl

_MAX_PAIRS = 1_000_000  # in one task: more prompts would not fit into memory
_FEWER = "Request fewer, or use both halves with the split 'all'."
_MAX_ROWS = 100_000
OWN = "own"  # the layout of users' own columns
# What a recipe calls a split whose pairs are attributed.
_SPLITS = {"train": "held-out", "all": "all", "test": "swapped", REWORDED: "swapped"}
WARNING = "WARNING: "  # begins a note that should not be overlooked
LEAST = 8  # usable pairs that are needed to hold half of them out


@runtime_checkable
class HasTokenizer(Protocol):
    """The part of a model that tasks use."""

    @property
    def tokenizer(self) -> Tokenizer | None: ...


def load_task(
    name: str | None = None,
    model: HasTokenizer | None = None,
    *,
    n: int | Literal["auto"] | None = "auto",
    seed: int = 0,
    split: str = "train",
    data: Any = None,
    metric: str | Metric | None = None,
    first_token: bool = False,
) -> Task:
    """Draw pairs of a built-in task, or of your own data, that the model's tokenizer can represent.

    Args:
        name: A built-in task (``gradpath ls tasks``). With ``data`` it is optional.
        model: The model that will run the task.
        n: The number of pairs, or None for all. By default 100 pairs of a built-in task, and all of your own data. If
            your own data has fewer than ``n``, all of them are used.
        seed: The seed of the draw.
        split: "train" for attribution, "test" for evaluation, or "all". Train and test share no pair, and in built-in
            tasks no name, noun or country. With fewer than 8 pairs of your own data, both splits have all pairs.
            "reworded" has the words of the test split of a built-in task in other templates.
        data: A CSV or JSONL file, a Hugging Face dataset or its name, or rows as dictionaries.
        metric: The name of a metric (``gradpath ls metrics``), ``FILE.py:function`` or a function, instead of the
            task's own. ``kl`` runs the model on the clean prompts.
        first_token: Compare answers of several tokens by the first token in which they differ. What they share before
            it is put at the end of both prompts.

    Returns:
        The task. ``task.facts["dropped"]`` counts the pairs that were dropped, by reason, and ``task.facts["notes"]``
        has notes on the pairs. If nothing can be held out of your own data, there is a warning.
    """
    task = draw_task(name, model, n=n, seed=seed, split=split, data=data, metric=metric, first_token=first_token)
    for note in task.facts["notes"]:
        if note.startswith(WARNING):
            warn(note.removeprefix(WARNING))
    return task


def draw_task(
    name: str | None,
    model: HasTokenizer | None,
    *,
    n: int | Literal["auto"] | None = "auto",
    seed: int = 0,
    split: str = "train",
    data: Any = None,
    metric: str | Metric | None = None,
    first_token: bool = False,
) -> Task:
    """The same as ``load_task`` without a warning, for callers that show the notes on the pairs themselves."""
    if n == "auto":
        n = defaults.EXAMPLES if data is None else None
    check_draw(n, seed, split)
    if metric is not None:
        find_metric(metric)
    tokenizer = _tokenizer(model)
    if data is not None and split == REWORDED:
        raise UsageError("your own data has no other templates: the split 'reworded' is for built-in tasks.")
    if data is not None:
        source = read_data(data, name, split, tokenizer, first_token)
    elif name is not None:
        source = read_built_in(name, split, tokenizer)
    else:
        raise UsageError("a task needs a name or data: got neither. Give --task NAME or --data FILE.")
    pairs = source.candidates.pairs
    if data is None:
        _check_number(n, len(pairs), source.name, split)
    metric = source.metric if metric is None else metric
    function = find_metric(metric)
    # Any other metric gets the labels of the task's own metric.
    form = function if function in (logit_difference, probability_difference) else METRICS[source.metric]
    many = form is not logit_difference
    drawn = (pairs[i] for i in shuffled(len(pairs), seed, split))
    usable = usable_pairs(drawn, tokenizer, n, many=many, first_token=first_token)
    several = source.data is not None and NO_TOKEN in usable.dropped and not first_token
    hint = _first_token_hint(usable, tokenizer, many) if several else ""
    _check_usable(usable, n if data is None else None, source, split, hint)
    spans = [pair.spans or {} for pair in usable.pairs]
    task = Task(
        clean=[pair.clean for pair in usable.pairs],
        corrupted=[pair.corrupted for pair in usable.pairs],
        labels=label_tensor(usable.answers, many=many),
        metric=function,
        name=source.name,
        recipe=Recipe(
            task=source.name,
            data=source.data,
            metric=metric_name(metric),
            first_token=first_token or None,
            examples=n,
            seed=seed,
            split=_SPLITS[split],
        ),
        facts=_facts(source, usable, n, split, hint),
        spans=spans if any(spans) else None,
        decode=tokenizer.decode,
    )
    return judged_by_kl(task, clean_logits(model, task)) if function is kl_divergence else task


def more_examples(task: Task, model: HasTokenizer, n: int) -> Task:
    """A task with more pairs of the same kind, if there are any.

    Args:
        task: The task.
        model: The model that will run it.
        n: The number of pairs.

    Returns:
        For a built-in task, ``n`` pairs of the same split, or as many as there are; the pairs of ``task`` come first.
        Any other task is returned unchanged.
    """
    recipe = task.recipe
    if recipe is None or recipe.data is not None or task.name not in TASKS or n <= len(task):
        return task
    metric = "kl" if task.metric is kl_divergence else task.metric

    def draw(n: int | None) -> Task:
        options: dict[str, Any] = {"metric": metric, "first_token": bool(recipe.first_token)}
        return draw_task(task.name, model, n=n, seed=recipe.seed, split=recipe.attributed_split, **options)

    try:
        drawn = draw(min(n, _MAX_PAIRS))
    except UsageError:  # the task, or what the tokenizer can represent of it, has fewer pairs
        drawn = draw(None)
    first = drawn[: len(task)]
    same = list(first.clean) == list(task.clean) and list(first.corrupted) == list(task.corrupted)
    return drawn if same else task


def clean_logits(model: HasTokenizer | None, task: Task) -> Float[Tensor, "example vocab"]:
    """The model's logits at the last position of every clean prompt."""
    if not isinstance(model, Transformer):
        raise UsageError(f"the metric kl needs the model itself, to run the clean prompts: got a {type(model)}.")
    rows = prompt_ids(task.clean, model.tokenizer)
    ids = padded(rows)
    last = torch.tensor([len(row) - 1 for row in rows], device="cpu")
    parts = []
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(model.device.type, enabled=False):
        for at in range(0, len(rows), defaults.PROMPTS_AT_ONCE):
            batch, end = ids[at : at + defaults.PROMPTS_AT_ONCE], last[at : at + defaults.PROMPTS_AT_ONCE]
            final = model.run(model.embed(batch[:, : int(end.max()) + 1].to(model.device))).final_in
            logits = model.unembed(final[torch.arange(len(end), device=final.device), end.to(final.device)])
            parts.append(logits.float().cpu())
    return torch.cat(parts)


def check_task(name: str | None, data: Any = None) -> None:
    """Refuse an unknown task, or a file that cannot be read, before a model is loaded; other data is not checked."""
    if is_file(data):
        _, layout, rows = _read_table(data, name)
        _read_pairs(layout, rows, AnswerReader(None))
    elif data is None and name is not None:
        find_task(name)


def check_draw(n: Any, seed: Any, split: Any) -> None:
    """Refuse an invalid number of pairs, seed or split."""
    check_choice("split", split, [*TASK_SPLITS, REWORDED])
    if n is not None:
        whole_number("the number of pairs", n)
    whole_number("a seed", seed, least=0)


def _tokenizer(model: HasTokenizer | None) -> Tokenizer:
    if model is None or not hasattr(model, "tokenizer"):
        got = "none" if model is None else f"a {type(model).__name__}"
        raise UsageError(f"a task needs the model that will run it: got {got}. Give load_task(name, model).")
    if model.tokenizer is None:
        raise InputError(
            "a task needs a model with a tokenizer, to turn its words into tokens: this one has none. "
            "Load the model with load_model(..., tokenizer=...), or build a Task from token ids."
        )
    return model.tokenizer


def _check_number(n: int | None, available: int, name: str, split: str) -> None:
    """Refuse numbers of pairs that are not available, before any work."""
    if n is None and available > _MAX_PAIRS:
        raise UsageError(
            f"the task {name!r} has {available} pairs in the split {split!r}, too many to use all of them. "
            "Give their number with n."
        )
    if n is not None and n > _MAX_PAIRS:
        raise UsageError(f"{n} pairs were requested, but a task has at most {_MAX_PAIRS}. Request fewer.")
    if n is not None and n > available:
        raise UsageError(
            f"{n} pairs were requested, but the task {name!r} has {available} in the split {split!r}. {_FEWER}"
        )


def shuffled(size: int, seed: int, split: str) -> Iterator[int]:
    """The numbers below ``size`` in an order given by seed and split, one at a time.

    The order is the same on every machine and Python version, because it uses nothing but ``random.Random.random``
    (``shuffle`` and ``sample`` have changed before). This is a Fisher-Yates shuffle that stores only the numbers that
    moved: the first hundred of millions cost a hundred steps. The order depends on the split, so that the same seed
    draws different templates for train and test. "reworded" has the order of "test".

    >>> list(shuffled(5, seed=0, split="train"))
    [4, 3, 1, 0, 2]
    """
    rng = random.Random(len(TASK_SPLITS) * seed + TASK_SPLITS.index("test" if split == REWORDED else split))
    moved: dict[int, int] = {}
    for last in range(size - 1, -1, -1):
        pick = int(rng.random() * (last + 1))
        yield moved.get(pick, pick)
        moved[pick] = moved.pop(last, last)


def _check_usable(usable: UsablePairs, n: int | None, source: Source, split: str, hint: str) -> None:
    """Refuse fewer pairs than requested, and say why the others were dropped."""
    count = len(usable.pairs)
    if count >= (n or 1):
        return
    own = source.data is not None
    reasons = "; ".join(
        f"{drop.count} dropped because {reason}" + ("" if own else f" (first: {drop.first})")
        for reason, drop in usable.dropped.items()
    )
    what = f"the task {source.name!r} has {count} in the split {split!r} with this model's tokenizer: {reasons}"
    if count:
        raise UsageError(f"{n} pairs were requested, but {what}. {_FEWER}")
    rows = [row for drop in usable.dropped.values() for row in drop.rows] if own else []
    raise InputError(f"no pair can be used: {what}. {hint or 'Reword the prompts or the answers.'}", rows)


def _first_token_hint(usable: UsablePairs, tokenizer: Tokenizer, many: bool) -> str:
    """How pairs whose answers are not single tokens could be used; empty if they could not.

    Both ways are tried on the first cases: what is advised works.
    """
    cases = [pair for pair, _ in usable.dropped[NO_TOKEN].cases]
    mended = usable_pairs(cases, tokenizer, None, many=many, first_token=True)
    if not mended.pairs:
        return ""
    endings = {""}
    if len(mended.pairs) == len(cases):
        endings = {new.clean.removeprefix(old.clean) for new, old in zip(mended.pairs, cases, strict=True)}
    end = endings.pop() if len(endings) == 1 else ""
    moved = [
        replace(
            pair,
            clean=pair.clean + end,
            corrupted=pair.corrupted + end,
            right=_without(pair.right, end),
            wrong=_without(pair.wrong, end),
        )
        for pair in cases
    ]
    by_hand = end and len(usable_pairs(moved, tokenizer, None, many=many).pairs) == len(cases)
    (right, *_), (wrong, *_) = mended.answers[0]
    way = f"Move {end!r} from the answers to the end of the prompts, or give" if by_hand else "Give"
    return (
        f"{way} --first-token (in Python first_token=True), which compares the first token in which the answers "
        f"differ: {tokenizer.decode([right])!r} and {tokenizer.decode([wrong])!r} in {mended.pairs[0].title}."
    )


def _without(answers: Answers, beginning: str) -> Answers:
    return tuple(answer.removeprefix(beginning) if isinstance(answer, str) else answer for answer in answers)


def _facts(source: Source, usable: UsablePairs, n: int | None, split: str, hint: str) -> dict[str, Any]:
    """What saved files record about the pairs: only values that JSON has."""
    notes = list(source.candidates.notes)
    if words := sorted(usable.left_out):
        shown = ", ".join(map(repr, words[:5])) + (", ..." if len(words) > 5 else "")
        notes.append(f"answers that are not a single token count for neither side: {shown}")
    if hint:
        notes.append(f"answers of several tokens: {hint[0].lower()}{hint[1:]}".removesuffix("."))
    if usable.unknown:
        first = min(usable.unknown, key=lambda pair: pair.number).title
        notes.append(
            f"{WARNING}{len(usable.unknown)} of {len(usable.pairs)} pairs have text in their prompts that is not in "
            f"the model's vocabulary and becomes its unknown token (first: {first})"
        )
    list_rows = source.data is not None  # in the user's own data every row matters
    if n is not None and len(usable.pairs) < n:
        notes.append(f"{n} pairs were requested, but {source.name} has {len(usable.pairs)}: all are used")
    return {
        **source.facts,
        "split": split,
        "kept": len(usable.pairs),
        "dropped": {
            reason: {"count": drop.count, "first": drop.first} | ({"rows": drop.rows} if list_rows else {})
            for reason, drop in usable.dropped.items()
        },
        "notes": notes,
    }


def read_data(data: Any, name: str | None, split: str, tokenizer: Tokenizer, first_token: bool) -> Source:
    """Read the pairs of one split.

    Args:
        data: A file, a dataset or its name, or a list of rows.
        name: The name of the task; by default the name of the data.
        split: "train", "test" or "all".
        tokenizer: The tokenizer of the model.
        first_token: Whether answers of several tokens can be used.

    Returns:
        The pairs, and the metric that fits their layout.
    """
    table, layout, rows = _read_table(data, name)
    halves = _halves(_read_pairs(layout, rows, AnswerReader(tokenizer)), tokenizer)
    problem = "" if split == "all" else _no_hold_out(halves, tokenizer, first_token)
    is_held_out = split != "all" and not problem
    pairs = halves[split if is_held_out else "all"]
    notes = [f"answers are taken from {layout.origin}"] if layout.origin else []
    notes += _space_note(pairs)
    if layout.name == OWN and (numbers := [a for pair in pairs for a in (*pair.right, *pair.wrong) if type(a) is int]):
        text = tokenizer.decode([numbers[0]]) if 0 <= numbers[0] < len(tokenizer.hf) else "no token"
        notes.append(f"answers that are numbers in a list are token ids: {numbers[0]} is {text!r}")
    if next(table.rows, None) is not None:
        notes.append(f"only the first {_MAX_ROWS} rows were read")
    if problem:
        notes.append(
            f"{WARNING}nothing is held out, because {problem}. All pairs are both attributed and measured, so the "
            "circuit may not do as well on other prompts"
        )
    # A logit difference compares two answers; with more answers, their probabilities are summed.
    single = all(len(pair.right) == len(pair.wrong) == 1 for pair in halves["all"] if pair.right)
    metric = layout.metric or ("logit-difference" if single else "probability-difference")
    facts = {"source": table.name, "layout": layout.name, "rows_read": len(rows), "held_out": is_held_out}
    path = recorded_path(data) if is_file(data) else data if isinstance(data, str) else IN_MEMORY
    return Source(name or table.name, metric, Candidates(pairs, tuple(notes)), facts, path)


def _read_table(data: Any, name: str | None) -> tuple[Table, Layout, list[Row]]:
    """The table, the layout that its columns have, and its first ``_MAX_ROWS`` rows."""
    table = open_table(data)
    layout = recognise(table)
    if name not in (None, layout.name) and layout.name in TASKS:
        raise InputError(
            f"{table.name} has the columns of the task {layout.name!r}, but {name!r} was requested. "
            f"Request {layout.name!r}, or leave out the task."
        )
    rows = list(islice(table.rows, _MAX_ROWS))
    if not rows:
        raise InputError(f"{table.name} has a header and no rows. Add one row for each pair of prompts.")
    return table, layout, rows


def _read_pairs(layout: Layout, rows: list[Row], reader: AnswerReader) -> list[Pair]:
    """A pair for every row; all rows that cannot be read are reported at once."""
    pairs, problems = [], []
    for number, row in enumerate(rows):
        try:
            if row.problem:
                raise InputError(row.problem)
            pairs.append(replace(layout.read(row, reader), number=number))
        except InputError as problem:
            problems.append(str(problem))
    if len(problems) == 1:
        raise InputError(problems[0])
    if problems:
        raise InputError(f"{len(problems):,} of the {len(rows):,} rows cannot be read:", problems)
    return pairs


def _no_hold_out(halves: dict[str, list[Pair]], tokenizer: Tokenizer, first_token: bool) -> str:
    """Why no pairs can be held out: too few are usable, or all usable ones are in one half. Empty if they can."""
    needed = {"all": LEAST, "train": 1, "test": 1}
    counts = {
        half: len(usable_pairs(halves[half], tokenizer, n, many=True, first_token=first_token).pairs)
        for half, n in needed.items()
    }
    if counts["all"] < LEAST:
        return f"there are fewer than {LEAST} usable pairs"
    return "" if counts["train"] and counts["test"] else "all usable pairs have the same clean prompt"


def _halves(pairs: list[Pair], tokenizer: Tokenizer) -> dict[str, list[Pair]]:
    """The pairs of each split.

    Pairs with the same clean prompt are in one half, so that the measured examples are really held out. A new clean
    prompt goes to the half that has fewer distinct pairs so far, so a file that grows at its end keeps its halves. A
    repeated pair is marked, to be dropped later. Prompts are the same if their tokens are: a tokenizer can make one
    prompt of two texts.
    """
    halves: dict[str, list[Pair]] = {"train": [], "test": [], "all": []}
    half_of: dict[Ids, str] = {}
    sizes, earlier = {"train": 0, "test": 0}, set[tuple[Ids, Ids]]()
    clean = map(tuple, tokenizer.encode([pair.clean for pair in pairs]))
    corrupted = map(tuple, tokenizer.encode([pair.corrupted for pair in pairs]))
    for pair, prompts in zip(pairs, zip(clean, corrupted, strict=True), strict=True):
        half = half_of.setdefault(prompts[0], min(sizes, key=lambda name: sizes[name]))
        if prompts in earlier:
            pair = replace(pair, problem=REPEATED)
        else:
            earlier.add(prompts)
            sizes[half] += 1
        halves[half].append(pair)
        halves["all"].append(pair)
    return halves


def split_in_halves(task: Task, tokenizer: Tokenizer | None) -> tuple[list[int], list[int]]:
    """The rows of a task to attribute and those to hold out, as ``_halves`` divides pairs.

    With fewer than ``LEAST`` examples, or a single clean prompt, no row is held out: the second list is empty.
    """
    rows: dict[str, list[int]] = {"train": [], "test": []}
    half_of: dict[Ids, str] = {}
    for row, ids in enumerate(prompt_ids(task.clean, tokenizer)):
        half = half_of.setdefault(tuple(ids), min(rows, key=lambda name: len(rows[name])))
        rows[half].append(row)
    if len(task) < LEAST:
        return list(range(len(task))), []
    return rows["train"], rows["test"]


def _space_note(pairs: Iterable[Pair]) -> list[str]:
    """A note on the first answer without a leading space: it is another token, and easily written by mistake."""
    for pair in pairs:
        for answer in (*pair.right, *pair.wrong):
            if isinstance(answer, str) and answer[:1].isalpha() and not pair.clean[-1:].isspace():
                return [
                    f"answers are taken as they stand: {answer!r} ({pair.where}) follows its prompt without "
                    f"a space; write {' ' + answer!r} if there should be one"
                ]
    return []
