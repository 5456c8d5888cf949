"""How often the tests of ``gradpath test`` are wrong, and how often they decide: simulated, without a model.

    python benchmarks/levels.py [--simulations 500] [--results RESULT.json ...]

For each test, kind of data and number of examples: how often a claim that is false, but as close to true as it can be,
is called shown ("wrong yes"), how often one that is just true is called refuted ("wrong no"), and how often a claim
that is clearly true is called shown ("power", on each kind of data; the others are the largest of all kinds). Then the
coverage of the 95% interval of the faithfulness, on the same data and on the examples of saved results
(``Result.save``), drawn again and again.

Normal: an example keeps a share of its behaviour with normal noise. Skewed: with exponential noise, and a long tail
below. Rare failures: most examples keep everything, some nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradpath.evaluation.result import Result, load_result, ratio_interval
from gradpath.verdict.checks import FLOOR, KEPT, MARGIN, NEEDED, RANDOM, SHARED, WEAKEST, WITHOUT, claim
from gradpath.verdict.optional import OTHERS
from gradpath.verdict.statistics import (
    Decision,
    Ratio,
    all_of,
    bounds,
    difference_bounds,
    mean_overlap,
    needed_edges,
    rank_test,
    within,
)

KINDS, SIZES, CIRCUITS = ("normal", "skewed", "rare failures"), (10, 20, 50, 100), (3, 10, 30, 100)
COVERED = (5, 10, 20, 30)
NOISE, EDGES, ITEMS = 0.3, 50, 400
GENERATOR = torch.Generator().manual_seed(0)


def random(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=GENERATOR, dtype=torch.float64)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


def ratio(n: int, kind: str, share: float, least: float = 0.0) -> Ratio:
    """n examples that keep this share of their behaviour on average."""
    behaviour = (0.4 * normal(n)).exp()
    if kind == "rare failures":
        kept = (random(n) < share).double() + 0.02 * normal(n)
    elif kind == "normal":
        kept = share + NOISE * normal(n)
    else:
        kept = share + NOISE * (1 + random(n).log())
    return Ratio(behaviour * kept, behaviour, least, least + 2)


def losses(kind: str, n: int, chance: float, edges: int) -> Tensor:
    """The losses of n examples without an edge: of those that it changes, this share is worse without it."""
    sign = (random(n, edges) < chance).double() * 2 - 1
    if kind == "rare failures":
        return sign * (random(n, edges) < 0.3)
    size = normal(n, edges).abs() if kind == "normal" else 1.0
    return sign * size * (torch.where(sign > 0, 1.0, 9.0) if kind == "skewed" else 1.0)


def floor(kind: str, n: int, share: float) -> Decision:
    return within(*bounds(ratio(n, kind, share)), FLOOR, float("inf"))


def equivalent(kind: str, n: int, share: float) -> Decision:
    return within(*bounds(ratio(n, kind, share)), 1 - MARGIN, 1 + MARGIN)


def left(kind: str, n: int, share: float) -> Decision:
    return within(*bounds(ratio(n, kind, share, WITHOUT)), -float("inf"), KEPT)


def transferred(kind: str, n: int, off: float) -> Decision:
    return within(*difference_bounds(ratio(n, kind, 0.95 - off), ratio(n, kind, 0.95)), -MARGIN, MARGIN)


def specific(kind: str, n: int, left: Sequence[float]) -> Decision:
    """What is left of a task without its circuit, and of other tasks."""
    own, *others = (ratio(n if i == 0 else OTHERS, kind, x, WITHOUT) for i, x in enumerate(left))
    return all_of([claim(partial(difference_bounds, x, own), 0, float("inf"), len(others)) for x in others])


def minimal(kind: str, n: int, idle: int, chance: float = 0.99) -> Decision:
    both = [losses(kind, n, 0.5, idle), losses(kind, n, chance, WEAKEST - idle)]
    return needed_edges(torch.cat(both, 1), NEEDED)[0]


def beats_chance(kind: str, n: int, better: float) -> Decision:
    """The error of a circuit that is a random one, or better than those, on n examples."""
    kept = ratio((RANDOM + 1) * n, kind, 0.1).above.view(RANDOM + 1, n)
    first, *others = (kept - 1).abs().mean(1).tolist()
    return rank_test(first - better, others)[1]


# The claim, and what is simulated: just false, just true, clearly true.
TESTS: dict[str, tuple[Callable[..., Decision], Any, Any, Any]] = {
    f"sufficiency: faithfulness at least {FLOOR}": (floor, FLOOR, FLOOR, 0.9),
    "sufficiency, necessity: better than random circuits": (beats_chance, 0.0, 1.0, 1.0),
    f"equivalence: within {MARGIN}": (equivalent, 1 - MARGIN, 1 - MARGIN, 0.98),
    f"necessity: at most {KEPT} left": (left, KEPT, KEPT, 0.02),
    f"minimality: {NEEDED:.0%} of {WEAKEST} edges needed": (minimal, 3, 2, 0),
    f"transfer: within {MARGIN}": (transferred, MARGIN, MARGIN, 0.0),
    "specificity: 5 other tasks lose less": (specific, (0.4, 0.4, *[0.9] * 4), [0.4] * 6, (0.1, *[0.6] * 5)),
}


def circuits(n: int, noise: float) -> Tensor:
    """The edges of the circuits of n samples whose scores have this noise."""
    scores = torch.linspace(0, 4, ITEMS, dtype=torch.float64).exp()
    order = (scores + noise * normal(n, ITEMS)).argsort(1, descending=True)[:, :EDGES]
    return torch.zeros(n, ITEMS, dtype=torch.bool).scatter_(1, order, True)


def overlap_decision(n: int, noise: float) -> Decision:
    _, low, high = mean_overlap(circuits(n, noise))
    return within(low, high, SHARED, float("inf"))


def noise_at_limit() -> float:
    """The noise with which circuits share just enough edges."""
    low, high = 0.1, 100.0
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_overlap(circuits(2000, middle))[0] > SHARED else (low, middle)
    return low


def share_of(decision: str, simulations: int, decide: Callable[..., Decision], *case: Any) -> float:
    return 100 * sum(decide(*case) == decision for _ in range(simulations)) / simulations


def of_result(n: int, result: Result) -> Ratio:
    rows = torch.randint(len(result.clean_values), (n,), generator=GENERATOR)
    clean, corrupted, circuit = (
        x.double()[rows] for x in (result.clean_values, result.corrupted_values, result.circuit_values)
    )
    return Ratio(circuit - corrupted, clean - corrupted)


def test_row(name: str, simulations: int) -> list[str]:
    """A claim: for each n, wrong yes / wrong no on the kind of data with most of them / the power on every kind."""
    decide, false, true, clear = TESTS[name]
    cases, shares = (("yes", false), ("no", true), ("yes", clear)), []
    for kind in KINDS:
        GENERATOR.manual_seed(0)
        shares.append([[share_of(x, simulations, decide, kind, n, case) for x, case in cases] for n in SIZES])
    return [name, *(cell(*zip(*of_kinds, strict=True)) for of_kinds in zip(*shares, strict=True))]


def cell(wrong_yes: Sequence[float], wrong_no: Sequence[float], power: Sequence[float]) -> str:
    return f"{max(wrong_yes):.3g} / {max(wrong_no):.3g} / {', '.join(f'{x:.3g}' for x in power)}"


def stability_row(simulations: int) -> list[str]:
    """The same for stability, by the number of circuits."""
    GENERATOR.manual_seed(0)
    noise = noise_at_limit()
    cases = (("yes", noise), ("no", noise), ("yes", noise / 3))
    cells = [cell(*([share_of(x, simulations, overlap_decision, n, at)] for x, at in cases)) for n in CIRCUITS]
    return [f"stability: Jaccard index at least {SHARED}", *cells]


def coverage_row(name: str, simulations: int, truth: float, draw: Callable[..., Ratio], *case: Any) -> list[str]:
    """For each n, how often the 95% interval has the true value, and how often that is below and above it."""
    GENERATOR.manual_seed(0)
    cells = [name]
    for n in COVERED:
        below = above = 0
        for _ in range(simulations):
            sample = draw(n, *case)
            low, high = ratio_interval(sample.above, sample.below) or (truth, truth)
            below, above = below + (truth < low), above + (truth > high)
        cells.append(" / ".join(f"{100 * x / simulations:.3g}" for x in (simulations - below - above, below, above)))
    return cells


def result_row(file: str, simulations: int) -> list[str]:
    result = load_result(file)
    return coverage_row(str(result.recipe and result.recipe.task), simulations, result.faithfulness, of_result, result)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for cells in (headings, ["---"] * len(headings), *rows):
        print(f"| {' | '.join(cells)} |", flush=True)
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=500)
    parser.add_argument("--results", nargs="*", default=[])
    options = parser.parse_args()
    n: int = options.simulations
    what = "wrong yes / wrong no / power, %"
    rows = [test_row(name, n) for name in TESTS]
    print_table([what, *(f"n = {size}" for size in SIZES)], rows)
    print_table([what, *(f"{size} circuits" for size in CIRCUITS)], [stability_row(n)])
    rows = [coverage_row(kind, n, 0.8, ratio, kind, 0.8) for kind in KINDS]
    rows += [result_row(file, n) for file in options.results]
    print_table(["coverage / value below / value above, %", *(f"n = {size}" for size in COVERED)], rows)


if __name__ == "__main__":
    main()
