"""Scores of heads that are known from the literature, on synthetic prompts of the model's own vocabulary.

A prompt is a sequence of different random tokens, twice: ``s_1 ... s_n s_1 ... s_n``, behind the BOS token if prompts
of the model begin with one. The first three scores are mean attention weights (Olsson et al. 2022, Wang et al. 2023)::

    previous token   from every token to the one before it
    duplicate token  from every token of the second copy to the same token in the first
    induction        from every token of the second copy to the one behind the same token in the first
    copying          the share of tokens that are among the 5 most raised ones when the head attends to them alone:
                     what it reads there, through its value and output matrices, the final norm and the unembedding
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gradpath.model.inspection import patterns
from gradpath.model.transformer import Run, Transformer

SCORES = ("previous_token", "duplicate_token", "induction", "copying")
_PROMPTS, _LENGTH = 8, 24
_COPIED = 32  # tokens for the copying score: each costs an unembedding per head
_TOGETHER = 4  # heads that are unembedded at once
_TOP = 5


@torch.no_grad()
def known_head_scores(model: Transformer, heads: Sequence[int], seed: int = 0) -> Float[Tensor, "head score"]:
    """Score heads as previous-token, duplicate-token, induction and copying heads.

    Args:
        model: The model.
        heads: The heads, as sources of the graph.
        seed: Chooses the tokens.

    Returns:
        The scores in the order of ``SCORES``, from 0 to 1; NaN for a model with too few tokens or positions.
    """
    ids, front = repeated_tokens(model, seed)
    length = (ids.shape[1] - front) // 2
    scores = torch.full((len(heads), len(SCORES)), torch.nan, device="cpu")
    if length < 2:
        return scores
    run = model.run(model.embed(ids.to(model.device)))
    info = model.position_info(0, ids.shape[1])
    second = torch.arange(front + length, front + 2 * length, device=model.device)
    every = torch.arange(front + 1, front + 2 * length, device=model.device)
    places = ((every, every - 1), (second, second - length), (second, second - length + 1))
    for layer in sorted({model.graph.place_of_source(source)[0] for source in heads}):
        weights = patterns(model, layer, run.layers[layer], info)  # (prompt, head, query, key)
        for row, source in enumerate(heads):
            own_layer, head = model.graph.place_of_source(source)
            if own_layer == layer:
                attended = [float(weights[:, head, query, key].mean()) for query, key in places]
                scores[row, :-1] = torch.tensor(attended, device="cpu")
    tokens = ids[:, front : front + length].flatten()[:_COPIED].to(model.device)
    for at in range(0, len(heads), _TOGETHER):
        written = torch.stack([_written(model, run, source, front, length) for source in heads[at : at + _TOGETHER]])
        scores[at : at + _TOGETHER, -1] = _copying(model, written, tokens)
    return scores


def repeated_tokens(model: Transformer, seed: int) -> tuple[Int[Tensor, "prompt pos"], int]:
    """Sequences of different random tokens, each twice, and the number of tokens in front of them."""
    tokenizer, limit = model.tokenizer, model.max_positions
    front = [] if tokenizer is None or tokenizer.prepend is None else [tokenizer.prepend]
    special = set(front) | set(getattr(getattr(tokenizer, "hf", None), "all_special_ids", None) or [])
    usable = torch.tensor([i for i in range(len(model.embedding)) if i not in special], device="cpu")
    longest = len(usable) if limit is None else min(len(usable), (limit - len(front)) // 2)
    generator = torch.Generator(device="cpu").manual_seed(seed)
    rows = []
    for _ in range(_PROMPTS):
        order = torch.randperm(len(usable), generator=generator, device="cpu")[: max(0, min(_LENGTH, longest))]
        rows.append(torch.cat([torch.tensor(front, dtype=torch.long, device="cpu"), usable[order], usable[order]]))
    return torch.stack(rows), len(front)


def _written(model: Transformer, run: Run, source: int, front: int, length: int) -> Float[Tensor, "token d_model"]:
    """What a head writes when it attends to one of the first tokens alone, for some of them."""
    a, (layer, head) = model.arch, model.graph.place_of_source(source)
    values = run.layers[layer].past.values[:, head, front : front + length].flatten(0, 1)[:_COPIED]  # (token, d_head)
    return values @ model.layers[layer].w_write.view(a.d_model, a.n_heads, a.d_head)[:, head].T


def _copying(
    model: Transformer, written: Float[Tensor, "head token d_model"], tokens: Int[Tensor, " token"]
) -> Float[Tensor, " head"]:
    """The share of tokens that a head raises among the most when it attends to them alone."""
    written = written - written.mean(-1, keepdim=True) if model.arch.norm == "layer" else written
    # The scale of the norm is the same for all tokens of the vocabulary, so it does not change their order.
    raised = (written * model.final_gain) @ model.unembedding.T  # (head, token, vocabulary)
    most = raised.topk(min(_TOP, raised.shape[-1])).values[..., -1]
    value = raised.gather(2, tokens[None, :, None].expand(len(raised), -1, 1))[..., 0]
    return ((value >= most) & (value > raised.mean(-1))).float().mean(1).cpu()
