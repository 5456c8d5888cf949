r"""What a method is: a name, what it does, and its options, which are the parameters of its function.

Most methods are paths (``paths``): generators of the points at which a gradient is taken. What cannot be said
as a path is a function of one batch (``methods``). Both kinds stand in one registry, ``METHODS``.

Paths: a method is the set of points at which the gradient is taken.

Every method scores an edge u -> v with the same sum (see ``attribution``)::

    score(u -> v) = mean over examples of  sum over positions of
                    (x_u - x'_u) . mean over path points p of  dL/d in_v (p)

and differs from the others only in its points, which live in the space of token embeddings. So a
method is one small generator. It is given the two ends of the path and yields points; each is scored.
What it gets back for a point is a ``Visit``: the model's output there, and gradients of any function of
it, at no further forward pass. A point wrapped in ``Look`` is visited and not scored. Points that do not
wait for each other are yielded as one stack, (point, batch, pos, d_model); nothing comes back for those.
A path registered with ``increments`` is integrated along instead: its points come one by one,
in order, from the clean prompt on.

Costs, in passes over the positions from the first differing token on, for k steps. Two forward passes
(clean, corrupted) are always needed and count::

    eap              2 forward      1 backward
    clean-corrupted  2 forward      2 backward
    eap-ig           k + 1 forward  k backward     (k + 2 with end=middle)
    eap-gp           k + 2 forward  2 k backward   (k + 1 and k of them over the whole prompt)
    eap-moves        3 k + 1 forward  k backward
    eap-monotone     k + 1 forward  2 k - 1 backward
    eap-boxed        k + 2 forward  2 k backward
    eap-average      5 k forward  4 k backward
    eap-integral     k + 1 forward  k + 1 backward   (k + 2 and 2 k + 1 with along=descent)
    relp             2 forward      1 backward

A path of one's own:

>>> @path("midpoint")
... def midpoint(pair):
...     '''Half-way between the two prompts.'''
...     yield (pair.clean + pair.corrupted) / 2
>>> find_path("midpoint").about
'Half-way between the two prompts.'
>>> METHODS.remove("midpoint")

Registering a method that is no path.

It is a function of one batch, standing on its ``Ground``: the clean and the corrupted run, what the nodes
write in the one and not in the other (``runs.writes``), the metric. It returns the scores of all edges,
(source, target), summed over the batch's examples, and adds the passes that it makes to ``runs.passes``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args, get_origin, get_type_hints, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor

from gradpath.errors import UsageError
from gradpath.model.architecture import CALCULUS, Rules
from gradpath.model.transformer import Transformer
from gradpath.registry import Registry, owner_of


@dataclass(frozen=True)
class Method:
    """A registered method: a function of what it works on, and of options."""

    name: str
    build: Callable[..., Any]
    whole: Callable[[dict[str, Any]], bool] = lambda _: False  # by its options: does it move all positions
    of: Literal["edges", "nodes"] = "edges"  # what it scores
    check: Callable[[Transformer, int, dict[str, Any]], None] = lambda *_: None  # refuses so many examples
    points: Callable[[dict[str, Any]], int] = lambda options: options.get("steps", 1)  # to foresee memory by

    @property
    def about(self) -> str:
        does = (inspect.getdoc(self.build) or "").partition("\n")[0]
        return does if self.of == "edges" else f"Nodes, not edges. {does}"

    @property
    def defaults(self) -> dict[str, Any]:
        """The method's options and their defaults, in the order of its signature."""
        parameters = list(inspect.signature(self.build).parameters.values())[1:]
        return {p.name: None if p.default is p.empty else p.default for p in parameters}

    def options(self, given: dict[str, Any]) -> dict[str, Any]:
        """The defaults with what was given, which has to be known by name and by type."""
        for name in given.keys() - self.defaults.keys():
            raise UsageError(
                f"the method {self.name!r} has no option {name!r}: it knows "
                f"{', '.join(self.defaults) or 'none at all'}."
            )
        for name, value in given.items():
            self._check(name, value)
        return {**self.defaults, **given}

    def _check(self, name: str, value: Any) -> None:
        """A value has to be one that the option's annotation allows, where it has a plain one."""
        hint = get_type_hints(self.build).get(name)
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        if choices and value not in choices:
            raise UsageError(f"{name} must be one of {', '.join(map(str, choices))}: got {value!r}.")
        if hint in (bool, int, str) and type(value) is not hint:
            raise UsageError(f"{name} must be of type {hint.__name__}: got {value!r}.")
        if name == "steps" and value < 1:
            raise UsageError(f"steps must be a whole number of at least 1: got {value!r}.")


METHODS = Registry[Method](
    "method",
    [
        *(f"gradpath.attribution.paths.{module}" for module in ("line", "gradpath", "relp", "experimental")),
        *(f"gradpath.attribution.direct.{module}" for module in ("exact", "atp_star", "activations")),
    ],
)


def find_method(name: str) -> Method:
    return METHODS.find(name)


@dataclass(frozen=True)
class Pair:
    """The ends of a path: the token embeddings of a batch of clean and corrupted prompts.

    They begin at the first position in which any prompt of the batch differs; what lies before is the
    same in both and stays as it is. A path declared ``whole`` gets all positions, and may move them.
    Yield ``pair.clean`` or ``pair.corrupted`` themselves rather than a copy: those two runs exist already.
    """

    clean: Float[Tensor, "batch pos d_model"]
    corrupted: Float[Tensor, "batch pos d_model"]
    differs: Bool[Tensor, "batch pos"]  # where the two have different tokens


@dataclass(frozen=True)
class Unscored:
    """A point at which the model is run but which is not scored."""

    point: Tensor


@runtime_checkable
class PointView(Protocol):
    """What the model did at a point that a path yielded."""

    point: Tensor

    def outputs(self, where: Literal["last", "all"]) -> list[Tensor]:
        """Logits at each prompt's last position, or at every real position; padding is zeroed."""

    def gradient(self, objective: Tensor) -> Tensor:
        """The gradient of ``objective``, one number per example, at the point: shaped like the point."""


Points = Generator[Tensor | Unscored, PointView, None]
Builder = Callable[..., Points]


@dataclass(frozen=True)
class Path(Method):
    """A method that is a path: its function is a generator of points."""

    rules: Callable[[dict[str, Any]], Rules] = lambda _: CALCULUS  # by which gradients go back
    increments: bool = False  # is it integrated along


def path(
    name: str,
    *,
    whole: bool | Callable[[dict[str, Any]], bool] = False,
    rules: Callable[[dict[str, Any]], Rules] = lambda _: CALCULUS,
    increments: bool = False,
    nodes: str | None = None,
) -> Callable[[Builder], Builder]:
    """Register a generator of points as the method ``name``.

    Its first parameter is the ``Pair``, the others are the method's options with their defaults.
    ``whole`` asks for embeddings of all positions instead of those from the first difference on, ``rules``
    for gradients by other rules than those of calculus; both may hang on the options. ``increments``
    multiplies gradients by what nodes write from one point to the next (``increments``).
    """

    def register(build: Builder) -> Builder:
        wants_all = whole if callable(whole) else lambda _: whole
        found = Path(name, build, wants_all, rules=rules, increments=increments)
        METHODS.add(name, found, owner_of(build))
        if nodes is not None:
            METHODS.add(nodes, replace(found, name=nodes, of="nodes"), owner_of(build))
        return build

    return register


def find_path(name: str) -> Path:
    """The method of that name, which has to be a path."""
    found = find_method(name)
    if not isinstance(found, Path):
        raise UsageError(f"the method {name!r} is no path: it has no points. Use one that has, such as eap-ig.")
    return found


Scorer = Callable[..., Tensor]


def method(name: str, **asked: Any) -> Callable[[Scorer], Scorer]:
    """Register a function as the method ``name``: its first parameter is the ``Ground``, then its options."""

    def register(score: Scorer) -> Scorer:
        METHODS.add(name, Method(name, score, **asked), owner_of(score))
        return score

    return register
