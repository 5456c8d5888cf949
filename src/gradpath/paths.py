r"""Paths: a method is the set of points at which the gradient is taken.

Every method scores an edge u -> v with the same sum (see ``attribution``)::

    score(u -> v) = mean over examples of  sum over positions of
                    (x_u - x'_u) . mean over path points p of  dL/d in_v (p)

and differs from the others only in its points, which live in the space of token embeddings. So a
method is one small generator. It is given the two ends of the path and yields points; each is scored.
What it gets back for a point is a ``Visit``: the model's output there, and gradients of any function of
it, at no further forward pass. A point wrapped in ``Look`` is visited and not scored. Points that do not
wait for each other are yielded as one stack, (point, batch, pos, d_model); nothing comes back for those.

Costs, in passes over the positions from the first differing token on, for k steps. Two forward passes
(clean, corrupted) are always needed and count::

    eap              2 forward      1 backward
    clean-corrupted  2 forward      2 backward
    eap-ig           k + 1 forward  k backward     (the end that is a point is not run twice)
    eap-gp           k + 2 forward  2 k backward   (k + 1 and k of them over the whole prompt)

A path of one's own:

>>> @path("midpoint")
... def midpoint(pair):
...     '''Half-way between the two prompts.'''
...     yield (pair.clean + pair.corrupted) / 2
>>> find_path("midpoint").about
'Half-way between the two prompts.'
>>> del PATHS["midpoint"]
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, get_origin, get_type_hints, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gradpath.errors import UsageError, unknown
from gradpath.memory import RUN_AT_ONCE


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
class Look:
    """A point at which the model is run but which is not scored."""

    point: Tensor


@runtime_checkable
class Visit(Protocol):
    """What the model did at a point that a path yielded."""

    point: Tensor

    def outputs(self, where: Literal["last", "all"]) -> list[Tensor]:
        """Logits at each prompt's last position, or at every real position; padding is zeroed."""

    def gradient(self, objective: Tensor) -> Tensor:
        """The gradient of ``objective``, one number per example, at the point: shaped like the point."""


Points = Generator["Tensor | Look", Visit, None]
Builder = Callable[..., Points]


@dataclass(frozen=True)
class Path:
    """A registered method: its generator, and whether it wants the whole prompt."""

    name: str
    build: Builder
    whole: Callable[[dict[str, Any]], bool]

    @property
    def about(self) -> str:
        return (inspect.getdoc(self.build) or "").partition("\n")[0]

    @property
    def defaults(self) -> dict[str, Any]:
        """The path's options and their defaults, in the order of its signature."""
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


PATHS: dict[str, Path] = {}


def path(
    name: str, *, whole: bool | Callable[[dict[str, Any]], bool] = False
) -> Callable[[Builder], Builder]:
    """Register a generator of points as the method ``name``.

    Its first parameter is the ``Pair``, the others are the method's options with their defaults.
    ``whole`` asks for embeddings of all positions instead of those from the first difference on.
    """

    def register(build: Builder) -> Builder:
        PATHS[name] = Path(name, build, whole if callable(whole) else lambda _: whole)
        return build

    return register


def find_path(name: str) -> Path:
    if name not in PATHS:
        raise unknown("method", name, PATHS)
    return PATHS[name]


@path("eap")
def eap(pair: Pair) -> Points:
    """Edge attribution patching: the gradient at the clean prompt."""
    yield pair.clean


@path("clean-corrupted")
def clean_corrupted(pair: Pair) -> Points:
    """The mean of the gradients at the clean and at the corrupted prompt."""
    yield pair.clean
    yield pair.corrupted


@path("eap-ig")
def eap_ig(pair: Pair, *, steps: int = 5, end: Literal["clean", "corrupted"] = "clean") -> Points:
    """Integrated gradients: the straight line x' + (j/k)(x - x'), j = 1..k.

    The paper's Eq. 3 and 5. ``end`` says which end of the line is a point: ``clean`` as in the paper, or
    ``corrupted`` for j = 0..k-1, as the EAP-IG library has it now.
    """
    yield pair.clean if end == "clean" else pair.corrupted
    inner = [j / steps for j in range(1, steps)]
    for at in range(0, len(inner), RUN_AT_ONCE):
        # In stacks: points of a straight line do not wait for each other.
        some = inner[at : at + RUN_AT_ONCE]
        yield torch.stack([pair.corrupted + f * (pair.clean - pair.corrupted) for f in some])


@path("eap-gp", whole=lambda options: options["move"] == "all")
def eap_gp(
    pair: Pair,
    *,
    steps: int = 5,
    start: bool = False,
    pin_end: bool = False,
    norm: Literal["example", "position"] = "example",
    outputs: Literal["last", "all"] = "last",
    stride: Literal["unit", "matched"] = "unit",
    move: Literal["all", "differing"] = "all",
) -> Points:
    r"""GradPath: from the clean prompt down the steepest descent to the corrupted prompt's output.

    The paper's Eq. 7-9 and Algorithm 1, G being the logits::

        gamma_0 = x,   g_j = d ||G(gamma_(j-1)) - G(x')||^2 / d gamma_(j-1)
        gamma_j = gamma_(j-1) - g_j / ||g_j||,   points gamma_1 .. gamma_k

    The defaults are the equations to the letter. What they leave open are options, and ``steps`` is
    always the number k of scored points:

    ``start``    gamma_0 is a point, so that k = 1 is EAP, as the paper says of it.
    ``pin_end``  the last point is x' itself; with ``start``, k = 2 is the paper's clean and corrupted.
    ``norm``     ||g|| is taken over an example's positions and dimensions, or per position. Never over
                 the batch: a score would then depend on the batch size.
    ``outputs``  G is the logits at the last position, or at all real positions.
    ``stride``   steps of length 1, or of ||x - x'|| / k, which ties them to the model's own scale.
    ``move``     all positions move, or only those in which the prompts differ.
    """
    goal = [logits.detach() for logits in (yield Look(pair.corrupted)).outputs(outputs)]
    axes = (-2, -1) if norm == "example" else (-1,)
    length = (
        (pair.clean - pair.corrupted).norm(dim=axes, keepdim=True) / steps if stride == "matched" else 1.0
    )

    def descended(visit: Visit) -> Tensor:
        here = visit.outputs(outputs)
        gap = sum(((a - b) ** 2).flatten(1).sum(1) for a, b in zip(here, goal, strict=True))
        assert isinstance(gap, Tensor)
        g = visit.gradient(gap)
        if move == "differing":
            g = g * pair.differs[..., None]
        # Where there is no slope there is no direction: such an example stays where it is.
        tiny = torch.finfo(g.dtype).tiny
        moved: Tensor = visit.point - length * g / g.norm(dim=axes, keepdim=True).clamp_min(tiny)
        return moved

    point: Tensor | Look = pair.clean if start else Look(pair.clean)
    for _ in range(steps - start - pin_end):
        # The visit is given no name here: so its graph is gone before that of the next point is made.
        point = descended((yield point))
    yield point
    if pin_end and steps > start:
        yield pair.corrupted
