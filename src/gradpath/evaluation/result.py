"""The result of an evaluation: the metric of every example, and what follows from it. Saved as readable JSON.

Intervals are over examples, and there are none below ``FEWEST`` of them. Those of one circuit (``ratio_interval``) are
made for few examples: docs/test.md has their coverage. Those of differences are 95% percentiles of bootstraps. Two
intervals that overlap say little when both were measured on the same examples: an example that is hard for one circuit
is hard for the other. So for a difference the same examples are drawn on both sides.

Before a circuit can be faithful to a behaviour, the model has to show it (``does_task``): the right answer is ahead on
the clean prompts, and the metric is higher there than on the corrupted ones. A model at chance has a small and noisy
difference, by which faithfulness is divided: any circuit then keeps any share of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from gradpath.recipe import Facts, Recipe, read_record, record
from gradpath.runtime.files import check_seal, read_json, write_rows
from gradpath.scores import Shown

FEWEST = 5  # examples: with fewer, there is no interval
RESAMPLES = 2000
DRAWN_AT_ONCE = 2**20  # numbers of examples, in bootstrap samples
Cell = Mapping[str, Any]  # of a circuit: see ``study.store.cell_of``
FORMAT = 2
Interval = tuple[float, float]
_LARGEST = torch.finfo(torch.float32).max
RARELY, MOSTLY = 0.5, 0.75  # shares of examples with the right answer ahead: at most, the model guesses; below, it errs
NOT_DONE = "the model does not do this task: faithfulness means nothing here"
UNCLEAR = "it is unclear whether the model does this task"
Done = Literal["yes", "unclear", "no"]


@dataclass(frozen=True, eq=False, repr=False)
class Result(Shown):
    """The result of one circuit on one task: the metric of every example, and what follows from it.

    Args:
        clean_values: The metric of each example on the clean prompt.
        corrupted_values: The metric of each example on the corrupted prompt, or with every node ablated.
        circuit_values: The metric of each example in the circuit.
        edges_requested: The number of edges that were requested.
        edges_kept: The number of edges after pruning.
        clean_prompts: The clean prompts as text.
        corrupted_prompts: The corrupted prompts as text.
        recipe: The model, the examples and the ablation.
        facts: What was observed meanwhile.
        has_answers: Whether the metric is above zero where the right answer is ahead of the wrong one.
    """

    _kind = "result"
    clean_values: Float[Tensor, " example"]
    corrupted_values: Float[Tensor, " example"]
    circuit_values: Float[Tensor, " example"]
    edges_requested: int
    edges_kept: int
    clean_prompts: Sequence[str] = ()
    corrupted_prompts: Sequence[str] = ()
    recipe: Recipe | None = None
    facts: Facts = Facts()
    has_answers: bool = False

    def __repr__(self) -> str:
        numbers = f"faithfulness {self.faithfulness:.1%}, error {self.error:.3f}"
        return f"<Result: {numbers}, {self.edges_kept:,} edges, {len(self.clean_values):,} examples>"

    def __str__(self) -> str:
        n = len(self.clean_values)
        return "\n".join(
            [
                f"faithfulness  {self.faithfulness:.1%}  ({interval_text(self.interval, n, '.1%')})",
                f"error         {self.error:.3f}  ({interval_text(self.error_interval, n, '.3f')})",
                f"metric        clean {self.clean:.3f}, corrupted {self.corrupted:.3f}, circuit {self.circuit:.3f}",
                f"model         {self.behaviour}",
                f"edges         {self.edges_kept:,} after pruning, {self.edges_requested:,} requested",
                f"examples      {n:,}",
            ]
        )

    @property
    def clean(self) -> float:
        """The mean metric on the clean prompts."""
        return float(self.clean_values.mean())

    @property
    def corrupted(self) -> float:
        """The mean metric on the corrupted prompts."""
        return float(self.corrupted_values.mean())

    @property
    def circuit(self) -> float:
        """The mean metric in the circuit."""
        return float(self.circuit_values.mean())

    @property
    def faithfulness(self) -> float:
        """The share of the behaviour that the circuit keeps: 1 is all of it, 0 is none."""
        clean, corrupted, circuit = self._values.mean(-1).unbind(0)
        return float((circuit - corrupted) / (clean - corrupted))

    @property
    def error(self) -> float:
        """The mean distance of an example from the model: 0 is the model's behaviour."""
        clean, corrupted, circuit = self._values.unbind(0)
        return float((circuit - clean).abs().mean() / (clean - corrupted).abs().mean())

    @cached_property
    def interval(self) -> Interval | None:
        """The 95% interval of the faithfulness; None with fewer than five examples."""
        clean, corrupted, circuit = self._changed_values.unbind(0)
        return ratio_interval(circuit - corrupted, clean - corrupted)

    @cached_property
    def error_interval(self) -> Interval | None:
        """The 95% interval of the error; None with fewer than five examples."""
        clean, corrupted, circuit = self._changed_values.unbind(0)
        return ratio_interval((circuit - clean).abs(), (clean - corrupted).abs())

    @property
    def accuracy(self) -> float | None:
        """The share of examples with the right answer ahead on the clean prompt; None for a metric without answers."""
        return float((self.clean_values > 0).double().mean()) if self.has_answers else None

    @cached_property
    def gain_interval(self) -> Interval | None:
        """The 95% interval of the mean metric on the clean prompts minus that on the corrupted ones."""
        gain = self._values[0] - self._values[1]
        return ratio_interval(gain, torch.ones_like(gain))

    @property
    def does_task(self) -> Done:
        """Whether the model does the task: "yes", "unclear" or "no". If it does not, faithfulness means nothing.

        "no" if the gain may be zero or the right answer is not ahead on more than half of the examples, "unclear" if it
        is ahead on less than three quarters or there are too few examples, and "yes" otherwise.
        """
        interval, accuracy = self.gain_interval, self.accuracy
        least = self.clean - self.corrupted if interval is None else interval[0]
        if least <= 0 or (accuracy is not None and accuracy <= RARELY):
            return "no"
        return "unclear" if interval is None or (accuracy is not None and accuracy < MOSTLY) else "yes"

    @property
    def behaviour(self) -> str:
        """How well the model does the task, in one line; unless it clearly does, what follows from that comes first."""
        ahead = "" if self.accuracy is None else f"right answer ahead on {self.accuracy:.0%} of the examples; "
        gain = interval_text(self.gain_interval, len(self.clean_values), ".3f")
        why = f"{ahead}clean - corrupted{':' if self.gain_interval is None else ''} {gain}"
        return why if self.does_task == "yes" else f"{NOT_DONE if self.does_task == 'no' else UNCLEAR} ({why})"

    def to_pandas(self) -> Any:
        """The examples as a pandas DataFrame, one row each.

        Returns:
            The columns clean_prompt and corrupted_prompt; clean, corrupted and circuit, the metric in the three runs;
            and error, the distance of circuit from clean, whose mean is ``result.error``.
        """
        from gradpath.formats.edges import result_table

        return result_table(self)

    def save(self, file: str | Path) -> None:
        """Write JSON with one example per line, atomically."""
        head = {
            "gradpath_result": FORMAT,
            **record(self.recipe, self.facts),
            "edges_requested": self.edges_requested,
            "edges_kept": self.edges_kept,
            "has_answers": self.has_answers,
        }
        prompts = [self.clean_prompts, self.corrupted_prompts] if self.clean_prompts else []
        # Nine digits are enough to give every float32 back exactly.
        values = [[float(f"{value:.9g}") for value in run.tolist()] for run in self._values]
        rows = [list(row) for row in zip(*values, *prompts, strict=True)]
        write_rows(Path(file), head, "examples", rows)

    @cached_property
    def _values(self) -> Tensor:
        """(3, example): clean, corrupted, circuit."""
        return torch.stack([self.clean_values, self.corrupted_values, self.circuit_values]).double()

    @property
    def _changed_values(self) -> Tensor:
        """The values without examples whose metric is the same in all three runs, as for two equal prompts.

        These add nothing to either side of both fractions, but a bootstrap sample of them alone would be 0 / 0.
        """
        clean, corrupted, circuit = self._values.unbind(0)
        size = 1e-4 * (clean - corrupted).abs().mean()  # far above rounding, and too little to matter
        changed = ((clean - corrupted).abs() > size) | ((circuit - corrupted).abs() > size)
        return self._values[:, changed] if changed.any() else self._values


def interval_text(interval: tuple[float, float] | None, n: int, form: str) -> str:
    """``95% interval 0.68 to 0.92``, or that n examples are too few for one."""
    if interval is None:
        return f"{n} example{'' if n == 1 else 's'}: no interval"
    low, high = interval
    return f"95% interval {low:{form}} to {high:{form}}"


def load_result(file: str | Path) -> Result:
    """Read the result that ``Result.save`` wrote; every value is checked.

    Args:
        file: The file.

    Returns:
        The result.
    """
    return read_json(file, _parsed, "a gradpath result", "a file that result.save wrote")


def _parsed(content: Any) -> Result:
    if not isinstance(content, dict) or content.get("gradpath_result") != FORMAT:
        raise ValueError(f'it has no "gradpath_result": {FORMAT}')
    requested, kept, rows = (content[name] for name in ("edges_requested", "edges_kept", "examples"))
    recipe, facts = read_record(content)
    if any(type(count) is not int or count < 0 for count in (requested, kept)):
        raise ValueError(f"edges_requested and edges_kept are numbers of edges: got {requested!r} and {kept!r}")
    if not isinstance(rows, list) or not rows:
        raise ValueError("it has no examples")
    for row in rows:
        if not isinstance(row, list) or len(row) not in (3, 5) or len(row) != len(rows[0]):
            raise ValueError("an example is three numbers and two prompts")
        if not all(type(value) in (int, float) and abs(value) <= _LARGEST for value in row[:3]):
            raise ValueError(f"the metric is a finite number: got {row[:3]!r}")
        if not all(isinstance(prompt, str) for prompt in row[3:]):
            raise ValueError("a prompt is text")
    check_seal(content)
    columns = list(zip(*rows, strict=True))
    clean, corrupted, circuit = (torch.tensor(column, dtype=torch.float32, device="cpu") for column in columns[:3])
    first, second = columns[3:] or ((), ())  # the prompts
    has_answers = content.get("has_answers") is True
    return Result(clean, corrupted, circuit, requested, kept, first, second, recipe, facts, has_answers)


def ratio_interval(
    numerator: Float[Tensor, " example"], denominator: Float[Tensor, " example"], outside: float = 0.05
) -> Interval | None:
    """The interval of a ratio of two means over examples; None with fewer than ``FEWEST`` of them.

    Each end is the outer one of two: a percentile bootstrap whose quantiles are those of Student's t (Hesterberg 2015,
    arXiv 1411.5279), and a studentised bootstrap with the delta method's standard error. The first is too short where
    values are skewed, the second where a few examples dominate the denominator; a plain bootstrap is in both cases.

    Args:
        numerator: The numerator's value of every example.
        denominator: The denominator's; ones for the interval of a mean.
        outside: The share that both tails have together.

    Returns:
        The two ends.
    """
    from scipy.special import ndtr, stdtrit

    n = len(numerator)
    if n < FEWEST:
        return None
    values = torch.stack([numerator, denominator]).double()

    def ratios(drawn: Tensor) -> Tensor:
        above, below = drawn.mean(-1).unbind(0)
        return above / below

    def errors(drawn: Tensor) -> Tensor:
        (above, below), ratio = drawn.unbind(0), ratios(drawn)
        residual: Tensor = above - ratio[..., None] * below
        return residual.std(-1) / below.mean(-1).abs() / math.sqrt(n)

    ratio, error = ratios(values), errors(values)

    def studentised(drawn: Tensor) -> Tensor:
        return (ratios(drawn) - ratio) / errors(drawn).clamp(min=1e-3 * float(error) + 1e-300)

    tail = float(ndtr(-stdtrit(n - 1, 1 - outside / 2) * (n / (n - 1)) ** 0.5))
    (low, high), (below, above) = bootstrap(values, ratios, tail), bootstrap(values, studentised, outside / 2)
    return min(low, float(ratio - above * error)), max(high, float(ratio - below * error))


def bootstrap(
    values: Float[Tensor, "*quantity example"], statistic: Callable[[Tensor], Tensor], tail: float = 0.025
) -> Interval:
    """The interval of a statistic over resampled examples.

    Args:
        values: The quantities of every example.
        statistic: A function of values (*quantity, sample, example) that reduces them to one number per sample.
        tail: The share of samples beyond each end.

    Returns:
        The quantiles at ``tail`` and at 1 - ``tail``: by default those of a 95% interval.
    """
    n = values.shape[-1]
    generator = torch.Generator(device="cpu").manual_seed(0)
    # A part at a time: for a hundred thousand examples, all samples at once would take gigabytes. The numbers
    # drawn are the same. The results are allocated first, or each would fragment the memory of the next part.
    resampled = torch.empty(RESAMPLES, dtype=values.dtype, device="cpu")
    size = max(1, DRAWN_AT_ONCE // n)
    for part in (resampled[at : at + size] for at in range(0, RESAMPLES, size)):
        draws = torch.randint(n, (len(part), n), generator=generator, device="cpu")
        part.copy_(statistic(values[..., draws]))
    ends = torch.tensor([tail, 1 - tail], dtype=resampled.dtype, device="cpu")
    low, high = resampled.quantile(ends).tolist()
    return low, high


def mean_and_interval(values: Float[Tensor, " example"]) -> list[float]:
    """The mean over examples and its 95% interval."""
    return [float(values.double().mean()), *bootstrap(values.double(), lambda drawn: drawn.mean(-1))]


@dataclass(frozen=True)
class Difference:
    """A mean over circuit sizes minus that of another method or selection, with its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def error_difference(ours: Sequence[Cell], theirs: Sequence[Cell]) -> Difference:
    """Our mean error over circuit sizes minus theirs: below zero is better."""
    return _difference([_distances(cells).abs() for cells in (ours, theirs)])


def distance_difference(ours: Sequence[Cell], theirs: Sequence[Cell]) -> Difference:
    """Our mean |1 - NFS| over circuit sizes minus theirs: below zero is better."""
    return _difference([_distances(cells) for cells in (ours, theirs)])


def _distances(cells: Sequence[Cell]) -> Tensor:
    """The distances of every example from clean: of the circuit, and of the corrupted run, (size, 2, example)."""
    runs = [[cell[name] for name in ("values", "corrupted_values", "clean_values")] for cell in cells]
    circuit, corrupted, clean = torch.tensor(runs, dtype=torch.float64, device="cpu").unbind(1)
    return torch.stack([circuit - clean, corrupted - clean], 1)


def _difference(sides: Sequence[Tensor]) -> Difference:
    """Of the ratio of both mean distances, as a mean over sizes."""

    def difference(both: Tensor) -> Tensor:
        numerator, denominator = both.mean(-1).unbind(1)  # (size, ...)
        ratios = (numerator / denominator).abs()
        return ratios[: len(sides[0])].mean(0) - ratios[len(sides[0]) :].mean(0)

    both = torch.cat([*sides])
    return Difference(float(difference(both)), *bootstrap(both, difference))
