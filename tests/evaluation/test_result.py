"""A result as data: a table with one row per example, and a file that comes back as it was."""

from __future__ import annotations

import json

import pytest
import torch
from scipy import stats
from small_models import prompts, tiny_model

import gradpath as gp
from gradpath.errors import InputError
from gradpath.evaluation import evaluate
from gradpath.evaluation.result import Result, ratio_interval
from gradpath.selection import select
from gradpath.tasks.task import Task


@pytest.fixture(scope="module")
def task() -> Task:
    return prompts([6, 5, 7], [[2], [3], [4]])


@pytest.fixture(scope="module")
def result(task) -> Result:
    model = tiny_model("gpt2")
    return evaluate(model, select(gp.attribute(model, task, "eap"), 60), task)


def test_table_has_a_row_for_each_example_with_its_prompts(result, task):
    pytest.importorskip("pandas")
    table = result.to_pandas()
    assert list(table.columns) == ["clean_prompt", "corrupted_prompt", "clean", "corrupted", "circuit", "error"]
    assert list(table["clean_prompt"]) == list(task.clean)
    assert list(table["corrupted_prompt"]) == list(task.corrupted)
    for name in ("clean", "corrupted", "circuit"):
        assert table[name].mean() == pytest.approx(getattr(result, name))
    assert table["error"].mean() == pytest.approx(result.error)
    assert table.attrs["gradpath"]["recipe"]["model"] == "gpt2"


def test_a_saved_result_comes_back_as_it_was(result, tmp_path):
    result.save(tmp_path / "result.json")
    back = gp.load_result(tmp_path / "result.json")
    for name in ("clean_values", "corrupted_values", "circuit_values"):
        assert torch.equal(getattr(back, name), getattr(result, name))
    for name in ("edges_requested", "edges_kept", "recipe", "accuracy", "does_task"):
        assert getattr(back, name) == getattr(result, name)
    assert tuple(back.clean_prompts) == result.clean_prompts
    Result(torch.ones(3), torch.zeros(3), torch.full((3,), 0.5), 10, 8).save(tmp_path / "result.json")
    bare = gp.load_result(tmp_path / "result.json")  # without prompts
    assert (bare.faithfulness, bare.clean_prompts) == (0.5, ())


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content.pop("examples"), "KeyError"),
        (lambda content: content.update(examples=[]), "no examples"),
        (lambda content: content["examples"].append([1, 2]), "three numbers and two prompts"),
        (lambda content: content["examples"][0].__setitem__(0, float("nan")), "finite number"),
        (lambda content: content["examples"][0].__setitem__(2, "high"), "finite number"),
        (lambda content: content["examples"][1].__setitem__(3, 7), "a prompt is text"),
        (lambda content: content.update(edges_kept=-1), "numbers of edges"),
        (lambda content: content.update(recipe=[]), "not an object"),
        (lambda content: content.update(edges_kept=7), "changed or damaged after"),
        (lambda content: content.update(gradpath_result=1), 'no "gradpath_result": 2'),
    ],
)
def test_a_damaged_result_is_refused_with_the_reason(result, tmp_path, damage, words):
    file = tmp_path / "result.json"
    result.save(file)
    content = json.loads(file.read_text())
    damage(content)
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=words):
        gp.load_result(file)
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(InputError, match="cut off"):
        gp.load_result(file)
    with pytest.raises(InputError, match="there is no file"):
        gp.load_result(tmp_path / "none.json")


def test_there_is_no_interval_below_five_examples():
    clean, corrupted = torch.linspace(2, 3, 6), torch.zeros(6)
    few = Result(clean[:4], corrupted[:4], clean[:4] / 2, edges_requested=5, edges_kept=5)
    assert few.interval is None
    assert few.error_interval is None
    assert few.does_task == "unclear"
    assert "(4 examples: no interval)" in str(few)
    low, high = Result(clean, corrupted, clean / 2 + 0.1, edges_requested=5, edges_kept=5).interval
    assert low < 0.54 < high


@pytest.mark.parametrize(("n", "sd"), [(10, 0.5), (20, 2.0)])
def test_the_interval_of_a_normal_mean_is_close_to_that_of_students_t(n, sd):
    values = sd * torch.special.ndtri((torch.arange(n, dtype=torch.float64) + 0.5) / n)
    low, high = ratio_interval(values, torch.ones_like(values))
    reach = float(stats.t.ppf(0.975, n - 1) * values.std() / n**0.5)
    assert float(values.mean()) - low == pytest.approx(reach, rel=0.5)
    assert high - float(values.mean()) == pytest.approx(reach, rel=0.5)


def test_the_model_does_a_task_if_the_right_answer_is_ahead_and_the_metric_rises():
    clean = torch.tensor([2.0, 2.1, 1.9, 2.0, 2.2, -0.1, -0.2, -0.3])

    def done(clean, corrupted, *, has_answers=True):
        return Result(clean, corrupted, clean, edges_requested=5, edges_kept=5, has_answers=has_answers)

    assert done(clean.abs(), clean - 3).does_task == "yes"
    assert done(clean, clean - 3).accuracy == 5 / 8
    assert done(clean, clean - 3).does_task == "unclear"
    assert "it is unclear whether the model does this task" in done(clean, clean - 3).behaviour
    assert done(clean - 2, clean - 3).does_task == "no"  # ahead on 2 of 8
    assert done(clean.abs(), clean.abs().roll(1)).does_task == "no"
    own = done(clean - 2, clean - 3, has_answers=False)
    assert own.accuracy is None
    assert own.does_task == "yes"
