"""What a run was made with: versions, device, threads and the revision of the code."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("cptkit", "torch", "transformers", "tokenizers", "accelerate", "numpy", "datasets")


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Plain JSON for `environment.json`. `revision` is None outside a git checkout."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "threads": torch.get_num_threads(),
        "revision": revision(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
    }


def revision() -> str | None:
    """The commit the code stands at, with `+` after it when tracked files differ from that commit."""
    here = Path(__file__).parent
    try:
        commit = _git(here, "rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git(here, "status", "--porcelain", "--untracked-files=no", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"
