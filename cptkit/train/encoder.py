"""A transformer encoder as topic classifier: P3's own choice (TinyBERT), any of Hugging Face's in its place.

Same interface as the light classifier (`data/topics.py`). Fine-tuned with the Hugging Face Trainer on
cross-entropy. Cost: minutes for some thousand pages and a small encoder on a CPU; labelling is a forward
pass a page.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cptkit.data.documents import Document
from cptkit.data.topics import TopicError

TINYBERT = "huawei-noah/TinyBERT_General_4L_312D"  # P3's classifier, by its hub name


@dataclass(frozen=True)
class Encoder:
    """A fine-tuned encoder. `length` is what it reads of a text, in tokens."""

    labels: tuple[str, ...]
    model: torch.nn.Module
    tokenizer: Any
    length: int
    fingerprint: str
    batch: int = 32

    def probabilities(self, texts: Sequence[str]) -> np.ndarray:
        self.model.eval()
        device, found = next(self.model.parameters()).device, []
        with torch.inference_mode():
            for first in range(0, len(texts), self.batch):
                some = self.tokenizer(
                    list(texts[first : first + self.batch]),
                    truncation=True,
                    max_length=self.length,
                    padding=True,
                    return_tensors="pt",
                ).to(device)
                found.append(self.model(**some).logits.double().softmax(-1).cpu().numpy())
        return np.concatenate(found)


def train_encoder(
    start: str,
    documents: Sequence[Document],
    *,
    epochs: float = 3.0,
    rate: float = 5e-5,
    batch: int = 16,
    length: int = 256,
    seed: int = 0,
) -> Encoder:
    """Fine-tune the encoder `start` (a folder or hub name) on the `topic` of the documents that have one.

    Raises TopicError for fewer than two topics.
    """
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    labelled = [d for d in documents if d.topic]
    labels = tuple(sorted({d.topic for d in labelled}))
    if len(labels) < 2:
        raise TopicError(f"a classifier needs two topics; there are {len(labels)}")
    tokenizer = AutoTokenizer.from_pretrained(start)
    torch.manual_seed(seed)  # the new head
    model = AutoModelForSequenceClassification.from_pretrained(
        start, num_labels=len(labels), ignore_mismatched_sizes=True
    )
    rows = [
        dict(tokenizer(d.text, truncation=True, max_length=length)) | {"labels": labels.index(d.topic)}
        for d in labelled
    ]
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            learning_rate=rate,
            per_device_train_batch_size=batch,
            warmup_steps=round(0.1 * epochs * len(rows) / batch),
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=torch.cuda.is_available(),
            seed=seed,
        )
        trainer = Trainer(
            model, settings, train_dataset=rows, data_collator=DataCollatorWithPadding(tokenizer)
        )
        trainer.train()
    learnt = json.dumps([[d.topic, d.text] for d in labelled] + [start, epochs, rate, batch, length, seed])
    key = hashlib.sha256(learnt.encode()).hexdigest()[:16]
    return Encoder(labels, trainer.model, tokenizer, length, key)
