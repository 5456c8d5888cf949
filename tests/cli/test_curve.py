"""``gradpath curve`` in a terminal: a table that fits, and the name of the report."""

from __future__ import annotations

import json
import re

import pytest

import gradpath as gp
from gradpath.study.outcome import percent

TYPED = ("--task", "ioi", "--examples", "4", "--sparsities", "0.5,0.2")


@pytest.fixture(scope="module")
def curve(run, model_folder, tmp_path_factory):
    """A curve with the default method and selection, and its folder."""
    out = tmp_path_factory.mktemp("curve") / "out"
    done = run("curve", "--model", model_folder, *TYPED, "--out", out)
    assert done.code == 0, done.err
    return done, out


def test_a_table_fits_and_names_the_report(curve):
    done, out = curve
    rows = json.loads((out / "curve.json").read_text())["rows"]
    assert max(map(len, done.out.replace(str(out), "OUT").splitlines())) <= 79
    assert "|" not in done.out
    assert "eap-ig, refined" in done.out
    for row in rows:
        assert f" {percent(row['faithfulness'])} " in done.out
        assert f"{row['error']:.3f}" in done.out
    assert f"Open {out / 'report.html'} in a browser." in done.out


def test_the_report_opens_on_the_selection_that_was_measured(curve, model_folder):
    _, out = curve
    text = (out / "report.html").read_text()
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    [shown] = data["runs"]
    assert data["chosen"]["how"] == "saved"
    saved = shown["orders"]["saved"]
    assert (saved["how"], {point["how"] for point in shown["curve"]}) == ("refined", {"refined", "random"})
    sizes = sorted(point["requested"] for point in shown["curve"])
    assert (saved["smallest"], saved["size"]) == (sizes[0], sizes[-1])
    [order] = (out / "cells").glob("order-*")
    model = gp.load_model(str(model_folder))
    train = gp.load_task("ioi", model, n=4, split="train")
    expected = gp.select(gp.attribute(model, train), sizes[0], model=model, task=train, prune=False)
    assert json.loads(order.read_text())["value"]["edges"][: sizes[0]] == expected.flat.tolist()


def test_without_a_folder_it_says_how_to_keep_the_result(run, model_folder):
    done = run("curve", "--model", model_folder, *TYPED, "--selection", "top")
    assert done.code == 0
    assert "give a folder with --out" in done.out
    assert "report.html" not in done.out


def test_a_curve_compares_methods_in_pairs(run, model_folder):
    options = ("--model", model_folder, "--methods", "eap,eap-ig", "--selection", "top", "--sparsities", "0.9,0.5,0.2")
    told = run("curve", *options, "--examples", 10)
    assert told.code == 0, told.err
    assert re.search(r"Mean error minus that of eap(-ig)?, top, on the same examples \[95% interval\]", told.out)
    assert "-0.0%" not in told.out
