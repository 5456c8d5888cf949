"""The built-in paths: the straight line between the prompts, GradPath, one point with rules of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from gradpath.attribution.methods import Options, Pair, Points, PointView, Unscored, path
from gradpath.errors import UsageError, warn
from gradpath.limits import RUN_AT_ONCE
from gradpath.model.architecture import Rules
from gradpath.model.transformer import Transformer
from gradpath.tasks.task import Pairs

# Literal steps are out of scale where the whole path is longer, or shorter, than the way to x' by this factor.
OUT_OF_SCALE = 1.5


@path("eap", at_clean=lambda _: True, passes=lambda _: 2)
def eap(pair: Pair) -> Points:
    """Edge attribution patching: the gradient at the clean prompt."""
    yield pair.clean


@path("clean-corrupted", passes=lambda _: 2)
def clean_corrupted(pair: Pair) -> Points:
    """The mean of the gradients at the clean and at the corrupted prompt."""
    yield pair.clean
    yield pair.corrupted


@path(
    "eap-ig",
    at_clean=lambda options: options["steps"] == 1 and options["end"] == "clean",
    passes=lambda options: options["steps"] + 1 + (options["end"] == "middle"),
)
def eap_ig(pair: Pair, *, steps: int = 5, end: Literal["clean", "corrupted", "middle"] = "clean") -> Points:
    """Integrated gradients: the straight line x' + (j/k)(x - x'), j = 1..k.

    The paper's Eq. 3 and 5. ``end`` is the end of each of the k stretches that is a point: ``clean`` as in the
    paper, ``corrupted`` for j = 0..k-1 as in the current EAP-IG library, or the ``middle``.
    """
    if end == "middle":
        inner = [(j + 0.5) / steps for j in range(steps)]
    else:
        yield pair.clean if end == "clean" else pair.corrupted
        inner = [j / steps for j in range(1, steps)]
    yield from stacks(pair, inner)


def stacks(pair: Pair, fractions: Sequence[float]) -> Points:
    """Points of the line in stacks: they do not depend on each other, and a long line never exists as a whole."""
    for at in range(0, len(fractions), RUN_AT_ONCE):
        chunk = fractions[at : at + RUN_AT_ONCE]
        yield torch.stack([pair.corrupted + f * (pair.clean - pair.corrupted) for f in chunk])


def warn_of_scale(model: Transformer, pairs: Pairs, options: Options) -> None:
    """Say so where unit steps have nothing to do with the distance between the prompts."""
    if options["stride"] != "unit":
        return
    differs = pairs.clean != pairs.corrupted
    clean, corrupted = (model.embed(ids[differs][None].to(model.device))[0] for ids in (pairs.clean, pairs.corrupted))
    squares = torch.zeros(len(pairs), dtype=torch.float64, device="cpu")
    squares.index_add_(0, differs.nonzero()[:, 0], (clean - corrupted).double().square().sum(-1).cpu())
    apart, length = float(squares.sqrt().median()), options["steps"] - options["start"] - options["pin_end"]
    if 0 < apart * OUT_OF_SCALE < length or apart > OUT_OF_SCALE * length > 0:
        warn(
            f"literal GradPath is out of scale here: its {length} steps of length 1 go {length / apart:.3g} times as "
            f"far as the corrupted prompts lie from the clean ones (median {apart:.3g}). Leave stride=unit out for "
            "steps that fit."
        )


def _moves_all(options: Options) -> bool:
    return bool(options["move"] == "all" or (options["move"] == "auto" and options["stride"] == "unit"))


def _gradpath_passes(options: Options) -> float:
    ends = options["stride"] == "matched" or options["pin_end"]
    return float(options["steps"] - options["start"] + 2 - ends)


@path("eap-gp", whole=_moves_all, check=warn_of_scale, passes=_gradpath_passes)
def eap_gp(
    pair: Pair,
    *,
    steps: int = 5,
    start: bool = False,
    pin_end: bool = False,
    norm: Literal["example", "position"] = "example",
    outputs: Literal["last", "all"] = "last",
    stride: Literal["matched", "unit"] = "matched",
    move: Literal["auto", "differing", "all"] = "auto",
) -> Points:
    r"""GradPath: gradient descent from the clean prompt towards the output of the corrupted one.

    The paper's Eq. 7-9 and Algorithm 1, G being the logits::

        gamma_0 = x,   g_j = d ||G(gamma_(j-1)) - G(x')||^2 / d gamma_(j-1)
        gamma_j = gamma_(j-1) - s g_j / ||g_j||,   points gamma_1 .. gamma_k

    The equations have s = 1, a length that means something else in the embedding space of each model, and do not
    lead to x', where the text says that the path ends. By default the path is tied to the prompts instead: the
    steps have length s = ||x - x'|| / k, only positions in which the prompts differ move, and gamma_k = x'.
    ``steps`` is always the number k of scored points. What the paper leaves open are options:

    ``stride``   ``matched`` to the distance of the prompts, as above; or of length 1, as in the equations.
    ``start``    gamma_0 is the first point, so that k = 1 is EAP and, with ``matched``, k = 2 is the mean of clean
                 and corrupted, as the paper says of both. There are k - 1 steps.
    ``pin_end``  with ``unit``, the last point is x' itself. ``matched`` steps always end there.
    ``norm``     lengths are taken over an example's positions and dimensions, or per position. Never over
                 the batch: a score would then depend on the batch size.
    ``outputs``  G is the logits at the last position, or at all real positions.
    ``move``     the positions that move: those that differ, or all; ``auto`` is all with ``unit`` alone.
    """
    axes = (-2, -1) if norm == "example" else (-1,)
    moves = steps - start
    ends = (stride == "matched" or pin_end) and moves > 0  # at x', which is the goal, too: one run serves both
    goal = (yield pair.corrupted if ends else Unscored(pair.corrupted)).goal(outputs)
    everywhere = _moves_all({"move": move, "stride": stride})

    def descended(view: PointView) -> Tensor:
        g = view.gradient(view.distance(goal))
        if not everywhere:
            g = g * pair.differs[..., None]
        # An example without a gradient has no direction: it stays where it is.
        tiny = torch.finfo(g.dtype).tiny
        step = g / g.norm(dim=axes, keepdim=True).clamp_min(tiny)
        if stride == "matched":
            step = step * (pair.clean - pair.corrupted).norm(dim=axes, keepdim=True) / moves
        moved: Tensor = view.point - step
        return moved

    point: Tensor | Unscored = pair.clean if start else Unscored(pair.clean)
    for _ in range(moves - ends):
        # The run at the point gets no name, so its autograd graph is freed before the next point is run.
        point = descended((yield point))
    yield point


@path("relp", at_clean=lambda _: True, passes=lambda _: 2, rules=lambda options: Rules(**options))
def relp(
    pair: Pair, *, norm: bool = True, attention: bool = True, gate: bool = True, activation: bool = True
) -> Points:
    r"""Relevance patching: the gradient at the clean prompt, with norms and patterns held fixed and secants for slopes.

    Jafari, Eberle, Khakzar and Nanda (2025, arXiv 2508.21258) replace the gradient of attribution patching by the
    coefficients of layer-wise relevance propagation. Each rule is the gradient of a forward pass in which some
    quantities, marked [ ], are held constant::

        norm        y = (x - mean) / [sigma]                   LN-rule: Ali et al. 2022
        attention   z = sum over keys of [pattern] v           AH-rule: Ali et al. 2022
        gate        a b = (a b + [a b]) / 2                    half-rule: Arras et al. 2019, Jafari et al. 2024
        activation  f(x) = x [f(x) / x]                        identity-rule: Jafari et al. 2024
        linear      unchanged, the bias getting nothing        0-rule

    The rule for norms holds for all of them: before and after attention and MLP, the last one, and those of
    queries and keys. That for activations is the rule for soft caps, too. Constant patterns mean that nothing
    comes back to queries and keys: all edges into <q> and <k> score 0. With ``attention=false`` they have the
    gradient's. The weights with which a router adds up experts are held constant by the same rule.

    The options are the rules, each of which can be switched off; without any it is EAP.
    """
    yield pair.clean


def _gim_rules(options: Options) -> Rules:
    if options["temperature"] <= 0:
        raise UsageError(f"temperature must be above 0: got {options['temperature']!r}.")
    return Rules(**options)


@path("gim", at_clean=lambda _: True, passes=lambda _: 2, rules=_gim_rules)
def gim(pair: Pair, *, temperature: float = 2.0, norm: bool = True, products: bool = True, gate: bool = True) -> Points:
    r"""Gradient interaction modifications: the gradient at the clean prompt, with a softer softmax and split products.

    They account for self-repair. Edin, Csordás, Ruotsalo, Wu, Maistro, Huang, Christensen and Maaløe (2025, arXiv
    2505.17630) find that a softmax hides what matters: where two keys carry the same, attention moves to the other
    one when either is taken away, so the gradient of both is small. GIM changes the backward pass in three ways::

        softmax     its slope is taken at the logits divided by T = 2: d p_i = s_i (d l_i - sum over j of s_j d l_j),
                    s = softmax(l / T)
        norm        y = (x - mean) / [sigma]
        products    a b = (a b + [a b]) / 2, for queries times keys, patterns times values, and gated products

    The last rule gives queries and keys a quarter of their gradient, since it passes two products, and values and the
    two sides of a gated MLP half of theirs. The forward pass is the model's. In the authors' code the factors for
    gated products came later than the others; ``gate=false`` leaves them out.

    ``temperature`` is that of the softmax in the backward pass; the other options are rules that can be switched
    off. Without any, and at temperature 1, it is EAP.
    """
    yield pair.clean
