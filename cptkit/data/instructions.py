"""What a generator is asked: an instruction per discipline, a passage to draw on, a form that can be parsed.

P3 (arXiv 2407.18743, Section 3.3) names nine disciplines and prints no prompt in full; what is visible asks
for one problem with its solution, inspired by a passage, in the manner of OSS-Instruct (arXiv 2312.02120).
These texts are ours. Code questions are asked for by examples, as P3 does with LeetCode problems; the
examples here are ours, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from cptkit.data.documents import DataError, Document

CODE = "code"
PASSAGE_LETTERS = 2_000  # of a passage that stand in the prompt

ASKS = {
    "mathematics": "a problem that takes two or more steps of calculation or proof, and its solution",
    "physics": "a problem about a quantity that can be worked out, with units, and the law that gives it",
    "chemistry": "a question about a substance or a reaction, and an answer that says why it behaves so",
    "biology": "a question about a living thing or a process in it, and an answer with cause and effect",
    "astronomy": "a question about a body or an event in the sky, and an answer that says how it is known",
    "earth science": "a question about rock, water, air or climate, and an answer that explains the process",
    "medicine": "a question about a condition, its signs or its treatment, and a careful answer",
    "computer science": "a question about a method, structure or tool, and an answer that says when it helps",
    "general education": "a question that a reader of the passage can answer, and a full answer",
}
DISCIPLINES = tuple(ASKS)
FORM = "Write exactly two parts and nothing else:\nQuestion: <one question>\nAnswer: <its answer>"
EXAMPLES = (
    (
        "Given a list of whole numbers, return the largest sum of two neighbours.",
        "def largest_pair(numbers):\n    return max(a + b for a, b in zip(numbers, numbers[1:]))",
    ),
    (
        "Given a text, return its words in reverse order, separated by one space.",
        'def reversed_words(text):\n    return " ".join(reversed(text.split()))',
    ),
)


@dataclass(frozen=True)
class Instruction:
    """How a passage becomes a prompt. `language` is what question and answer are to be written in."""

    discipline: str
    language: str = ""

    def __post_init__(self) -> None:
        if self.discipline not in (*ASKS, CODE):
            known = ", ".join((*ASKS, CODE))
            raise DataError(f"no instruction for the discipline {self.discipline!r}; there are {known}")

    def prompt(self, passage: Document) -> str:
        """The whole prompt, as one user message."""
        text = passage.text[:PASSAGE_LETTERS].strip()
        where = f" Write in {self.language}." if self.language else ""
        if self.discipline == CODE:
            solved = "\n\n".join(f"Question: {q}\nAnswer:\n{a}" for q, a in EXAMPLES)
            return (
                f"Here are programming exercises with their solutions.\n\n{solved}\n\n"
                f"Read the following text and write one more exercise of this kind that it inspires, "
                f"with its solution.{where}\n\nText:\n{text}\n\n{FORM}"
            )
        return (
            f"You are a teacher of {self.discipline}. Take the passage below as inspiration and write "
            f"{ASKS[self.discipline]}. The question must make sense without the passage.{where}\n\n"
            f"Passage:\n{text}\n\n{FORM}"
        )
