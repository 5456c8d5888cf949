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

# What is typed, the exit code, and some words of the error. MODEL, CIRCUIT, FILE, BROKEN and NOTHING are paths.
MISTAKES = {
    "an unknown command": (["fnd"], 2, "Did you mean 'find'"),
    "an unknown flag": (["find", "--edgs", "5"], 2, "--edgs"),
    "an unknown task": (["find", "--task", "iou"], 2, "Did you mean 'ioi'"),
    "an unknown method": (["find", "--method", "eap-igg"], 2, "Did you mean 'eap-ig'"),
    "an unknown selection": (["find", "--selection", "topp"], 2, "Did you mean 'top'"),
    "an unknown metric": (["find", "--metric", "lk"], 2, "there is no metric 'lk'"),
    "an unknown ablation": (["find", "--ablation", "noise"], 2, "there is no ablation 'noise'"),
    "a value of the recipe": (["find", "--sparsity", "1.5"], 2, "--sparsity must be a number, at least 0 and below 1"),
    "two sizes": (["find", "--edges", "5", "--sparsity", "0.5"], 2, "--edges and --sparsity each set the size"),
    "too many edges": (["find", "--model", "MODEL", "--examples", "2", "--edges", "9999"], 2, "from 1 to"),
    "no batch": (["find", "--batch-size", "0"], 2, "--batch-size"),
    "steps beyond reason": (["find", "--steps", "9" * 20], 2, "steps must be a whole number from 1 to 10,000"),
    "an option without a value": (["find", "-o", "stride"], 2, "NAME=VALUE"),
    "an option of no method": (["find", "-o", "strid=matched"], 2, "no option 'strid'"),
    "an option of neither": (
        ["find", "--selection", "learned+rate=0.2", "-o", "stps=3"],
        2,
        "neither the method 'eap-ig' nor the selection 'learned' has an option 'stps'. Did you mean 'steps'?",
    ),
    "a value of an option": (["find", "-o", "end=nowhere"], 2, "the option end of"),
    "a metric without a function": (["find", "--metric", "mine.py"], 2, "as in mine.py:my_metric"),
    "a metric of no file": (["find", "--metric", "nothing.py:f"], 1, "there is no such file nothing.py"),
    "kl at the clean prompt": (["find", "--metric", "kl", "--method", "eap"], 2, "all scores would be zero"),
    "kl with gim": (["find", "--metric", "kl", "--method", "gim"], 2, "all scores would be zero"),
    "no data": (["find", "--data", "nothing.csv"], 1, "there is no file nothing.csv"),
    "no plug-in": (["find", "--plugin", "nothing.py"], 1, "there is no such file nothing.py"),
    "a file for a folder": (["find", "--out", "FILE"], 2, "--out has to be a folder"),
    "no model": (["find", "--model", "./nowhere"], 1, "there is no file or folder"),
    "an unknown device": (["find", "--model", "MODEL", "--device", "abacus"], 1, "abacus"),
    "a task of a curve": (["curve", "--task", "oio"], 2, "there is no task 'oio'"),
    "the data of a curve": (["curve", "--data", "nothing.csv"], 1, "there is no file nothing.csv"),
    "a grid": (["curve", "--grid", "mob"], 2, "--grid must be paper or mib: got 'mob'. Did you mean 'mib'?"),
    "the task of a check": (["check", "--task", "oio"], 2, "there is no task 'oio'"),
    "an unknown list": (["ls", "method"], 2, "LIST must be models, tasks, methods, selections, metrics, ablations"),
    "an unknown split": (["eval", "CIRCUIT", "--split", "tset"], 2, "Did you mean 'test'?"),
    "no circuit": (["eval", "NOTHING"], 1, "there is no file"),
    "a damaged circuit": (["eval", "BROKEN"], 1, "cannot be read as a gradpath circuit"),
}
READ_A_MODEL = ("too many edges", "no model", "an unknown device")


def never(*_, **__):
    raise AssertionError("a model was read")


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_one_sentence_before_a_model_is_read(run, model_folder, tmp_path, monkeypatch, kind):
    if kind not in READ_A_MODEL:
        monkeypatch.setattr("gradpath.model.load.load_model", never)
    (tmp_path / "file").write_text("")
    (tmp_path / "broken.json").write_text('{"gradpath_circuit": 1, "edges": [')
    places = {"MODEL": model_folder, "FILE": tmp_path / "file", "BROKEN": tmp_path / "broken.json"}
    arguments, code, words = MISTAKES[kind]
    ran = run(*(places.get(argument, argument) for argument in arguments))
    assert (ran.code, ran.out) == (code, ""), ran.err
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
