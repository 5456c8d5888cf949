"""``gradpath curve`` in a terminal: a table that fits, and the name of the report."""

from __future__ import annotations

import json

import pytest
import torch

import gradpath as gp
from gradpath.circuit import load_circuit
from gradpath.selection import select_many

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
        assert f"{100 * row['faithfulness']:.1f}%" in done.out
        assert f"{row['error']:.3f}" in done.out
    assert f"Open {out / 'report.html'} in a browser." in done.out


def test_the_report_opens_on_the_selection_that_was_measured(curve, model_folder):
    _, out = curve
    text = (out / "report.html").read_text()
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    [shown] = data["runs"]
    assert data["chosen"]["how"] == "saved"
    order = shown["orders"]["saved"]
    assert (order["how"], {point["how"] for point in shown["curve"]}) == ("refined", {"refined", "random"})
    sizes = sorted(point["asked"] for point in shown["curve"])
    assert (order["smallest"], order["size"]) == (sizes[0], sizes[-1])
    [order] = (out / "orders").iterdir()
    model = gp.load_model(str(model_folder))
    train = gp.load_task("ioi", model, n=4, split="train")
    expected = gp.select(gp.attribute(model, train), sizes[0], model=model, task=train, prune=False)
    assert torch.equal(load_circuit(order).index[: sizes[0]], expected.index)


def test_without_a_folder_it_says_how_to_keep_the_result(run, model_folder):
    done = run("curve", "--model", model_folder, *TYPED, "--selection", "top")
    assert done.code == 0
    assert "give a folder with --out" in done.out
    assert "report.html" not in done.out


def test_acdc_has_a_point_for_each_threshold_next_to_random_circuits_as_large(run, model_folder, tmp_path):
    typed = ("curve", "--model", model_folder, "--task", "ioi", "--examples", "4", "--out", tmp_path)
    typed += ("--methods", "eap", "--selection", "acdc+threshold=0.1,0.01")
    done = run(*typed)
    assert done.code == 0, done.err
    rows, random = (json.loads((tmp_path / "curve.json").read_text())[key] for key in ("rows", "random"))
    model = gp.load_model(str(model_folder))
    train = gp.load_task("ioi", model, n=4)
    scores = gp.attribute(model, train, "eap")
    circuits = select_many(scores, (), how="acdc+threshold=0.1,0.01", model=model, task=train)
    assert [(row["threshold"], row["edges_kept"]) for row in rows] == [
        (threshold, len(circuit)) for threshold, circuit in zip((0.1, 0.01), circuits, strict=True)
    ]
    assert [row["edges_requested"] for row in random] == [row["edges_requested"] for row in rows]
    assert {row["how"] for row in rows} == {"acdc"}
    text = (tmp_path / "report.html").read_text()
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert data["chosen"]["how"] == "saved"  # the page draws a circuit of ACDC, on the curve of all
    assert data["runs"][0]["orders"]["saved"]["how"] == "acdc"
    assert sum(point["how"] == "acdc" for point in data["runs"][0]["curve"]) == 2
    stored = sorted(file.stat().st_mtime_ns for file in (tmp_path / "cells").iterdir())
    assert "     0.1" in run(*typed).out
    assert stored == sorted(file.stat().st_mtime_ns for file in (tmp_path / "cells").iterdir())  # nothing again


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("curve", ["--sparsities", "0.9"], "determines the number of edges itself: leave out --sparsities."),
        ("curve", ["--grid", "mib"], "MIB's areas need circuits of given sizes: use top or signed, or another --grid."),
        (
            ["reproduce", "steps"],
            [],
            "but steps needs circuits of given sizes: use it with curve or reproduce faithfulness.",
        ),
    ],
)
def test_sizes_and_thresholds_cannot_be_combined(run, model_folder, command, options, message):
    words = [command] if isinstance(command, str) else command
    ran = run(*words, "--model", model_folder, "--selection", "acdc+threshold=0.1,0.01", *options)
    assert ran.code == 2
    assert message in ran.error
