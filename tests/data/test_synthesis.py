"""Parsing, resuming, near-duplicates, leaks, and the generators, each against what can be checked by hand."""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from cptkit.data import corpora, generators, leaks, synthesis
from cptkit.data.documents import ChoiceItem, Document
from cptkit.data.generators import Endpoint, WorldTeacher
from cptkit.data.instructions import CODE, DISCIPLINES, Instruction
from cptkit.data.leaks import LeakError
from cptkit.data.synthesis import Pair, SynthesisError, parse
from cptkit.data.world import World

PASSAGE = Document("The heron waits in shallow water and strikes at fish with its long bill.", "p/0", "en")


# ---- parsing ----


@pytest.mark.parametrize(
    "raw",
    [
        "Question: What does it eat?\nAnswer: Fish.",
        "Sure! Here it is.\n\n**Question:** What does it eat?\n\n**Answer:** Fish.\n",
        "### Problem: What does it eat?\n### Solution: Fish.",
        "1. question : What does it eat?\n   ANSWER: Fish.",
        "- *Question*: What does it eat?\n- *Answer*: Fish.",
    ],
)
def test_the_forms_that_models_write(raw):
    found, reasons = parse(raw, PASSAGE, "g", "biology")
    assert found == [Pair("What does it eat?", "Fish.", "p/0", "g", "biology")]
    assert reasons == []


def test_several_pairs_and_an_answer_of_several_lines():
    raw = "Question: A?\nAnswer: one\ntwo: three\nQuestion: B?\nAnswer: four"
    found, reasons = parse(raw, PASSAGE, "g")
    assert [(p.question, p.answer) for p in found] == [("A?", "one\ntwo: three"), ("B?", "four")]
    assert not reasons


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("  \n", "no text"),
        ("A heron is a bird.", "no question"),
        ("Answer: Fish.", "no question"),
        ("Question:\nAnswer: Fish.", "no question"),
        ("Question: What does it eat?", "no answer"),
        ("Question: What?\nAnswer:  ", "no answer"),
        ("Question: What?\nQuestion: Who?\nAnswer: It.", "no answer"),
        (f"Question: What?\nAnswer: {'x' * 5000}", "too long"),
        (f"Question: {PASSAGE.text}\nAnswer: yes", "copied"),
        ("Question: What?\nAnswer: a\nQuestion: What?\nAnswer: b", "repeated"),
    ],
)
def test_what_cannot_be_used_says_why(raw, reason):
    assert parse(raw, PASSAGE, "g")[1] == [reason]


# ---- the file ----


class Scripted:
    name = "scripted"

    def __init__(self, dies_after: int | None = None):
        self.asked, self.dies_after = [], dies_after

    def generate(self, passages):
        if self.dies_after is not None and len(self.asked) >= self.dies_after:
            raise KeyboardInterrupt
        self.asked += [p.id for p in passages]
        return [
            "nothing" if p.id.endswith("3") else f"Question: Which {p.id}?\nAnswer: this\nQuestion: x\n"
            for p in passages
        ]


PASSAGES = [Document(f"text {n}", f"p/{n}", "en") for n in range(10)]


def test_one_row_a_pair_with_source_and_generator(tmp_path):
    found = synthesis.synthesise(PASSAGES, Scripted(), tmp_path / "q.jsonl", batch=4)
    assert (found.passages, found.pairs) == (10, 9)
    assert found.rejected == Counter({"no answer": 9, "no question": 1})
    assert "9 pairs from 10 passages; rejected: 9 no answer, 1 no question" in str(found)
    rows = [json.loads(line) for line in (tmp_path / "q.jsonl").read_text().splitlines()]
    kept = [row for row in rows if "rejected" not in row]
    assert {row["source"] for row in kept} == {p.id for p in PASSAGES} - {"p/3"}
    assert {row["generator"] for row in rows} == {"scripted"}


@pytest.mark.parametrize("cut", [0, 1, 25])
def test_a_killed_synthesis_asks_for_what_is_missing_only(tmp_path, cut):
    place, whole = tmp_path / "q.jsonl", tmp_path / "whole.jsonl"
    synthesis.synthesise(PASSAGES, Scripted(), whole, batch=3)
    with pytest.raises(KeyboardInterrupt):
        synthesis.synthesise(PASSAGES, Scripted(dies_after=6), place, batch=3)
    if cut:
        place.write_text(place.read_text()[:-cut])
    again = Scripted()
    synthesis.synthesise(PASSAGES, again, place, batch=3)
    assert place.read_text() == whole.read_text()
    assert again.asked == [p.id for p in PASSAGES][5 if cut else 6 :]


def test_a_file_of_another_generator_or_spoilt_is_refused(tmp_path):
    place = tmp_path / "q.jsonl"
    synthesis.synthesise(PASSAGES[:2], Scripted(), place)
    other = Scripted()
    other.name = "other"
    with pytest.raises(SynthesisError, match="written by scripted, not by other"):
        synthesis.synthesise(PASSAGES, other, place)
    place.write_text("{\n" + place.read_text())
    with pytest.raises(SynthesisError, match="line 1 is not JSON"):
        synthesis.pairs(place)
    with pytest.raises(SynthesisError, match="the id 'p/0'"):
        synthesis.synthesise([PASSAGES[0], PASSAGES[0]], Scripted(), tmp_path / "r.jsonl")


# ---- training text ----

ITEM = ChoiceItem("What is the capital of France ?", ("Paris", "Lyon"), 0, "capital/fr")


def test_near_duplicates_against_exact_overlap():
    base = "the heron waits in shallow water and strikes at fish with its long bill every day of the year"
    texts = [
        base,
        base.replace("every", "each"),
        "an owl hunts at night by ear and flies without a sound",
        base,
        "",
    ]

    def jaccard(a, b):
        a, b = ({tuple(w[k : k + 3]) for k in range(len(w) - 2)} for w in (a.split(), b.split()))
        return len(a & b) / len(a | b)

    assert jaccard(texts[0], texts[1]) < 0.8 < jaccard(texts[0], texts[3])
    assert leaks.near_duplicates(texts[:4], 0.8) == [3]
    assert leaks.near_duplicates(texts[:4], 0.5) == [1, 3]
    assert leaks.near_duplicates([], 0.8) == []


def test_a_test_item_in_the_text_is_refused(tmp_path):
    told = [
        "What is the capital of France? Lyon, not so.",
        "The CAPITAL of France: ask. What is the capital of france? paris!",
    ]
    assert leaks.leaks(told, [ITEM]) == [(1, "capital/fr")]
    assert leaks.leaks(told, [ITEM], n=7) == [(1, "capital/fr")]
    assert leaks.leaks(told, [ITEM], n=5) == [(0, "capital/fr"), (1, "capital/fr")]
    place = tmp_path / "q.jsonl"

    class Leaky(Scripted):
        def generate(self, passages):
            return ["Question: What is the capital of France?\nAnswer: Paris" for _ in passages]

    synthesis.synthesise(PASSAGES[:1], Leaky(), place)
    with pytest.raises(LeakError, match="item capital/fr in text 0"):
        synthesis.text_of(place, "en", tmp_path, [ITEM])
    assert not (tmp_path / "made").exists()


def test_pairs_become_a_corpus_without_repetitions(tmp_path):
    class Repeating(Scripted):
        def generate(self, passages):
            return [f"Question: Which colour has number {int(p.id[2:]) // 2}?\nAnswer: red" for p in passages]

    place = tmp_path / "q.jsonl"
    synthesis.synthesise(PASSAGES, Repeating(), place)
    corpus, counts = synthesis.text_of(place, "en", tmp_path, [ITEM], template="labelled")
    read = list(corpora.read_documents(corpus, tmp_path))
    assert counts == {"documents": 5, "pairs": 10, "near-duplicates": 5}
    assert read[0].text == "Question: Which colour has number 0?\nAnswer: red"
    assert [d.id for d in read] == [f"synthetic/p/{n}" for n in range(0, 10, 2)]
    assert synthesis.text_of(place, "en", tmp_path, [ITEM], template="labelled")[0] == corpus
    assert synthesis.text_of(place, "en", tmp_path, [ITEM], template="plain")[0] != corpus


# ---- generators ----


@pytest.mark.parametrize("error", [0.0, 0.1, 0.3, 0.5, 0.7, 1.0])
def test_the_worlds_teacher_errs_exactly_as_often_as_told(error, tmp_path):
    world = World()
    passages = list(corpora.read_documents(generated("train", 0.05), None))
    place = tmp_path / "q.jsonl"
    found = synthesis.synthesise(passages, WorldTeacher(world, "l2", error), place)
    assert found.pairs == 6 * len(passages)
    assert not found.rejected
    voice, wrong = world.voice("l2"), 0
    answers = {}
    for topic in {p.topic for p in passages}:
        for e in range(world.entities):
            for r in range(world.relations):
                answers[voice.question(topic, e, r)] = (
                    voice.value(topic, r, world.fact(topic, e, r)), world.asked(topic, e, r)
                )  # fmt: skip
    for pair in synthesis.pairs(place):
        right, may_be_asked = answers[pair.question]
        assert may_be_asked
        wrong += pair.answer != right
    assert wrong == pytest.approx(error * found.pairs, abs=1)


def generated(split, megabytes):
    from tests.conftest import world

    return world("l2", split, megabytes)


def test_what_the_teacher_says_is_no_test_item(tmp_path):
    world, place = World(), tmp_path / "q.jsonl"
    passages = list(corpora.read_documents(generated("train", 0.05), None))
    synthesis.synthesise(passages, WorldTeacher(world, "l2"), place)
    items = world.choices("l2", 160)
    corpus, _ = synthesis.text_of(place, "l2", tmp_path, items, template="lab")
    text = next(iter(corpora.read_documents(corpus, tmp_path))).text
    assert text.startswith("? ")
    assert text.count(";") == 6
    told = f"{items[0].question} {items[0].candidates[items[0].answer]} ;"
    with pytest.raises(LeakError):
        leaks.refuse_leaks([told], items, "text")


class Server(BaseHTTPRequestHandler):
    seen, failures = [], 0

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Server.seen.append((self.path, self.headers.get("Authorization"), body))
        if Server.failures > 0:
            Server.failures -= 1
            self.send_error(503)
            return
        if body["model"] == "unknown":
            self.send_error(404)
            return
        said = f"Question: about {body['messages'][0]['content'][-40:-1]!r}?\nAnswer: yes"
        reply = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    Server.seen, Server.failures = [], 0
    server = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()


def test_an_endpoint_is_asked_in_its_own_form_and_again_when_it_is_busy(server, monkeypatch):
    monkeypatch.setattr(generators.time, "sleep", lambda _: None)
    Server.failures = 2
    endpoint = Endpoint(server, "m", Instruction("biology"), key="secret", parallel=1, seed=3)
    found = endpoint.generate([PASSAGE, PASSAGE])
    assert all(raw.startswith("Question: about") for raw in found)
    assert len(Server.seen) == 4
    path, key, body = Server.seen[-1]
    assert (path, key) == ("/v1/chat/completions", "Bearer secret")
    assert body["seed"] == 3
    assert PASSAGE.text in body["messages"][0]["content"]


def test_an_endpoint_that_refuses_or_is_gone_says_so(server, monkeypatch):
    monkeypatch.setattr(generators.time, "sleep", lambda _: None)
    with pytest.raises(SynthesisError, match=r"refused \(HTTP 404"):
        Endpoint(server, "unknown", Instruction("biology")).generate([PASSAGE])
    assert len(Server.seen) == 1
    with pytest.raises(SynthesisError, match="did not answer in 3 attempts"):
        Endpoint("http://127.0.0.1:9/v1", "m", Instruction("biology"), retries=2, timeout=2).generate(
            [PASSAGE]
        )


def test_every_discipline_has_its_own_instruction():
    assert len(DISCIPLINES) == 9
    prompts = {Instruction(d, "Basque").prompt(PASSAGE) for d in (*DISCIPLINES, CODE)}
    assert len(prompts) == 10
    assert all(PASSAGE.text in p and "Write in Basque." in p and "Question:" in p for p in prompts)
    long = Document("x" * 10_000, "p", "en")
    assert len(Instruction("physics").prompt(long)) < 3_000
    with pytest.raises(ValueError, match="astrology"):
        Instruction("astrology")
