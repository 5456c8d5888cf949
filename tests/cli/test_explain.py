"""``gradpath explain`` as a user types it."""

from __future__ import annotations

import json

from gradpath.circuit import load_circuit


def test_explain_prints_one_object_with_a_row_for_every_node(run, found):
    _, out = found
    ran = run("explain", out / "circuit.json", "--examples", 4, "--json")
    assert ran.code == 0, ran.err
    circuit = load_circuit(out / "circuit.json")
    assert {row["node"] for row in ran.json["nodes"]} == set(circuit.nodes)
    assert all({"node", "attends", "writes", "reads", "direct_effect"} <= set(row) for row in ran.json["nodes"])
    assert {"indirect object", "subject", "subject again", "end"} <= set(ran.json["parts"])


def test_explain_prints_a_table_of_the_strongest_nodes_with_their_names(run, found):
    _, out = found
    noted = load_circuit(out / "circuit.json")
    noted.notes["input"] = {"name": "the prompt"}
    noted.save(out / "noted.json")
    ran = run("explain", out / "noted.json", "--examples", 4, "--top", 3)
    assert ran.code == 0, ran.err
    assert "  input (the prompt)  " in ran.out
    lines = ran.out.splitlines()
    assert lines[0].startswith(f"{out / 'noted.json'} on 4 examples of ioi")
    assert lines[2].split()[:4] == ["node", "effect", "direct", "attends"]
    assert f"--top {len(load_circuit(out / 'circuit.json').nodes)} shows all" in lines[-1]


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
    # The giver is the correct answer, and has a name of its own; the last token and the other noun have none.
    assert {"giver", "comma", "wrong answer", "after wrong answer", "end", "rest"} <= set(ran.json["parts"])
    assert "right answer" not in ran.json["parts"]
