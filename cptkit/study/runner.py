"""Run the notebooks of the study, in order, and only those that are not done.

`run_study` executes `notebooks/NN_name.ipynb` into `executed/<profile>/`; `study` is the command. A notebook
is up to date when its executed copy was finished with the same fingerprint (its cells, its parameters, the
sources and profiles of cptkit) and every figure it left is still there. To see that costs milliseconds, and
to run it again is cheap too, since a run that exists is never trained twice.

A failing notebook does not stop the others. With `jobs` > 1 notebooks run side by side, each kernel with its
share of the cores, except those that must be alone: 00, which builds what the others share, and any that
says so in its metadata (`{"cptkit": {"runs": "alone"}}`: one that reads the others' results, or takes times).
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import cptkit
from cptkit.study.execute import Kernels, Outcome, drawings, read, run_notebook
from cptkit.study.parameters import NotebookError, declared, literal, resolve
from cptkit.study.profiles import load_profile, packaged, profile_files
from cptkit.train.config import ConfigError, nearest

PACKAGE = Path(cptkit.__file__).resolve().parent


def study(
    profile: str = "lab",
    only: tuple[str, ...] = (),
    jobs: int = 1,
    force: bool = False,
    parameters: tuple[str, ...] = (),
    timeout: float | None = None,
) -> int:
    """Run the study's notebooks and print what became of each; the exit status.

    0: all are done or up to date; 1: at least one is not; 2: nothing was started, since the request cannot
    be met; 130: interrupted.

    Args:
        profile: name of a profile, or path of a profile's TOML file.
        only: numbers of the notebooks to run, e.g. 00 01. By default those of the profile, else all.
        jobs: notebooks to run side by side.
        force: run notebooks that are up to date, too. Finished training runs are still not repeated.
        parameters: name=value for each notebook that has such a parameter.
        timeout: seconds that one cell may take. No limit by default.
    """
    try:
        with _interruptible():
            outcomes = run_study(profile, only, jobs, force, parameters=parameters, timeout=timeout)
    except NotebookError as problem:
        print(f"cptkit study: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("cptkit study: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0 if all(outcome.ok for outcome in outcomes) else 1


def run_study(
    profile: str,
    only: Sequence[str] = (),
    jobs: int = 1,
    force: bool = False,
    root: Path | None = None,
    *,
    parameters: Sequence[str] = (),
    timeout: float | None = None,
    say: Callable[[str], None] | None = None,
) -> list[Outcome]:
    """Run the notebooks under `root` (this checkout by default); their outcomes, in order.

    `say` receives the lines meant for the terminal. Raises `NotebookError`, before anything is started, for
    an unknown profile, number or parameter. On `KeyboardInterrupt` every kernel is ended, partial notebooks
    are kept and the table is printed before it is raised again.
    """
    root = root or PACKAGE.parent
    say = say or _say
    if jobs < 1:
        raise NotebookError(f"jobs must be at least 1, not {jobs}")
    try:
        loaded, files = load_profile(profile), profile_files(profile)
    except (ConfigError, OSError) as problem:
        raise NotebookError(str(problem)) from None
    # A kernel works in another folder, so a path has to be absolute for it.
    value = profile if profile in packaged() else str(Path(profile).resolve())
    sources = _select(root / "notebooks", only or loaded.notebooks)
    plans = [
        Plan(
            source,
            output=root / "executed" / loaded.name / source.name,
            figures=root / "figures" / loaded.name / source.stem,
            alone=source.stem.startswith("00") or _metadata(source).get("runs") == "alone",
        )
        for source in sources
    ]
    plans = _parameterised(plans, {"profile": value}, parameters, _digest(files))
    board = _Board(plans, jobs, force, say)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    kernels = Kernels(threads=max(1, cores // jobs) if jobs > 1 else None)

    def run(plan: Plan) -> None:
        board.start(plan)
        begin = time.monotonic()
        if plan.error:
            outcome = Outcome(plan.name, "refused", 0.0, 0, plan.error)
        elif not force and plan.up_to_date():
            outcome = Outcome(plan.name, "up to date", 0.0, plan.drawn())
        else:
            try:
                outcome = run_notebook(
                    plan.source,
                    plan.output,
                    plan.values,
                    timeout=timeout,
                    progress=lambda line: say(f"{plan.name} | {line}"),
                    figures=plan.figures,
                    record={"fingerprint": plan.fingerprint, "expected": board.expected(plan)},
                    kernels=kernels,
                )
            except Exception as problem:
                minutes = (time.monotonic() - begin) / 60
                outcome = Outcome(plan.name, "failed", minutes, 0, f"{type(problem).__name__}: {problem}")
        board.finish(plan, outcome)

    try:
        for alone, batch in groupby(plans, key=lambda plan: plan.alone):
            with ThreadPoolExecutor(1 if alone else jobs) as pool:
                waiting = [pool.submit(run, plan) for plan in batch]
                try:
                    for future in waiting:
                        future.result()
                except BaseException:
                    for future in waiting:
                        future.cancel()
                    kernels.stop()
                    raise
    finally:
        board.table(root)
    return board.ordered()


@dataclass(frozen=True)
class Plan:
    """One notebook to run: where from, where to, and with which parameters; `error` refuses it."""

    source: Path
    output: Path
    figures: Path
    alone: bool
    values: Mapping[str, object] | None = None
    fingerprint: str = ""
    error: str | None = None

    @property
    def name(self) -> str:
        return self.source.stem

    def up_to_date(self) -> bool:
        """Whether the executed copy was finished from this very input and its figures are still there."""
        old = _metadata(self.output)
        return (
            old.get("status") == "done"
            and old.get("fingerprint") == self.fingerprint
            and all((self.figures / file).is_file() for file in old.get("figures", []))
        )

    def drawn(self) -> int:
        return sum(file.endswith(".png") for file in drawings(self.figures))


def _select(folder: Path, only: Sequence[str]) -> list[Path]:
    found = {file.stem: file for file in sorted(folder.glob("[0-9][0-9]_*.ipynb"))}
    if not found:
        raise NotebookError(f"no notebooks in {folder}: run the study from a checkout of cptkit")
    chosen = set() if only else set(found)
    for part in only:
        names = [name for name in found if part == name or part.zfill(2) == name[:2]]
        if not names:
            raise NotebookError(f"there is no notebook {part!r} among {', '.join(found)}")
        chosen.update(names)
    return [file for name, file in found.items() if name in chosen]


def _parameterised(plans, values: dict[str, object], texts: Sequence[str], sources: str) -> list[Plan]:
    """The plans with the values of `texts` (name=value), read by each notebook's own types."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name in values or name in pairs:
            raise NotebookError(f"parameters are name=value, each once and not {', '.join(values)}: {text!r}")
        pairs[name] = value
    done, known = [], {}
    for plan in plans:
        try:
            notebook = read(plan.source)
            mine = declared(notebook)
            known |= mine
            own = values | {name: mine[name].parse(text) for name, text in pairs.items() if name in mine}
            own = resolve(mine, own)
            cells = [(c["cell_type"], c["source"], c["metadata"].get("tags", [])) for c in notebook["cells"]]
            what = json.dumps([cells, {name: literal(value) for name, value in own.items()}, sources])
            done.append(replace(plan, values=own, fingerprint=hashlib.sha256(what.encode()).hexdigest()))
        except NotebookError as problem:
            done.append(replace(plan, error=str(problem)))
    for name in pairs:
        if name not in known:
            raise NotebookError(f"unknown parameter {name!r}{nearest(name, known)}")
    return done


def _digest(profile: Sequence[Path]) -> str:
    """SHA-256 over the profile and what a notebook reads of cptkit: its sources, the published numbers."""
    files = [file for file in sorted(PACKAGE.rglob("*")) if file.suffix in (".py", ".csv")]
    digest = hashlib.sha256()
    for file in [*files, *profile]:
        text = file.read_bytes()
        digest.update(f"{os.path.relpath(file, PACKAGE)} {len(text)}\n".encode() + text)
    return digest.hexdigest()


def _metadata(path: Path) -> dict:
    """What the runner noted in an executed notebook; empty when there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["metadata"]["cptkit"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


class _Board:
    """Who runs, who is done, and how long the rest will take."""

    def __init__(self, plans: Sequence[Plan], jobs: int, force: bool, say: Callable[[str], None]) -> None:
        self.plans, self.jobs, self.say = plans, jobs, say
        self.begun: dict[str, float] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.lock = threading.Lock()
        self.before = {plan.name: self._before(plan, force) for plan in plans}

    @staticmethod
    def _before(plan: Plan, force: bool) -> float | None:
        if plan.error or (not force and plan.up_to_date()):
            return 0.0
        old = _metadata(plan.output)
        minutes = old.get("minutes") if old.get("status") == "done" else old.get("expected")
        return minutes if isinstance(minutes, (int, float)) else None

    def expected(self, plan: Plan) -> float | None:
        """Minutes that this notebook took when it was last finished, if it ever was."""
        return self.before[plan.name]

    def start(self, plan: Plan) -> None:
        with self.lock:
            self.begun[plan.name] = time.monotonic()
            self.say(f"{self._place(plan)}: started; {self._left()}")

    def finish(self, plan: Plan, outcome: Outcome) -> None:
        with self.lock:
            self.outcomes[plan.name] = outcome
            took = "" if outcome.status in ("up to date", "refused") else f" after {_span(outcome.minutes)}"
            error = f" ({outcome.error})" if outcome.error else f", {outcome.figures} figures"
            self.say(f"{self._place(plan)}: {outcome.status}{took}{error}; {self._left()}")

    def _place(self, plan: Plan) -> str:
        number = self.plans.index(plan) + 1
        return f"[{number}/{len(self.plans)}] {plan.name}"

    def _left(self) -> str:
        rest = [plan for plan in self.plans if plan.name not in self.outcomes]
        if not rest:
            return "nothing left"
        ran = [outcome.minutes for outcome in self.outcomes.values() if outcome.status == "done"]
        guess = sum(ran) / len(ran) if ran else None
        left = 0.0
        for plan in rest:
            minutes = self.before[plan.name] if self.before[plan.name] is not None else guess
            if minutes is None:
                return f"{len(rest)} left, time not known yet"
            since = self.begun.get(plan.name)
            left += max(0.0, minutes - (0 if since is None else (time.monotonic() - since) / 60))
        return f"{len(rest)} left, about {_span(left / min(self.jobs, len(rest)))}"

    def ordered(self) -> list[Outcome]:
        return [self.outcomes[plan.name] for plan in self.plans if plan.name in self.outcomes]

    def table(self, root: Path) -> None:
        """What became of each notebook, for the terminal."""
        width = max(len(plan.name) for plan in self.plans)
        self.say(f"\n{'notebook':{width}}  {'status':11}  minutes  figures")
        for plan in self.plans:
            one = self.outcomes.get(plan.name) or Outcome(plan.name, "interrupted", 0.0, 0)
            self.say(f"{one.notebook:{width}}  {one.status:11}  {one.minutes:7.1f}  {one.figures:7d}")
        for one in self.ordered():
            if one.error:
                self.say(f"{one.notebook}: {one.error}")
        self.say(f"executed notebooks: {self.plans[0].output.parent.relative_to(root)}/")


def _span(minutes: float) -> str:
    if minutes < 1:
        return f"{minutes * 60:.0f} s"
    return f"{minutes:.0f} min" if minutes < 60 else f"{minutes // 60:.0f} h {minutes % 60:02.0f} min"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")  # one call, so that lines of two notebooks do not mix
    sys.stdout.flush()


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP (a scheduler, a closed terminal) end the study as Ctrl-C does; nohup still holds."""

    def interrupt(*_) -> None:
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    wanted = [signal.SIGTERM, signal.SIGHUP] if main else []
    mine = [number for number in wanted if signal.getsignal(number) == signal.SIG_DFL]
    for number in mine:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)
