"""A task of one pair of prompts, which the user typed: ``gradpath find --clean ... --corrupted ... --answer ...``."""

from __future__ import annotations

import torch

from gradpath.errors import InputError, UsageError
from gradpath.model.tokenizer import Tokenizer, check_tokenizer
from gradpath.model.transformer import Transformer
from gradpath.recipe import PROMPT, Recipe
from gradpath.tasks.metrics import Metric, find_metric, kl_divergence, metric_name, probability_difference
from gradpath.tasks.task import Task, judged_by_kl


def one_pair(model: Transformer, recipe: Recipe, metric: str | Metric | None = None) -> Task:
    """The task of the pair of prompts in a recipe.

    Args:
        model: The model that will run it.
        recipe: A recipe with ``clean``, ``corrupted`` and ``answer``. Without ``wrong``, the wrong answer is the token
            that is most likely after the corrupted prompt.
        metric: The metric; by default the logit difference.

    Returns:
        A task of one pair. Its recipe has the wrong answer.
    """
    tokenizer = check_tokenizer(model.tokenizer)
    clean, corrupted, answer = str(recipe.clean), str(recipe.corrupted), str(recipe.answer)
    _check_lengths(tokenizer, clean, corrupted)
    right = tokenizer.token(answer)
    last = _last_logits(model, tokenizer, corrupted)
    wrong = int(last.argmax()) if recipe.wrong is None else tokenizer.token(recipe.wrong)
    if right == wrong:
        why = "" if recipe.wrong else " It is also the most likely token after the corrupted prompt."
        raise UsageError(f"the right and the wrong answer are the same token, {answer!r}.{why} Give another `wrong`.")
    name = metric or recipe.metric or "logit-difference"
    function, labels = find_metric(name), torch.tensor([[right, wrong]], device="cpu")
    task = Task(
        [clean],
        [corrupted],
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
            wrong=tokenizer.decode([wrong]),
        ),
        facts={"split": "all", "notes": [f"the wrong answer is {tokenizer.decode([wrong])!r}"], "held_out": False},
        decode=tokenizer.decode,
    )
    return judged_by_kl(task, _last_logits(model, tokenizer, clean)[None]) if function is kl_divergence else task


def _check_lengths(tokenizer: Tokenizer, clean: str, corrupted: str) -> None:
    """Refuse prompts with different numbers of tokens, and show both as tokens."""
    ids = tokenizer.encode([clean, corrupted])
    if len(ids[0]) == len(ids[1]):
        return
    shown = ["|".join(tokenizer.decode([token]) for token in part) for part in ids]
    raise InputError(
        f"clean and corrupted prompts must have the same number of tokens: these have {len(ids[0])} and {len(ids[1])}. "
        "Reword one of them.",
        [f"clean:     {shown[0]}", f"corrupted: {shown[1]}"],
    )


@torch.no_grad()
def _last_logits(model: Transformer, tokenizer: Tokenizer, prompt: str) -> torch.Tensor:
    ids = torch.tensor(tokenizer.encode([prompt]), device=model.device)
    return model.unembed(model.run(model.embed(ids)).final_in[:, -1])[0].float().cpu()
