"""``gradpath find`` as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest
from covering import some

from gradpath.circuit import load_circuit
from gradpath.scores import load_scores

CONTRACT = "version model task method steps seed examples edges_total edges_requested edges_kept sparsity clean "
CONTRACT += "corrupted circuit faithfulness faithfulness_interval error accuracy does_task seconds"


def test_find_prints_one_object_with_what_the_contract_names(found, model_folder):
    summary, _ = found
    assert set(summary) >= {*CONTRACT.split()}
    assert summary["model"] == str(model_folder)
    assert (summary["task"], summary["method"], summary["steps"], summary["examples"]) == ("ioi", "eap-ig", 3, 6)
    assert summary["edges_requested"] == 30
    assert summary["edges_kept"] <= 30
    low, high = summary["faithfulness_interval"]
    assert low <= summary["faithfulness"] <= high
    expected = (summary["circuit"] - summary["corrupted"]) / (summary["clean"] - summary["corrupted"])
    assert summary["faithfulness"] == pytest.approx(expected, rel=1e-4)


def test_find_keeps_scores_circuit_and_report(found):
    summary, out = found
    circuit, scores = load_circuit(out / "circuit.json"), load_scores(out / "scores.safetensors")
    assert len(circuit) == summary["edges_kept"]
    assert scores[circuit.edges[0]] == pytest.approx(float(circuit.scores[0]))
    for name in ("model", "task", "method", "steps", "bos"):
        assert name in circuit.recipe.recorded
    assert circuit.recipe.seed == 0
    assert "<html" in (out / "report.html").read_text()


HOWS = [(None, "saved"), ("greedy", "greedy")]


@pytest.mark.parametrize(("how", "offered"), HOWS)
def test_the_page_shows_the_circuit_however_it_was_chosen(run, model_folder, tmp_path, how, offered):
    arguments = ["--model", model_folder, "--examples", 4, "--edges", 20, *(["--selection", how] if how else [])]
    ran = run("find", *arguments, "--out", tmp_path, "--json")
    assert ran.code == 0, ran.err
    assert (ran.json["method"], ran.json["selection"]) == ("eap-ig", how or "refined")
    assert f'"how":"{offered}"' in (tmp_path / "report.html").read_text().replace('": "', '":"')
    assert load_circuit(tmp_path / "circuit.json").selection == (how or "refined")


def test_find_takes_the_methods_options(run, model_folder):
    common = ["find", "--model", model_folder, "--examples", 4, "--edges", 30, "--json"]
    literal = run(*common, "--method", "eap-gp", "-o", "stride=unit", "-o", "start=true").json
    assert literal["options"]["stride"] == "unit"
    assert literal["options"]["start"] is True


def test_find_learns_for_as_many_steps_as_the_option_says(run, model_folder):
    options = ("-o", "steps=2", "-o", "examples=8", "-o", "loss=kl")
    ran = run(
        "find", "--model", model_folder, "--examples", 4, "--edges", 30, "--selection", "learned", *options, "--json"
    )
    assert ran.json["selection"] == "learned+steps=2+examples=8+loss=kl"
    assert ran.json["edges_kept"] <= 30
    refused = run("find", "--model", model_folder, "--selection", "learned", "-o", "loss=mse")
    assert refused.code == 2
    assert "loss of learned must be match or kl" in refused.err


def test_find_keeps_the_best_nodes_and_all_edges_among_them(run, model_folder, tmp_path):
    arguments = ["--model", model_folder, "--examples", 4, "--nodes", 3]
    ran = run("find", *arguments, "--out", tmp_path, "--json")
    assert ran.code == 0, ran.err
    assert (ran.json["method"], ran.json["selection"]) == ("eap-ig", "nodes")
    scores, circuit = load_scores(tmp_path / "scores.safetensors"), load_circuit(tmp_path / "circuit.json")
    best = scores.values.sum(1)[1:].abs().topk(3).indices + 1
    nodes = {end.partition("<")[0] for edge in circuit.edges for end in edge.split("->")}
    assert nodes <= {"input", "logits", *(scores.graph.sources[i] for i in best.tolist())}
    assert "<html" in (tmp_path / "report.html").read_text()
    refused = run("find", *arguments, "--edges", 5)
    assert refused.code == 2
    assert "--edges and --nodes each set the size of the circuit: give one of them." in refused.error


KINDS = ["relp", "atp-star", "eap-ig-activations", "exact"]


@pytest.mark.parametrize("method", some(KINDS, ["relp", "exact"]))
def test_find_takes_every_kind_of_method_by_its_name(run, model_folder, method):
    more = ["-o", "edges=40"] if method == "exact" else []
    arguments = ["--model", model_folder, "--examples", 3, "--edges", 40, "--selection", "top"]
    ran = run("find", *arguments, "--method", method, *more, "--json")
    assert ran.code == 0, ran.err
    assert ran.json["method"] == method
    assert ran.json["edges_requested"] == 40


def test_find_takes_the_size_that_acdc_decides_on_unless_another_is_given(run, model_folder, tmp_path):
    arguments = ["find", "--model", model_folder, "--examples", 4, "--json"]
    arguments += ["--selection", "acdc", "-o", "threshold=0.03"]
    own = run(*arguments, "--out", tmp_path)
    assert own.code == 0, own.err
    assert own.json["selection"] == load_circuit(tmp_path / "circuit.json").selection == "acdc+threshold=0.03"
    assert own.json["edges_kept"] == own.json["edges_requested"]  # nothing is on no path
    assert run(*arguments, "--edges", 9).json["edges_requested"] == 9


def test_a_threshold_that_keeps_no_edge_is_refused(run, model_folder):
    ran = run("find", "--model", model_folder, "--examples", 4, "--selection", "acdc", "-o", "threshold=50")
    assert "acdc+threshold=50 keeps none of the model's edges on these examples: give a size" in ran.error


def test_find_without_out_writes_to_a_new_folder_named_after_model_and_task(run, model_folder):
    typed = ("find", "--model", model_folder, "--task", "ioi", "--examples", "4", "--edges", "40", "--selection", "top")
    first, second = run(*typed), run(*typed, "--json")
    names = [f"{model_folder.name}-ioi", f"{model_folder.name}-ioi-2"]
    for name in names:
        assert {file.name for file in Path(name).iterdir()} == {"scores.safetensors", "circuit.json", "report.html"}
    assert str(Path(names[0]) / "circuit.json") in first.out
    assert second.json["out"] == names[1]


@pytest.mark.slow
def test_more_examples_than_powers_of_two_in_a_float_write_all_files(run, model_folder, tmp_path):
    typed = ("--task", "sva", "--examples", "1100", "--method", "eap", "--edges", "20", "--selection", "top")
    assert run("find", "--model", model_folder, *typed, "--out", tmp_path).code == 0
    assert {file.name for file in tmp_path.iterdir()} == {"scores.safetensors", "circuit.json", "report.html"}


@pytest.mark.filterwarnings("always:random circuits could not")
def test_random_circuits_that_fail_cost_neither_scores_nor_circuit(run, model_folder, tmp_path, monkeypatch):
    def broken(*_args, **_options):
        raise OverflowError("int too large to convert to float")

    monkeypatch.setattr("gradpath.pipeline.few_examples", broken)
    typed = ("--task", "ioi", "--examples", "4", "--edges", "40", "--selection", "top", "--out", tmp_path / "out")
    done = run("find", "--model", model_folder, *typed)
    assert done.code == 0
    assert "random circuits could not be measured (OverflowError: int too large" in done.err
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"scores.safetensors", "circuit.json", "report.html"}


def test_steps_of_a_method_without_steps_are_warned_of_once(run, model_folder, tmp_path):
    typed = ("--task", "ioi", "--examples", "4", "--edges", "40", "--selection", "top", "--out", tmp_path / "out")
    done = run("find", "--model", model_folder, *typed, "--method", "eap", "--steps", "7")
    assert done.err.count("has no steps: steps=7 is ignored") == 1


def test_a_circuit_of_one_node_is_found_and_reported(run, model_folder, tmp_path):
    run("find", "--model", model_folder, "--task", "sva", "--examples", "6", "--nodes", "1", "--out", tmp_path / "out")
    assert (tmp_path / "out" / "report.html").exists()
