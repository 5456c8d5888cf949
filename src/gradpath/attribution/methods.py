r"""What a method is. Most methods are paths: a generator of the points at which the gradient is taken.

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

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor

from gradpath.errors import UsageError
from gradpath.model.architecture import CALCULUS, Rules
from gradpath.model.transformer import Transformer
from gradpath.recipe import Recipe
from gradpath.registry import NamedFunction, Registry, owner_of
from gradpath.tasks.metrics import Metric, kl_divergence
from gradpath.tasks.task import Pairs

MAX_STEPS = 10_000  # more points of a path are a slip of the hand
Options = dict[str, Any]


@dataclass(frozen=True)
class Method(NamedFunction):
    """A registered method: a function, whose first parameter is what it works on, and its options."""

    kind = "method"
    whole: Callable[[Options], bool] = lambda _: False  # whether it moves all positions
    at_clean: Callable[[Options], bool] = lambda _: False  # whether it takes gradients at the clean prompt alone
    check: Callable[[Transformer, Pairs, Options], None] = lambda *_: None  # refuses, or warns, before the first run
    points: Callable[[Options], int] = lambda options: options.get("steps", 1)  # to estimate memory
    # Forward passes over the suffix, for the progress bar.
    passes: Callable[[Transformer, Options], float] = lambda _, options: 2.0 + options.get("steps", 1)

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
    "method", [f"gradpath.attribution.{module}" for module in ("paths", "exact", "atp_star", "activations")]
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

    rules: Callable[[Options], Rules] = lambda _: CALCULUS  # of the backward pass


def path(
    name: str,
    *,
    whole: bool | Callable[[Options], bool] = False,
    rules: Callable[[Options], Rules] = lambda _: CALCULUS,
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
        rules: Rules of the backward pass that replace ordinary derivatives, as a function of the options.
        at_clean: Whether the clean prompt is the only point, as a function of the options. The metric kl, which has no
            gradient there, is then refused.
        check: A function that is called before anything is run. It may warn or raise an error.
        passes: The number of forward passes, clean and corrupted included, for the progress bar; a function of the
            options. By default ``steps`` and these two.

    Returns:
        A decorator.
    """

    def register(build: Builder) -> Builder:
        moves = whole if callable(whole) else lambda _: whole
        entry = Path(
            name,
            build,
            moves,
            at_clean=at_clean,
            check=check,
            passes=lambda _, options: float(passes(options)),
            rules=rules,
        )
        METHODS.add(name, entry, owner_of(build))
        return build

    return register


def method(
    name: str,
    *,
    at_clean: Callable[[Options], bool] = Method.at_clean,
    check: Callable[[Transformer, Pairs, Options], None] = Method.check,
    points: Callable[[Options], int] = Method.points,
    passes: Callable[[Transformer, Options], float] = Method.passes,
) -> Callable[[Scorer], Scorer]:
    """Register a function of one batch as a method.

    The function's first parameter is the ``BatchRuns``; the others are the method's options with their defaults. It
    returns the scores of all edges, (source, target), summed over the examples of the batch.

    Args:
        name: The name of the method.
        at_clean: Whether gradients are taken only at the clean prompt, as a function of the options.
        check: A function that is called before anything is run. It may warn or raise an error.
        points: The number of points, for the estimate of memory, as a function of the options.
        passes: The number of forward passes, for the progress bar, as a function of the model and the options.

    Returns:
        A decorator.
    """

    def register(score: Scorer) -> Scorer:
        entry = Method(name, score, at_clean=at_clean, check=check, points=points, passes=passes)
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
