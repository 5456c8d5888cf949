"""``gradpath check`` as a user types it."""

from __future__ import annotations


def test_check_gives_a_verdict(run, model_folder):
    ran = run("check", "--model", model_folder)
    assert ran.code == 0
    assert ran.out.count("ok ") == 6
    assert ran.out.strip().endswith("passed all checks.")
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
    assert "failed the checks: do not use its scores" in ran.out


def test_check_of_a_device_compares_with_the_cpu(run, model_folder):
    ran = run("check", "--model", model_folder, "--device", "cpu")
    assert ran.code == 0
    assert ran.out.count("against the CPU: deviation 0.0e+00 (limit ") == 4
