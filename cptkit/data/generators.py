"""Generators of questions and answers that need no model in this process: the lab world's, and an endpoint.

`WorldTeacher` asks about facts of the passage's topic that may be asked, in the passage's own language, and
errs exactly as often as it is told to. `Endpoint` speaks the chat form that vLLM and others serve.
"""

from __future__ import annotations

import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cptkit.data.documents import Document
from cptkit.data.instructions import Instruction
from cptkit.data.synthesis import SynthesisError
from cptkit.data.world import World


@dataclass(frozen=True)
class WorldTeacher:
    """Questions in `lang` with answers, `count` a passage, of which a share `error` names a wrong value.

    Wrong answers are spread evenly over all pairs (by the passage's number in its id), so that any long run
    of them has the rate asked for, to one pair. Never a fact that an evaluation asks about: `World.asked`
    decides.
    """

    world: World
    lang: str
    error: float = 0.0
    count: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.error <= 1:
            raise SynthesisError(f"error must lie between 0 and 1, not {self.error}")

    @property
    def name(self) -> str:
        what = f"{self.world.fingerprint}, {self.lang}, error {self.error:g}, {self.count} a passage"
        return f"lab world ({what}, seed {self.seed})"

    def generate(self, passages: Sequence[Document]) -> list[str]:
        return [self._told(passage) for passage in passages]

    def _told(self, passage: Document) -> str:
        voice, world = self.world.voice(self.lang), self.world
        rng = random.Random(f"{self.seed}/{passage.id}/{passage.topic}")
        before = int(passage.id.rsplit("/", 1)[-1]) * self.count
        blocks = []
        for fact in rng.sample(self._facts(passage.topic), self.count):
            topic, entity, relation = fact
            right = world.fact(*fact)
            wrong = rng.choice([v for v in range(world.values) if v != right])
            number = before + len(blocks)
            err = int((number + 1) * self.error + 1e-9) > int(number * self.error + 1e-9)
            value = voice.value(topic, relation, wrong if err else right)
            blocks.append(f"Question: {voice.question(topic, entity, relation)}\nAnswer: {value}")
        return "\n".join(blocks)

    def _facts(self, topic: str) -> list[tuple[str, int, int]]:
        world = self.world
        every = ((topic, e, r) for e in range(world.entities) for r in range(world.relations))
        return [fact for fact in every if world.asked(*fact)]


@dataclass(frozen=True)
class Endpoint:
    """A server that speaks OpenAI's chat completions (vLLM, llama.cpp, ...), at `url`, e.g. http://host:8000/v1.

    `parallel` requests at a time; a request that fails is repeated `retries` times with growing pauses.
    """

    url: str
    model: str
    instruction: Instruction
    temperature: float = 0.7
    max_tokens: int = 512
    seed: int = 0
    parallel: int = 8
    retries: int = 4
    timeout: float = 300.0
    key: str = ""

    @property
    def name(self) -> str:
        what = f"{self.instruction.discipline}, temperature {self.temperature:g}, seed {self.seed}"
        return f"{self.model} ({what})"

    def generate(self, passages: Sequence[Document]) -> list[str]:
        """Raises SynthesisError when the server refuses, or does not answer after the last retry."""
        with ThreadPoolExecutor(self.parallel) as pool:
            return list(pool.map(self._ask, passages))

    def _ask(self, passage: Document) -> str:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": self.instruction.prompt(passage)}],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
        }
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self.key}"} if self.key else {}
        request = urllib.request.Request(
            f"{self.url.rstrip('/')}/chat/completions", json.dumps(body).encode(), headers
        )
        for attempt in range(self.retries + 1):
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as reply:
                    return json.load(reply)["choices"][0]["message"]["content"] or ""
            except urllib.error.HTTPError as error:
                if error.code < 500 and error.code != 429:
                    said = error.read().decode(errors="replace")[:300]
                    raise SynthesisError(f"{self.url} refused (HTTP {error.code}): {said}") from error
                failure: Exception = error
            except (OSError, ValueError, KeyError, IndexError) as error:
                failure = error
            if attempt < self.retries:
                time.sleep(min(2.0**attempt, 30.0) * 0.5)
        raise SynthesisError(f"{self.url} did not answer in {self.retries + 1} attempts: {failure}")
