r"""What a method is, and the built-in paths. A path generates the points at which the gradient is taken.

Every path scores an edge u -> v with the same sum (``attribute``)::

    score(u -> v) = mean over examples of  sum over positions of
                    (x_u - x'_u) . mean over path points p of  dL/d in_v (p)

and differs from the others only in its points, in the space of token embeddings. So a path is one small
generator. It is given the two ends and yields points; each is scored. For a point it gets back a ``PointView``:
the model's output there, and gradients of any function of it, at no further forward pass. A point wrapped in
``Unscored`` is run and not scored. Points that do not depend on each other are yielded as one stack, (point,
batch, pos, d_model); nothing comes back for a stack.

Costs, in passes over the positions from the first differing token on, for k steps. Two forward passes (clean,
corrupted) are always needed and are included::

    eap              2 forward        1 backward
    clean-corrupted  2 forward        2 backward
    eap-ig           k + 1 forward    k backward        (k + 2 forward with end=middle)
    eap-gp           k + 1 forward    2 k - 1 backward  (with stride=unit k + 2 and 2 k, of which k + 1 and k are over
                                                         the whole prompt)
    relp             2 forward        1 backward
    gim              2 forward        1 backward

A method that is not a path is a function of one batch, registered with ``@method``. It is given the ``BatchRuns``:
the clean and the corrupted run, the difference of what the nodes write in them (``runs.writes``), the metric. It
returns the scores of all edges, (source, target), summed over the batch's examples, and adds the passes that it
makes to ``runs.passes``.

Your own path:

>>> @path("midpoint")
... def midpoint(pair):
...     '''Halfway between the two prompts.'''
...     yield (pair.clean + pair.corrupted) / 2
>>> METHODS["midpoint"].about
'Halfway between the two prompts.'
>>> METHODS.remove("midpoint")
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gradpath.errors import UsageError, warn
from gradpath.model.architecture import CALCULUS, Rules
from gradpath.model.transformer import Transformer
from gradpath.recipe import Recipe
from gradpath.registry import NamedFunction, Registry, owner_of
from gradpath.sweep import RUN_AT_ONCE
from gradpath.tasks.metrics import Metric, kl_divergence
from gradpath.tasks.task import Pairs

MAX_STEPS = 10_000  # more points of a path are a slip of the hand
# Literal steps are out of scale where the whole path is longer, or shorter, than the way to x' by this factor.
OUT_OF_SCALE = 1.5
Options = dict[str, Any]


@dataclass(frozen=True)
class Method(NamedFunction):
    """A registered method: a function, whose first parameter is what it works on, and its options."""

    kind = "method"
    whole: Callable[[Options], bool] = lambda _: False  # whether it moves all positions
    at_clean: Callable[[Options], bool] = lambda _: False  # whether it takes gradients at the clean prompt alone
    check: Callable[[Transformer, Pairs, Options], None] = lambda *_: None  # refuses, or warns, before the first run
    # Forward passes over the suffix, for a forecast of the run.
    passes: Callable[[Transformer, Options], float] = lambda _, options: 2.0 + options.get("steps", 1)

    def points(self, options: Options) -> int:
        """The number of points, to estimate memory."""
        return int(options.get("steps", 1))

    def check_metric(self, metric: Metric, options: Options) -> None:
        """Refuse a metric that has no gradient where the method takes it: its scores would be rounding errors."""
        if metric is kl_divergence and self.at_clean(options):
            raise UsageError(
                f"kl has no gradient at the clean prompt, where {self.name} takes it: all scores would be zero. "
                "Use a method with a path, such as eap-ig, or another metric."
            )

    def checked(self, name: str, value: Any) -> Any:
        if name == "steps" and not 1 <= super().checked(name, value) <= MAX_STEPS:
            raise UsageError(f"steps must be a whole number from 1 to {MAX_STEPS:,}: got {value!r}.")
        return super().checked(name, value)


METHODS = Registry[Method](
    "method", [__name__, *(f"gradpath.attribution.{module}" for module in ("patching", "activations"))]
)


@dataclass(frozen=True)
class Pair:
    """The ends of a path: the token embeddings of a batch of clean and corrupted prompts.

    They start at the first position in which any pair of the batch differs; positions before are the same in
    both prompts and do not move. A path declared ``whole`` gets all positions, and may move them. Yield
    ``pair.clean`` or ``pair.corrupted`` themselves rather than a copy: those two runs are needed anyway, and what
    their nodes write is kept. The second time that one of them is yielded, it is run again.
    """

    clean: Float[Tensor, "batch pos d_model"]  # from the first differing token on, unless the path is ``whole``
    corrupted: Float[Tensor, "batch pos d_model"]
    differs: Bool[Tensor, "batch pos"]  # where the two have different tokens


@dataclass(frozen=True)
class Unscored:
    """A point at which the model is run but which is not scored."""

    point: Tensor


@dataclass(frozen=True)
class Goal:
    """The model's output at a point, kept to measure the distance of outputs at other points from it."""

    where: Literal["last", "all"]
    parts: list[Tensor]  # the logits, or the normalised final stream that they are linear in


@runtime_checkable
class PointView(Protocol):
    """What a path sees of the model's run at a point that it yielded."""

    point: Tensor

    def outputs(self, where: Literal["last", "all"]) -> list[Tensor]:
        """Logits at each prompt's last position, or at every real position; padding is zeroed."""

    def goal(self, where: Literal["last", "all"]) -> Goal:
        """The output here, as a goal for the ``distance`` at other points."""

    def distance(self, goal: Goal) -> Tensor:
        """The squared distance of the logits here from those at the goal, of each example, (batch,)."""

    def gradient(self, objective: Tensor) -> Tensor:
        """The gradient at the point, shaped like it.

        Args:
            objective: A tensor with one number per example that was computed from ``outputs`` or ``distance``, such
                as ``view.outputs("last")[0].max(-1).values``; it is not a function.
        """


Points = Generator[Tensor | Unscored, PointView, None]
Builder = Callable[..., Points]
Scorer = Callable[..., Tensor]


@dataclass(frozen=True)
class Path(Method):
    """A method that is a path: its function is a generator of points."""

    rules: Rules = CALCULUS  # of the backward pass


def path(
    name: str,
    *,
    whole: bool | Callable[[Options], bool] = False,
    rules: Rules = CALCULUS,
    at_clean: Callable[[Options], bool] = Method.at_clean,
    check: Callable[[Transformer, Pairs, Options], None] = Method.check,
    passes: Callable[[Options], float] = lambda options: 2 + options.get("steps", 1),
) -> Callable[[Builder], Builder]:
    """Register a generator of points as a method.

    The generator's first parameter is the ``Pair``; the others are the method's options with their defaults.

    Args:
        name: The name of the method.
        whole: Whether the path gets the embeddings of all positions, not only of those from the first differing token
            on; may be a function of the options.
        rules: Rules of the backward pass that replace ordinary derivatives.
        at_clean: Whether the clean prompt is the only point, as a function of the options. The metric kl, which has no
            gradient there, is then refused.
        check: A function that is called before anything is run. It may warn or raise an error.
        passes: The number of forward passes, clean and corrupted included, for a forecast of the run; a function of
            the options. By default ``steps`` and these two.

    Returns:
        A decorator.
    """

    def register(build: Builder) -> Builder:
        moves = whole if callable(whole) else lambda _: whole
        count: Callable[[Transformer, Options], float] = lambda _, options: float(passes(options))  # noqa: E731
        entry = Path(name, build, moves, at_clean=at_clean, check=check, passes=count, rules=rules)
        METHODS.add(name, entry, owner_of(build))
        return build

    return register


def method(
    name: str,
    *,
    at_clean: Callable[[Options], bool] = Method.at_clean,
    check: Callable[[Transformer, Pairs, Options], None] = Method.check,
    passes: Callable[[Transformer, Options], float] = Method.passes,
) -> Callable[[Scorer], Scorer]:
    """Register a function of one batch as a method.

    The function's first parameter is the ``BatchRuns``; the others are the method's options with their defaults. It
    returns the scores of all edges, (source, target), summed over the examples of the batch.

    Args:
        name: The name of the method.
        at_clean: Whether gradients are taken only at the clean prompt, as a function of the options.
        check: A function that is called before anything is run. It may warn or raise an error.
        passes: The number of forward passes, for a forecast of the run, as a function of the model and the options.

    Returns:
        A decorator.
    """

    def register(score: Scorer) -> Scorer:
        entry = Method(name, score, at_clean=at_clean, check=check, passes=passes)
        METHODS.add(name, entry, owner_of(score))
        return score

    return register


def find_method(name: str) -> Method:
    """The method of that name."""
    return METHODS.find(name)


def recorded_method(recipe: Recipe) -> tuple[Method, Options]:
    """The method of a recipe, and all of its options, checked."""
    method = METHODS.find(recipe.method)
    has_steps = "steps" in method.defaults and recipe.steps is not None
    return method, method.options({**recipe.options, **({"steps": recipe.steps} if has_steps else {})})


def find_path(name: str) -> Path:
    """The method of that name, which has to be a path."""
    entry = METHODS.find(name)
    if not isinstance(entry, Path):
        raise UsageError(f"the method {name!r} is not a path: it has no points. Use a path, such as eap-ig.")
    return entry


# The built-in paths: the straight line between the prompts, GradPath, one point with rules of its own.


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
    ``outputs``  G is the logits at the last position, or at all real positions.
    ``move``     the positions that move: those that differ, or all; ``auto`` is all with ``unit`` alone.

    A length is that of an example, over its positions and dimensions.
    """
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
        step = g / g.norm(dim=(-2, -1), keepdim=True).clamp_min(tiny)
        if stride == "matched":
            step = step * (pair.clean - pair.corrupted).norm(dim=(-2, -1), keepdim=True) / moves
        moved: Tensor = view.point - step
        return moved

    point: Tensor | Unscored = pair.clean if start else Unscored(pair.clean)
    for _ in range(moves - ends):
        # The run at the point gets no name, so its autograd graph is freed before the next point is run.
        point = descended((yield point))
    yield point


@path(
    "relp",
    at_clean=lambda _: True,
    passes=lambda _: 2,
    rules=Rules(norm=True, attention=True, gate=True, activation=True),
)
def relp(pair: Pair) -> Points:
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
    comes back to queries and keys: all edges into <q> and <k> score 0. The weights with which a router adds up
    experts are held constant by the same rule.
    """
    yield pair.clean


@path(
    "gim",
    at_clean=lambda _: True,
    passes=lambda _: 2,
    rules=Rules(temperature=2.0, norm=True, products=True, gate=True),
)
def gim(pair: Pair) -> Points:
    r"""Gradient interaction modifications: the gradient at the clean prompt, with a softer softmax and split products.

    They account for self-repair. Edin, Csordás, Ruotsalo, Wu, Maistro, Huang, Christensen and Maaløe (2025, arXiv
    2505.17630) find that a softmax hides what matters: where two keys carry the same, attention moves to the other
    one when either is taken away, so the gradient of both is small. GIM changes the backward pass in three ways::

        softmax     its slope is taken at the logits divided by T = 2: d p_i = s_i (d l_i - sum over j of s_j d l_j),
                    s = softmax(l / T)
        norm        y = (x - mean) / [sigma]
        products    a b = (a b + [a b]) / 2, for queries times keys, patterns times values, and gated products

    The last rule gives queries and keys a quarter of their gradient, since it passes two products, and values and the
    two sides of a gated MLP half of theirs. The forward pass is the model's.
    """
    yield pair.clean
