"""What all verbs share: exit codes, one sentence when something fails, and nothing lost."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from types import SimpleNamespace

import pytest
import torch
from covering import some
from launching import environment, gradpath_command

from gradpath.circuit import load_circuit
from gradpath.evaluation.result import Result

WRONG_USAGE = {
    "an unknown command": (["fnd"], "Did you mean 'find'"),
    "an unknown flag": (["find", "--edgs", "5"], "--edgs"),
    "an unknown method": (["find", "--method", "eap-igg"], "Did you mean 'eap-ig'"),
    "an unknown task": (["find", "--model", "MODEL", "--task", "iou"], "Did you mean 'ioi'"),
    "an unknown selection": (["find", "--selection", "topp"], "Did you mean 'top'"),
    "too sparse": (["find", "--sparsity", "1.5"], "--sparsity must be a number, at least 0 and below 1: got 1.5."),
    "no edges": (["find", "--edges", "0"], "--edges must be a whole number, at least 1: got 0."),
    "too many edges": (["find", "--model", "MODEL", "--edges", "9999"], "from 1 to"),
    "two sizes": (
        ["find", "--edges", "5", "--sparsity", "0.5"],
        "--edges and --sparsity each set the size of the circuit: give one of them.",
    ),
    "edges and nodes": (
        ["find", "--selection", "top", "--nodes", "5"],
        "--selection selects edges and --nodes selects nodes",
    ),
    "no batch": (["find", "--batch-size", "0"], "--batch-size"),
    "no steps": (["find", "--steps", "0"], "--steps"),
    "an unknown list": (["ls", "method"], "LIST must be models, tasks, methods, selections, metrics, ablations"),
    "a list like a known one": (["ls", "method"], "got 'method'. Did you mean 'methods'?"),
    "an unknown split": (["find", "--split", "hold-out"], "--split must be held-out, same or all: got 'hold-out'."),
    "an unknown split of a task": (["eval", "CIRCUIT", "--split", "tset"], "Did you mean 'test'?"),
    "an unknown grid": (["curve", "--grid", "mob"], "--grid must be paper or mib: got 'mob'. Did you mean 'mib'?"),
    "an unknown ablation": (["find", "--ablation", "noise"], "there is no ablation 'noise'"),
    "an option without a value": (["find", "-o", "stride"], "NAME=VALUE"),
    "an option of no method": (["find", "--model", "MODEL", "-o", "speed=3", "--examples", "2"], "no option 'speed'"),
    "a file for a folder": (["find", "--out", "FILE"], "--out has to be a folder"),
}


@pytest.mark.parametrize("kind", WRONG_USAGE)
def test_wrong_usage_is_one_sentence_and_exit_2(run, model_folder, tmp_path, kind):
    (tmp_path / "file").write_text("")
    arguments, words = WRONG_USAGE[kind]
    places = {"MODEL": model_folder, "FILE": tmp_path / "file"}
    ran = run(*(places.get(argument, argument) for argument in arguments))
    assert ran.code == 2, ran.err
    assert words in ran.error
    assert ran.out == ""
    assert "Traceback" not in ran.err


FAILURES = {
    "no circuit": (["eval", "MISSING"], "there is no file"),
    "a damaged circuit": (["eval", "BROKEN"], "cannot be read as a gradpath circuit"),
    "no model": (["find", "--model", "./nowhere"], "there is no file or folder"),
    "a missing data file": (["find", "--model", "MODEL", "--data", "MISSING"], "MISSING"),
    "an unknown device": (["find", "--model", "MODEL", "--device", "abacus"], "abacus"),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_a_failure_is_one_sentence_and_exit_1(run, model_folder, tmp_path, kind):
    (tmp_path / "broken.json").write_text('{"gradpath_circuit": 1, "edges": [')
    places = {"MODEL": model_folder, "MISSING": tmp_path / "MISSING", "BROKEN": tmp_path / "broken.json"}
    arguments, words = FAILURES[kind]
    ran = run(*(places.get(argument, argument) for argument in arguments))
    assert ran.code == 1, ran.err
    assert words in ran.error
    assert "Traceback" not in ran.err


def test_a_circuit_of_another_model_is_refused(run, found, tmp_path):
    from small_models import tiny_hf

    _, out = found
    tiny_hf("gpt2").save_pretrained(tmp_path / "other")
    ran = run("eval", out / "circuit.json", "--model", tmp_path / "other")
    assert ran.code == 1
    assert "circuit is of another model" in ran.error


def test_an_error_nobody_thought_of_is_still_one_sentence(run, model_folder, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("by hand")

    monkeypatch.setattr("gradpath.pipeline.attribute_at_steps", broken)
    ran = run("find", "--model", model_folder, "--examples", 2, "--edges", 9)
    assert ran.code == 1
    assert "this is a bug in gradpath (ZeroDivisionError: by hand). Please report it" in ran.error
    assert "Traceback" not in ran.err


def test_results_are_the_same_with_another_batch_size(run, model_folder):
    common = ["find", "--model", model_folder, "--examples", 6, "--edges", 30, "--method", "eap-ig", "--json"]
    one, many = (run(*common, "--batch-size", size).json for size in (1, 6))
    assert one["faithfulness"] == pytest.approx(many["faithfulness"], rel=1e-3)
    assert one["edges_kept"] == many["edges_kept"]


def test_a_task_that_the_model_does_not_do_is_warned_of():
    from gradpath.cli.options import lines_of, numbers_of

    clean, circuit = torch.linspace(1, 2, 12), SimpleNamespace(graph=SimpleNamespace(n_edges=50), core=None)
    for corrupted, word in ((clean + 0.2, "WARNING"), (clean - 2, "  model "), (clean.flip(0), "WARNING")):
        numbers = numbers_of(
            circuit, Result(clean, corrupted, clean, edges_requested=5, edges_kept=5, has_answers=True)
        )
        first, *lines = lines_of({**numbers, "ablation": "corrupted"}, 12)
        assert first.startswith("  WARNING") == (word == "WARNING")
        lines = "\n".join([first, *lines])
        assert word in lines
        assert ("the model does not do this task: faithfulness means nothing here" in lines) == (word == "WARNING")
        assert "right answer ahead on 100% of the examples" in lines


def test_gradpath_alone_shows_its_help(run):
    ran = run()
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == run("--help").out
    assert len(ran.out.splitlines()) > 15


def test_files_do_not_say_where_the_user_keeps_things(run, found, model_folder, monkeypatch, tmp_path):
    """Only paths inside of the working directory, from there, and names."""
    grid = ["curve", "--methods", "eap", "--selection", "top", "--sparsities", "0.5", "--examples", 4]
    monkeypatch.setattr(
        "sys.argv", ["gradpath", *map(str, [*grid, "--model", model_folder, f"--out={tmp_path / 'grid'}"])]
    )
    assert run(*grid, "--model", model_folder, "--out", tmp_path / "grid").code == 0
    _, out = found
    files = [file for folder in (out, tmp_path / "grid") for file in folder.rglob("*") if file.is_file()]
    assert {file.suffix for file in files} >= {".json", ".safetensors", ".html", ".csv", ".md"}
    for file in files:
        content = file.read_bytes()
        for private in (str(model_folder.parent), str(tmp_path), platform.release()):
            assert private.encode() not in content, file
            assert json.dumps(private)[1:-1].replace("/", "\\/").encode() not in content, file
    record = json.loads((tmp_path / "grid" / "curve.json").read_text())
    assert record["model"] == f".../{model_folder.name}"
    assert record["command"].endswith(f"--model .../{model_folder.name} --out=.../grid")


PAIRS = "clean,corrupted,answers,wrong_answers\n" + "".join(
    f"The {x} sat on the,The {y} sat on the, {x}, {y}\n" for x, y in zip("abcdefgh", "bcdefgha", strict=True)
)


@pytest.mark.parametrize("kind", some(["not UTF-8", "an ASCII locale"], ["not UTF-8"]))
def test_names_that_are_not_text_leave_no_run_without_its_report(run, model_folder, tmp_path, kind):
    """In an ASCII locale Python reads every other byte of a name as it reads those that are not UTF-8."""
    data = tmp_path / os.fsdecode(b"pairs-\xff.csv" if kind == "not UTF-8" else "pairs-\u00e9.csv".encode())
    if kind == "an ASCII locale":
        data.write_text(PAIRS)
        command = gradpath_command(
            "find", "--model", model_folder, "--data", data, "--examples", 3, "--selection", "top"
        )
        ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        done = subprocess.run(
            [*command, "--method", "eap", "--edges", "20", "--out", tmp_path / "out"],
            env=environment(**ascii_only),
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        name = "pairs-\u00e9"
    else:
        data.write_text(PAIRS)
        arguments = ["--examples", 3, "--selection", "top", "--method", "eap", "--edges", 20, "--out", tmp_path / "out"]
        ran = run("find", "--model", model_folder, "--data", data, *arguments)
        assert ran.code == 0, ran.err
        name = "pairs-\ufffd"
    assert load_circuit(tmp_path / "out" / "circuit.json").recipe.task == name
    assert f"<title>{name} in " in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_a_working_directory_that_is_gone_is_a_sentence(run, model_folder, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    ran = run("find", "--model", model_folder)
    assert ran.code == 1
    assert "the working directory cannot be used (No such file or directory)" in ran.error
