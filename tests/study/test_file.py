"""A study from a file: all mistakes at once, cells that are shared and kept, and one report over everything."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from statistics import mean, stdev

import pytest
from launching import finished, gradpath_command, torchrun

from gradpath import registry
from gradpath.attribution.methods import METHODS
from gradpath.errors import InputError, UsageError
from gradpath.study.run import KEYS, over_differences, read_study

EXAMPLE = Path(__file__).parents[2] / "examples" / "study.yaml"
SMALL = "\nedges: 10\nsparsity: 0.5\nexamples: 4\n"
PAIRS = "clean,corrupted,answers,wrong_answers\n" + "".join(
    f'"When {a} and {b} met, {b} gave it to","When {a} and {b} met, {c} gave it to", {a}, {b}\n'
    for a in ("Mary", "John")
    for b in ("Amy", "Laura", "Peter")
    for c in ("Paul", "Mark")
)

OWN = """
import gradpath as gp

@gp.path("study-point")
def point(pair):
    yield (pair.clean + pair.corrupted) / 2
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        (tmp_path / "study.yaml").write_text(text)
        return tmp_path / "study.yaml"

    return write


def rows_of(out: Path) -> list[dict[str, str]]:
    with (out / "study.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def example(run, tiny_folder, tmp_path_factory):
    """The example in examples/, on the tiny model: what it printed, its file and its folder."""
    folder = tmp_path_factory.mktemp("study")
    text = EXAMPLE.read_text().replace("model: smollm2", f"model: {tiny_folder}")
    file = folder / "study.yaml"
    file.write_text(
        text.replace("sparsity: [0.99, 0.95]", "sparsity: [0.8, 0.5]").replace("examples: 10", "examples: 4")
    )
    ran = run("run", file, "--out", folder / "out")
    assert ran.code == 0, ran.err
    return ran, file, folder / "out"


def test_the_example_has_a_row_for_every_combination(example):
    ran, _, out = example
    rows = rows_of(out)
    keys = {tuple(row[key] for key in ("task", "method", "selection", "edges_requested", "seed")) for row in rows}
    assert len(rows) == len(keys) == 2 * 2 * 2 * 2 * 2
    assert {row["model"] for row in rows} == {"tiny-gpt2"}
    assert "## Greater-Than in tiny-gpt2" in ran.out
    assert {file.name for file in out.iterdir()} >= {f"study.{x}" for x in ("csv", "md", "json", "png", "svg")}


def test_tables_have_means_and_deviations_over_seeds(example):
    _, _, out = example
    one = [
        row for row in rows_of(out) if (row["task"], row["method"], row["selection"]) == ("ioi", "eap-ig", "refined")
    ]
    shares = [100 * float(row["faithfulness"]) for row in one if row["size"] == "80% sparsity"]
    section = (out / "study.md").read_text().split("## IOI in")[1].split("##")[0]
    head, line = (
        next(x for x in section.splitlines() if x.startswith(start)) for start in ("| size", "| 80% sparsity | 9 |")
    )
    cell = line.split(" | ")[head.split(" | ").index("eap-ig, refined")]
    assert cell.startswith(f"{mean(shares):.1f} ± {stdev(shares):.1f} / ")
    assert "random circuits" in section
    differences = json.loads((out / "study.json").read_text())["compared"]
    whole, *of_tasks = [row for row in differences if (row["method"], row["selection"]) == ("eap-ig", "top")]
    assert whole["task"] == "all tasks"
    assert whole["error_difference"] == pytest.approx(mean(row["error_difference"] for row in of_tasks))
    [row] = [row for row in differences if row["task"] == "ioi"][:1]
    errors = [
        [
            mean(float(row["error"]) for row in rows_of(out) if all(row[k] == v for k, v in where.items()))
            for where in way
        ]
        for way in (
            [{"task": "ioi", "method": method, "selection": "top", "seed": seed} for seed in "01"]
            for method in ("eap-ig", "eap")
        )
    ]
    assert row["method"] == "eap-ig"
    assert row["error_difference"] == pytest.approx(mean(errors[0]) - mean(errors[1]))
    assert row["error_ahead"] == sum(a < b for a, b in zip(*errors, strict=True))


def test_a_difference_is_clear_if_the_interval_over_seeds_excludes_zero():
    unclear, clear = over_differences([-1.0, -2.0, -3.0]), over_differences([-1.9, -2.0, -2.1])
    for found in (unclear, clear):
        assert (found["difference"], found["seeds"], found["ahead"]) == (pytest.approx(-2), 3, 3)
    assert unclear["standard_error"] == pytest.approx(3**-0.5)
    assert unclear["high"] == pytest.approx(-2 + 4.302653 / 3**0.5)  # Student's t with two degrees of freedom
    assert (unclear["clear"], clear["clear"]) == (False, True)
    assert not over_differences([0.0, 0.0])["clear"]


def never(*_, **__):
    raise AssertionError("something was computed again")


def test_parts_that_are_copied_together_are_the_whole_study(run, write, tiny_folder, tmp_path, monkeypatch):
    text = f"model: {tiny_folder}\ntask: [ioi, sva]\nmethod: [eap, eap-ig]\nselection: [top, random]\nseed: [0, 1]\n"
    file = write(text + "sparsity: 0.5\nfaithfulness: 0.85\nexamples: 4\n")
    merged, scored, circuits = tmp_path / "merged", list[set[str]](), 0
    for part in ("1/3", "2/3", "3/3"):
        ran = run("run", file, "--part", part, "--out", tmp_path / part[0], "--json")
        assert ran.code == 0, ran.err
        assert (ran.json["part"], sorted(path.name for path in (tmp_path / part[0]).iterdir())) == (
            part,
            ["cells", "scores"],
        )
        scored.append({path.name for path in (tmp_path / part[0] / "scores").iterdir()})
        assert len(scored[-1]) == ran.json["attributions"]
        circuits += ran.json["circuits"]
        shutil.copytree(tmp_path / part[0], merged, dirs_exist_ok=True)
    assert circuits == 8 * 4
    assert len(set.union(*scored)) == sum(map(len, scored)) == 8  # nothing is scored twice
    assert run("run", file, "--out", tmp_path / "whole").code == 0
    for name in ("evaluate_many", "attribute_at_steps", "smallest_faithful"):
        monkeypatch.setattr(f"gradpath.study.bench.{name}", never)
    ran = run("run", file, "--out", merged)
    assert ran.code == 0, ran.err
    for name in ("study.csv", "study.md"):
        assert (merged / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("part", ["0/8", "9/8", "3", "a/b", "1/-2"])
def test_a_part_is_checked(run, write, part):
    ran = run("run", write("model: nowhere"), "--part", part)
    assert ran.code == 2
    assert f"a part is written NUMBER/COUNT, such as 3/8 for the third of eight: got '{part}'" in ran.error


def test_ones_own_pairs_and_plugins_lie_beside_the_file(run, write, tiny_folder, tmp_path, monkeypatch):
    (tmp_path / "pairs.csv").write_text(PAIRS)
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.setattr(registry, "_FILES", {})
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS._entries))
    text = f"model: {tiny_folder}\nplugins: own.py\ntask: ioi\ndata: pairs.csv\nmethod: study-point\nselection: top\n"
    ran = run("run", write(text + "edges: [10, 47]\nexamples: 3\n"), "--out", tmp_path / "out")
    assert ran.code == 0, ran.err
    assert {(row["task"], row["method"]) for row in rows_of(tmp_path / "out")} == {
        ("ioi", "study-point"),
        ("pairs.csv", "study-point"),
    }
    assert {row["edges_requested"] for row in rows_of(tmp_path / "out")} == {"10"}
    assert "has 46 edges, so there are no circuits of 47 edges in it" in ran.err


def test_files_and_models_that_share_their_name_keep_rows_of_their_own(run, write, tiny_folder, tmp_path):
    files = [tmp_path / "a" / "pairs.csv", tmp_path / "b" / "pairs.csv", tmp_path / "ioi.csv"]
    for file, name in zip(files, ("Alice", "Jack", "Susan"), strict=True):
        file.parent.mkdir(exist_ok=True)
        file.write_text(PAIRS.replace("Mary", name))
    shutil.copytree(tiny_folder, tmp_path / "copy" / tiny_folder.name)
    text = f"model: [{tiny_folder}, copy/{tiny_folder.name}]\ntask: ioi\ndata: [ioi.csv, a/pairs.csv, b/pairs.csv]\n"
    ran = run("run", write(text + "method: eap\nselection: top\nedges: 10\nexamples: 3\n"), "--out", tmp_path / "out")
    assert ran.code == 0, ran.err
    rows = rows_of(tmp_path / "out")
    assert {row["task"] for row in rows} == {"ioi", "ioi.csv", "a/pairs.csv", "b/pairs.csv"}
    assert {row["model"] for row in rows} == {f"{end}/tiny-gpt2" for end in (tiny_folder.parent.name, "copy")}
    assert len({(row["task"], row["model"]) for row in rows}) == len(rows) == 8
    assert all(f"## {file} in copy/tiny-gpt2" in ran.out for file in ("ioi.csv", "a/pairs.csv", "b/pairs.csv"))


MISTAKES = {
    "task": ("[ioi, oio]", ["there is no task 'oio'. Did you mean 'ioi'?"]),
    "method": ("[eap-gg, eap-ig+steps=x]", ["there is no method 'eap-gg'. Did you mean", "steps of eap-ig must be a"]),
    "selection": ("[top, acdc+threshold=0.01,0.1]", ["a text was expected: got 0.1"]),
    "edges": ("[500, 1.5, yes, 0]", ["got 1.5", "got True", "got 0"]),
    "seed": ("-1", ["`seed` must be a whole number, at least 0: got -1"]),
    "examples": ("many", ["got 'many'"]),
    "model": ("[./nowhere]", ["there is no folder or file"]),
    "metric": ("lk", ["there is no metric 'lk'"]),
    "ablation": ("noise", ["there is no ablation 'noise'"]),
    "plugins": ("nothing.py", ["there is no such file"]),
    "memory": ("lots", ["lots"]),
    "title": ("[a]", ["a text was expected: got ['a']"]),
    "device": ("gpu", ["the device 'gpu' cannot be used"]),
    "dtype": ("int8", ["there is no floating-point type 'int8'"]),
}


def test_every_mistake_is_listed_with_its_key(write):
    with pytest.raises(UsageError) as raised:
        read_study(write("taks: ioi\n" + "".join(f"{key}: {value}\n" for key, (value, _) in MISTAKES.items())))
    first, unknown, *lines = str(raised.value).splitlines()
    assert first.endswith("study.yaml has 18 mistakes:")
    assert "there is no key 'taks'. Did you mean 'task'?" in unknown
    for key, (_, texts) in MISTAKES.items():
        own = [text for text in lines if text.startswith(f"  {key}:")]
        assert len(own) == len(texts), own
        assert all(text in found for text, found in zip(texts, own, strict=True)), own


def test_what_was_typed_takes_the_place_of_the_files(write):
    study = read_study(write("model: nowhere/\ndevice: gpu\ndtype: int8"), model="tiny", device="cpu", dtype="float64")
    assert (study.models, study.device, study.dtype) == (("tiny",), "cpu", "float64")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("task: [ioi", "is not YAML in line 1"),
        ("- ioi", "has to be a list of keys"),
        ("", "has to be a list of keys"),
        ("a: &a [x]\nb: *a", r"references \(\*name\) are not allowed"),
        ("task: \x00", "is not YAML"),
    ],
)
def test_what_is_not_a_study_is_refused_in_a_sentence(write, text, words):
    with pytest.raises(InputError, match=words):
        read_study(write(text))


@pytest.mark.parametrize("text", ["model: !!python/object/apply:os.getcwd []", "task: !!python/name:os.system"])
def test_objects_are_not_made(write, text):
    with pytest.raises(InputError, match="is not YAML in line 1: could not determine a constructor for the tag"):
        read_study(write(text))


def test_the_documents_have_every_key():
    text = (EXAMPLE.parents[1] / "docs" / "run.md").read_text()
    assert [key for key in KEYS if f"| `{key}` |" not in text] == []


@pytest.mark.slow
def test_two_processes_write_the_table_of_one(example, tmp_path):
    _, file, out = example
    done = finished(torchrun(2, *gradpath_command("run", file, "--out", tmp_path / "out")[1:]))
    assert done.returncode == 0, done.stderr
    ours, theirs = rows_of(tmp_path / "out"), rows_of(out)
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        assert float(a["faithfulness"]) == pytest.approx(float(b["faithfulness"]), rel=1e-4)
