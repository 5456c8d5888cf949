"""Progress in counted work: what is counted, and that a bar ends where it should."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from small_models import prompts, tiny_model

import gradpath as gp
from gradpath.attribution.attribute import attribute, phase_of
from gradpath.attribution.methods import METHODS, find_method
from gradpath.evaluation import evaluate
from gradpath.runtime import progress
from gradpath.runtime.progress import ALMOST, Job, Phase
from gradpath.sweep import units

TASK = prompts([6, 9, 6, 7], [[0], [4], [2, 3], [6]])


@dataclass
class Tape:
    """A bar that remembers."""

    said: list[str] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)

    def describe(self, what):
        self.said.append(what)

    def advance(self, price):
        self.steps.append(price)


def test_a_phase_moves_while_it_is_counted_and_ends_at_its_total():
    tape = Tape()
    with Job(tape).phase(Phase("something", units=10, price=2.0)):
        progress.count(3)
        assert sum(tape.steps) == 6
        progress.count(100)  # more than expected
        assert sum(tape.steps) == pytest.approx(ALMOST * 20)
    assert sum(tape.steps) == pytest.approx(20)
    assert tape.said == ["something"]
    progress.count(5)  # nobody listens any more
    assert sum(tape.steps) == pytest.approx(20)


def test_a_phase_that_fails_leaves_nobody_listening():
    tape = Tape()
    with pytest.raises(ZeroDivisionError), Job(tape).phase(Phase("something", 10)):
        raise ZeroDivisionError
    progress.count(5)
    assert tape.steps == []


def counted(work):
    """The units that some work counts."""
    tape = Tape()
    with Job(tape).phase(Phase("", 1e12)):
        work()
    return sum(tape.steps[:-1])


def options_of(name):
    return {"edges": 20} if name == "exact" else {}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_methods_count_about_what_they_announce(name):
    """Within a factor of two, what a bar needs to be believed, or four for paths that look around before they step.

    One batch, so that padding plays no part.
    """
    model, task = tiny_model("gpt2"), prompts([7] * 4, [[2]] * 4)
    options = find_method(name).options(options_of(name))
    expected = phase_of(model, task, find_method(name), options).units
    got = counted(lambda: attribute(model, task, name, **options_of(name)))
    factor = 4 if name in ("eap-average", "eap-moves") else 2.5 if name == "exact" else 2
    assert expected / factor <= got <= factor * expected


def test_every_batch_is_counted_whatever_its_size():
    model = tiny_model("gpt2")
    circuit = gp.select(attribute(model, TASK), 30)
    whole = counted(lambda: evaluate(model, circuit, TASK))
    assert whole > 2 * model.arch.n_layers * len(TASK)
    assert counted(lambda: evaluate(model, [circuit] * 5, TASK)) > whole
    assert units(model, TASK, 2.0) > 0


def test_a_bar_is_shown_where_it_is_asked_for(capsys):
    model = tiny_model("gpt2")
    scores = attribute(model, TASK, progress=True)
    shown = capsys.readouterr().err
    assert f"scoring {model.graph.n_edges} edges with eap-ig: 100%" in shown
    evaluate(model, gp.select(scores, 30), TASK, progress=True)
    assert "measuring the circuit: 100%" in capsys.readouterr().err
    gp.explain(model, gp.select(scores, 30), TASK, progress=True)
    assert "measuring what each node does: 100%" in capsys.readouterr().err
    evaluate(model, gp.select(scores, 30), TASK)
    assert capsys.readouterr().err == ""
