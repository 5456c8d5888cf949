"""Commands in processes of their own, forked from one that has imported everything."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launching import LIMIT, environment


class Server:
    """Starts commands, and waits for them."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, str(Path(__file__).with_name("fork_server.py"))]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, cwd=folder, env=environment(GRADPATH_UNCHECKED="1"), **pipes)
        self.out, self.err = folder / "stdout", folder / "stderr"

    def ask(self, **what: Any) -> int:
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return int(json.loads(self.process.stdout.readline()))

    def start(
        self,
        *arguments: Any,
        out: str | None = None,
        script: str = "",
        most: int | None = None,
        hold: Sequence[Path] = (),
        files: int = 1,
    ) -> int:
        """The id of a process that runs the command (or a script), with files of at most so many bytes.

        It waits for a signal as soon as so many files are there of the patterns that hold it.
        """
        where: Any = {"out": out or str(self.out), "err": str(self.err)}
        given = {"script": script, "most": most, "hold": list(map(str, hold)), "files": files}
        return self.ask(start=list(map(str, arguments)), **where, **given)

    def run(self, *arguments: Any, **how: Any) -> int:
        return self.ask(wait=self.start(*arguments, **how))

    def held(self, child: int) -> bool:
        """Whether a process waits for a signal."""
        return self.err.with_name(f"{self.err.name}.held-{child}").exists()

    def said(self) -> str:
        """What stderr has, which has to be one sentence."""
        text = "\n".join(
            line for line in self.err.read_text().splitlines() if " pairs are few for " not in line
        ).strip()
        assert "Traceback" not in text
        assert text.startswith("gradpath: "), text
        assert len(text.splitlines()) == 1, text
        return text

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(LIMIT)
        self.process.stdout.close()


def until(there: Callable[[], Any]) -> None:
    end = time.monotonic() + LIMIT
    while not there():
        assert time.monotonic() < end, "what was waited for did not come"
        time.sleep(0.002)
