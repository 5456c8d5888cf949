"""The verbs as a user types them: results, files, exit codes, and one sentence when it fails."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from dataclasses import replace

import pytest
import torch
from covering import some
from launching import environment, gradpath_command

import gradpath as gp
from gradpath.circuit import load_circuit
from gradpath.graph import Graph
from gradpath.scores import load_scores

CONTRACT = {
    "version",
    "model",
    "task",
    "method",
    "steps",
    "seed",
    "examples",
    "edges_total",
    "edges_asked",
    "edges_kept",
    "sparsity",
    "clean",
    "corrupted",
    "circuit",
    "faithfulness",
    "faithfulness_interval",
    "error",
    "seconds",
}


@pytest.fixture(scope="module")
def found(run, model_folder, tmp_path_factory):
    """A circuit of the small model, found and kept."""
    out = tmp_path_factory.mktemp("found")
    arguments = ["--model", model_folder, "--examples", 6, "--edges", 30, "--method", "eap-ig", "--steps", 3]
    arguments += ["--how", "top"]
    ran = run("find", *arguments, "--out", out, "--json")
    assert ran.code == 0, ran.err
    return ran.json, out


def test_find_prints_one_object_with_what_the_contract_names(found, model_folder):
    summary, _ = found
    assert set(summary) >= CONTRACT
    assert summary["model"] == str(model_folder)
    assert (summary["task"], summary["method"], summary["steps"], summary["examples"]) == ("ioi", "eap-ig", 3, 6)
    assert summary["edges_asked"] == 30
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
    for name in ("model", "task", "method", "steps", "version", "bos"):
        assert name in circuit.about
    assert circuit.about["data"]["seed"] == 0
    assert "<html" in (out / "report.html").read_text()


@pytest.mark.parametrize(("how", "offered"), [(None, "saved"), ("balanced", "saved"), ("greedy", "greedy")])
def test_the_page_shows_the_circuit_however_it_was_chosen(run, model_folder, tmp_path, how, offered):
    arguments = ["--model", model_folder, "--examples", 4, "--edges", 20, *(["--how", how] if how else [])]
    ran = run("find", *arguments, "--out", tmp_path, "--json")
    assert ran.code == 0, ran.err
    assert (ran.json["method"], ran.json["selection"]) == ("eap-ig", how or "refined")
    assert f'"how":"{offered}"' in (tmp_path / "report.html").read_text().replace('": "', '":"')
    assert load_circuit(tmp_path / "circuit.json").about["selection"]["how"] == (how or "refined")


def test_eval_gives_what_find_measured(run, found):
    summary, out = found
    again = run("eval", out / "circuit.json", "--examples", 6, "--json")
    assert again.code == 0, again.err
    for name in ("clean", "corrupted", "circuit", "faithfulness", "error", "edges_kept"):
        assert again.json[name] == pytest.approx(summary[name])
    told = run("eval", out / "circuit.json", "--examples", 6)
    assert f"{summary['faithfulness']:.1%}" in told.out


def test_eval_on_the_examples_it_was_found_on_differs(run, found):
    summary, out = found
    train = run("eval", out / "circuit.json", "--examples", 6, "--split", "train", "--json").json
    assert train["clean"] != pytest.approx(summary["clean"])


def test_find_speaks_to_people(run, model_folder):
    ran = run("find", "--model", model_folder, "--examples", 4, "--method", "eap", "--sparsity", 0.5)
    assert ran.code == 0, ran.err
    assert "faithfulness" in ran.out
    assert "held-out" in ran.out
    assert "scoring" not in ran.out  # progress is on stderr


def test_find_takes_the_methods_options(run, model_folder):
    common = ["find", "--model", model_folder, "--examples", 4, "--edges", 30, "--json"]
    matched = run(*common, "--method", "eap-gp", "-o", "stride=matched", "-o", "start=true").json
    assert matched["options"]["stride"] == "matched"
    assert matched["options"]["start"] is True


def test_the_users_own_data_goes_the_same_way(run, model_folder, tmp_path):
    rows = [("The red cat", "The big cat", " sat", " ran"), ("A dog will", "A man will", " run", " walk")]
    lines = ["clean,corrupted,answers,wrong_answers", *(",".join(row) for row in rows * 3)]
    (tmp_path / "pairs.csv").write_text("\n".join(lines))
    common = ["--model", model_folder, "--method", "eap", "--edges", 30, "--examples", 1]
    ran = run("find", *common, "--data", tmp_path / "pairs.csv", "--json")
    assert ran.code == 0, ran.err


@pytest.mark.parametrize("what", ["models", "tasks", "methods", "selections"])
def test_ls_lists(run, what):
    plain, as_json = run("ls", what), run("ls", what, "--json")
    assert plain.code == as_json.code == 0
    names = [row["name"] for row in as_json.json[what]]
    assert all(name in plain.out for name in names)
    assert {"models": "smollm2", "tasks": "ioi", "methods": "eap-gp", "selections": "greedy"}[what] in names


def test_ls_models_says_what_each_family_supports(run):
    rows = {row["name"]: row for row in run("ls", "models", "--json").json["models"]}
    assert {"smollm2", "gemma3-270m", "gpt2", "llama", "mistral", "gpt_neox", "qwen2", "qwen3"} <= rows.keys()
    assert {"gemma2", "gemma3", "gemma3_text", "phi", "olmo2"} <= rows.keys()
    assert "parallel" in rows["gpt_neox"]["supports"]
    assert "soft caps" in rows["gemma2"]["about"]


WRONG_USAGE = {
    "an unknown command": (["fnd"], "Did you mean 'find'"),
    "an unknown flag": (["find", "--edgs", "5"], "--edgs"),
    "an unknown method": (["find", "--method", "eap-igg"], "Did you mean 'eap-ig'"),
    "an unknown task": (["find", "--model", "MODEL", "--task", "iou"], "Did you mean 'ioi'"),
    "an unknown selection": (["find", "--how", "topp"], "Did you mean 'top'"),
    "too sparse": (["find", "--sparsity", "1.5"], "the sparsity is the share of edges left out"),
    "no edges": (["find", "--edges", "0"], "must be a whole number, 1 or above: got 0"),
    "too many edges": (["find", "--model", "MODEL", "--edges", "9999"], "from 1 to"),
    "two sizes": (["find", "--edges", "5", "--sparsity", "0.5"], "give one of them"),
    "no batch": (["find", "--batch-size", "0"], "--batch-size"),
    "no steps": (["find", "--steps", "0"], "--steps"),
    "an unknown ablation": (["find", "--ablation", "noise"], "--ablation"),
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
    "no model": (["find", "--model", "./nowhere"], "there is no folder"),
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


def test_a_folder_that_cannot_be_written_loses_nothing(run, model_folder, tmp_path):
    (tmp_path / "file").write_text("")
    arguments = ["--model", model_folder, "--examples", 2, "--edges", 9, "--method", "eap"]
    ran = run("find", *arguments, "--out", tmp_path / "file" / "below")
    assert ran.code == 2
    assert "--out has to be a folder" in ran.error


def test_an_error_nobody_thought_of_is_still_one_sentence(run, model_folder, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("by hand")

    monkeypatch.setattr("gradpath.pipeline.run.attribute", broken)
    ran = run("find", "--model", model_folder, "--examples", 2, "--edges", 9)
    assert ran.code == 1
    assert "this is a bug, ZeroDivisionError: by hand" in ran.error
    assert "Traceback" not in ran.err


def test_results_are_the_same_with_another_batch_size(run, model_folder):
    common = ["find", "--model", model_folder, "--examples", 6, "--edges", 30, "--method", "eap-ig", "--json"]
    one, many = (run(*common, "--batch-size", size).json for size in (1, 6))
    assert one["faithfulness"] == pytest.approx(many["faithfulness"], rel=1e-3)
    assert one["edges_kept"] == many["edges_kept"]


def test_json_is_all_that_stdout_has(run, model_folder):
    ran = run("find", "--model", model_folder, "--examples", 2, "--edges", 9, "--method", "eap", "--json")
    assert json.loads(ran.out)["edges_asked"] == 9
    assert torch.is_grad_enabled()


def test_convert_goes_to_the_eap_ig_library_and_back(run, found, tmp_path):
    _, out = found
    there, back = tmp_path / "x.eap-ig.json", tmp_path / "back"
    ran = run("convert", out / "circuit.json", there, "--scores", out / "scores.safetensors")
    assert ran.code == 0, ran.err
    assert ran.out.strip() == str(there)
    for name in ("circuit.json", "scores.safetensors"):
        assert run("convert", there, back / name).code == 0
    assert (back / "circuit.json").read_bytes() == (out / "circuit.json").read_bytes()
    ours, theirs = (load_scores(folder / "scores.safetensors") for folder in (out, back))
    assert torch.equal(ours.values, theirs.values)
    assert ours.about == theirs.about
    assert run("eval", back / "circuit.json", "--examples", 6).code == 0


def test_convert_chooses_a_circuit_from_scores(run, found, tmp_path):
    _, out = found
    ran = run("convert", out / "scores.safetensors", tmp_path / "c.json", "--edges", 30)
    assert ran.code == 0, ran.err
    assert (tmp_path / "c.json").read_bytes() == (out / "circuit.json").read_bytes()


CONVERT_WRONG = {
    "an unknown suffix": (["SCORES", "x.docx"], 2, ".eap-ig.json (eap-ig)"),
    "an unknown format": (["SCORES", "x.json", "--to", "eapig"], 2, "Did you mean 'eap-ig'"),
    "no circuit in it": (["SCORES", "x.graphml"], 1, "--edges N"),
    "no scores in it": (["CIRCUIT", "x.safetensors"], 1, "cannot be made from it"),
    "how many are chosen": (["SCORES", "x.json", "--how", "top"], 2, "give --edges as well"),
    "no file": (["none.json", "x.csv"], 1, "there is no file"),
}


@pytest.mark.parametrize("kind", CONVERT_WRONG)
def test_convert_refuses_in_one_sentence(run, found, tmp_path, monkeypatch, kind):
    _, out = found
    monkeypatch.chdir(tmp_path)
    arguments, code, words = CONVERT_WRONG[kind]
    places = {"SCORES": out / "scores.safetensors", "CIRCUIT": out / "circuit.json"}
    ran = run("convert", *(places.get(argument, argument) for argument in arguments))
    assert ran.code == code, ran.err
    assert words in ran.error
    assert not list(tmp_path.glob("x.*"))


@pytest.mark.parametrize("ablation", some(["zero", "mean", "mean-positional"], ["zero", "mean-positional"]))
def test_find_and_eval_use_the_ablation_that_was_asked_for(run, model_folder, tmp_path, ablation):
    common = ["--model", model_folder, "--examples", 6, "--edges", 40, "--method", "eap", "--json"]
    found = run("find", *common, "--ablation", ablation, "--out", tmp_path)
    assert found.code == 0, found.err
    assert found.json["ablation"] == ablation
    assert found.json["corrupted"] != pytest.approx(run("find", *common).json["corrupted"])
    again = run("eval", tmp_path / "circuit.json", "--examples", 6, "--json").json
    for name in ("ablation", "clean", "corrupted", "circuit", "faithfulness"):
        assert again[name] == pytest.approx(found.json[name])
    other = run("eval", tmp_path / "circuit.json", "--examples", 6, "--ablation", "corrupted", "--json").json
    assert other["ablation"] == "corrupted"
    assert other["circuit"] != pytest.approx(found.json["circuit"])
    assert f"all ablated ({ablation})" in run("eval", tmp_path / "circuit.json", "--examples", 6).out


def test_check_gives_a_verdict(run, model_folder):
    ran = run("check", "--model", model_folder)
    assert ran.code == 0
    assert ran.out.count("ok ") == 6
    assert ran.out.strip().endswith("is computed as it should be.")
    assert run("check", "--model", model_folder, "--json").json["passed"] is True


def test_check_fails_where_transformers_disagrees(run, model_folder, monkeypatch):
    from gradpath.model import load

    right = load.load_original

    def other(*given, **options):
        original = right(*given, **options)
        original.transformer.h[0].mlp.c_fc.weight.data *= 1.05
        return original

    monkeypatch.setattr(load, "load_original", other)
    ran = run("check", "--model", model_folder)
    assert ran.code == 1
    assert "WRONG  logits, against transformers" in ran.out
    assert "NOT computed as it should be" in ran.out


def test_find_tells_edges_apart_by_where_they_are(run, model_folder, tmp_path):
    common = ["--model", model_folder, "--examples", 4, "--method", "eap", "--edges", 60]
    ran = run("find", *common, "--positions", "span", "--out", tmp_path / "out", "--json")
    assert ran.code == 0, ran.err
    summary = ran.json
    assert list(summary["positions"]) == ["before", "subject again", "between", "end"]
    assert sum(summary["positions"].values()) == summary["edges_kept"]
    assert summary["selection"] == "top"
    assert {file.name for file in (tmp_path / "out").iterdir()} >= {"positions.png", "positions.svg"}
    again = run("eval", tmp_path / "out" / "circuit.json", "--examples", 4, "--json")
    assert again.json["circuit"] == pytest.approx(summary["circuit"], rel=1e-4)
    assert again.json["edges_total"] == summary["edges_total"]
    shown = run("show", tmp_path / "out" / "circuit.json", "--out", tmp_path / "c.svg")
    assert shown.code == 0, shown.err
    told = run("find", *common, "--positions", "span")
    assert "at subject again" in told.out
    refused = run("find", *common, "--positions", "span", "--how", "refined")
    assert refused.code == 2
    assert "cannot select edges at positions" in refused.error


def test_find_keeps_the_best_nodes_and_all_edges_among_them(run, model_folder, tmp_path):
    arguments = ["--model", model_folder, "--examples", 4, "--method", "nap-ig", "--nodes", 3]
    ran = run("find", *arguments, "--out", tmp_path, "--json")
    assert ran.code == 0, ran.err
    assert (ran.json["method"], ran.json["selection"]) == ("nap-ig", "nodes")
    scores, circuit = load_scores(tmp_path / "scores.safetensors"), load_circuit(tmp_path / "circuit.json")
    best = scores.by_node[1:].abs().topk(3).indices + 1
    nodes = {end.partition("<")[0] for edge in circuit.edges for end in edge.split("->")}
    assert nodes <= {"input", "logits", *(scores.graph.sources[i] for i in best.tolist())}
    assert "<html" in (tmp_path / "report.html").read_text()
    refused = run("find", *arguments, "--edges", 5)
    assert refused.code == 2
    assert "edges and nodes both set the size" in refused.error


@pytest.mark.parametrize("method", ["relp", "atp-star", "eap-ig-activations", "exact", "nap"])
def test_find_takes_every_kind_of_method_by_its_name(run, model_folder, method):
    more = ["-o", "edges=40"] if method == "exact" else []
    arguments = ["--model", model_folder, "--examples", 3, "--edges", 40, "--how", "top"]
    ran = run("find", *arguments, "--method", method, *more, "--json")
    assert ran.code == 0, ran.err
    assert ran.json["method"] == method
    assert ran.json["edges_asked"] == 40


def test_a_task_that_the_model_does_not_do_is_warned_of():
    from gradpath.cli.progress import lines_of

    numbers = dict.fromkeys(("edges_kept", "edges_asked", "edges_total", "sparsity", "circuit", "error"), 1)
    numbers |= {"faithfulness": 1, "faithfulness_interval": [0, 1], "error_interval": [0, 1]}
    numbers |= {"ablation": "corrupted", "clean": 1.0}
    assert "WARNING" in "".join(lines_of({**numbers, "corrupted": 1.2}))
    assert "WARNING" not in "".join(lines_of({**numbers, "corrupted": 0.2}))


def test_ls_alone_says_what_can_be_listed(run):
    ran = run("ls")
    assert ran.code == 0
    for name in ("models", "tasks", "methods", "selections", "metrics", "ablations", "formats"):
        assert name in ran.out
        assert run("ls", name).code == 0


def test_lists_have_no_markup_and_a_fixed_order(run):
    for name in ("methods", "selections", "metrics"):
        assert "``" not in run("ls", name).out
    methods = [row["name"] for row in run("ls", "methods", "--json").json["methods"]]
    assert methods[:4] == ["eap", "nap", "clean-corrupted", "eap-ig"]


def test_convert_selects_with_every_selection_that_is_listed(run, model_folder, tmp_path):
    arguments = ["--model", model_folder, "--examples", 3, "--edges", 40, "--how", "refined"]
    assert run("find", *arguments, "--out", tmp_path).code == 0
    ran = run("convert", tmp_path / "scores.safetensors", tmp_path / "again.json", "--edges", 40, "--how", "refined")
    assert ran.code == 0, ran.err
    found, again = (load_circuit(tmp_path / name) for name in ("circuit.json", "again.json"))
    assert again.edges == found.edges


def test_convert_says_what_a_selection_that_measures_needs(run, tmp_path):
    scores = gp.Scores(Graph(2, 2), torch.randn(7, 15) * Graph(2, 2).mask)
    scores.save(tmp_path / "scores.safetensors")
    ran = run("convert", tmp_path / "scores.safetensors", tmp_path / "c.json", "--edges", 5, "--how", "refined")
    assert ran.code == 1
    assert "does not record its model and task" in ran.error


def test_scores_at_positions_can_be_selected_from_again(run, model_folder, tmp_path):
    arguments = ["--model", model_folder, "--examples", 3, "--edges", 40, "--positions", "span"]
    assert run("find", *arguments, "--out", tmp_path).code == 0
    ran = run("convert", tmp_path / "scores.safetensors", tmp_path / "again.json", "--edges", 40)
    assert ran.code == 0, ran.err
    found, again = (load_circuit(tmp_path / name) for name in ("circuit.json", "again.json"))
    assert again.edges == found.edges


@pytest.mark.parametrize("more", [["--positions", "span", "--how", "greedy"], ["--nodes", 3, "--how", "top"]])
def test_options_that_do_not_fit_are_refused_before_a_model_is_loaded(run, more):
    ran = run("find", "--model", "no-such-folder/nor/model", *more)
    assert ran.code == 2
    assert "model" not in ran.error.partition("Use")[0].replace("method", "")


def test_gradpath_alone_shows_its_help(run):
    ran = run()
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == run("--help").out
    assert len(ran.out.splitlines()) > 15


def test_explain_prints_one_object_with_a_row_for_every_node(run, found):
    _, out = found
    ran = run("explain", out / "circuit.json", "--examples", 4, "--json")
    assert ran.code == 0, ran.err
    circuit = load_circuit(out / "circuit.json")
    assert {row["node"] for row in ran.json["nodes"]} == set(circuit.nodes)
    assert all({"node", "attends", "writes", "reads", "direct_effect"} <= set(row) for row in ran.json["nodes"])
    assert {"indirect object", "subject", "subject again", "end"} <= set(ran.json["parts"])


def test_explain_prints_a_table_of_the_strongest_nodes(run, found):
    _, out = found
    ran = run("explain", out / "circuit.json", "--examples", 4, "--top", 3)
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0].startswith(f"{out / 'circuit.json'} on 4 examples of ioi")
    assert lines[2].split()[:4] == ["node", "effect", "direct", "attends"]
    assert f"--top {len(load_circuit(out / 'circuit.json').nodes)} shows all" in lines[-1]


def test_show_draws_the_attention_of_a_head_beside_the_circuit(run, found, tmp_path):
    _, out = found
    head = next(node for node in load_circuit(out / "circuit.json").nodes if node.startswith("a"))
    ran = run("show", out / "circuit.json", "--rows", "--attention", head, "--out", tmp_path / "figure.svg")
    assert ran.code == 0, ran.err
    assert "<image" in (tmp_path / "figure.svg").read_text()
    ran = run("show", out / "circuit.json", "--attention", "a7.h9", "--out", tmp_path / "figure.svg")
    assert ran.code == 1
    assert "no node 'a7.h9'" in ran.error


def test_files_do_not_say_where_the_user_keeps_things(run, found, model_folder, monkeypatch, tmp_path):
    """Only paths inside of the working directory, from there, and names."""
    grid = ["curve", "--methods", "eap", "--how", "top", "--sparsities", "0.5", "--examples", 4]
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


def test_eval_finds_a_model_by_its_recorded_path_or_says_what_to_do(run, model_folder, monkeypatch, tmp_path):
    monkeypatch.setenv("GRADPATH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(model_folder.parent)
    arguments = ["--examples", 4, "--method", "eap", "--how", "top", "--edges", 20]
    assert run("find", "--model", model_folder, *arguments, "--out", tmp_path / "inside").code == 0
    assert load_circuit(tmp_path / "inside" / "circuit.json").about["model"] == f"./{model_folder.name}"
    assert run("eval", tmp_path / "inside" / "circuit.json", "--examples", 4).code == 0
    monkeypatch.chdir(tmp_path)
    assert f"there is no folder ./{model_folder.name}" in run("eval", tmp_path / "inside" / "circuit.json").error
    assert run("find", "--model", model_folder, *arguments, "--out", "outside").code == 0
    assert run("eval", "outside/circuit.json", "--examples", 4).code == 0  # on this machine
    monkeypatch.setenv("GRADPATH_CACHE", str(tmp_path / "another"))  # on the machine of somebody else
    error = run("eval", "outside/circuit.json", "--examples", 4).error
    assert f"the model .../{model_folder.name} was outside of the working directory" in error
    assert "--model" in error
    assert run("eval", "outside/circuit.json", "--examples", 4, "--model", model_folder).code == 0


@pytest.mark.filterwarnings("always::gradpath.errors.GradpathWarning")
def test_eval_says_that_the_weights_have_changed(run, model_folder, tmp_path):
    from transformers import GPT2LMHeadModel

    folder = shutil.copytree(model_folder, tmp_path / "model")
    arguments = ["--examples", 4, "--method", "eap", "--how", "top", "--edges", 20]
    assert run("find", "--model", folder, *arguments, "--out", tmp_path / "out").code == 0
    changed = GPT2LMHeadModel.from_pretrained(folder)
    with torch.no_grad():
        changed.transformer.h[1].mlp.c_fc.weight[3, 4] += 0.1
    changed.save_pretrained(folder)
    ran = run("eval", tmp_path / "out" / "circuit.json", "--examples", 4)
    assert ran.code == 0, ran.err
    assert "was found in other weights" in ran.err
    assert "was found in other weights" not in run("eval", tmp_path / "out" / "circuit.json", "--model", folder).err


@pytest.mark.parametrize("verb", ["eval", "convert"])
def test_a_file_whose_data_is_not_an_object_is_refused(run, found, tmp_path, verb):
    _, out = found
    circuit = load_circuit(out / "circuit.json")
    replace(circuit, about={**circuit.about, "data": [1]}).save(tmp_path / "circuit.json")
    scores = load_scores(out / "scores.safetensors")
    replace(scores, about={**scores.about, "data": [1]}).save(tmp_path / "scores.safetensors")
    if verb == "eval":
        ran = run("eval", tmp_path / "circuit.json", "--ablation", "mean")
    else:
        ran = run("convert", tmp_path / "scores.safetensors", tmp_path / "x.json", "--edges", 5, "--how", "refined")
    assert ran.code == 1
    assert "'data' is not an object" in ran.error


PAIRS = "clean,corrupted,answers,wrong_answers\n" + "".join(
    f"The {x} sat on the,The {y} sat on the, {x}, {y}\n" for x, y in zip("abcdefgh", "bcdefgha", strict=True)
)


@pytest.mark.parametrize("kind", ["not UTF-8", "an ASCII locale"])
def test_names_that_are_not_text_leave_no_run_without_its_report(run, model_folder, tmp_path, kind):
    """In an ASCII locale Python reads every other byte of a name as it reads those that are not UTF-8."""
    data = tmp_path / os.fsdecode(b"pairs-\xff.csv" if kind == "not UTF-8" else "pairs-\u00e9.csv".encode())
    if kind == "an ASCII locale":
        data.write_text(PAIRS)
        command = gradpath_command("find", "--model", model_folder, "--data", data, "--examples", 3, "--how", "top")
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
        arguments = ["--examples", 3, "--how", "top", "--method", "eap", "--edges", 20, "--out", tmp_path / "out"]
        ran = run("find", "--model", model_folder, "--data", data, *arguments)
        assert ran.code == 0, ran.err
        name = "pairs-\ufffd"
    assert load_circuit(tmp_path / "out" / "circuit.json").about["task"] == name
    assert f"<title>{name} in " in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_a_working_directory_that_is_gone_is_a_sentence(run, model_folder, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    ran = run("find", "--model", model_folder)
    assert ran.code == 1
    assert "the working directory cannot be used (No such file or directory)" in ran.error


def test_explain_names_the_parts_of_the_users_own_data(run, found, tmp_path):
    _, out = found
    rows = [
        {
            "clean": f"The {a} gave it to the {b}, so the {b} thanked the",
            "corrupted": f"The {a} gave it to the {b}, so the dog thanked the",
            "answers": [f" {a}"],
            "wrong_answers": [f" {b}"],
            "spans": {"giver": [4, 4 + len(a)], "comma": ","},
        }
        for a, b in (("cat", "man"), ("man", "cat"), ("king", "cat"), ("cat", "king"))
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    ran = run("explain", out / "circuit.json", "--data", tmp_path / "pairs.jsonl", "--split", "all", "--json")
    assert ran.code == 0, ran.err
    # The giver is the right answer, and has a name of its own; the last token and the other noun have none.
    assert {"giver", "comma", "wrong answer", "after wrong answer", "end", "rest"} <= set(ran.json["parts"])
    assert "right answer" not in ran.json["parts"]
