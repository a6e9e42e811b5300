"""What a model writes: few-shot translation and completion, scored, and the ways in which it fails counted.

Greedy, one line an answer. Scores are chrF and BLEU over the corpus (sacrebleu, with its own signature).
Beside them, always: the share of answers that are empty, that run in a loop, that end because the limit was
reached, and that are in another language than was asked for. Perplexity sees none of these.

Cost: a forward pass over the prompts and one over each new token, with a cache; batches by length.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from cptkit.data.parallel import Translated
from cptkit.eval import forward
from cptkit.eval.forward import evaluating, pad

LOOP = 4  # times in a row that a piece of words must come to be a loop
PIECE = 8  # words that such a piece has at most


@dataclass(frozen=True)
class Answer:
    """What was written: up to the first line break, and whether it ended by itself."""

    text: str
    ended: bool


@dataclass(frozen=True)
class Generated:
    """Scores (0 to 100), shares of failures (0 to 1), and the signature of the metrics."""

    count: int
    chrf: float
    bleu: float
    empty: float
    loops: float
    cut: float
    other_language: float
    signature: str

    def metrics(self, prefix: str) -> dict[str, float]:
        """As columns of the metrics frame."""
        names = ("chrf", "bleu", "empty", "loops", "cut", "other_language")
        return {f"{prefix}.{name}": float(getattr(self, name)) for name in names}


def prompts(
    pairs: Sequence[Translated], shots: Sequence[Translated], names: tuple[str, str], reverse: bool = False
) -> list[str]:
    """Few-shot prompts: solved shots and the text to translate, each side under its language's name."""
    source, target = reversed(names) if reverse else names

    def sides(pair: Translated) -> tuple[str, str]:
        return (pair.target, pair.source) if reverse else (pair.source, pair.target)

    solved = "".join(f"{source}: {a}\n{target}: {b}\n\n" for a, b in map(sides, shots))
    return [f"{solved}{source}: {sides(pair)[0]}\n{target}:" for pair in pairs]


def chosen(pairs: Sequence[Translated], shots: int, count: int, seed: int = 0) -> tuple[list, list]:
    """(shots, asked): drawn by the seed, never the same pair twice."""
    order = random.Random(f"{seed}/translation").sample(range(len(pairs)), len(pairs))
    return [pairs[i] for i in order[:shots]], [pairs[i] for i in order[shots : shots + count]]


def write(
    model: nn.Module, tokenizer, texts: Sequence[str], *, limit: int = 80, max_tokens: int = 8192
) -> list[Answer]:
    """The greedy continuation of each prompt up to a line break, the model's end, or `limit` tokens.

    Raises EvalError for a prompt longer than the model reads.
    """
    from transformers import GenerationConfig, StoppingCriteriaList, StopStringCriteria

    rows = forward.prompt_ids(tokenizer, texts)
    forward.check(model, rows, extra=limit)
    ends = [tokenizer.eos_token_id]
    settings = GenerationConfig(
        max_new_tokens=limit, do_sample=False, num_beams=1, eos_token_id=ends, pad_token_id=ends[0]
    )
    stop = StoppingCriteriaList([StopStringCriteria(tokenizer, ["\n"])])
    answers: list[Answer | None] = [None] * len(texts)
    device = forward.device_of(model)
    with evaluating(model):
        for batch in forward.batches([len(row) for row in rows], max_tokens):
            ids, mask = pad([rows[i] for i in batch], device, left=True)
            out = forward.bare(model).generate(
                input_ids=ids, attention_mask=mask, generation_config=settings, stopping_criteria=stop
            )
            for i, row in zip(batch, out[:, ids.shape[1] :].tolist(), strict=True):
                answers[i] = _answer(tokenizer, row, limit)
    return answers


def _answer(tokenizer, row: list[int], limit: int) -> Answer:
    end = row.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in row else len(row)
    text = tokenizer.decode(row[:end], skip_special_tokens=True, clean_up_tokenization_spaces=False)
    line, broken, _ = text.lstrip(" ").partition("\n")
    return Answer(line.strip(), bool(broken) or end < len(row))


def score(
    answers: Sequence[Answer], references: Sequence[str], right_language: Callable[[str], bool] | None = None
) -> Generated:
    """Answers against one reference each; `right_language` says whether a text is in the language asked."""
    from sacrebleu.metrics import BLEU, CHRF

    said = [answer.text for answer in answers]
    chrf, bleu = CHRF(), BLEU(effective_order=False)
    told = chrf.corpus_score(said, [list(references)]), bleu.corpus_score(said, [list(references)])
    full = [text for text in said if text]
    other = [text for text in full if right_language is not None and not right_language(text)]
    n = len(said)
    return Generated(
        count=n,
        chrf=told[0].score,
        bleu=told[1].score,
        empty=1 - len(full) / n,
        loops=sum(map(loops, said)) / n,
        cut=sum(not a.ended for a in answers) / n,
        other_language=len(other) / n if right_language is not None else float("nan"),
        signature=f"{chrf.get_signature()}; {bleu.get_signature()}",
    )


def loops(text: str) -> bool:
    """Whether a piece of one to eight words comes four times in a row."""
    words = text.split()
    for size in range(1, PIECE + 1):
        same = 0
        for k in range(size, len(words)):
            same = same + 1 if words[k] == words[k - size] else 0
            if same >= size * (LOOP - 1):
                return True
    return False


# ---- which language ---------------------------------------------------------------------------------


def real_language(code: str, others: Sequence[str]) -> Callable[[str], bool]:
    """Whether a text is rather in `code` than in any of `others` (py3langid, restricted to these)."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE)
    identifier.set_languages(sorted({code, *others}))
    return lambda text: identifier.classify(text)[0] == code


def lexicon_language(own: Sequence[str], other: Sequence[str]) -> Callable[[str], bool]:
    """Whether a text has as many words of `own` alone as of `other` alone: for invented languages."""
    ours, theirs = (Counter(word for text in texts for word in text.split()) for texts in (own, other))
    mine, yours = set(ours) - set(theirs), set(theirs) - set(ours)

    def right(text: str) -> bool:
        words = text.split()
        return sum(word in mine for word in words) >= sum(word in yours for word in words)

    return right


def distinct(texts: Sequence[str], n: int = 2) -> float:
    """Distinct n-grams of words over all of them: 1 where nothing is said twice."""
    grams = [tuple(w[k : k + n]) for w in (t.split() for t in texts) for k in range(len(w) - n + 1)]
    return len(set(grams)) / len(grams) if grams else float("nan")


def translate(
    model: nn.Module,
    tokenizer,
    pairs: Sequence[Translated],
    names: tuple[str, str],
    *,
    shots: int = 3,
    count: int = 50,
    reverse: bool = False,
    right_language: Callable[[str], bool] | None = None,
    limit: int = 80,
    seed: int = 0,
) -> tuple[Generated, list[tuple[str, str, str]]]:
    """Few-shot translation of `count` pairs: the scores, and (asked, reference, written) of each."""
    solved, asked = chosen(pairs, shots, count, seed)
    answers = write(model, tokenizer, prompts(asked, solved, names, reverse), limit=limit)
    told = [(p.target, p.source) if reverse else (p.source, p.target) for p in asked]
    result = score(answers, [reference for _, reference in told], right_language)
    return result, [(a, b, answer.text) for (a, b), answer in zip(told, answers, strict=True)]
