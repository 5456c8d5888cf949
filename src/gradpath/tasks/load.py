"""``load_task``: from a name, the user's own data or one pair of prompts, to a task that a model can run."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from gradpath import defaults
from gradpath.defaults import REWORDED, TASK_SPLITS
from gradpath.errors import InputError, UsageError, check_choice, warn
from gradpath.model.tokenizer import Tokenizer, check_tokenizer, padded, prompt_ids
from gradpath.model.transformer import Transformer
from gradpath.recipe import IN_MEMORY, PROMPT, Recipe
from gradpath.runtime.files import recorded_path
from gradpath.tasks.builtin import TASKS, read_built_in
from gradpath.tasks.data import is_file, read_data
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
from gradpath.tasks.pairs import LENGTHS, NO_TOKEN, SAME, Candidates, Ids, Pair, Source, UsablePairs, usable_pairs
from gradpath.tasks.task import Task, judged_by_kl

_MAX_PAIRS = 1_000_000  # in one task: more prompts would not fit into memory
_FEWER = "Request fewer, or use both halves with the split 'all'."
# What a recipe calls a split whose pairs are attributed.
_SPLITS = {"train": "held-out", "all": "all", "test": "swapped", REWORDED: "swapped"}
WARNING = "WARNING: "  # begins a note that should not be overlooked
LEAST = 8  # usable pairs that are needed to hold half of them out
NOT_HELD_OUT = (
    f"{WARNING}nothing is held out, because there are fewer than {LEAST} usable pairs or all have the same clean "
    "prompt. All pairs are both attributed and measured, so the circuit may not do as well on other prompts"
)


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
        data: A CSV or JSONL file, or rows as dictionaries, such as a Hugging Face dataset.
        metric: The name of a metric (``gradpath ls metrics``), ``FILE.py:function`` or a function, instead of the
            task's own. ``kl`` runs the model on the clean prompts.
        first_token: Compare answers of several tokens by the first token in which they differ. What they share before
            it is put at the end of both prompts.

    Returns:
        The task. ``task.facts["dropped"]`` counts the pairs that were dropped, by reason, and ``task.facts["notes"]``
        has notes on the pairs. If nothing can be held out of your own data, there is a warning.
    """
    if name is None and data is None:
        raise UsageError("a task needs a name or data: got neither. Give --task NAME or --data FILE.")
    _tokenizer(model)  # of a model, and not of a task's name in its place
    recipe = Recipe(task=name, seed=seed, examples=None if n == "auto" else n, first_token=first_token or None)
    task = draw_task(model, recipe, split, data=data, metric=metric, every=n is None)
    for note in task.facts["notes"]:
        if note.startswith(WARNING):
            warn(note.removeprefix(WARNING))
    return task


def draw_task(
    model: HasTokenizer | None,
    recipe: Recipe,
    split: str,
    *,
    data: Any = None,
    metric: str | Metric | None = None,
    every: bool = False,
) -> Task:
    """The pairs of one split, as a recipe says; callers show the notes on them.

    ``metric`` replaces the recipe's; ``every`` takes all pairs, whatever number the recipe has.
    """
    metric = recipe.metric if metric is None else metric
    if recipe.clean is not None:
        assert isinstance(model, Transformer)
        return one_pair(model, recipe, metric)
    check_choice("split", split, [*TASK_SPLITS, REWORDED])
    n, first_token, seed = recipe.examples, bool(recipe.first_token), recipe.seed
    if every or (n is None and data is not None):
        n = None
    elif n is None:
        n = defaults.EXAMPLES
    if metric is not None:
        find_metric(metric)
    tokenizer = _tokenizer(model)
    if data is None:
        source = read_built_in(recipe.task or defaults.TASK, split, tokenizer)
    else:
        source = _read_own(recipe.task, data, split, tokenizer)
    metric = source.metric if metric is None else metric
    function = find_metric(metric)
    # Any other metric gets the labels of the task's own metric.
    form = function if function in (logit_difference, probability_difference) else METRICS[source.metric]
    many = form is not logit_difference
    draw = _draw_built_in if data is None else _draw_own
    usable, facts, notes = draw(source, tokenizer, n, seed, split, many=many, first_token=first_token)
    notes = [*source.candidates.notes, *notes, *_left_out(usable)]
    spans = [pair.spans or {} for pair, _, _ in usable.pairs]
    task = Task(
        clean=[pair.clean for pair, _, _ in usable.pairs],
        corrupted=[pair.corrupted for pair, _, _ in usable.pairs],
        labels=label_tensor([answers for _, answers, _ in usable.pairs], many=many),
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
        facts={
            **source.facts,
            **facts,
            "split": split,
            "kept": len(usable.pairs),
            "dropped": {
                reason: {"count": drop.count, "first": drop.first} | ({} if data is None else {"rows": drop.rows})
                for reason, drop in usable.dropped.items()
            },
            "notes": notes,
        },
        spans=spans if any(spans) else None,
        decode=tokenizer.decode,
    )
    return judged_by_kl(task, clean_logits(model, task)) if function is kl_divergence else task


def _draw_built_in(
    source: Source, tokenizer: Tokenizer, n: int | None, seed: int, split: str, *, many: bool, first_token: bool
) -> tuple[UsablePairs, dict[str, Any], list[str]]:
    """The first ``n`` usable pairs in the order of the seed."""
    pairs = source.candidates.pairs
    most = min(len(pairs), _MAX_PAIRS)
    has = f"the task {source.name!r} has {len(pairs)} in the split {split!r}"
    if n is None and len(pairs) > most:
        raise UsageError(f"{has}, too many to use all of them. Give their number with n.")
    if n is not None and n > most:
        raise UsageError(f"{n} pairs were requested, but {has}, and at most {_MAX_PAIRS} can be used. {_FEWER}")
    drawn = (pairs[i] for i in shuffled(len(pairs), seed, split))
    usable = usable_pairs(drawn, tokenizer, n, many=many, first_token=first_token)
    if len(usable.pairs) < (n or 1):
        reasons = [f"{x.count} dropped because {x.reason} (first: {x.first})" for x in usable.dropped.values()]
        raise UsageError(
            f"{n or 'all'} pairs were requested, but the task {source.name!r} has {len(usable.pairs)} in the split "
            f"{split!r} with this model's tokenizer: {'; '.join(reasons)}. {_FEWER}"
        )
    return usable, {}, []


def _draw_own(
    source: Source, tokenizer: Tokenizer, n: int | None, seed: int, split: str, *, many: bool, first_token: bool
) -> tuple[UsablePairs, dict[str, Any], list[str]]:
    """The usable pairs of a half in the order of the seed, at most ``n``; all, if nothing can be held out."""
    pairs = (source.candidates.pairs[i] for i in range(len(source.candidates.pairs)))
    usable = usable_pairs(pairs, tokenizer, None, many=many, first_token=first_token)
    hint = ""
    if NO_TOKEN in usable.dropped and not first_token:
        cases = [pair for pair, _ in usable.dropped[NO_TOKEN].cases]
        if usable_pairs(cases, tokenizer, None, many=many, first_token=True).pairs:  # what is advised works
            hint = "give --first-token to compare the first token in which the answers differ"
    if not usable.pairs:
        raise InputError(
            f"no pair of {source.name!r} can be used with this model's tokenizer; "
            f"{hint or 'reword the prompts or the answers'}:",
            [row for drop in usable.dropped.values() for row in drop.rows],
        )
    notes = [f"answers of several tokens: {hint}"] if hint else []
    attributed, held_out = halves(pair.clean for pair in usable.pairs)
    if split != "all" and not held_out:
        notes.append(NOT_HELD_OUT)
    rows = {"all": range(len(usable.pairs)), "train": attributed, "test": held_out or attributed}[split]
    chosen = [usable.pairs[rows[i]] for i in shuffled(len(rows), seed, split)][:n]
    if n is not None and len(chosen) < n:
        notes.append(f"{n} pairs were requested, but {source.name} has {len(chosen)}: all are used")
    return replace(usable, pairs=chosen), {"held_out": split != "all" and bool(held_out)}, notes


def _left_out(usable: UsablePairs) -> list[str]:
    """Notes on answers and text that the tokenizer does not have."""
    notes = []
    if words := sorted(usable.left_out):
        shown = ", ".join(map(repr, words[:5])) + (", ..." if len(words) > 5 else "")
        notes.append(f"answers that are not a single token count for neither side: {shown}")
    if usable.unknown:
        notes.append(
            f"{WARNING}{len(usable.unknown)} pairs have text in their prompts that is not in the model's vocabulary "
            f"and becomes its unknown token (first: {usable.unknown[0].title})"
        )
    return notes


def _read_own(name: str | None, data: Any, split: str, tokenizer: Tokenizer) -> Source:
    """The user's own pairs, and the metric that fits their answers."""
    if split == REWORDED:
        raise UsageError("your own data has no other templates: the split 'reworded' is for built-in tasks.")
    table = read_data(data)
    notes = _answer_notes(table.pairs, tokenizer)
    if table.goes_on:
        notes.append(f"only the first {len(table.pairs)} rows were read")
    # A logit difference compares two answers; with more answers, their probabilities are summed.
    single = all(len(pair.right) == len(pair.wrong) == 1 for pair in table.pairs)
    metric = "logit-difference" if single else "probability-difference"
    facts = {"source": table.name, "rows_read": len(table.pairs)}
    path = recorded_path(data) if is_file(data) else IN_MEMORY
    return Source(name or table.name, metric, Candidates(table.pairs, tuple(notes)), facts, path)


def _answer_notes(pairs: Sequence[Pair], tokenizer: Tokenizer) -> list[str]:
    """Notes on answers that are easily meant otherwise: without a leading space, or as a token id."""
    notes = []
    answers = [(answer, pair) for pair in pairs for answer in (*pair.right, *pair.wrong)]
    for text, pair in answers:
        if isinstance(text, str) and text[:1].isalpha() and not pair.clean[-1:].isspace():
            notes.append(
                f"answers are taken as they stand: {text!r} ({pair.where}) follows its prompt without a space; write "
                f"{' ' + text!r} if there should be one"
            )
            break
    if numbers := [answer for answer, _ in answers if isinstance(answer, int)]:
        text = tokenizer.decode([numbers[0]]) if 0 <= numbers[0] < len(tokenizer.hf) else "no token"
        notes.append(f"answers that are numbers in a list are token ids: {numbers[0]} is {text!r}")
    return notes


def halves(prompts: Iterable[Ids]) -> tuple[list[int], list[int]]:
    """The rows to attribute and those to hold out.

    Rows with the same clean prompt are in one half, so that the held-out ones are new. A new clean prompt goes to the
    smaller half, so data that grows at its end keeps its halves. Prompts are the same if their tokens are: a tokenizer
    can make one prompt of two texts. With fewer than ``LEAST`` rows, or a single clean prompt, no row is held out.

    >>> halves([(1,), (2,), (1,), (3,), (4,), (5,), (6,), (7,)])
    ([0, 2, 4, 6], [1, 3, 5, 7])
    """
    rows: tuple[list[int], list[int]] = ([], [])
    half_of = dict[Ids, int]()
    for row, prompt in enumerate(prompts):
        half = half_of.setdefault(prompt, int(len(rows[0]) > len(rows[1])))
        rows[half].append(row)
    count = len(rows[0]) + len(rows[1])
    return rows if count >= LEAST else (list(range(count)), [])


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


def one_pair(model: Transformer, recipe: Recipe, metric: str | Metric | None = None) -> Task:
    """The task of the pair of prompts in a recipe: ``gradpath find --clean ... --corrupted ... --answer ...``.

    Without ``wrong``, the wrong answer is the token that is most likely after the corrupted prompt, and after what a
    right answer of several tokens shares with it. The task's recipe has the prompts as they were given, and the wrong
    answer.
    """
    tokenizer = check_tokenizer(model.tokenizer)
    clean, corrupted, answer = str(recipe.clean), str(recipe.corrupted), str(recipe.answer)
    wrong = _most_likely(model, tokenizer, corrupted, answer) if recipe.wrong is None else recipe.wrong
    metric = metric or "logit-difference"
    function, first_token = find_metric(metric), bool(recipe.first_token)
    many = function is probability_difference
    usable = usable_pairs(
        [Pair(clean, corrupted, (answer,), (wrong,))], tokenizer, 1, many=many, first_token=first_token
    )
    if not usable.pairs:
        [drop] = usable.dropped.values()
        prompts = zip(("clean:     ", "corrupted: "), tokenizer.encode([clean, corrupted]), strict=True)
        shown = [name + "|".join(tokenizer.decode([token]) for token in ids) for name, ids in prompts]
        what = f"{drop.reason} ({drop.cases[0][1]})".replace(" ()", "")
        advice = _ADVICE.get(drop.reason, "Give another `wrong`: without it, it is the most likely one.")
        raise UsageError(f"this pair cannot be used: {what}. {advice}", shown if drop.reason == LENGTHS else [])
    [(pair, answers, _)] = usable.pairs
    wrong = tokenizer.decode([wrong]) if isinstance(wrong, int) else wrong
    notes = [f"the wrong answer is {wrong!r}"]
    if first_token:
        words = [repr(tokenizer.decode([token])) for [token] in answers]
        end = pair.clean.removeprefix(clean)
        where = f", after {end!r} at the end of the prompts" if end else ""
        notes.append(f"the answers are compared by the first token in which they differ, {' and '.join(words)}{where}")
    task = Task(
        [pair.clean],
        [pair.corrupted],
        label_tensor([answers], many=many),
        metric=function,
        name=PROMPT,
        recipe=Recipe(
            task=PROMPT,
            metric=metric_name(metric),
            split="all",
            clean=clean,
            corrupted=corrupted,
            answer=answer,
            wrong=wrong,
            first_token=recipe.first_token,
        ),
        facts={"split": "all", "notes": notes, "held_out": False},
        decode=tokenizer.decode,
    )
    return judged_by_kl(task, clean_logits(model, task)) if function is kl_divergence else task


_ADVICE = {
    LENGTHS: "Reword one of the prompts.",
    SAME: "Change what the answer depends on in the corrupted one.",
    NO_TOKEN: "Give `first_token`, which compares the first token in which the answers differ, or other answers.",
}


def _most_likely(model: Transformer, tokenizer: Tokenizer, corrupted: str, answer: str) -> str | int:
    """The most likely token after the corrupted prompt; after what it shares with a right answer of several tokens."""
    prompt, right = tokenizer.encode([corrupted])[0], tokenizer.continuations([answer])[0]
    for i, token in enumerate(right):
        likely = int(_last_logits(model, [[*prompt, *right[:i]]]).argmax())
        if likely != token:
            return tokenizer.decode([*right[:i], likely]) if i else likely
    return answer


def more_examples(task: Task, model: HasTokenizer, n: int) -> Task:
    """Of a built-in task ``n`` pairs of the same split, or as many as there are; those of ``task`` come first.

    Any other task is returned unchanged.
    """
    if task.recipe is None or task.recipe.data is not None or task.name not in TASKS or n <= len(task):
        return task
    recipe = task.recipe.changed(task=task.name, examples=min(n, _MAX_PAIRS))
    drawn = draw_or_all(model, recipe, recipe.attributed_split, metric=task.metric)
    first = drawn[: len(task)]
    same = list(first.clean) == list(task.clean) and list(first.corrupted) == list(task.corrupted)
    return drawn if same else task


def draw_or_all(model: HasTokenizer, recipe: Recipe, split: str, **options: Any) -> Task:
    """The pairs of a recipe; all of them where the task, or what the tokenizer has of it, has fewer."""
    try:
        return draw_task(model, recipe, split, **options)
    except UsageError as too_few:
        task = draw_task(model, recipe, split, **options, every=True)
        if recipe.examples is None or len(task) >= recipe.examples:
            raise too_few from None
        return task


def clean_logits(model: HasTokenizer | None, task: Task) -> Float[Tensor, "example vocab"]:
    """The model's logits at the last position of every clean prompt."""
    if not isinstance(model, Transformer):
        raise UsageError(f"the metric kl needs the model itself, to run the clean prompts: got a {type(model)}.")
    return _last_logits(model, prompt_ids(task.clean, model.tokenizer))


def _last_logits(model: Transformer, prompts: list[list[int]]) -> Float[Tensor, "example vocab"]:
    """The logits at the last position of every prompt."""
    ids = padded(prompts)
    last = torch.tensor([len(prompt) - 1 for prompt in prompts], device="cpu")
    parts = []
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(model.device.type, enabled=False):
        for at in range(0, len(prompts), defaults.PROMPTS_AT_ONCE):
            batch, end = ids[at : at + defaults.PROMPTS_AT_ONCE], last[at : at + defaults.PROMPTS_AT_ONCE]
            final = model.run(model.embed(batch[:, : int(end.max()) + 1].to(model.device))).final_in
            logits = model.unembed(final[torch.arange(len(end), device=final.device), end.to(final.device)])
            parts.append(logits.float().cpu())
    return torch.cat(parts)


def check_task(name: str | None, data: Any = None) -> None:
    """Refuse an unknown task, or a file that cannot be read, before a model is loaded; other data is not checked."""
    if is_file(data):
        read_data(data)
    elif data is None and name is not None:
        TASKS.find(name)


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
