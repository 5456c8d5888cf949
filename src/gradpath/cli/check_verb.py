"""``gradpath check``: is what is computed for this model right? A verdict before anything is believed."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from gradpath.cli.options import json_option, load, model_options


@click.command(name="check")
@click.option(
    "--model",
    default="smollm2",
    show_default=True,
    help="Hub name, folder, .gguf file, smollm2 or gemma3-270m.",
)
@click.option("--task", default="ioi", show_default=True, help="Whose prompts to use (gradpath ls tasks).")
@click.option("--examples", type=click.IntRange(min=1), default=2, show_default=True)
@json_option
@model_options
def command(model: str, task: str, examples: int, as_json: bool, **load_options: Any) -> None:
    """Hold a model's logits, scores and circuits against transformers and a plain, slow reference.

    \b
    gradpath check --model smollm2
    gradpath check --model ./my-model --dtype bfloat16
    """
    from gradpath.cli.progress import waiting
    from gradpath.model.load import load_original
    from gradpath.selfcheck import checks
    from gradpath.tasks import load_task

    loaded = load(model, **load_options)
    prompts = load_task(task, loaded, n=examples)
    with waiting("loading it with transformers"):
        original = load_original(model, loaded.dtype, trust_remote_code=load_options["trust_remote_code"])
    done = []
    with waiting("checking"):
        for check in checks(loaded, prompts, original):
            done.append(check)
            if not as_json:
                sign = "ok    " if check.passed else "WRONG "
                click.echo(f"{sign} {check.what}: off by {check.off:.1e}, may be {check.limit:.0e}")
    passed = all(check.passed for check in done)
    if as_json:
        found = [{**vars(check), "passed": check.passed} for check in done]
        click.echo(
            json.dumps(
                {"model": model, "dtype": str(loaded.dtype), "passed": passed, "checks": found}, indent=1
            )
        )
    elif passed:
        click.echo(f"{model} is computed as it should be.")
    else:
        click.echo(f"{model} is NOT computed as it should be: do not use its scores, and please report this.")
    sys.exit(0 if passed else 1)
