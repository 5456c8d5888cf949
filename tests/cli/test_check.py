"""``gradpath check`` as a user types it."""

from __future__ import annotations


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
