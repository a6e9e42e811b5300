"""A model for a longer vocabulary: rows for the new pieces, and what they start from.

    mean       each new row is the mean of the rows of the old pieces it is made of (Gee et al., arXiv
    2402.09977) distilled  then the new rows alone are trained until the model, reading a new piece, has the
    hidden states that
               it has reading the old ones (token distillation, Dobler et al., arXiv 2505.20133)
    random     from the mean and the spread of all rows: the baseline

Old rows are never touched. Tied and untied heads, with or without bias, and embeddings padded beyond the
tokenizer (new pieces take the padding first) are handled alike. The saved model loads in plain
`transformers`.

Cost: `mean` milliseconds; `distilled` three passes over `texts`, two of them without gradients below the
embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from cptkit.data.framing import rows_needed
from cptkit.data.merges import Merge
from cptkit.eval.forward import bare, device_of, hidden, pad
from cptkit.train.models import ModelError

How = Literal["mean", "random"]


def parts_of(merges: Sequence[Merge], vocabulary: dict[str, int]) -> dict[str, list[int]]:
    """New piece -> ids of the old pieces it is made of, in order. `vocabulary` is the old tokenizer's."""
    parts: dict[str, list[int]] = {}
    for merge in merges:
        sides = [parts.get(side) or [vocabulary[side]] for side in (merge.left, merge.right)]
        parts[merge.piece] = sides[0] + sides[1]
    return parts


def grow(
    model: torch.nn.Module, old: Any, new: Any, merges: Sequence[Merge], how: How = "mean", *, seed: int = 0
) -> list[int]:
    """Give `model` rows for the pieces that tokenizer `new` has beyond `old`; their ids.

    Raises ModelError where the tokenizers are not one the other's extension by `merges`.
    """
    before, after = old.get_vocab(), new.get_vocab()
    parts = parts_of(merges, before)
    if any(after.get(piece) != place for piece, place in before.items()):
        raise ModelError("the new tokenizer has moved old pieces: extend it with cptkit.data.merges.extend")
    if set(after) - set(before) != set(parts):
        raise ModelError("the new tokenizer has other pieces than these merges make")
    rows = model.get_input_embeddings().weight.shape[0]
    if rows_needed(new) > rows:
        model.resize_token_embeddings(rows_needed(new), mean_resizing=False)
    ids = [after[piece] for piece in parts]
    known = torch.tensor(sorted(before.values()))
    with torch.no_grad():
        for table in tables(model):
            if how == "mean":
                made = torch.stack([table[parts[piece]].mean(dim=0) for piece in parts])
            else:
                generator = torch.Generator().manual_seed(seed)
                old_rows = table[known].float()
                noise = torch.randn(len(ids), *table.shape[1:], generator=generator)
                made = old_rows.mean(0) + noise * old_rows.std(0)
            table[ids] = made.to(table.dtype)
    return ids


def tables(model: torch.nn.Module) -> list[torch.Tensor]:
    """Every parameter that has a row for each piece: embeddings, an untied head, its bias. Tied ones once."""
    inner = bare(model)
    head = inner.get_output_embeddings()
    found = [inner.get_input_embeddings().weight, head.weight, getattr(head, "bias", None)]
    return list({id(t): t for t in found if t is not None}.values())


def distil(
    model: torch.nn.Module,
    old: Any,
    new: Any,
    ids: Sequence[int],
    texts: Sequence[str],
    *,
    rate: float = 1e-3,
    epochs: int = 1,
    batch: int = 8,
    length: int = 128,
) -> list[float]:
    """Train the embedding rows `ids` until new pieces mean what the old ones did; the loss of each step.

    The target of a new piece is the last hidden state at the last of its old pieces, in the same text. Only
    positions where both tokenizers end a piece after the same characters are compared. Rows of an untied
    head stay as they are.
    """
    table = bare(model).get_input_embeddings().weight
    wanted = torch.zeros(table.shape[0], 1, dtype=table.dtype, device=table.device)
    wanted[list(ids)] = 1
    frozen = [(p, p.requires_grad) for p in model.parameters()]
    for p, _ in frozen:
        p.requires_grad_(p is table)
    hook = table.register_hook(lambda gradient: gradient * wanted)
    optimiser, losses, device = torch.optim.Adam([table], lr=rate), [], device_of(model)
    before = table.detach().clone()
    try:
        for _ in range(epochs):
            for first in range(0, len(texts), batch):
                some = [t for t in texts[first : first + batch] if t]
                pairs = [_aligned(old, new, text, length) for text in some]
                pairs = [p for p in pairs if p[2]]
                if not pairs:
                    continue
                with torch.no_grad():
                    target = _states(model, [p[0] for p in pairs], device)
                found = _states(model, [p[1] for p in pairs], device)
                rows = [(b, i, j) for b, (_, _, both) in enumerate(pairs) for i, j in both]
                b, i, j = (torch.tensor(part, device=device) for part in zip(*rows, strict=True))
                loss = torch.nn.functional.mse_loss(found[b, j].float(), target[b, i].float())
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                with torch.no_grad():  # Adam moves a row whose gradient is zero now if it was not before
                    table.copy_(torch.where(wanted.bool(), table, before))
                losses.append(loss.item())
    finally:
        hook.remove()
        for p, was in frozen:
            p.requires_grad_(was)
        table.grad = None
    return losses


def _states(model: torch.nn.Module, rows: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    ids, mask = pad(list(rows), device)
    return hidden(model, ids, attention_mask=mask)


def _aligned(
    old: Any, new: Any, text: str, length: int
) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Ids by both tokenizers, and places (old, new) where a piece of each ends at the same character."""
    sides = []
    for tokenizer in (old, new):
        found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, truncation=False)
        ids, offsets = found["input_ids"][:length], found["offset_mapping"][:length]
        last: dict[int, int] = {}
        for place, (_, end) in enumerate(offsets):
            last[end] = place  # pieces of one character's bytes share their end: the last one has it whole
        sides.append((ids, last))
    (a, ends_a), (b, ends_b) = sides
    return a, b, [(ends_a[end], ends_b[end]) for end in ends_a if end in ends_b]
