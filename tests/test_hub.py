"""The hub, played by a real server on this machine: what is fetched, and how each failure reads."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from rankscope.exceptions import (
    AccessRefused,
    ModelError,
    ModelNotCached,
    NotAModelFolder,
)
from rankscope.models import check, load
from rankscope.models.hub import Hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """Serves ``/OWNER/NAME/resolve/REVISION/FILE`` from a dictionary, and remembers who asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.refusals: dict[str, tuple[int, dict[str, str]]] = {}
        self.requests: list[str] = []
        self.silent = False
        self.commit: str | None = COMMIT

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, body: bool) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        if self.server.silent:
            time.sleep(8)
            return None
        owner, name, _, revision, file = self.path.strip("/").split("/", 4)
        repo = f"{owner}/{name}"
        if repo in self.server.refusals:
            status, headers = self.server.refusals[repo]
            return self.reply(status, headers)
        if repo not in self.server.repos:
            return self.reply(404, {"X-Error-Code": "RepoNotFound"})
        if revision not in ("main", "v1", COMMIT):
            return self.reply(404, {"X-Error-Code": "RevisionNotFound"})
        known = {"X-Repo-Commit": self.server.commit} if self.server.commit else {}
        content = self.server.repos[repo].get(file)
        if content is None:
            return self.reply(404, {"X-Error-Code": "EntryNotFound", **known})
        etag = hashlib.sha1(content).hexdigest()
        return self.reply(200, {"ETag": f'"{etag}"', **known}, content, body)

    def reply(
        self, status: int, headers: dict[str, str], content: bytes = b"", body: bool = True
    ) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    huggingface_hub.close_session()
    with FakeHub() as fake:
        thread = threading.Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield fake
        fake.shutdown()
        thread.join()
    huggingface_hub.close_session()


@pytest.fixture
def hub(server: FakeHub, tmp_path: Path) -> Hub:
    return Hub(server.endpoint, tmp_path / "cache", offline=False, timeout=2.0)


@pytest.fixture
def within_five_seconds() -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < 5


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **_: object) -> None:
        raise AssertionError(f"a network call: {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


FILES = {
    "config.json": b'{"model_type": "roberta"}',
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
    "vocab.json": b"{}",
    "merges.txt": b"",
    "model.safetensors": b"W" * 1000,
    "pytorch_model.bin": b"B" * 1000,
    "tf_model.h5": b"H" * 1000,
}


def test_a_model_is_fetched_once_and_then_read_from_the_cache(server: FakeHub, hub: Hub) -> None:
    server.repos["owner/tiny"] = FILES
    folder = hub.snapshot("owner/tiny")
    assert folder.name == COMMIT
    assert sorted(file.name for file in folder.iterdir()) == [
        "config.json",
        "merges.txt",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    asked = len(server.requests)
    assert hub.snapshot("owner/tiny") == folder
    assert len(server.requests) == asked


def test_after_fetching_the_cache_serves_offline(
    server: FakeHub, hub: Hub, request: pytest.FixtureRequest
) -> None:
    server.repos["owner/tiny"] = FILES
    folder = hub.snapshot("owner/tiny")
    request.getfixturevalue("no_network")
    offline = Hub(hub.endpoint, hub.cache_dir, offline=True)
    assert offline.snapshot("owner/tiny") == offline.snapshot("owner/tiny", COMMIT) == folder


def test_probing_fetches_no_weights_and_random_asks_for_none(server: FakeHub, hub: Hub) -> None:
    server.repos["owner/tiny"] = FILES
    folder = hub.snapshot("owner/tiny", weights="none")
    assert not any("model.safetensors" in line for line in server.requests)
    assert hub.snapshot("owner/tiny", weights="probe") == folder
    lines = [line for line in server.requests if "model.safetensors" in line]
    assert lines == [f"HEAD /owner/tiny/resolve/{COMMIT}/model.safetensors"]
    assert not (folder / "model.safetensors").exists()
    assert (hub.snapshot("owner/tiny") / "model.safetensors").exists()


def test_a_revision_is_pinned(server: FakeHub, hub: Hub) -> None:
    server.repos["owner/tiny"] = FILES
    assert hub.snapshot("owner/tiny", "v1").name == COMMIT
    offline = Hub(hub.endpoint, hub.cache_dir, offline=True)
    assert offline.snapshot("owner/tiny", "v1").name == COMMIT
    with pytest.raises(ModelNotCached):
        offline.snapshot("owner/tiny", "main")


def test_shards_are_fetched_through_their_index(server: FakeHub, hub: Hub) -> None:
    shards = {"model-1.safetensors": b"1", "model-2.safetensors": b"2"}
    index = b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'
    server.repos["owner/tiny"] = {
        "config.json": FILES["config.json"],
        "vocab.json": b"{}",
        "model.safetensors.index.json": index,
        **shards,
    }
    folder = hub.snapshot("owner/tiny")
    assert {name: (folder / name).read_bytes() for name in shards} == shards
    assert (folder / "vocab.json").exists()
    (folder / "model-2.safetensors").unlink()
    with pytest.raises(ModelNotCached, match=r"lacking: model-2\.safetensors"):
        Hub(hub.endpoint, hub.cache_dir, offline=True).snapshot("owner/tiny")
    assert (hub.snapshot("owner/tiny") / "model-2.safetensors").read_bytes() == b"2"


def test_torch_weights_are_taken_where_there_are_no_others(server: FakeHub, hub: Hub) -> None:
    server.repos["owner/tiny"] = {
        name: FILES[name] for name in ("config.json", "tokenizer.json", "pytorch_model.bin")
    }
    assert (hub.snapshot("owner/tiny") / "pytorch_model.bin").exists()


def test_a_whole_model_is_loaded_from_the_hub(
    server: FakeHub, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaModel

    backend = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    original = RobertaModel(
        RobertaConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    )
    original.save_pretrained(tmp_path / "out")
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(tmp_path / "out")
    server.repos["owner/tiny"] = {
        file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()
    }
    monkeypatch.setattr(Hub, "from_environment", lambda: hub)
    info = check("owner/tiny")
    assert (info.n_layers, info.stored_dtype, info.source) == (2, None, "hub")
    loaded = load("owner/tiny")
    assert (loaded.info.name, loaded.info.revision) == ("owner/tiny", COMMIT)
    assert loaded.info.stored_dtype == "float32"
    assert loaded.tokenizer.encode("b a") == [2, 1]
    assert loaded.tokenizer.name == "owner/tiny"
    state = loaded.model.state_dict()
    assert len(state) > 30
    for name, value in state.items():
        assert torch.equal(value, original.state_dict()[name])
    drawn = load("random:owner/tiny", seed=3)
    assert (drawn.info.revision, drawn.info.weights_sha256) == (COMMIT, None)


@pytest.mark.usefixtures("within_five_seconds", "no_network")
@pytest.mark.parametrize("switch", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_f17_not_cached_while_offline_makes_no_network_call(
    switch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    assert Hub.from_environment().offline is False
    monkeypatch.setenv(switch, "1")
    hub = Hub.from_environment()
    assert hub.offline is True
    with pytest.raises(
        ModelNotCached, match=r"owner/tiny is not cached in .* switched off"
    ) as seen:
        hub.snapshot("owner/tiny")
    assert seen.value.exit_code == 11
    assert "path of a folder" in seen.value.remedy


@pytest.mark.usefixtures("within_five_seconds")
@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        (401, {"X-Error-Code": "GatedRepo"}, "is gated"),
        (403, {"X-Error-Code": "GatedRepo"}, "is gated"),
        (401, {"X-Error-Code": "RepoNotFound"}, "private or gated, or no such repository"),
        (401, {}, "HTTP 401"),
        (403, {}, "HTTP 403"),
        (403, {"X-Error-Message": "Access to this resource is disabled."}, "was disabled"),
    ],
)
def test_f17_access_refused(
    server: FakeHub, hub: Hub, status: int, headers: dict[str, str], words: str
) -> None:
    server.refusals["owner/gated"] = status, headers
    with pytest.raises(AccessRefused, match=words) as caught:
        hub.snapshot("owner/gated")
    assert caught.value.exit_code == 12
    assert "owner/gated" in caught.value.cause
    assert caught.value.remedy


@pytest.mark.usefixtures("within_five_seconds", "server")
def test_f17_no_such_repository_revision_or_model(server: FakeHub, hub: Hub) -> None:
    server.repos |= {"owner/tiny": FILES, "owner/data": {"data.csv": b"1"}}
    server.repos["owner/flax"] = {"config.json": b"{}", "tokenizer.json": b"{}"}
    for repo, revision, words in (
        ("owner/nothing", None, "there is no repository owner/nothing"),
        ("owner/tiny", "v9", "has no revision 'v9'"),
        ("owner/data", None, r"owner/data at .* has no config\.json"),
        ("owner/flax", None, "owner/flax at .* has no weights"),
    ):
        with pytest.raises(NotAModelFolder, match=words):
            hub.snapshot(repo, revision)


@pytest.mark.usefixtures("within_five_seconds")
def test_f17_no_connection(tmp_path: Path, server: FakeHub) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    hub = Hub(f"http://127.0.0.1:{port}", tmp_path, offline=False)
    with pytest.raises(ModelNotCached, match=rf"no connection to http://127\.0\.0\.1:{port}: \S+"):
        hub.snapshot("owner/tiny")


@pytest.mark.usefixtures("within_five_seconds")
def test_f17_no_answer(server: FakeHub, hub: Hub) -> None:
    server.silent = True
    with pytest.raises(ModelNotCached, match="did not answer within 2 seconds") as caught:
        hub.snapshot("owner/tiny")
    assert "HF_HUB_ETAG_TIMEOUT" in caught.value.remedy
    assert len(server.requests) == 1


@pytest.mark.usefixtures("within_five_seconds")
@pytest.mark.parametrize("status", [429, 500, 503])
def test_f17_a_hub_in_trouble(server: FakeHub, hub: Hub, status: int) -> None:
    server.refusals["owner/tiny"] = status, {}
    with pytest.raises(ModelNotCached, match=f"answers with HTTP {status}"):
        hub.snapshot("owner/tiny")


@pytest.mark.usefixtures("within_five_seconds")
def test_an_address_that_is_no_hub_is_named(server: FakeHub, hub: Hub) -> None:
    server.repos["owner/tiny"] = FILES
    server.commit = None
    with pytest.raises(ModelError, match="not like a model hub"):
        hub.snapshot("owner/tiny")


def test_ids_that_the_hub_does_not_allow_are_refused(hub: Hub) -> None:
    with pytest.raises(NotAModelFolder, match="neither a folder nor a hub id"):
        hub.snapshot("owner/--bad..name")


def test_a_cache_that_cannot_be_written_is_named(server: FakeHub, hub: Hub) -> None:
    server.repos["owner/tiny"] = FILES
    hub.cache_dir.write_text("a file where the folder should be")
    with pytest.raises(ModelError, match=f"could not be fetched into {hub.cache_dir}") as caught:
        hub.snapshot("owner/tiny")
    assert "HF_HOME" in caught.value.remedy


def test_nothing_is_left_behind_by_a_refusal(server: FakeHub, hub: Hub) -> None:
    server.refusals["owner/gated"] = 401, {"X-Error-Code": "GatedRepo"}
    with pytest.raises(AccessRefused):
        hub.snapshot("owner/gated")
    assert not hub.cache_dir.exists()


def test_the_time_limit_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Hub.from_environment().timeout < 5
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 30)
    assert Hub.from_environment().timeout == 30


def test_f17_a_command_line_sees_the_refusal_within_five_seconds(
    server: FakeHub, tmp_path: Path
) -> None:
    server.refusals["owner/gated"] = 401, {"X-Error-Code": "GatedRepo"}
    code = (
        "import sys, rankscope.models as m\n"
        "from rankscope.exceptions import RankscopeError\n"
        "try: m.check('owner/gated')\n"
        "except RankscopeError as error: print(error.cause); sys.exit(error.exit_code)\n"
    )
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"HF_ENDPOINT": server.endpoint, "HF_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert time.monotonic() - start < 5
    assert (done.returncode, done.stderr) == (12, "")
    assert done.stdout.startswith("owner/gated is gated")
