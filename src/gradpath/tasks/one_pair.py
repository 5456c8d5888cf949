"""A task of one pair of prompts, which the user typed: ``gradpath find --clean ... --corrupted ... --answer ...``."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradpath.errors import InputError, UsageError
from gradpath.model.tokenizer import Tokenizer, check_tokenizer
from gradpath.model.transformer import Transformer
from gradpath.recipe import PROMPT, Recipe
from gradpath.tasks.metrics import Metric, find_metric, kl_divergence, metric_name, probability_difference
from gradpath.tasks.pairs import MERGED, Ids, as_tokens, common_beginning
from gradpath.tasks.task import Task, judged_by_kl


def one_pair(model: Transformer, recipe: Recipe, metric: str | Metric | None = None) -> Task:
    """The task of the pair of prompts in a recipe.

    Args:
        model: The model that will run it.
        recipe: A recipe with ``clean``, ``corrupted`` and ``answer``. Without ``wrong``, the wrong answer is the token
            that is most likely after the corrupted prompt. With ``first_token``, answers of several tokens are compared
            by the first token in which they differ, and what they share before it is put at the end of both prompts.
        metric: The metric; by default the logit difference.

    Returns:
        A task of one pair. Its recipe has the prompts as they were given, and the wrong answer.
    """
    tokenizer = check_tokenizer(model.tokenizer)
    clean, corrupted, answer = str(recipe.clean), str(recipe.corrupted), str(recipe.answer)
    clean_ids, corrupted_ids = _same_length(tokenizer, clean, corrupted)
    if recipe.first_token:
        right, given = (_tokens(tokenizer, text) for text in (answer, recipe.wrong))
    else:
        right, given = _single_tokens(tokenizer, answer, recipe.wrong)
    wrong = given or _most_likely(model, corrupted_ids, right)
    shared = common_beginning([right, wrong])
    if len(shared) == min(len(right), len(wrong)):
        why = "" if recipe.wrong else " It is also the most likely token after the corrupted prompt."
        what = (
            f"are the same token, {answer!r}" if right == wrong else "do not differ: one is the beginning of the other"
        )
        raise UsageError(f"the right and the wrong answer {what}.{why} Give another `wrong`.")
    end, wrong_text = tokenizer.decode(shared), tokenizer.decode(wrong)
    if tokenizer.encode([clean + end, corrupted + end]) != [[*ids, *shared] for ids in (clean_ids, corrupted_ids)]:
        raise UsageError(f"both answers begin with {end!r}, {MERGED}. Begin them with different words.")
    words = [tokenizer.decode([side[len(shared)]]) for side in (right, wrong)]
    notes = [f"the wrong answer is {wrong_text!r}"]
    if len(right) > 1 or len(wrong) > 1:
        where = f", after {end!r} at the end of the prompts" if end else ""
        notes.append(
            f"the answers are compared by the first token in which they differ, {words[0]!r} and {words[1]!r}{where}"
        )
    name = metric or recipe.metric or "logit-difference"
    function, labels = find_metric(name), torch.tensor([[right[len(shared)], wrong[len(shared)]]], device="cpu")
    task = Task(
        [clean + end],
        [corrupted + end],
        labels[..., None] if function is probability_difference else labels,
        metric=function,
        name=PROMPT,
        recipe=Recipe(
            task=PROMPT,
            metric=metric_name(name),
            split="all",
            clean=clean,
            corrupted=corrupted,
            answer=answer,
            wrong=wrong_text,
            first_token=recipe.first_token,
        ),
        facts={"split": "all", "notes": notes, "held_out": False},
        decode=tokenizer.decode,
    )
    return judged_by_kl(task, _last_logits(model, [*clean_ids, *shared])[None]) if function is kl_divergence else task


def _tokens(tokenizer: Tokenizer, answer: str | None) -> Ids:
    """The tokens of an answer; none if there is no answer."""
    if answer is None:
        return ()
    return tuple(tokenizer.continuations([answer])[0]) or (tokenizer.token(answer),)


def _single_tokens(tokenizer: Tokenizer, answer: str, wrong: str | None) -> tuple[Ids, Ids]:
    """The token of each answer. Of several tokens, say how they could be used."""
    right, other = _tokens(tokenizer, answer), _tokens(tokenizer, wrong)
    if len(right) == 1 >= len(other):
        return (tokenizer.token(answer),), () if wrong is None else (tokenizer.token(wrong),)
    split = [
        f"{text!r} is {as_tokens(tokenizer, ids)}" for text, ids in ((answer, right), (wrong, other)) if len(ids) > 1
    ]
    shared = common_beginning([right, other]) if other else right[:-1]
    rest = [tokenizer.decode(ids[len(shared) :]) for ids in (right, other) if len(ids) == len(shared) + 1]
    by_hand = ""
    if shared and len(rest) == (2 if other else 1):
        by_hand = (
            f"End both prompts with {tokenizer.decode(shared)!r} and answer {' and '.join(map(repr, rest))}, or give"
        )
    raise UsageError(
        f"an answer has to be a single token of the model: {', '.join(split)}. {by_hand or 'Give'} `first_token`, "
        "which compares the first token in which the answers differ."
    )


def _most_likely(model: Transformer, corrupted: list[int], right: Ids) -> Ids:
    """The most likely token after the corrupted prompt; after what it shares with a right answer of several tokens."""
    for i, token in enumerate(right):
        likely = int(_last_logits(model, [*corrupted, *right[:i]]).argmax())
        if likely != token:
            return (*right[:i], likely)
    return right


def _same_length(tokenizer: Tokenizer, clean: str, corrupted: str) -> list[list[int]]:
    """The tokens of both prompts. Different numbers of them are refused, and both are shown as tokens."""
    ids = tokenizer.encode([clean, corrupted])
    if len(ids[0]) == len(ids[1]):
        return ids
    shown = ["|".join(tokenizer.decode([token]) for token in part) for part in ids]
    raise InputError(
        f"clean and corrupted prompts must have the same number of tokens: these have {len(ids[0])} and {len(ids[1])}. "
        "Reword one of them.",
        [f"clean:     {shown[0]}", f"corrupted: {shown[1]}"],
    )


@torch.no_grad()
def _last_logits(model: Transformer, prompt: Sequence[int]) -> torch.Tensor:
    ids = torch.tensor([prompt], device=model.device)
    return model.unembed(model.run(model.embed(ids)).final_in[:, -1])[0].float().cpu()
