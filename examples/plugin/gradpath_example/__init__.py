"""A path, a selection, a metric and a task. Importing this module registers them."""

from __future__ import annotations

from itertools import permutations

import torch
from torch import Tensor

import gradpath as gp
from gradpath.attribution.methods import Pair, Points
from gradpath.model.tokenizer import Tokenizer
from gradpath.scores import Scores
from gradpath.selection import Context, Order, selection
from gradpath.tasks import metric, named_task
from gradpath.tasks.pairs import Candidates
from gradpath.tasks.pairs import Pair as Prompts

WORDS = [
    *(("hot", "cold"), ("big", "small"), ("up", "down"), ("left", "right"), ("good", "bad"), ("old", "new")),
    *(("open", "closed"), ("black", "white"), ("early", "late"), ("rich", "poor"), ("fast", "slow"), ("high", "low")),
]


@gp.path("eap-stratified")
def stratified(pair: Pair, *, steps: int = 5, seed: int = 0) -> Points:
    """A random point in each of k equal parts of the straight line between the prompts."""
    places = torch.rand(steps, generator=torch.Generator().manual_seed(seed)).tolist()
    for j, place in enumerate(places):
        yield pair.corrupted + (j + place) / steps * (pair.clean - pair.corrupted)


@selection("each-target")
def each_target(scores: Scores, context: Context) -> Order:
    """The best edge into every target by |score|, then the second best of each, and so on."""
    graph = scores.graph
    size = scores.values.abs().masked_fill(~graph.mask, -1)
    place = size.argsort(dim=0, descending=True, stable=True).argsort(dim=0)  # (source, target): 0 is the target's best
    edges = graph.mask.flatten().nonzero()[:, 0]
    best_first = edges[size.flatten()[edges].sort(descending=True, stable=True).indices]
    return Order(scores, best_first[place.flatten()[best_first].sort(stable=True).indices])


@metric("right-probability")
def right_probability(logits: Tensor, labels: Tensor) -> Tensor:
    """The probability of the correct answer."""
    return logits.softmax(-1).gather(1, labels[:, :1]).squeeze(1)


@named_task(
    "opposites",
    "Opposites: 'The opposite of hot is' -> cold",
    metric="logit-difference",
    citation="An example, not from a paper",
    changed="word",
)
def opposites(split: str, tokenizer: Tokenizer) -> Candidates:
    """Every ordered pair of words of the split; no word is in both splits."""
    words = WORDS[0::2] if split == "train" else WORDS[1::2]
    both_ways = [*words, *((b, a) for a, b in words)]
    return Candidates(
        [
            Prompts(
                clean=f"The opposite of {word} is",
                corrupted=f"The opposite of {other} is",
                right=(f" {opposite}",),
                wrong=(f" {other_opposite}",),
            )
            for (word, opposite), (other, other_opposite) in permutations(both_ways, 2)
            if word != other_opposite
        ]
    )
