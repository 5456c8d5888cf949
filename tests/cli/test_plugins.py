"""Plug-ins in the shell: files and installed packages, in every command, and as a part of the keys of stored cells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch

from gradpath import registry
from gradpath.ablation import ABLATIONS
from gradpath.attribution.methods import METHODS
from gradpath.cli import VERBS
from gradpath.cli import gradpath as command_line
from gradpath.formats import FORMATS
from gradpath.model.families import FAMILIES
from gradpath.selection import SELECTIONS
from gradpath.tasks import METRICS, TASKS

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugin"
REGISTRIES = (ABLATIONS, FAMILIES, FORMATS, METHODS, METRICS, SELECTIONS, TASKS)
OF_THE_EXAMPLE = ["--task", "opposites", "--method", "eap-stratified", "--selection", "each-target"]
OF_THE_EXAMPLE += ["--metric", "right-probability"]
QUICK = ["--examples", 4, "--edges", 20]
POINT = """
import gradpath as gp

@gp.path("point")
def point(pair):
    yield pair.corrupted + {fraction} * (pair.clean - pair.corrupted)
"""
# What else can be registered, each in a few lines.
OTHERS = '''
from pathlib import Path
from gradpath.ablation import ablation, ablation_of
from gradpath.formats import FORMATS, Format
from gradpath.model.families import FAMILIES, family

@ablation("half-mean")
def half_mean(model, data, limits):
    """Half of the mean."""
    mean = ablation_of("mean", model, data, limits)
    return type(mean)(mean.input / 2, [x / 2 for x in mean.heads], [x / 2 for x in mean.mlps])

def write_names(content, file: Path, d_model):
    file.write_text("\\n".join(content.need_circuit()))

FORMATS.add("names", Format(".names", "The names of the edges.", write_names), owner=__name__)
family("my-gpt2", "A copy of GPT-2's adapter.")(lambda source: FAMILIES["gpt2"].adapter(source))
'''


@pytest.fixture(autouse=True)
def _own_registries(monkeypatch):
    """What a plug-in registers is taken out again."""
    for one in REGISTRIES:
        len(one)  # the built-in entries are loaded
        monkeypatch.setattr(one, "_entries", dict(one._entries))
    monkeypatch.setattr(registry, "_FILES", {})


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "mine.py") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_every_command_takes_a_plugin():
    for verb in VERBS.keys() - {"push", "pull"}:  # these move files, and look up no name
        command = command_line.get_command(click.Context(command_line), verb)
        options = [word for one in command.params for word in one.opts]
        assert "--plugin" in options, verb


def test_the_example_runs_as_a_file_and_its_circuit_is_measured_again(run, model_folder, tmp_path):
    plugin = ["--plugin", EXAMPLE / "gradpath_example" / "__init__.py"]
    out = tmp_path / "out"
    ran = run("find", "--model", model_folder, *plugin, *OF_THE_EXAMPLE, *QUICK, "--out", out, "--json")
    assert ran.code == 0, ran.err
    assert {key: ran.json[key] for key in ("task", "method", "selection", "metric")} == {
        "task": "opposites",
        "method": "eap-stratified",
        "selection": "each-target",
        "metric": "right-probability",
    }
    circuit = out / "circuit.json"
    again = run("eval", circuit, *plugin, "--examples", 4, "--json")
    assert again.json["faithfulness"] == pytest.approx(ran.json["faithfulness"])
    TASKS.remove("opposites")
    lost = run("eval", circuit)
    assert lost.code == 2
    assert "task 'opposites', which is not built in. Give the plug-in that adds it (__init__.py) with" in lost.error


def test_a_family_of_ones_own_is_checked_and_used_from_its_file(run, model_folder, tmp_path):
    from transformers import AutoTokenizer, NemotronConfig, NemotronForCausalLM

    torch.manual_seed(0)
    shape = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
    small = NemotronConfig(**shape, num_key_value_heads=1, head_dim=8, vocab_size=50257, initializer_range=0.3)
    folder, plugin = tmp_path / "model", ["--plugin", ROOT / "examples" / "nemotron.py"]
    NemotronForCausalLM(small).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_folder).save_pretrained(folder)
    refused = run("check", "--model", folder)
    assert refused.code == 1
    assert "or write an adapter, which is one short file, and name it with --plugin FILE.py" in refused.error
    checked = run("check", "--model", folder, *plugin, "--json")
    assert checked.code == 0, checked.err
    assert checked.json["checks"][0]["what"] == "logits, against transformers"
    found = run(
        "find", "--model", folder, *plugin, "--method", "eap", "--selection", "top", *QUICK, "--out", tmp_path, "--json"
    )
    assert found.json["edges_requested"] == 20
    again = run("eval", tmp_path / "circuit.json", *plugin, "--examples", 4, "--json")
    assert again.json["faithfulness"] == pytest.approx(found.json["faithfulness"])


def test_ablations_formats_and_families_can_be_added(run, model_folder, write, tmp_path):
    plugin = ["--plugin", write(OTHERS)]
    common = ["--model", model_folder, "--method", "eap", "--selection", "top", *QUICK]
    assert "there is no ablation 'half-mean'" in run("find", *common, "--ablation", "half-mean").error
    ran = run("find", *common, *plugin, "--ablation", "half-mean", "--out", tmp_path / "out", "--json")
    assert ran.code == 0, ran.err
    circuit = tmp_path / "out" / "circuit.json"
    again = run("eval", circuit, *plugin, "--examples", 4, "--json")
    assert (again.json["ablation"], again.json["corrupted"]) == ("half-mean", pytest.approx(ran.json["corrupted"]))
    assert run("convert", circuit, tmp_path / "edges.names", *plugin).code == 0
    assert len((tmp_path / "edges.names").read_text().split()) == ran.json["edges_kept"]
    assert "my-gpt2" in run("ls", "models", *plugin).out


def test_cells_are_reused_until_the_plugin_changes(run, model_folder, write, tmp_path):
    out = tmp_path / "out"
    curve = ["curve", "--model", model_folder, "--examples", 4, "--methods", "point", "--selection", "top"]
    curve += ["--sparsities", "0.5", "--out", out, "--json"]

    def measured(fraction: float) -> tuple[list[float], int]:
        ran = run(*curve, "--plugin", write(POINT.format(fraction=fraction)))
        assert ran.code == 0, ran.err
        cells, scores = ([*(out / name).iterdir()] for name in ("cells", "scores"))
        return [row["error"] for row in ran.json["experiments"]["curve"]["rows"]], len(cells) + len(scores)

    first, files = measured(0.5)
    assert measured(0.5) == (first, files)
    second, more = measured(-9.0)
    assert more == 2 * files
    assert second != first


@pytest.mark.slow
def test_the_example_package_is_installed_and_runs(model_folder, tmp_path):
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    copy = tmp_path / "source"  # a build leaves folders behind
    subprocess.run(["cp", "-r", str(EXAMPLE), str(copy)], check=True)
    subprocess.run([*pip, "--target", str(tmp_path / "site"), str(copy)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}

    def run(*command: object) -> str:
        words = [sys.executable, "-m", *map(str, command)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    found = json.loads(
        run("gradpath", "find", "--model", model_folder, *OF_THE_EXAMPLE, *QUICK, "--out", "o", "--json")
    )
    assert found["task"] == "opposites"
    recorded = json.loads((tmp_path / "o" / "circuit.json").read_text())["facts"]["plugins"]
    assert recorded["gradpath-example"] == "0.1.0"
    assert "4 passed" in run("pytest", "-p", "no:cacheprovider", "-c", "/dev/null", copy / "tests")
