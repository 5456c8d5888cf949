"""Progress on stderr: a bar on a terminal, lines in a file."""

from __future__ import annotations

import time

from gradpath.cli import progress
from gradpath.cli.progress import GridBar, Screen
from gradpath.runtime.progress import Phase, count


def test_a_log_has_a_line_a_minute_and_no_bar(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Screen().job(1000.0) as job, job.phase(Phase("scoring [edges]", 1000.0, 1.0)):
        for second in range(200):
            now = float(second)
            count(2.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "scoring [edges]: 12% after 1 min, about 7 min left",
        "scoring [edges]: 24% after 2 min, about 6 min left",
        "scoring [edges]: 36% after 3 min, about 5 min left",
    ]


def test_a_short_job_writes_nothing_to_a_log(capsys):
    with Screen().counting("running", 3) as done, Screen().waiting("loading") as say:
        done(3)
        say("weights")
    assert capsys.readouterr().err == ""


def test_a_long_grid_says_how_many_hours_are_left(monkeypatch, capsys):
    times = iter([0.0, 60.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    with GridBar() as bar:
        bar.begin(600.0)
        bar.start("ioi, eap-ig")
        bar.advance(1.0)
    assert capsys.readouterr().err == "ioi, eap-ig: 0% after 1 min, about 10.0 h left\n"


def test_a_terminal_has_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(progress, "console", lambda: progress.Console(stderr=True, force_terminal=True, width=100))
    with Screen().counting("running", 3) as done:
        done(3)
    err = capsys.readouterr().err
    assert "running" in err
    assert "3/3" in err
