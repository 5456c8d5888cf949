"""A stand-in for the hub's HTTP API on loopback: repositories, branches, commits with LFS files, downloads.

It holds what is pushed in memory, so that what comes back is what was sent, and can be told to fail: to cut downloads
off, or to hold files that nobody should open.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlparse

import yaml

TOKEN = "hf_stand_in"
Files = dict[str, bytes]


@dataclass
class Repository:
    private: bool = False
    branches: dict[str, str] = field(default_factory=dict)  # name -> commit
    commits: dict[str, Files] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, branch: str, files: Files, message: str) -> str:
        content = {**self.commits.get(self.branches.get(branch, ""), {}), **files}
        oid = sha256(f"{len(self.commits)}{message}{sorted(content)}".encode()).hexdigest()[:40]
        self.commits[oid], self.branches[branch] = content, oid
        self.messages.append(message)
        return oid

    def resolve(self, revision: str) -> str | None:
        return self.branches.get(revision) or (revision if revision in self.commits else None)


class Hub:
    """The server and what it holds."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.uploads: dict[str, bytes] = {}  # LFS objects by digest
        self.cut_after: int | None = None  # bytes of a download after which the connection breaks
        self.claimed: dict[str, int] = {}  # sizes that are not those of the files
        self.requests: list[str] = []
        hub = self

        class Handler(_Handler):
            server_hub = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def add(self, name: str, files: Files) -> Repository:
        repository = self.repositories[name] = Repository()
        repository.commit("main", files, "first")
        return repository

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server_hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

    @property
    def hub(self) -> Hub:
        return self.server_hub

    def _answer(self) -> None:
        path = unquote(urlparse(self.path).path)
        body = self._body()
        self.hub.requests.append(f"{self.command} {path}")
        routes = {
            r"POST /api/repos/create": self._create,
            r"POST /api/validate-yaml": self._validate,
            r"GET /api/models/(\w[\w.-]*/[\w.-]+)(?:/revision/(.+))?": self._info,
            r"POST /api/models/(\w[\w.-]*/[\w.-]+)/branch/(.+)": self._branch,
            r"POST /api/models/(\w[\w.-]*/[\w.-]+)/preupload/(.+)": self._preupload,
            r"POST /api/models/(\w[\w.-]*/[\w.-]+)/commit/(.+)": self._commit,
            r"POST /(\w[\w.-]*/[\w.-]+)\.git/info/lfs/objects/batch": self._batch,
            r"PUT /lfs/(\w+)": self._store,
            r"(?:GET|HEAD) /(\w[\w.-]*/[\w.-]+)/resolve/([^/]+)/(.+)": self._resolve,
        }
        for pattern, answer in routes.items():
            if match := re.fullmatch(pattern, f"{self.command} {path}"):
                answer(body, *match.groups())
                return
        self._json(404, {"error": f"no such route: {path}"})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _json(self, status: int, content: Any, **headers: str) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _is_known(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _repository(self, name: str) -> Repository | None:
        """The repository, or None after the error that the hub gives, which hides whether there is a private one."""
        repository = self.hub.repositories.get(name)
        if repository is not None and (self._is_known() or not repository.private):
            return repository
        self._json(404 if self._is_known() else 401, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        return None

    def _may_write(self) -> bool:
        if not self._is_known():
            self._json(401, {"error": "Invalid username or password."})
        return self._is_known()

    def _create(self, body: bytes) -> None:
        if not self._may_write():
            return
        asked = json.loads(body)
        name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
        if name in self.hub.repositories:
            self._json(409, {"url": f"{self.hub.address}/{name}", "error": "exists"})
            return
        private = bool(asked.get("private")) or asked.get("visibility") == "private"
        self.hub.repositories[name] = Repository(private)
        self.hub.repositories[name].commit("main", {".gitattributes": b"*.safetensors filter=lfs\n"}, "initial commit")
        self._json(200, {"url": f"{self.hub.address}/{name}", "name": name})

    def _validate(self, body: bytes) -> None:
        text = json.loads(body)["content"]
        metadata = yaml.safe_load(text.split("---")[1])
        wrong = [] if isinstance(metadata, dict) and metadata.get("tags") else [{"message": "no tags"}]
        self._json(400 if wrong else 200, {"errors": wrong, "warnings": []})

    def _info(self, _: bytes, name: str, revision: str | None) -> None:
        repository = self._repository(name)
        if repository is None:
            return
        commit = repository.resolve(revision or "main")
        if commit is None:
            self._json(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
            return
        sizes = {path: self.hub.claimed.get(path, len(data)) for path, data in repository.commits[commit].items()}
        siblings = [{"rfilename": path, "size": size, "blobId": "0" * 40} for path, size in sizes.items()]
        known = {"id": name, "modelId": name, "sha": commit, "private": repository.private, "siblings": siblings}
        self._json(200, {**known, "tags": [], "downloads": 0, "likes": 0})

    def _branch(self, _: bytes, name: str, branch: str) -> None:
        repository = self._repository(name)
        if repository is None or not self._may_write():
            return
        if branch in repository.branches:
            self._json(409, {"error": "Reference already exists"})
            return
        repository.branches[branch] = repository.branches["main"]
        self._json(200, {})

    def _preupload(self, body: bytes, name: str, _: str) -> None:
        if self._repository(name) is None or not self._may_write():
            return
        files = [
            {"path": x["path"], "uploadMode": "lfs" if x["path"].endswith(".safetensors") else "regular"}
            for x in json.loads(body)["files"]
        ]
        self._json(200, {"files": [{**file, "shouldIgnore": False} for file in files]})

    def _batch(self, body: bytes, _: str) -> None:
        objects = [
            {**x, "actions": {"upload": {"href": f"{self.hub.address}/lfs/{x['oid']}"}}}
            for x in json.loads(body)["objects"]
        ]
        self._json(200, {"transfer": "basic", "objects": objects})

    def _store(self, body: bytes, oid: str) -> None:
        self.hub.uploads[oid] = body
        self._json(200 if sha256(body).hexdigest() == oid else 400, {})

    def _commit(self, body: bytes, name: str, branch: str) -> None:
        repository = self._repository(name)
        if repository is None or not self._may_write():
            return
        files, message = Files(), ""
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                message = value["summary"]
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.uploads[value["oid"]]
        oid = repository.commit(branch, files, message)
        self._json(200, {"success": True, "commitOid": oid, "commitUrl": f"{self.hub.address}/{name}/commit/{oid}"})

    def _resolve(self, _: bytes, name: str, revision: str, path: str) -> None:
        repository = self._repository(name)
        if repository is None:
            return
        commit = repository.resolve(revision)
        data = None if commit is None else repository.commits[commit].get(path)
        if data is None or commit is None:
            self._json(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
            return
        start = int((re.match(r"bytes=(\d+)-", self.headers.get("Range") or "") or [0, 0])[1])
        self.send_response(206 if start else 200)
        headers = {"ETag": f'"{sha256(data).hexdigest()}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        for key, value in {**headers, "Content-Length": str(len(data) - start)}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            cut = self.hub.cut_after
            self.wfile.write(data[start:] if cut is None else data[start : max(start, cut)])
            if cut is not None:
                self.close_connection = True
