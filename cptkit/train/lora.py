"""LoRA by peft: low-rank adapters on every linear layer, with or without embeddings and head.

P1 trains adapters with embeddings frozen, as is the default everywhere; a new script then has to be learnt
through pieces that mean something else, so the arm with embeddings and head trained stands beside it (field
bug B52). Tied embeddings stay tied, and are saved with the adapter (B53).

The adapted layers replace the model's own in place, so whatever reads the model (loss, probes) sees them.
Drift is that of the merged weights, computed layer by layer.

Cost: one extra fp32 tensor of the largest layer while drift is measured; with `embeddings` a second copy of
them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from peft import PeftModel


@dataclass(frozen=True)
class LoraSpec:
    """`scale` is alpha / rank of the literature, so that ranks can be compared at one learning rate."""

    rank: int
    embeddings: bool = False  # also train input embeddings and output head, in full
    scale: float = 2.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.rank < 1 or not self.scale > 0 or not 0 <= self.dropout < 1:
            raise ValueError("lora: rank must be at least 1, scale positive, dropout in [0, 1)")


def adapt(model: nn.Module, spec: LoraSpec, seed: int) -> PeftModel:
    """Put adapters into `model`, freeze the rest, and return peft's wrapper of it (for saving and merging).

    The model computes exactly what it did before, since one factor of every adapter starts at zero.
    """
    from peft import LoraConfig, get_peft_model

    saved = None
    if spec.embeddings:
        tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
        modules = [model.get_input_embeddings()] + ([] if tied else [model.get_output_embeddings()])
        names = {id(module): name.rsplit(".", 1)[-1] for name, module in model.named_modules()}
        saved = [names[id(module)] for module in modules]
    config = LoraConfig(
        r=spec.rank,
        lora_alpha=spec.scale * spec.rank,
        lora_dropout=spec.dropout,
        target_modules="all-linear",
        modules_to_save=saved,
        ensure_weight_tying=bool(spec.embeddings and tied),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), _quiet():
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def merged_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Names of the model before `adapt`, and its weights with the adapters merged."""
    if not hasattr(model, "peft_config"):
        yield from model.named_parameters()
        return
    from peft.tuners.lora import LoraLayer
    from peft.utils import ModulesToSaveWrapper

    done: set[int] = set()
    inside: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            inside.append(name + ".")
            base = module.get_base_layer()
            yield f"{name}.weight", base.weight.detach() + module.get_delta_weight("default")
            if base.bias is not None:
                yield f"{name}.bias", base.bias.detach()
        elif isinstance(module, ModulesToSaveWrapper):
            inside.append(name + ".")
            for part, weight in module.modules_to_save["default"].named_parameters():
                if id(weight) not in done:
                    done.add(id(weight))
                    yield f"{name}.{part}", weight.detach()
    for name, weight in model.named_parameters():
        if not name.startswith(tuple(inside)):
            yield name, weight.detach()


def trainable_names(model: nn.Module) -> list[str]:
    """The modules that are trained, without the adapters' own suffixes: what a report should name."""
    found = [n for n, p in model.named_parameters() if p.requires_grad]
    return sorted({n.split(".lora_")[0].split(".modules_to_save")[0] for n in found})


def untrained_tokens(model: nn.Module, ids: Tensor) -> list[int]:
    """Those of the token `ids` whose embedding is all one number: a piece that pretraining never touched.

    With frozen embeddings the model cannot learn them, and their gradients through a norm may be NaN (B52).
    """
    ids = torch.unique(torch.as_tensor(ids))
    rows = model.get_input_embeddings().weight.detach()[ids.to(model.get_input_embeddings().weight.device)]
    flat = rows.amax(1) == rows.amin(1)
    return ids[flat.cpu()].tolist()


def save(adapted: PeftModel, folder: Path) -> None:
    """Write the adapter alone (with embeddings where they are trained) in peft's own format."""
    with _quiet():
        adapted.save_pretrained(folder)


def load(start: nn.Module, folder: Path) -> PeftModel:
    """The adapter in `folder` put onto the model it was trained from, in place, trainable."""
    from peft import PeftModel

    with _quiet():
        return PeftModel.from_pretrained(start, folder, is_trainable=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without peft's warnings about what is handled here, and its own use of an old name of transformers."""
    with warnings.catch_warnings():
        for message in (".*[Ee]mbedding.*", ".*is_gradient_checkpointing.*"):
            warnings.filterwarnings("ignore", message=message)
        yield
