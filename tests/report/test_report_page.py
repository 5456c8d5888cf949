"""The page's text: what goes into it, how large it gets, and what is refused."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from making import SMOLLM2, Maker

from gradpath.errors import GradpathError, InputError, UsageError
from gradpath.report import Chosen, CurvePoint, MethodRun, Report, circuit_report, render, write
from gradpath.report.page import LIMIT, SCRIPTS, payload
from gradpath.selection import select
from gradpath.verdict.checks import Check


def data_of(page: str) -> dict[str, object]:
    start = page.index('<script type="application/json" id="data">') + 42
    content: dict[str, object] = json.loads(page[start : page.index("</script>", start)])
    return content


def test_page_is_small_for_three_methods_on_smollm2(make: Maker) -> None:
    scores = [make.scores(*SMOLLM2, seed=i) for i in range(3)]
    assert len(render(make.report(*scores)).encode()) < 2_200_000


def test_page_holds_every_edge_of_a_small_model(make: Maker) -> None:
    scores = make.scores()
    run = payload(make.report(scores))["runs"][0]
    index = np.frombuffer(base64.b64decode(run["index"]), "<u4")
    values = np.frombuffer(base64.b64decode(run["scores"]), "<f4")
    assert index.tolist() == scores.graph.mask.flatten().nonzero()[:, 0].tolist()
    assert values.tolist() == scores.values[scores.graph.mask].tolist()


def test_edges_that_no_selection_reaches_are_cut(make: Maker) -> None:
    scores = make.scores(*SMOLLM2)
    run = payload(make.report(scores))["runs"][0]
    assert LIMIT <= run["edges"] < scores.graph.n_edges
    assert run["limit"] == LIMIT


def test_circuit_larger_than_the_limit_is_not_cut(make: Maker) -> None:
    run = payload(make.report(make.scores(*SMOLLM2), edges=40_000))["runs"][0]
    assert run["limit"] == 40_000


def test_page_has_no_reference_to_the_network(make: Maker) -> None:
    page = render(make.report(make.scores()))
    without_namespaces = page.replace("http://www.w3.org/", "")
    assert "http://" not in without_namespaces
    assert "https://" not in without_namespaces
    assert "default-src 'none'" in page


def test_every_script_is_in_the_page_and_in_the_list() -> None:
    folder = Path(__file__).parents[2] / "src/gradpath/report/assets"
    assert sorted(SCRIPTS) == sorted(file.name for file in folder.glob("*.js"))


def test_markup_in_prompts_cannot_leave_the_data(make: Maker) -> None:
    evil = "</script><script>alert(1)</script> {{style}} {{data}}"
    report = make.report(make.scores())
    page = render(replace(report, title=evil, examples=[make.example(evil)], command=evil))
    assert "<script>alert" not in page
    assert page.count("<script") == 2
    assert data_of(page)["command"] == evil


def test_scores_that_are_no_numbers_are_refused(make: Maker) -> None:
    scores = make.scores()
    scores.values[0, -1] = torch.nan
    with pytest.raises(InputError, match="1 scores of eap-gp are not finite numbers"):
        render(make.report(scores))


def test_circuit_with_scores_that_are_no_numbers_is_refused(make: Maker) -> None:
    circuit = select(make.scores(), 30)
    with pytest.raises(InputError, match="not finite"):
        render(circuit_report(replace(circuit, scores=circuit.scores * torch.inf)))


def test_faithfulness_that_is_no_number_is_left_out(make: Maker) -> None:
    point = CurvePoint("top", 10, 8, float("nan"), float("nan"), float("inf"), 0.5)
    report = replace(make.report(make.scores()), runs=[MethodRun(make.scores(), [point])])
    curve = payload(report)["runs"][0]["curve"]
    assert curve[0]["faithfulness"] is None
    assert curve[0]["high"] is None
    render(report)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"runs": ()}, "at least one method"),
        ({"chosen": Chosen(5, "learned")}, "cannot select by 'learned'"),
        ({"chosen": Chosen(5, run=3)}, "run 3 was chosen"),
    ],
)
def test_wrong_calls_are_refused(make: Maker, changes: dict[str, object], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        render(replace(make.report(make.scores()), **changes))  # type: ignore[arg-type]


def test_methods_of_different_models_are_refused(make: Maker) -> None:
    with pytest.raises(InputError, match="same model"):
        render(make.report(make.scores(3, 4), make.scores(2, 4)))


def test_run_without_scores_and_circuit_is_refused() -> None:
    with pytest.raises(InputError, match="needs its scores or a circuit"):
        render(Report("t", "m", "t", [MethodRun(None)], Chosen(1)))


def test_page_is_written_whole_or_not_at_all(make: Maker, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("before")
    scores = make.scores()
    scores.values[0, -1] = torch.inf
    with pytest.raises(GradpathError):
        write(make.report(scores), file)
    assert file.read_text() == "before"
    write(make.report(make.scores()), file)
    assert file.read_text().endswith("</html>\n")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("gradpath find --task ioi --out out/ioi", "gradpath test out/ioi/circuit.json --out out/ioi/verdict.html"),
        (
            "gradpath find --data 'my pairs.csv' --plugin=a.py --steps 5 --plugin b.py --out=out",
            "gradpath test out/circuit.json --data 'my pairs.csv' --plugin a.py --plugin b.py --out out/verdict.html",
        ),
        (
            "gradpath find --task arc-easy --data arc.csv --seed 3 --metric m.py:f --out o",
            "gradpath test o/circuit.json --data arc.csv --task arc-easy --metric m.py:f --seed 3 --out o/verdict.html",
        ),
        ("gradpath find --task ioi", "gradpath test FOLDER/circuit.json --out FOLDER/verdict.html"),
        ("", "gradpath test FOLDER/circuit.json --out FOLDER/verdict.html"),
        ("found on Mary's laptop", "gradpath test FOLDER/circuit.json --out FOLDER/verdict.html"),
    ],
)
def test_the_command_for_the_whole_verdict_can_be_run(make: Maker, command: str, expected: str) -> None:
    checks = {"equivalence": Check(-0.3, 0.2, "no", "off by -0.300 of the behaviour")}
    verdict = payload(replace(make.report(make.scores()), checks=checks, command=command))["verdict"]
    assert verdict["command"] == expected
    assert ("with the folder of this page for FOLDER" in verdict["note"]) == ("FOLDER" in expected)


def test_the_command_for_the_whole_verdict_asks_for_data_that_no_command_named(make: Maker) -> None:
    scores = make.scores()
    scores = replace(scores, recipe=scores.recipe.changed(task="mine", data="mine.csv"))
    checks = {"equivalence": Check(-0.3, 0.2, "no", "off by -0.300 of the behaviour")}
    verdict = payload(replace(make.report(scores), checks=checks, command=""))["verdict"]
    assert verdict["command"] == "gradpath test FOLDER/circuit.json --data FILE --out FOLDER/verdict.html"
