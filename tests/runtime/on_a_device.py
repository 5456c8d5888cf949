"""Everything on a device that is not the CPU, where a tensor on the wrong device is an error (``pretend_device``).

``test_devices`` runs these tests in a process of their own.
"""

from __future__ import annotations

import pytest
import torch
from covering import FAMILIES, covering, some
from launching import run_here
from pretend_device import pretend_device
from small_models import prompts, tiny_model
from tiny_folder import save_tiny

import gradpath as gp
from gradpath.attribution.methods import METHODS
from gradpath.selection.ranking import SELECTIONS
from gradpath.selfcheck import device_checks

TASK = prompts([6, 9, 6], [[0], [4], [2, 3, 5]])


@pytest.fixture
def device():
    with pretend_device() as name:
        yield name


def test_the_pretended_device_refuses_to_mix_devices(device):
    x = torch.ones(3, device=device)
    assert x.device.type == device
    assert (2 * x).cpu().tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(3, device="cpu")


@pytest.mark.parametrize("method", some(sorted(METHODS), ["eap-gp"]))
def test_scores_of_every_method_are_those_on_the_cpu(method, device):
    model = tiny_model("llama-grouped")
    expected = gp.attribute(model, TASK, method)
    scores = gp.attribute(model.to(device), TASK, method)
    assert scores.values.device.type == "cpu"
    assert torch.allclose(scores.values, expected.values, atol=1e-5)


# ACDC runs thousands of circuits, which takes too long here.
@pytest.mark.parametrize("how", some(sorted({*SELECTIONS} - {"acdc"}), ["refined"]))
def test_circuits_and_their_results_are_those_on_the_cpu(how, device):
    model = tiny_model("llama-grouped")
    scores = gp.attribute(model, TASK, "eap-ig", steps=2, per_example=True)
    results = []
    for here in (model, model.to(device)):
        circuit = gp.select(scores, n=40, selection=how, model=here, task=TASK)
        results.append(gp.evaluate(here, circuit, TASK))
    assert results[1].circuit == pytest.approx(results[0].circuit, abs=1e-4)


@pytest.mark.parametrize(
    ("kind", "ablation"), covering(FAMILIES, ["corrupted", "zero", "mean", "mean-positional"], quick=["mixtral"])
)
def test_other_blocks_and_ablations_run_there_too(kind, ablation, device):
    model = tiny_model(kind)
    results = []
    for here in (model, model.to(device)):
        scores = gp.attribute(here, TASK, "eap-ig", steps=2, ablation=ablation)
        results.append(gp.evaluate(here, gp.select(scores, n=40, selection="top"), TASK, ablation=ablation).circuit)
    assert results[1] == pytest.approx(results[0], abs=1e-4)


@pytest.mark.slow
def test_the_check_of_a_device_passes_there(device):
    done = list(device_checks(tiny_model("gpt2").to(device), TASK))
    assert len(done) == 4
    assert [check.what for check in done if not check.passed] == []


FEW = ["--examples", 4, "--steps", 2]
# A command of each kind.
COMMANDS = {
    "find by ACDC": ["find", *FEW, "--selection", "acdc+threshold=0.05"],
    "eval": ["eval", "CIRCUIT", "--examples", 4],
    "explain": ["explain", "CIRCUIT", "--examples", 4],
    "test": ["test", "CIRCUIT", "--examples", 10],
    "check": ["check"],
    "convert": ["convert", "SCORES", "OUT/circuit.json", "--edges", 20, "--selection", "refined"],
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A small model in a folder, and a circuit of it that was found on the device."""
    folder, out = save_tiny(tmp_path_factory.mktemp("tiny")), tmp_path_factory.mktemp("found")
    with pretend_device() as device:
        ran = run_here("find", "--model", folder, "--device", device, *FEW, "--edges", 30, "--out", out)
    assert ran.code == 0, ran.err
    return folder, out / "circuit.json"


@pytest.mark.parametrize("name", some(list(COMMANDS), ["eval"]))
def test_commands_run_there(name, found, device, tmp_path):
    folder, circuit = found
    paths = {"CIRCUIT": circuit, "SCORES": circuit.with_name("scores.safetensors")}
    arguments = [paths.get(x, str(x).replace("OUT", str(tmp_path))) for x in COMMANDS[name]]
    ran = run_here(*arguments, "--model", folder, "--device", device)
    assert ran.code == 0, ran.err
