"""Run one notebook: papermill's engine, with what it leaves open closed.

Beyond papermill:

- parameters are checked against the notebook (`parameters.py`) before anything starts;
- the kernel is the interpreter that runs this module, whatever kernel specifications, start-up files and
  graphical backend the machine has;
- a kernel that dies ends the notebook within seconds; every kernel is ended, also on an interrupt;
- the output is strict JSON, replaced in one step around every cell, so a partial notebook is always readable;
- what cells print is seen while they run.

Costs one or two seconds for the kernel, and one write of the notebook before and after each cell.
"""

from __future__ import annotations

import math
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cptkit.study.parameters import NotebookError, declared, literal, resolve

if TYPE_CHECKING:
    from jupyter_client import AsyncKernelManager

Status = Literal["done", "up to date", "failed", "refused", "interrupted"]
START_SECONDS = 300  # a cold file system or a busy machine: the default of 60 is not enough
# Where memory comes from glibc: keep what is freed. Else large tensors are mapped anew each time and their
# pages faulted in, which takes 12 % of a training step on the CPU. Elsewhere the names mean nothing.
GLIBC = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
BAR_SECONDS = 5  # a progress bar that redraws itself is passed on this often


@dataclass(frozen=True)
class Outcome:
    """What became of one notebook. `minutes` is wall time, `figures` the number of PNG files it left."""

    notebook: str
    status: Status
    minutes: float
    figures: int
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.status in ("done", "up to date")


def run_notebook(
    source: Path,
    output: Path,
    parameters: Mapping[str, object],
    *,
    timeout: float | None = None,
    progress: Callable[[str], None] | None = None,
    figures: Path | None = None,
    record: Mapping[str, object] | None = None,
    kernels: Kernels | None = None,
) -> Outcome:
    """Execute `source` with `parameters` and leave the result, whole or partial, at `output`.

    `timeout` is in seconds for one cell; `progress` receives each line that a cell prints; `figures` is the
    folder whose PNG files are counted; `record` is kept in the output's metadata. The kernel's working
    directory is the folder of `source`, as in JupyterLab.

    Raises `NotebookError`, before anything is started or written, for a notebook or parameters that cannot
    run. A cell's error, a dead kernel or a full disk is an `Outcome` that failed.
    """
    notebook = _prepared(read(source), parameters)
    mine = notebook.metadata.setdefault("cptkit", {})
    mine.update(record or {}, status="running", minutes=None)
    kernels = kernels or Kernels()
    begin = time.monotonic()
    status, error = "failed", None
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        error = _execute(notebook, output, source.resolve().parent, timeout, progress, kernels)
        status = "failed" if error else "done"
    except KeyboardInterrupt:
        status, error = "interrupted", "interrupted"
        raise
    except Exception as problem:  # whatever it is, the other notebooks go on
        error = f"{type(problem).__name__}: {problem}"
    finally:
        if kernels.stopped:
            status, error = "interrupted", "interrupted"
        minutes = (time.monotonic() - begin) / 60
        drawn = drawings(figures)
        mine.update(status=status, error=error, minutes=round(minutes, 3), figures=drawn)
        try:
            _write(notebook, output)
        except OSError as problem:
            status, error = "failed", error or f"cannot write {output.name}: {problem}"
    return Outcome(source.stem, status, minutes, sum(name.endswith(".png") for name in drawn), error)


def read(source: Path):
    """The notebook at `source` as nbformat 4. Raises `NotebookError` when it is none."""
    import nbformat

    try:
        return nbformat.read(source, as_version=4)
    except Exception as problem:  # nbformat raises many kinds, AttributeError among them
        raise NotebookError(f"{source} cannot be read as a notebook: {problem}") from None


def _prepared(notebook, parameters: Mapping[str, object]):
    """The notebook with the values injected after its parameters cell, and no old outputs.

    Written here because papermill's translator turns a tuple into text and the keys of a dict into strings.
    """
    import nbformat

    values = resolve(declared(notebook), parameters)
    lines = ["# Parameters", *(f"{name} = {literal(value)}" for name, value in values.items())]
    cell = nbformat.v4.new_code_cell("\n".join(lines), metadata={"tags": ["injected-parameters"]})
    cells = [c for c in notebook.cells if "injected-parameters" not in c.metadata.get("tags", [])]
    place = next(i for i, c in enumerate(cells) if "parameters" in c.metadata.get("tags", []))
    notebook.cells = [*cells[: place + 1], cell, *cells[place + 1 :]]
    notebook.metadata["papermill"] = {"parameters": values}
    return notebook


def _execute(notebook, output, folder, timeout, progress, kernels) -> str | None:
    """Run every cell; the error as one line, or None. The kernel is gone when this returns or raises."""
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.clientwrap import PapermillNotebookClient
    from papermill.engines import NotebookExecutionManager

    class Saved(NotebookExecutionManager):
        cell_index, place = 0, "before the first cell"

        def save(self, **_) -> None:
            _write(self.nb, output)
            self.last_save_time = self.now()

        def cell_start(self, cell, cell_index=None, **kwargs) -> None:
            self.cell_index = cell_index
            self.place = f"cell {cell_index + 1} of {len(self.nb.cells)}"
            super().cell_start(cell, cell_index, **kwargs)

    class Client(PapermillNotebookClient):
        def process_message(self, message, *args, **kwargs):
            if message["msg_type"] == "stream":
                lines[message["content"]["name"]].feed(message["content"]["text"])
            return super().process_message(message, *args, **kwargs)

    lines = {name: _Lines(progress or (lambda line: None)) for name in ("stdout", "stderr")}
    manager = Saved(notebook, progress_bar=False)
    manager.notebook_start()
    try:
        with kernels.kernel() as (kernel, env):
            # Outputs of a cell can trail its reply by far on a busy machine: wait a minute, not 4 seconds.
            client = Client(
                manager,
                km=kernel,
                kernel_name="python3",
                timeout=timeout,
                startup_timeout=START_SECONDS,
                iopub_timeout=60,
                coalesce_streams=True,
            )
            try:
                client.execute(cwd=str(folder), env=env)
            finally:
                if client.kc:  # the client leaves the sockets of a kernel manager that is not its own
                    client.kc.stop_channels()
    except (DeadKernelError, CellTimeoutError) as problem:
        manager.cell_exception(notebook.cells[manager.cell_index])
        why = (
            f"took longer than {timeout:g} s"
            if isinstance(problem, CellTimeoutError)
            else "the kernel died (killed, or out of memory)"
        )
        return f"{manager.place}: {why}"
    finally:
        for stream in lines.values():
            stream.end()
    if notebook.metadata.papermill.exception:
        outputs = notebook.cells[manager.cell_index].get("outputs", [])
        raised = [f"{out.ename}: {out.evalue}" for out in outputs if out.output_type == "error"]
        return f"{manager.place}: {raised[-1].splitlines()[0] if raised else 'error'}"
    return None


class Kernels:
    """The kernels that run now, so that an interrupt in the main thread can end those of every thread."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads
        self.stopped = False
        self._live: set[int] = set()
        self._lock = threading.Lock()

    @contextmanager
    def kernel(self) -> Iterator[tuple[AsyncKernelManager, dict[str, str]]]:
        """A kernel manager, not started, of this interpreter, and the environment to start it in."""
        from jupyter_client import AsyncKernelManager
        from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
        from jupyter_core.utils import run_sync

        class ThisInterpreter(KernelSpecManager):
            def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
                argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
                return KernelSpec(argv=argv, display_name=kernel_name, language="python")

        kernels = self

        class Manager(AsyncKernelManager):
            async def _async_launch_kernel(self, command, **kwargs) -> None:
                with kernels._lock:
                    if kernels.stopped:
                        raise RuntimeError("interrupted")
                    await super()._async_launch_kernel(command, **kwargs)
                    kernels._live.add(self.provisioner.pid)

        # A private folder: no start-up files of the user, no history, and a home that may be read-only.
        with tempfile.TemporaryDirectory(prefix="cptkit-kernel-", ignore_cleanup_errors=True) as folder:
            env = os.environ | {
                "IPYTHONDIR": folder,
                "MPLBACKEND": "module://matplotlib_inline.backend_inline",  # never a window, whatever DISPLAY
                "PYDEVD_DISABLE_FILE_VALIDATION": "1",
            }
            if self.threads:
                env.setdefault("OMP_NUM_THREADS", str(self.threads))
            for name, value in GLIBC.items():
                env.setdefault(name, value)
            manager = Manager(
                kernel_spec_manager=ThisInterpreter(),
                connection_file=os.path.join(folder, "kernel.json"),
                # Sockets in the folder: no port to lose to another process, none for others to see. A path
                # that is longer than a socket's may be (some 100 bytes) falls back to ports.
                transport="ipc" if len(os.fsencode(folder)) < 80 else "tcp",
            )
            clean = False
            try:
                yield manager, env
                clean = True
            finally:
                if manager.has_kernel:
                    # In good order the kernel may run its exit hooks; else it and its children are killed.
                    run_sync(manager.shutdown_kernel)(now=not clean)
                if manager.provisioner:
                    with self._lock:
                        self._live.discard(manager.provisioner.pid)

    def stop(self) -> None:
        """Kill every kernel with its children; none starts after this."""
        with self._lock:
            self.stopped = True
            for pid in self._live:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)  # a kernel leads its own session


class _Lines:
    """Cuts a stream into lines for the terminal; of a bar that redraws itself, one line now and then."""

    def __init__(self, emit: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.emit, self.clock = emit, clock
        self.rest, self.last = "", -float(BAR_SECONDS)

    def feed(self, text: str) -> None:
        *parts, self.rest = re.split(r"(\r?\n|\r)", self.rest + text)
        for line, mark in zip(parts[::2], parts[1::2], strict=True):
            now = self.clock()
            if line.strip() and ("\n" in mark or now - self.last >= BAR_SECONDS):
                self.emit(line.rstrip())
                self.last = now if mark == "\r" else self.last

    def end(self) -> None:
        self.feed("\n")


def drawings(folder: Path | None) -> list[str]:
    """The files under a folder of figures, relative to it; none when it does not exist."""
    files = [] if folder is None else [file for file in folder.rglob("*") if file.is_file()]
    return sorted(file.relative_to(folder).as_posix() for file in files)


def _strict(value):
    """`value` with NaN and the infinities as text, since JSON has none."""
    if isinstance(value, dict):
        return {str(key): _strict(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(member) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _write(notebook, path: Path) -> None:
    """Replace `path` by `notebook` in one step."""
    import nbformat

    # A lone surrogate, which UTF-8 cannot hold, becomes its JSON escape.
    text = nbformat.writes(nbformat.from_dict(_strict(notebook)), allow_nan=False) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(text.encode("utf-8", errors="backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
