r"""The statistics of the tests: from measured values to "yes", "no" or "undecided", without a model.

Each function holds its level: if the claim is false, it says "yes" in at most 5% of the cases, and if it is true, "no"
in at most 5%. ``benchmarks/levels.py`` simulates this with the functions of this file; docs/test.md has its table.

Means over examples are bounded by Gaffke's bound (2005; Learned-Miller and Thomas 2019, arXiv 1905.06208)::

    bound = quantile of  (sum of w_i x_i + w_worst x_worst) / (sum of all w),  w exponential, one for each example
            and one for the worst example that there could be

For values of 0 and 1 it is Clopper's and Pearson's exact bound, so it holds where a circuit fails on a few examples
that may not be among those measured. Neither a bootstrap nor a t interval does: without a failure in the sample, they
have no width. The worst example is one that loses its whole behaviour (or doubles it), or the worst that was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Decision = Literal["yes", "no", "undecided"]
Values = Float[Tensor, " example"]
LEVEL = 0.05
DRAWS = 2000
WEIGHTS_AT_ONCE = 2**22
MULTIPLES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # of the number of examples: those that would be enough
AS_GOOD = 0.5  # the share of random circuits that refutes that a circuit is better


@dataclass(frozen=True)
class Ratio:
    """A ratio of two means over examples, such as the faithfulness, and the range of what one example may be.

    Args:
        above: The numerator of every example.
        below: The denominator.
        least: What the worst example has in the place of 1, at the lower end.
        most: The same at the upper end.
    """

    above: Values
    below: Values
    least: float = 0.0
    most: float = 2.0

    def repeated(self, times: int) -> Ratio:
        """The same examples several times: what a larger sample like this one would be."""
        return Ratio(self.above.repeat(times), self.below.repeat(times), self.least, self.most)

    def draws(self, seed: int) -> tuple[Tensor, Tensor]:
        """The ratio under random weights, with a worst example at the lower end, and with one at the upper end."""
        above, below = self.above.double(), self.below.double()
        n, unit = len(above), below.mean()
        value = above.mean() / unit
        off = above - value * below
        lowest = min(value * unit + off.min(), self.least * unit, self.most * unit)
        highest = max(value * unit + off.max(), self.least * unit, self.most * unit)
        columns, parts = torch.stack([above, below], 1), []
        size = max(1, WEIGHTS_AT_ONCE // n)
        for part, at in enumerate(range(0, DRAWS, size)):
            weights = _weights(min(size, DRAWS - at), n + 1, seed + 2 * part)
            total, extra = weights[:, :n] @ columns, weights[:, n]
            bottom = total[:, 1] + extra * unit
            ends = torch.stack([(total[:, 0] + extra * end) / bottom for end in (lowest, highest)])
            parts.append(ends.sort(0).values if unit < 0 else ends)
        low, high = torch.cat(parts, 1).unbind(0)
        return low, high


@lru_cache(maxsize=4)  # of a test's bounds, most are of as many examples
def _weights(rows: int, n: int, seed: int) -> Float[Tensor, "draw example"]:
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return torch.empty(rows, n, dtype=torch.float64, device="cpu").exponential_(generator=generator)


def bounds(ratio: Ratio, level: float = LEVEL) -> tuple[float, float]:
    """A lower and an upper bound of a ratio, each with this level: together a 90% interval at 5%."""
    low, high = ratio.draws(seed=0)
    return float(low.quantile(level)), float(high.quantile(1 - level))


def difference_bounds(first: Ratio, second: Ratio, level: float = LEVEL) -> tuple[float, float]:
    """A lower and an upper bound of the first ratio minus the second, which other examples have."""
    (low, high), (other_low, other_high) = first.draws(seed=0), second.draws(seed=1)
    return float((low - other_high).quantile(level)), float((high - other_low).quantile(1 - level))


def within(low: float, high: float, least: float, most: float) -> Decision:
    """Whether a value with these bounds is between two limits."""
    if least <= low and high <= most:
        return "yes"
    return "no" if high < least or low > most else "undecided"


def all_of(decisions: Sequence[Decision]) -> Decision:
    """The decision on several claims at once: "yes" if all hold, "no" if one does not."""
    if "no" in decisions:
        return "no"
    return "undecided" if "undecided" in decisions else "yes"


def rank_test(value: float, others: Sequence[float]) -> tuple[float, Decision]:
    """Whether a value is lower than those of random circuits.

    The null is that the circuit is one of the random ones. "no" takes half of them to be as good: if at most 5% of all
    are, this does not happen by chance.

    Returns:
        The p value, which is the share of values that are as low, the circuit's own included; and the decision.

    >>> rank_test(0.1, [0.5] * 19)
    (0.05, 'yes')
    """
    as_good = sum(other <= value for other in others)
    p = (1 + as_good) / (1 + len(others))
    return p, "yes" if p <= LEVEL else "no" if as_good >= AS_GOOD * len(others) else "undecided"


def sign_test(wins: Int[Tensor, "*test"], losses: Int[Tensor, "*test"]) -> Float[Tensor, "*test"]:
    """The p value of at least so many wins, if wins and losses are equally likely.

    >>> sign_test(torch.tensor([6, 0, 0]), torch.tensor([0, 6, 0])).numpy().round(4).tolist()
    [0.0156, 1.0, 1.0]
    """
    from scipy.special import bdtrc

    return torch.from_numpy(bdtrc(wins.double().numpy() - 1, (wins + losses).numpy(), 0.5))


def needed_edges(
    losses: Float[Tensor, "example edge"], share: float
) -> tuple[Decision, Bool[Tensor, " edge"], Bool[Tensor, " edge"]]:
    """Whether at least this share of edges is needed, and which edges clearly are or clearly are not.

    An edge is needed if, of the examples that it changes, more are further from the model without it than closer: a
    sign test, which assumes nothing about the size of the losses. With m edges, of which a = (1 - share) m may be idle,
    "yes" takes m - a edges that are needed at a level of 5% / (a + 1). If k > a edges are idle, k - a of them have to
    be mistaken for that, which by Markov's inequality has a probability of at most 5%. "no" takes more than a edges
    that are idle at a level of 5% / (m - a). An edge that changes no example is idle.

    Args:
        losses: How much further each example is from the model without each edge.
        share: The least share of edges.

    Returns:
        The decision, the edges that are needed, and those that are idle.
    """
    m = losses.shape[1]
    spared = int((1 - share) * m + 1e-9)
    worse, better = (losses > 0).sum(0).cpu(), (losses < 0).sum(0).cpu()
    needed = sign_test(worse, better) <= LEVEL / (spared + 1)
    idle = (sign_test(better, worse) <= LEVEL / (m - spared)) | (worse + better == 0)
    if int(needed.sum()) >= m - spared:
        return "yes", needed, idle
    return "no" if int(idle.sum()) > spared else "undecided", needed, idle


def mean_overlap(members: Bool[Tensor, "circuit item"], level: float = LEVEL) -> tuple[float, float, float]:
    """The mean pairwise Jaccard index of several circuits, with a lower and an upper bound by the jackknife.

    Args:
        members: The edges or nodes of each circuit.
        level: The level of each bound.

    Returns:
        The mean and the two bounds.
    """
    from scipy.special import stdtrit

    inside = members[:, members.any(0)].float()
    both, sizes = (inside @ inside.T).double(), inside.sum(1).double()
    index = both / (sizes[:, None] + sizes - both).clamp(min=1)
    n = len(index)
    rows = index.sum(1) - index.diagonal()
    mean = float(rows.sum() / (n * (n - 1)))
    if n < 3:
        return mean, 0.0, 1.0
    without = (rows.sum() - 2 * rows) / ((n - 1) * (n - 2))
    reach = float(stdtrit(n - 1, 1 - level)) * float(((n - 1) / n * (without - without.mean()).square().sum()).sqrt())
    return mean, mean - reach, mean + reach


def enough_examples(n: int, decide: Callable[[int], Decision]) -> int | None:
    """How many examples would be enough to decide, if they are like those that were measured.

    Args:
        n: The number of examples.
        decide: The decision on the measured examples, repeated so many times.

    Returns:
        The number of examples, or None if even many more would not decide.
    """
    return next((n * times for times in MULTIPLES if decide(times) != "undecided"), None)
