"""A study: a recipe, some of whose fields have several values. Its measurements are resumable.

``bench`` is the one driver: it measures the circuits of a study's recipes, and keeps every finished measurement as a
file. ``outcome`` and ``faithfulness`` make tables and figures of them, ``run`` those of a study that a file describes.

A method with its options is one word, as in ``eap-gp+move=differing+steps=10``, and a size is a pair of a field and its
value, as in ``("sparsity", 0.975)``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from gradpath import defaults
from gradpath.ablation import ABLATIONS
from gradpath.attribution.methods import find_method
from gradpath.errors import UsageError, check_choice
from gradpath.evaluation import mib
from gradpath.recipe import Recipe
from gradpath.registry import parse_options
from gradpath.selection import find_selection
from gradpath.selection.ranking import check_sparsity
from gradpath.sweep import Limits
from gradpath.tasks import find_metric
from gradpath.tasks.builtin import PAPER_TASKS
from gradpath.tasks.data import SUFFIXES
from gradpath.tasks.load import check_task

CUSTOM = "custom"  # the task of the user's own data, if it has no other name
Size = tuple[str, Any]  # the field of a recipe that sets the size of a circuit, and its value
# The paper's figures go from 96.9% to 99.9% in steps of 0.3%; the MIB benchmark keeps 0.1% to 50% of the edges.
GRIDS = {
    defaults.GRID: (0.999, 0.996, 0.993, 0.990, 0.987, 0.984, 0.981, 0.978, 0.975, 0.972, 0.969),
    defaults.MIB_GRID: tuple(round(1 - fraction, 6) for fraction in mib.FRACTIONS[:-1]),
}


def words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def sparsities(text: str) -> tuple[Size, ...]:
    """``0.99,0.975`` as the sizes of circuits."""
    try:
        return tuple(("sparsity", float(word)) for word in words(text))
    except ValueError:
        raise UsageError(f"--sparsities is a list of numbers with commas, such as 0.99,0.975: got {text!r}.") from None


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """``3,5,10`` or ``3-20`` as whole numbers above 0; ``option`` is named in the error.

    >>> whole_numbers("3-5,10", "--steps")
    (3, 4, 5, 10)
    """
    try:
        ends = [word.partition("-") for word in words(text)]
        values = [n for first, dash, last in ends for n in range(int(first), int(last if dash else first) + 1)]
    except ValueError:
        values = []
    if not values or min(values) < 1:
        raise UsageError(f"{option} is a list of whole numbers above 0, such as 3-20 or 3,5,10: got {text!r}.")
    return tuple(dict.fromkeys(values))


def check_method(word: str) -> str:
    """The word of a method with its options, as tables have it, if names and types are right."""
    recipe = method_recipe(word)
    method_options(recipe)
    return method_label(recipe)


def check_methods(text: str) -> tuple[str, ...]:
    """Methods separated by commas, each with its options after plus signs; names and types are checked."""
    methods = tuple(check_method(word) for word in words(text))
    if not methods:
        raise UsageError(f"--methods needs at least one method, such as {defaults.PAPER_METHODS}: got {text!r}.")
    return methods


def method_recipe(word: str, recipe: Recipe = Recipe()) -> Recipe:
    """A recipe with the method, the steps and the options of a word.

    >>> method_recipe("eap-gp+stride=unit+steps=3").steps
    3
    """
    name, *texts = word.split("+")
    options = parse_options(texts)
    if "steps" in options:  # checked as an option of the method, which may have none
        find_method(name).options({"steps": options["steps"]})
    return recipe.changed(method=name, steps=options.pop("steps", None), options=options)


def method_options(recipe: Recipe) -> dict[str, Any]:
    """All options of a recipe's method, checked."""
    method = find_method(recipe.method)
    return method.options({**recipe.options, **({} if recipe.steps is None else {"steps": recipe.steps})})


def method_label(recipe: Recipe) -> str:
    """The method of a recipe in tables: ``eap-gp+stride=unit``."""
    values = {**recipe.options, **({} if recipe.steps is None else {"steps": recipe.steps})}
    texts = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in values.items()]
    return "+".join([recipe.method, *texts])


@dataclass(frozen=True)
class Study:
    """Tasks x methods x selections x sizes x seeds; ``None`` leaves the choice to the table or figure."""

    recipe: Recipe = Recipe(examples=defaults.EXAMPLES)  # the fields that all circuits share
    tasks: tuple[str, ...] | None = None  # names, or files of the user's own pairs
    methods: tuple[str, ...] = words(defaults.PAPER_METHODS)  # each with its options, as selections
    selections: tuple[str, ...] = words(defaults.PAPER_SELECTIONS)
    sizes: tuple[Size, ...] | None = None  # a size without a field is left to the selection, as in ``find``
    grid: str = defaults.GRID  # the sparsities where there are no sizes
    seeds: tuple[int, ...] = (defaults.SEED,)
    limits: Limits = Limits()
    steps: tuple[int, ...] = whole_numbers(defaults.PAPER_STEPS, "--steps")  # of the heat map

    def __post_init__(self) -> None:
        for name in self.tasks or ():
            check_task(*_task_and_data(self.recipe, name))
        if self.recipe.metric is not None:
            find_metric(self.recipe.metric)
        for selection in self.selections:
            find_selection(selection)
        for method in self.methods:
            check_method(method)
        ABLATIONS.find(self.recipe.ablation)
        check_choice("grid", self.grid, GRIDS)
        for field, value in self.sizes or ():
            if field == "sparsity":
                check_sparsity(value)

    @property
    def task_names(self) -> tuple[str, ...]:
        return PAPER_TASKS if self.tasks is None else self.tasks

    @property
    def measures_mib(self) -> bool:
        """Whether the circuits have the sizes that MIB's areas are computed from."""
        return self.grid == defaults.MIB_GRID and self.sizes is None

    def at(self, task: str, method: str | None = None, seed: int | None = None) -> Recipe:
        """The recipe on a task, by a method."""
        name, data = _task_and_data(self.recipe, task)
        seed = self.seeds[0] if seed is None else seed
        recipe = self.recipe.changed(task=name, data=data, seed=seed)
        return recipe if method is None else method_recipe(method, recipe)

    def recipes(
        self, task: str, sizes: Sequence[Size], methods: Sequence[str] = (), selections: Sequence[str] = ()
    ) -> Iterator[Recipe]:
        """The recipes of all circuits on a task: by seed, selection, method and size."""
        lists = self.seeds, selections or self.selections, methods or self.methods
        for (seed, selection, method), (field, value) in product(product(*lists), sizes):
            size = {field: value} if field else {}
            yield self.at(task, method, seed).changed(selection=selection, **size)


def _task_and_data(recipe: Recipe, task: str) -> tuple[str | None, str | None]:
    """The name of a task, unless it is the user's own data, and the file of that data."""
    if recipe.data is not None:
        return None if task == CUSTOM else task, recipe.data
    return (None, task) if Path(task).suffix.lower() in SUFFIXES else (task, None)
