"""The circuits of the literature: their counts, their edges rebuilt from the rules, and the comparison."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from gradpath.circuit import Circuit
from gradpath.paper.circuits import SHAPE, compare, manual_circuits, nodes_of

CIRCUITS = {circuit.name: circuit for circuit in manual_circuits()}


def heads(text: str) -> list[str]:
    return ["a{}.h{}".format(*name.split(".")) for name in text.split()]


def joined(sources: list[str], targets: list[str], kinds: str = "") -> set[str]:
    """All edges from sources to targets that the graph has, into the given inputs of heads."""
    ends = [f"{t}<{kind}>" for t in targets if t[0] == "a" for kind in kinds]
    ends += [target for target in targets if target[0] != "a"]
    position = {name: i for i, name in enumerate(SHAPE.sources)}
    reach = dict(zip(SHAPE.targets, SHAPE.sources_before_target.tolist(), strict=True))
    return {f"{u}->{v}" for u, v in product(sources, ends) if position[u] < reach[v]}


def test_ioi_has_26_nodes_and_215_edges():
    assert (len(CIRCUITS["ioi"].nodes), len(CIRCUITS["ioi"].edges)) == (26, 215)
    assert CIRCUITS["ioi"].uncounted == {"input", "logits", "m11"}


def test_greater_than_has_19_nodes_and_240_edges():
    assert (len(CIRCUITS["greater_than"].nodes), len(CIRCUITS["greater_than"].edges)) == (19, 240)
    assert CIRCUITS["greater_than"].uncounted == {"input", "logits"}


def test_the_ioi_edges_are_those_of_the_rules():
    movers = heads("9.9 10.0 9.6 10.10 10.6 10.2 10.1 11.2 9.7 9.0 11.9")
    negative, inhibition = heads("10.7 11.10"), heads("7.3 7.9 8.6 8.10")
    induction, duplicate, previous = heads("5.5 5.8 5.9 6.9"), heads("0.1 0.10 3.0"), heads("2.2 4.11")
    late = [name for name in movers if not name.startswith("a9")]
    rules = [
        joined(["input"], previous + duplicate + inhibition, "qkv"),
        joined(["input"], movers + negative, "kv"),
        joined(previous, induction, "q"),
        joined(duplicate, induction, "kv"),
        joined(heads("5.5 5.8 5.9"), heads("6.9"), "q"),
        joined(induction, inhibition, "kv"),
        joined(inhibition, movers + negative, "q"),
        joined(heads("9.6 9.9 9.0 9.7"), late, "q"),
        joined(movers + negative, ["logits"]),
        {"a9.h7->m11", "m11->logits"},
    ]
    assert CIRCUITS["ioi"].edges == set().union(*rules)


def test_the_greater_than_edges_are_those_of_the_rules():
    low = [*heads("0.3 0.5 0.1"), "m0", "m1", "m2", "m3"]
    mid, high = heads("5.1 5.5 6.1 6.9 7.10 8.8 8.11 9.1"), ["m8", "m9", "m10", "m11"]
    rules = [
        joined(["input"], low, "qkv"),
        joined(low, mid, "qkv"),
        joined(low[2:], low[3:]),
        joined(mid + high, ["logits"]),
        joined(mid + high, high),
    ]
    assert CIRCUITS["greater_than"].edges == set().union(*rules)


@pytest.mark.parametrize("name", sorted(CIRCUITS))
def test_every_edge_is_one_of_gpt2_small(name):
    for edge in CIRCUITS[name].edges:
        SHAPE.index(edge)
    assert CIRCUITS[name].nodes <= nodes_of(CIRCUITS[name].edges)


def test_the_manual_circuit_itself_is_found_in_full():
    manual = CIRCUITS["ioi"]
    index = torch.tensor([SHAPE.index(edge) for edge in sorted(manual.edges)])
    assert set(compare(Circuit(SHAPE, index, torch.ones(len(index))), manual).values()) == {1}


def test_precision_and_recall_by_hand():
    manual = CIRCUITS["greater_than"]
    found = ["input->m0", "m0->a5.h1<q>", "a5.h1->logits", "input->m5"]
    index = torch.tensor([SHAPE.index(edge) for edge in found])
    shares = compare(Circuit(SHAPE, index, torch.ones(4)), manual)
    assert (shares["edge_precision"], shares["edge_recall"]) == (3 / 4, 3 / 240)
    assert (shares["node_precision"], shares["node_recall"]) == (2 / 3, 2 / 19)


def test_nothing_found_has_no_precision():
    nothing = Circuit(SHAPE, torch.zeros(0, 2, dtype=torch.long), torch.zeros(0))
    assert compare(nothing, CIRCUITS["ioi"])["edge_precision"] is None
