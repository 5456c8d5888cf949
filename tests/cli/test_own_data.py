"""The user's own data, metrics and plug-ins in the shell; and the documents' examples, run as they are printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import gradpath as gp
from gradpath.attribution.methods import METHODS
from gradpath.cli.circuits import open_circuit
from gradpath.errors import GradpathWarning
from gradpath.tasks import METRICS
from gradpath.verdict.checks import shared_pairs

ROOT = Path(__file__).parents[2]
HEADER = "clean,corrupted,answers,wrong_answers\n"
NAMES = ["Mary", "John", "Tom", "James", "Paul", "Mark", "David", "Peter"]
QUICK = ["--edges", 20, "--method", "eap", "--selection", "top"]
METRIC = '''
def right_logit(logits, labels):
    """The logit of the correct answer."""
    return logits.gather(1, labels[:, :1]).squeeze(1)
'''
PLUGIN = '''
import gradpath as gp

@gp.path("broken")
def broken(pair):
    """Halfway between the two prompts."""
    yield (pair.clean + pair.nothing) / 2
'''


def pairs_of_names(count: int) -> str:
    """Rows such as people write, with different names."""
    names = [(a, b) for a in NAMES for b in NAMES if a != b][:count]
    rows = [f'"When {a} and {b} met, {b} waved to","When {a} and {b} met, Bob waved to", {a}, {b}\n' for a, b in names]
    return HEADER + "".join(rows)


@pytest.fixture
def registries():
    """What a plug-in has registered is taken out again."""
    yield
    for registry, name in ((METRICS, "right-probability"), (METHODS, "two-thirds"), (METHODS, "broken")):
        if name in registry:
            registry.remove(name)


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "pairs.csv"
    file.write_text(pairs_of_names(20))
    return file


@pytest.mark.parametrize(
    ("rows", "split", "used", "said"),
    [
        (20, "held-out", (10, 10, True), "pairs: 20 rows, 10 pairs for attribution, 10 held out"),
        (5, "held-out", (5, 5, False), "WARNING: nothing is held out"),
        (20, "all", (20, 20, False), "20 pairs for both attribution and evaluation"),
    ],
)
def test_rows_are_halved_where_there_are_enough(run, model_folder, file, rows, split, used, said):
    file.write_text(pairs_of_names(rows))
    ran = run("find", "--model", model_folder, "--data", file, *QUICK, "--split", split, "--json")
    assert ran.code == 0, ran.err
    assert (ran.json["examples"], ran.json["examples_measured"], ran.json["held_out"]) == used
    assert ran.json["metric"] == "logit-difference"
    assert said in ran.err
    assert ("WARNING" in ran.err) == (rows == 5)


def test_rows_that_are_left_out_are_named(run, model_folder, file):
    bad = ["one two,one two three, Mary, John\n", "one,two, Mary Ann, John\n"]
    file.write_text(pairs_of_names(12) + "".join(bad))
    ran = run("find", "--model", model_folder, "--data", file, *QUICK, "--json", "--out", file.parent / "out")
    assert ran.code == 0, ran.err
    assert "2 rows are left out:" in ran.err
    assert "2 rows are left out." in (file.parent / "out" / "report.html").read_text()  # the page counts them alike
    assert "  row 13 (line 14 of pairs.csv): the prompts have different numbers of tokens (" in ran.err
    assert "  row 14 (line 15 of pairs.csv): an answer is not a single token (' Mary Ann' is" in ran.err


def test_data_under_the_name_of_a_built_in_task_has_to_be_given_again(run, model_folder, file, tmp_path):
    out = tmp_path / "out"
    assert run("find", "--model", model_folder, "--data", file, "--task", "ioi", *QUICK, "--out", out).code == 0
    for verb in ("eval", "explain", "test"):
        lost = run(verb, out / "circuit.json", "--examples", 4)
        assert (lost.code, "found on your own data, .../pairs.csv, which is not here." in lost.error) == (2, True)
    convert = ["convert", out / "scores.safetensors", tmp_path / "c.json", "--edges", 9, "--selection", "refined"]
    assert "made on your own data, .../pairs.csv, which is not here. Give it with --data" in run(*convert).error


def test_a_saved_circuit_says_which_pairs_it_is_run_on(run, model_folder, file, found, tmp_path):
    out = tmp_path / "out"
    assert run("find", "--model", model_folder, "--data", file, *QUICK, "--out", out).code == 0
    lines = {
        "test": "pairs: 20 rows, the circuit is run on 10 pairs of the half that find holds out (--split all: of both",
        "train": "the circuit is run on 10 pairs of the half that find attributes",
        "all": "pairs: 20 rows, the circuit is run on 20 pairs; metric logit-difference",
    }
    for split, line in lines.items():
        ran = run("eval", out / "circuit.json", "--data", file, "--split", split)
        assert ran.code == 0, ran.err
        assert line in ran.err
        assert "for attribution" not in ran.err
    file.write_text(pairs_of_names(5))
    ran = run("eval", found[1] / "circuit.json", "--data", file)  # of another task, so nothing needs to be held out
    assert "pairs: 5 rows, the circuit is run on 5 pairs; metric" in ran.err
    assert "attributed" not in ran.err


@pytest.mark.parametrize(
    ("split", "tested", "shared"), [("held-out", "all", 4), ("held-out", "test", 0), ("all", "test", 10)]
)
def test_attributed_examples_of_a_test_are_counted(run, model_folder, file, tmp_path, split, tested, shared):
    find = ["find", "--model", model_folder, "--data", file, *QUICK, "--split", split, "--out", tmp_path / "out"]
    if split == "held-out":
        find += ["--examples", 4]
    assert run(*find).code == 0
    values = {"data": file, "split": tested, "examples": 20, "device": None}
    saved = open_circuit(tmp_path / "out" / "circuit.json", values)
    assert len(saved.found_on) == (4 if split == "held-out" else 20)
    assert shared_pairs(saved.task, saved.found_on) == shared


def test_bad_rows_are_listed_each_with_its_line(run, file):
    file.write_text(HEADER + "a b,c b, Mary\n" + "a b,c b,, John\n")
    ran = run("find", "--data", file)
    first, *lines = ran.err.splitlines()
    assert (ran.code, first) == (1, "gradpath: 2 of the 2 rows cannot be read:")
    assert [line.partition(" has")[0] for line in lines] == [f"  row {i} (line {i + 1} of pairs.csv)" for i in (1, 2)]


def test_a_metric_of_ones_own_in_a_file(run, model_folder, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(METRIC)
    out = tmp_path / "out"
    find = ["find", "--model", model_folder, "--examples", 4, *QUICK, "--metric", f"{file}:right_logit", "--json"]
    ran = run(*find, "--out", out)
    assert ran.code == 0, ran.err
    assert ran.json["metric"] == "mine.py:right_logit"
    default = run("find", "--model", model_folder, "--examples", 4, *QUICK, "--json").json
    assert ran.json["clean"] != pytest.approx(default["clean"])
    lost = run("eval", out / "circuit.json")
    assert lost.code == 2
    assert "give it again with --metric FILE.py:FUNCTION" in lost.error
    again = run("eval", out / "circuit.json", "--metric", f"{file}:right_logit", "--examples", 4, "--json")
    assert again.json["clean"] == pytest.approx(ran.json["clean"], rel=1e-5)
    assert "has no function 'nobody'" in run("find", "--metric", f"{file}:nobody").error


def test_an_exception_in_ones_own_metric_or_path_is_said_with_its_file_and_line(
    run, model_folder, tmp_path, registries
):
    metric, plugin = tmp_path / "mine.py", tmp_path / "plugin.py"
    metric.write_text(METRIC)  # for one answer on each side: those of sva are lists
    plugin.write_text(PLUGIN)
    common = ["find", "--model", model_folder, "--examples", 2, "--edges", 20, "--selection", "top"]
    ran = run(*common, "--task", "sva", "--metric", f"{metric}:right_logit")
    assert ran.code == 1
    assert "the metric right_logit failed (mine.py, line 4): RuntimeError: Index tensor must have" in ran.error
    assert re.search(r"logits of shape \(2, \d+\) and labels of shape \(2, 1?2, \d+\)\.$", ran.error)
    ran = run(*common, "--plugin", plugin, "--method", "broken")
    assert ran.code == 1
    assert "the path broken failed (plugin.py, line 7): AttributeError: 'Pair' object has no attribute" in ran.error
    assert "bug" not in ran.error


def test_kl_by_name_is_zero_in_the_clean_run_and_negative_in_the_corrupted_one(model_folder):
    model = gp.load_model(str(model_folder))
    found = gp.find(model, "ioi", metric="kl", examples=4, edges=30, selection="top", curve=False)
    assert found.result.clean == pytest.approx(0, abs=1e-6)
    assert found.result.corrupted < -1e-4
    assert found.result.corrupted < found.result.circuit <= 1e-6
    assert found.scores.values.abs().max() > 0


def printed(document: str, language: str) -> list[tuple[str, str]]:
    """The code blocks of a document in a language, each with its title."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf'```{language}(?: title="([^"]+)")?\n(.*?)```', text, flags=re.DOTALL)


@pytest.mark.usefixtures("registries")
@pytest.mark.filterwarnings("ignore:nothing is held out")
def test_the_examples_on_tasks_and_plugins_run_as_they_are_printed(run, model_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = gp.load_model(str(model_folder))
    ((_, rows),) = printed("docs/tasks.md", "csv")
    Path("pairs.csv").write_text(rows)
    blocks = printed("docs/tasks.md", "python")
    for title, code in (*blocks, *printed("docs/plugins.md", "python")):
        if title:
            Path(title).write_text(code)
    both = [*printed("docs/tasks.md", "bash"), *printed("docs/plugins.md", "bash")]
    commands = [line for _, block in both for line in block.splitlines()]
    assert len(commands) == 7
    for command in commands:
        words = shlex.split(command)[1:]
        quick = ["--model", model_folder, "--edges", 20] if words[0] == "find" else []
        few = ["--examples", 4] if quick and not {"--data", "--clean"} & {*words} else []
        ran = run(*words, *quick, *few)
        assert ran.code == 0, f"{command}: {ran.err}"
    monkeypatch.setattr(gp, "load_model", lambda name: model, raising=False)
    names: dict[str, object] = {}
    for title, code in blocks:
        if not title:
            exec(code, names)
    assert [len(names[name]) for name in ("train", "test", "mine", "task")] == [100, 100, 2, 2]
    assert gp.attribute(model, names["task"], "eap").facts.examples == 2


def test_a_curve_of_five_rows_says_that_nothing_is_held_out(run, model_folder, file):
    file.write_text(pairs_of_names(5) + "one two,one two three, Mary, John\n")
    ran = run(
        "curve", "--model", model_folder, "--data", file, "--methods", "eap", "--selection", "top", "--sparsities", 0.5
    )
    assert ran.code == 0, ran.err
    assert "5 examples for both attribution and evaluation: nothing is held out" in ran.out
    assert "WARNING: nothing is held out" in ran.err
    assert "row 6 (line 7 of pairs.csv): the prompts have different numbers of tokens" in ran.err
    assert ran.err.count("row 6 (line 7") == 1  # though both halves are made of the same rows
    assert "1 row is left out:" in ran.err


def test_python_warns_if_nothing_is_held_out(model_folder, file):
    file.write_text(pairs_of_names(5))
    model = gp.load_model(str(model_folder))
    with pytest.warns(GradpathWarning, match="nothing is held out, because there are fewer than 8 usable pairs"):
        found = gp.find(model, data=file, edges=20, method="eap", selection="top", curve=False)
    assert found.measured is found.attributed
    with pytest.warns(GradpathWarning, match="nothing is held out, because there are fewer than 8") as shown:
        gp.load_task(data=file, model=model, split="test")
    assert len(shown) == 1
    gp.load_task(data=file, model=model, split="all")  # no warning, which would be an error
