"""The recipe: every option of ``find``, once; and the facts that were observed while computing.

The options of the command line, the keywords of ``gp.find``, the keys of a study file and the record in every file
that gradpath writes are the fields of ``Recipe``. Commands that start from a saved circuit begin with the recipe in its
file and replace what the user typed (``Recipe.changed``). So the same question gets the same answer from every command.

A recipe checks the types and ranges of its values. Names of methods, selections, tasks and metrics are checked where
they are used, so that a file that was made with a plug-in can be read without it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Number
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gradpath import defaults
from gradpath.errors import InputError, UsageError, check_choice, did_you_mean

IN_MEMORY = "(in memory)"  # in place of the path of data that was given as a Python object
PROMPT = "prompt"  # the task of a single pair of prompts that the user typed
SIZES = ("faithfulness", "edges", "sparsity", "nodes")  # at most one of them sets the size of the circuit
Split = Literal["held-out", "same", "all", "swapped"]
Dtype = Literal["float32", "bfloat16", "float16", "float64"]


def _option(default: Any, about: str, *, default_text: str = "", metavar: str = "", **limits: Any) -> Any:
    """A field: its default, its sentence for --help and docstrings, and the range of its values.

    ``default_text`` says what happens without it, if that is not a value; ``metavar`` is what --help shows of it.
    """
    extra: dict[str, Any] = {"default_text": default_text, "metavar": metavar}
    return Field(default, description=about, json_schema_extra=extra, **limits)


class Recipe(BaseModel):
    """Every option of ``find``. ``None`` leaves the choice to the method, the task or the model."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())

    model: str | None = _option(None, "Hub name, folder, .gguf file, smollm2 or gemma3-270m.")
    dtype: Dtype | None = _option(None, "Number format of the model.", default_text="float32")
    bos: bool | None = _option(None, "Prepend the BOS token to prompts.", default_text="depends on the family")
    task: str | None = _option(
        None, "A built-in task (gradpath ls tasks).", default_text=f"{defaults.TASK}, unless your own data is given"
    )
    data: str | None = _option(None, "Your own pairs: a .csv or .jsonl file.", metavar="FILE")
    clean: str | None = _option(None, "One prompt instead of a task: the clean one, with --corrupted and --answer.")
    corrupted: str | None = _option(None, "The corrupted prompt, with as many tokens.")
    answer: str | None = _option(None, "The right answer after the clean prompt, a single token such as ' Paris'.")
    wrong: str | None = _option(
        None, "The wrong answer.", default_text="the most likely token after the corrupted prompt"
    )
    metric: str | None = _option(
        None,
        "How the behaviour is measured (gradpath ls metrics), or a function of your own.",
        default_text="the task's own",
        metavar="NAME|FILE.py:FUNCTION",
    )
    first_token: bool | None = _option(
        None, "Compare answers of several tokens by the first token in which they differ."
    )
    examples: int | None = _option(
        None,
        "Pairs for attribution; the same number is held out for evaluation.",
        default_text=f"{defaults.EXAMPLES}; all of your own data, half for each",
        metavar="N",
        ge=1,
    )
    split: Split = _option(
        "held-out",
        "Evaluate on held-out examples, or on the same ones as attribution; all: use every example for both.",
    )
    seed: int = _option(defaults.SEED, "Seed for drawing the examples.", metavar="N", ge=0)
    method: str = _option(defaults.METHOD, "How edges are scored (gradpath ls methods).")
    steps: int | None = _option(
        None, "Number of points on the path.", default_text="depends on the method", metavar="N", ge=1
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Other options of the method.")
    ablation: str = _option(defaults.ABLATION, "How ablated edges are replaced (gradpath ls ablations).")
    selection: str | None = _option(
        None,
        "How edges are selected (gradpath ls selections), as in acdc+threshold=0.01.",
        default_text=defaults.SELECTION,
    )
    resamples: int | None = _option(
        None,
        "Resamples of the examples; the circuit is the consensus of theirs. 1: no resampling.",
        default_text=f"{defaults.RESAMPLES}",
        metavar="N",
        ge=1,
        le=6,
    )
    faithfulness: float | None = _option(
        None,
        "Share of the behaviour to keep: select the smallest circuit that keeps it on the attributed examples.",
        default_text=f"{defaults.FAITHFULNESS}, unless another size is given",
        metavar="SHARE",
        gt=0,
        le=1,
    )
    edges: int | None = _option(None, "Number of edges, instead of a faithfulness.", metavar="N", ge=1)
    sparsity: float | None = _option(
        None, "Share of edges to leave out, instead of a faithfulness.", metavar="SHARE", ge=0, lt=1
    )
    nodes: int | None = _option(None, "Number of heads and MLPs, with all edges between them.", metavar="N", ge=1)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**{name: _plain(value) for name, value in values.items()})
        except ValidationError as problem:
            raise UsageError(_sentence(problem, values)) from None
        if len(given := [f"`{name}`" for name in SIZES if getattr(self, name) is not None]) > 1:
            raise UsageError(
                f"{', '.join(given[:-1])} and {given[-1]} each set the size of the circuit: give one of them."
            )
        typed = [name for name in ("clean", "corrupted", "answer") if getattr(self, name) is not None]
        if typed and (len(typed) < 3 or self.data is not None or self.task not in (None, PROMPT)):
            raise UsageError(
                "one prompt needs `clean`, `corrupted` and `answer`, and neither `task` nor `data`: give these three."
            )
        if self.selection is not None and self.nodes is not None:
            raise UsageError("`selection` selects edges and `nodes` selects nodes: give one of them.")

    def changed(self, **values: Any) -> Recipe:
        """The same recipe with other values of some fields. ``None`` changes nothing.

        A new size replaces the old one, whichever of the four it is.
        """
        new = {name: value for name, value in values.items() if value is not None}
        old = self.recorded
        if new.keys() & {*SIZES}:
            old = {name: value for name, value in old.items() if name not in SIZES}
        return Recipe(**{**old, **new})

    @classmethod
    def default_text(cls, name: str) -> str:
        """What an option is by default, in words; empty if nothing happens without it."""
        field = cls.model_fields[name]
        extra = field.json_schema_extra
        text = extra.get("default_text") if isinstance(extra, dict) else ""
        shown = text or (field.default if field.default_factory is None else None)
        return "" if shown is None else str(shown)

    @property
    def recorded(self) -> dict[str, Any]:
        """The values that are not left open: what files have."""
        return self.model_dump(exclude_none=True)

    @property
    def attributed_split(self) -> str:
        """The split of the task that is attributed."""
        return {"all": "all", "swapped": "test"}.get(self.split, "train")

    @property
    def measured_split(self) -> str:
        """The split of the task that the circuit is measured on."""
        return {"held-out": "test", "all": "all"}.get(self.split, "train")

    def selected(self, selection: str | None, **size: Any) -> Recipe:
        """The same recipe with another selection and size, or none."""
        rest = {name: x for name, x in self.recorded.items() if name not in ("selection", "resamples", *SIZES)}
        return Recipe(**rest, selection=selection, **size)

    @property
    def size(self) -> str | None:
        """The name of the field that sets the size of the circuit, if one does."""
        return next((name for name in SIZES if getattr(self, name) is not None), None)

    def __str__(self) -> str:
        """In one line: ``ioi in smollm2, by eap-ig (5 steps, 100 examples), refined``."""
        numbers = (("step", self.steps), ("example", self.examples))
        counts = [f"{n} {name}{'' if n == 1 else 's'}" for name, n in numbers if n is not None]
        where = " in ".join(filter(None, (self.task, self.model)))
        by = f"by {self.method}" + (f" ({', '.join(counts)})" if counts else "")
        return ", ".join(filter(None, (where, by, self.selection)))


def _plain(value: Any) -> Any:
    """A number of NumPy as one of Python, and a path as text."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.item() if isinstance(value, Number) and hasattr(value, "item") else value


class Facts(BaseModel):
    """What was observed while scores, a circuit or a result were computed. Nothing is decided by it.

    Further facts, such as those on a task's pairs, are kept as they are.
    """

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())

    version: str | None = None  # of gradpath
    weights: str | None = None  # a digest of the model's
    d_model: int | None = None
    examples: int | None = None  # the number that was attributed
    batch_size: int | None = None  # of the largest batch
    passes: dict[str, int | float] = Field(default_factory=dict)  # forward and backward, of one example
    cpu_seconds: float | None = None
    plugins: dict[str, str] = Field(default_factory=dict)  # those that were loaded
    data: dict[str, Any] = Field(default_factory=dict)  # on the pairs: rows read, dropped, notes ...

    @property
    def recorded(self) -> dict[str, Any]:
        """The facts that are known: what files have."""
        return self.model_dump(exclude_defaults=True)

    def with_facts(self, **facts: Any) -> Facts:
        """The same facts and some more."""
        return Facts(**{**self.recorded, **facts})


def record(recipe: Recipe | None, facts: Facts) -> dict[str, Any]:
    """What a file has of a recipe and facts; ``read_record`` gives them back."""
    return {"recipe": None if recipe is None else recipe.recorded, "facts": facts.recorded}


def read_record(content: Mapping[str, Any]) -> tuple[Recipe | None, Facts]:
    """The recipe and the facts of a file, which may contain anything; no recipe if the file has none."""
    recipe, facts = content.get("recipe"), content.get("facts", {})
    for name, part in (("recipe", recipe), ("facts", facts)):
        if not isinstance(part, Mapping | None) or any(not isinstance(key, str) for key in part or ()):
            raise InputError(f"its {name!r} is not an object. Make it again with gradpath find.")
    try:
        return None if recipe is None else Recipe(**recipe), Facts(**facts)
    except (UsageError, ValidationError) as problem:
        sentence = str(problem) if isinstance(problem, UsageError) else _sentence(problem, facts)
        raise InputError(f"its record of how it was made is damaged ({sentence.rstrip('.')}). Make it again.") from None


_BOUNDS = {"ge": "at least {}", "gt": "above {}", "le": "at most {}", "lt": "below {}"}
_KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", dict: "an object"}


def _sentence(problem: ValidationError, values: Mapping[str, Any]) -> str:
    """The first mistake as one sentence: what the field takes, and what it got."""
    error = problem.errors(include_url=False, include_context=False)[0]
    name = str(error["loc"][0]) if error["loc"] else ""
    if error["type"] == "extra_forbidden":
        known = list(Recipe.model_fields)
        return (
            f"there is no option {name!r}.{did_you_mean(name, known)} Options: {', '.join(known)}; those of a method "
            "go into options={'name': value}."
        )
    if problem.title != Recipe.__name__ or name not in Recipe.model_fields:
        return f"{name or 'a value'}: {error['msg']}"
    field = Recipe.model_fields[name]
    alternatives = () if get_origin(field.annotation) in (dict, Literal) else get_args(field.annotation)
    kinds = [kind for kind in (alternatives or (field.annotation,)) if kind is not type(None)]
    choices = [choice for kind in kinds for choice in get_args(kind) if isinstance(choice, str)]
    if choices:
        check_choice(f"`{name}`", values.get(name), [choice for choice in choices if choice != "swapped"])
    bounds = [text.format(getattr(x, key)) for x in field.metadata for key, text in _BOUNDS.items() if hasattr(x, key)]
    expected = [_KINDS.get(kinds[0], "an object"), " and ".join(bounds)]
    return f"`{name}` must be {', '.join(filter(None, expected))}: got {values.get(name)!r}."
