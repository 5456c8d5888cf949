"""Progress bars: where they appear, and what they count."""

from __future__ import annotations

import pytest
from small_models import prompts, tiny_model

import gradpath as gp
from gradpath.runtime import progress
from gradpath.runtime.progress import bars, progress_bar, waiting

TASK = prompts([6, 9, 6, 7], [[0], [4], [2, 3], [6]])


@pytest.fixture
def terminal(capsys, monkeypatch):
    """A function that reads what was written to a terminal, after a check that nothing was written to stdout."""
    monkeypatch.setattr(progress, "_is_terminal", lambda: True)

    def read():
        written = capsys.readouterr()
        assert written.out == ""
        return written.err

    return read


def test_a_terminal_has_a_bar_for_each_phase_counted_in_batches(terminal):
    model = tiny_model("gpt2")
    scores = gp.attribute(model, TASK, batch_size=1, progress=True)
    shown = terminal()
    assert f"scoring {model.graph.n_edges} edges with eap-ig: 100%" in shown
    assert "4/4" in shown
    gp.explain(model, gp.select(scores, 30), TASK, batch_size=2, progress=True)
    shown = terminal()
    assert "measuring what each node does: 100%" in shown
    assert "2/2" in shown


def test_nothing_is_shown_unless_requested(terminal):
    model = tiny_model("gpt2")
    gp.evaluate(model, gp.select(gp.attribute(model, TASK), 30), TASK)
    assert terminal() == ""
    with bars():
        gp.attribute(model, TASK, progress=False)  # what the caller has switched on stays on
    assert "scoring" in terminal()
    gp.attribute(model, TASK)
    assert terminal() == ""


def test_a_log_has_a_line_every_half_minute(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr("tqdm.std.time", lambda: now)
    with bars(), progress_bar("scoring edges", 200) as bar:
        bar._time = lambda: now
        bar.start_t = bar.last_print_t = now
        for second in range(1, 101):
            now = float(second)
            bar.update()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "scoring edges: 30 of 200, about 02:50 left, 00:30 spent",
        "scoring edges: 60 of 200, about 02:20 left, 01:00 spent",
        "scoring edges: 90 of 200, about 01:50 left, 01:30 spent",
    ]
    with bars(), waiting("loading"), progress_bar("scoring edges", 3) as bar:  # a short phase
        bar.update(3)
    assert capsys.readouterr().err == ""


def test_a_bar_below_another_one_writes_plain_lines_to_a_log(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LOG_EVERY", 0)
    with bars(), progress_bar("testing", 2) as outer:
        progress.describe(outer, "testing necessity")
        with progress_bar("measuring", 1) as inner:
            inner.update()
        outer.update()
    written = capsys.readouterr().err
    assert "\x1b" not in written
    assert {line.partition(": ")[0] for line in written.splitlines()} == {"testing necessity", "testing", "measuring"}
    assert ": :" not in written
