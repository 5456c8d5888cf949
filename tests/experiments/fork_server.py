"""Runs the command line in forked processes, so that the libraries are imported once for all of them.

One JSON object a line on stdin, one on stdout: ``{"start": [arguments], "out": file, "err": file}`` gives the
process's id, ``{"wait": id}`` its exit code (negative for the signal that killed it).
"""

from __future__ import annotations

import json
import os
import signal
import sys

import torch

import gradpath.grid.faithfulness
import gradpath.grid.runner
import gradpath.model.load  # noqa: F401
from gradpath import cli

torch.set_num_threads(1)


def start(arguments: list[str], out: str, err: str, most: int | None) -> int:
    child = os.fork()
    if child:
        return child
    for number, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever started us may have ignored it
    if most is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    try:
        cli.main(arguments)
    except SystemExit as leave:
        sys.stdout.flush()
        os._exit(int(leave.code or 0))
    except BaseException:
        import traceback

        traceback.print_exc()
    os._exit(99)


for line in sys.stdin:
    asked = json.loads(line)
    if "start" in asked:
        answer = start(asked["start"], asked["out"], asked["err"], asked.get("most"))
    else:
        answer = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
