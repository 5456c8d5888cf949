"""MIB's areas against sums by hand, and against circuits measured one by one."""

from __future__ import annotations

import pytest
import torch
from small_models import prompts

from gradpath.attribution.attribute import attribute
from gradpath.defaults import MIB_RANKINGS
from gradpath.evaluation import evaluate, mib
from gradpath.graph import Graph
from gradpath.selection import rank, select

TASK = prompts([6, 9, 6, 7, 9], [[0], [4], [2, 3, 5], [6], [1, 8]])


def by_hand(faithfulness: list[float]) -> tuple[float, float]:
    """The benchmark's loop: trapezoids between neighbouring fractions, none left out, no logarithm."""
    under = off = 0.0
    for i in range(9):
        width = mib.FRACTIONS[i + 1] - mib.FRACTIONS[i]
        under += width * (faithfulness[i] + faithfulness[i + 1]) / 2
        off += width * (abs(1 - faithfulness[i]) + abs(1 - faithfulness[i + 1])) / 2
    return under, off


def areas(faithfulness: list[float]) -> mib.Areas:
    return mib.areas(torch.ones(1), torch.zeros(1), [torch.tensor([x]) for x in faithfulness])


def test_areas_are_sums_of_trapezoids():
    values = torch.rand(9, generator=torch.Generator().manual_seed(3)).tolist()
    found = areas(values)
    assert (found.cpr, found.cmd) == pytest.approx(by_hand([*values, 1.0]))


def test_the_model_itself_has_the_whole_area_and_no_distance():
    assert areas([1.0] * 9).cpr == pytest.approx(0.999)
    assert areas([1.0] * 9).cmd == 0
    assert areas([2.0] * 9).cmd == pytest.approx(areas([0.0] * 9).cmd)  # too strong is off, too


def test_edges_are_rounded_down_as_in_the_benchmark():
    gpt2 = Graph(12, 12)
    counts = [mib.edges_at(gpt2, fraction) for fraction in mib.FRACTIONS]
    assert counts == [32, 64, 162, 324, 649, 1624, 3249, 6498, 16245, 32491]


@pytest.mark.parametrize("how", MIB_RANKINGS)
def test_measure_equals_circuits_measured_one_by_one(gpt2, how):
    scores = attribute(gpt2, TASK, "eap-ig")
    order = rank(scores, how)
    circuits = [order.circuit(mib.edges_at(gpt2.graph, fraction)) for fraction in mib.FRACTIONS[:-1]]
    found = mib.areas_of(evaluate(gpt2, circuits, TASK, batch_size=2))
    values = []
    for fraction in mib.FRACTIONS:
        n = max(1, int(fraction * gpt2.graph.n_edges))
        values.append(evaluate(gpt2, select(scores, n, selection=how), TASK).faithfulness)
    assert found.faithfulness == pytest.approx(values, abs=1e-4)  # also at all edges, which is not run
    assert (found.cpr, found.cmd) == pytest.approx(by_hand(values), abs=1e-4)
    assert found.cpr_interval[0] <= found.cpr <= found.cpr_interval[1]
    assert found.cmd_interval[0] <= found.cmd <= found.cmd_interval[1]
