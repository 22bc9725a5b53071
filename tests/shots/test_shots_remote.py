"""A host behind a URL: scores, answers, failures, lies, keys and resuming."""

import base64
import json
from io import BytesIO
from pathlib import Path

import pytest
import torch
from loopback import ALL, Server, scored, served
from PIL import Image
from shot_hosts import picture
from teach_cases import WORDS, embedded, files_of, teach_config

from eligo.cli import main
from eligo.errors import EligoError, InputError
from eligo.shots import Pool, Query
from eligo.shots.hosts.client import AnswerError, Client, ServerDownError, check_url
from eligo.shots.hosts.prompt import UnscorableError
from eligo.shots.hosts.remote import RemoteGenerator, RemoteHost, RemoteScorer
from eligo.shots.hosts.scorer import PoolingScorer, Request, Scorer
from eligo.shots.inference.embed import open_embedded
from eligo.shots.teacher.run import plan, teach

QUERY = Query("q", torch.ones(2))


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    for name in ("ELIGO_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def waits(monkeypatch) -> list[float]:
    """Seconds that clients would have waited."""
    seconds: list[float] = []
    start = Client.__init__

    def made(self, url, **options):
        start(self, url, **{"sleep": seconds.append, **options})

    monkeypatch.setattr(Client, "__init__", made)
    return seconds


def pools(**payload) -> tuple[Pool, Pool]:
    shots = [{"question": f"what is {n}?", "answer": f"the {word}", **payload}
             for n, word in enumerate(WORDS)]  # fmt: skip
    asked = [{"question": "what is it?", "answer": "the red ball", **payload},
             {"question": "and this?", "answer": " "}]  # fmt: skip
    pool = Pool([f"d{n}" for n in range(6)], torch.eye(6), payload=shots)
    return pool, Pool(["q", "mute"], torch.ones(2, 6), payload=asked)


def host(server: Server, **options) -> RemoteHost:
    return RemoteHost(Client(server.url, timeout=20.0, **options), "m", "be brief!", 3)


@pytest.mark.parametrize("features", [ALL, ("echo",), ("prompt_logprobs",)])
def test_log_probabilities_of_the_prompt(features):
    pool, queries = pools()
    with served(features) as server:
        scorer = RemoteScorer(host(server), pool, queries)
        assert isinstance(scorer, Scorer)
        assert isinstance(scorer, PoolingScorer)
        assert scorer.scoring == features[0]
        found = scorer.score(QUERY, ["d1"], ["d0", "d5"])
        assert found.num_tokens == 3
        expected = [
            scored(
                f"Question: what is {n}? be brief!\nAnswer: the {WORDS[n]}\n\nQuestion: what is 1? "
                "be brief!\nAnswer: the blue cube\n\nQuestion: what is it? be brief!\nAnswer:",
                "the red ball",
            )
            for n in (0, 5)
        ]
        assert found.logprob.tolist() == pytest.approx(expected)
        assert len(set(expected)) == 2
        assert float(scorer.baseline(QUERY).logprob) == pytest.approx(
            scored("Question: what is it? be brief!\nAnswer:", "the red ball")
        )
        both = scorer.score_all([Request(Query("mute", torch.ones(2)), [()]), Request(QUERY, [()])])
        assert isinstance(both[0], UnscorableError)
        assert set(server.paths()) == {"/v1/completions"}


def test_accuracy_of_answers_without_log_probabilities():
    pool, queries = pools()
    with served(("chat",), said="The red ball.") as server:
        scorer = RemoteScorer(host(server), pool, queries)
        assert scorer.scoring == "accuracy"
        found = scorer.score(QUERY, [], ["d0", "d1"])
        assert found.logprob.tolist() == [0.0, 0.0]
        server.said = "no idea"
        assert float(scorer.baseline(QUERY).logprob) == pytest.approx(-6.9078, abs=1e-3)
        _, body, _ = server.requests[-1]
        assert body["messages"] == [{"role": "user", "content": "what is it? be brief!"}]
        assert (body["model"], body["temperature"]) == ("m", 0)


@pytest.mark.parametrize("features", [("chat",), ()])
def test_generated_answers(features):
    pool, queries = pools()
    with served(features, said="a  ball") as server:
        generator = RemoteGenerator(host(server), pool, queries)
        assert generator.answers(["q", "mute"], [["d0", "d1"], []]) == ["a ball", "a ball"]
        assert generator.answer("q", ["d2"]) == "a ball"
        chats = [body for path, body, _ in server.requests if path.endswith("chat/completions")]
        shots = next(body["messages"] for body in chats if len(body["messages"]) == 5)
        assert [turn["role"] for turn in shots] == [
            "user",
            "assistant",
            "user",
            "assistant",
            "user",
        ]
        assert shots[1]["content"] == "the blue cube"  # the first pick is nearest to the question
        if not features:
            assert server.paths()[-1] == "/v1/completions"


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_images_are_sent(tmp_path: Path, suffix: str):
    path = picture(tmp_path / f"x.{suffix}", 3)
    pool, queries = pools(image=path)
    with served() as server:
        scorer = RemoteScorer(host(server), pool, queries)
        assert scorer.scoring == "accuracy"
        scorer.score(QUERY, [], ["d0"])
        content = server.requests[-1][1]["messages"][0]["content"]
        head, _, data = content[0]["image_url"]["url"].partition(",")
        assert head == f"data:image/{'jpeg' if suffix == 'jpg' else 'png'};base64"
        assert Image.open(BytesIO(base64.b64decode(data))).size == (40, 30)
        assert content[1] == {"type": "text", "text": "what is 0? be brief!"}
    with served(()) as server, pytest.raises(InputError, match="which questions about images need"):
        RemoteGenerator(host(server), pool, queries).answer("q", [])


@pytest.mark.parametrize("fault", ["500", "503", "429", "close", "garbage"])
def test_passing_failures_are_tried_again(fault: str, waits: list[float]):
    pool, queries = pools()
    with served() as server:
        scorer = RemoteScorer(host(server), pool, queries)
        expected = scorer.baseline(QUERY)
        server.faults = [fault] * 3
        assert torch.equal(scorer.baseline(QUERY).logprob, expected.logprob)
        assert waits == ([7.0, 14.0, 28.0] if fault == "429" else [1.0, 2.0, 4.0])
        server.faults = [fault] * 6
        with pytest.raises(ServerDownError, match=r"tried 6 times") as caught:
            scorer.baseline(QUERY)
        assert server.url in str(caught.value)
        assert not server.faults


@pytest.mark.parametrize("fault", ["stall", "drip"])
def test_stalling_server_is_given_up(fault: str, waits: list[float]):
    """Also one that keeps sending a little."""
    pool, queries = pools()
    with served() as server:
        client = Client(server.url, timeout=1.0, retries=9)
        scorer = RemoteScorer(RemoteHost(client, "m"), pool, queries)
        expected = scorer.baseline(QUERY)
        server.faults = [fault]
        assert torch.equal(scorer.baseline(QUERY).logprob, expected.logprob)
        assert waits[0] == 1.0
        once = Client(server.url, timeout=0.2, retries=0)
        server.faults = [fault]
        with pytest.raises(ServerDownError, match=r"longer than 0\.2 seconds"):
            once.post("completions", {"prompt": "x"}, lambda got: got)


@pytest.mark.parametrize("features", [("prompt_logprobs",), ("echo",)])
@pytest.mark.parametrize("lie", ["nan", "positive", "text", "short", "words", "empty"])
def test_lies_are_errors_of_their_query(features, lie: str):
    pool, queries = pools()
    with served(features) as server:
        scorer = RemoteScorer(host(server), pool, queries)
        assert scorer.scoring == features[0]
        server.lie = lie
        with pytest.raises(AnswerError):
            scorer.baseline(QUERY)
        assert scorer.host.scoring() == "accuracy"


def remote_config(folder: Path, server: Server, **changes):
    settings = {"host": {"url": server.url, "model": "m", "parallel": 2}, **changes}
    return teach_config(folder, **settings)


def test_teaching_resumes_after_the_server_went_away(tmp_path: Path, waits: list[float]):
    embedded(tmp_path / "embedded")
    with served() as server:
        whole = remote_config(tmp_path, server, out=tmp_path / "whole")
        assert teach(whole)["taught"] == 18
        config = remote_config(tmp_path, server)
        num = len(server.requests)
        first = Server.completion

        def some(self: Server, body):
            if len(self.requests) > num + 150:
                self.faults = ["500"] * 100
            return first(self, body)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Server, "completion", some)
            with pytest.raises(ServerDownError, match="status 500"):
                teach(config)
        server.faults = []
        assert list((config.out / "parts").iterdir())
        before = len(server.requests)
        assert teach(config)["taught"] == 18
        assert len(server.requests) - before < before - num  # the finished ones are not sent again
        mine, theirs = files_of(config.out), files_of(whole.out)
        assert mine == theirs
        assert json.loads(mine["host.json"]) == {"scoring": "prompt_logprobs"}
        assert json.loads(mine["meta.json"])["url"] == server.url
        assert plan(config)["calls per query"] > 1


def test_other_scoring_needs_another_folder(tmp_path: Path):
    embedded(tmp_path / "embedded")
    with served() as server:
        config = remote_config(tmp_path, server, num_queries=2)
        teach(config)
        (config.out / "records.jsonl").unlink()
    with (
        served(("chat",)) as other,
        pytest.raises(InputError, match="scores by prompt_logprobs, th"),
    ):
        teach(remote_config(tmp_path, other, num_queries=2))


def test_lying_server_fails_its_queries_only(tmp_path: Path):
    embedded(tmp_path / "embedded")
    first = Server.completion

    def lying(self: Server, body):
        self.lie = "nan" if "number 3?\nAnswer: the" in body["prompt"][-40:] else None
        return first(self, body)

    with served() as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Server, "completion", lying)
        config = remote_config(
            tmp_path, server, host={"url": server.url, "model": "m", "parallel": 1}
        )
        with pytest.raises(EligoError, match="1 of 18 queries failed three times"):
            teach(config)
        failed = json.loads((config.out / "failed.jsonl").read_text())
        assert failed["query_id"] == "t3"
        assert "got log-probability nan" in failed["error"]


def test_key_comes_from_the_environment_and_stays_there(tmp_path: Path, monkeypatch, capsys, waits):
    embedded(tmp_path / "embedded")
    with served() as server:
        server.key = "secret-key"
        config = remote_config(tmp_path, server, num_queries=2)
        with pytest.raises(
            InputError, match=r"the key is missing.*set ELIGO_API_KEY or OPENAI_API"
        ):
            teach(config)
        monkeypatch.setenv("OPENAI_API_KEY", "wrong-key")
        with pytest.raises(InputError, match="the key is not accepted") as caught:
            teach(config)
        assert "wrong-key" not in str(caught.value)
        monkeypatch.setenv("ELIGO_API_KEY", "secret-key")
        assert teach(config)["taught"] == 2
        assert {key for _, _, key in server.requests[-10:]} == {"Bearer secret-key"}
        assert not any(b"secret" in content for content in files_of(tmp_path).values())
        server.faults = ["500"] * 6
        with pytest.raises(ServerDownError) as caught:
            Client(server.url).post("completions", {"prompt": "x"}, lambda got: got)
        assert "Bearer ***" in str(caught.value)  # the server repeats it
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://x/v1",
        "http://",
        "http://x y/",
        "http://[",
        "http://x:99999/",
        "file:/x",
    ],
)
def test_wrong_addresses(url: str, tmp_path: Path):
    with pytest.raises(InputError, match="expected an address such as http://localhost"):
        check_url(url)
    embedded(tmp_path / "embedded")
    with pytest.raises(InputError, match=r"host\.url: "):
        teach(teach_config(tmp_path, host={"url": url, "model": "m"}))
    assert not (tmp_path / "taught").exists()


@pytest.mark.parametrize("url", ["http://me:key@x/v1", "https://x/v1?key=1", "https://x/v1#key"])
def test_address_with_a_key_is_refused_without_repeating_it(url: str):
    with pytest.raises(InputError, match="a key goes into the environment") as caught:
        check_url(url)
    assert "key=1" not in str(caught.value)
    assert "me:key" not in str(caught.value)


def test_url_without_a_model(tmp_path: Path):
    embedded(tmp_path / "embedded")
    with served() as server, pytest.raises(InputError, match="also name the model"):
        teach(teach_config(tmp_path, host={"url": server.url}))


def test_rate_limit():
    now, waited = [100.0], []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        now[0] += seconds

    with served() as server:
        client = Client(server.url, requests_per_minute=30.0, sleep=sleep, clock=lambda: now[0])
        for _ in range(3):
            client.post("completions", {"prompt": "x"}, lambda got: got)
        now[0] += 60
        client.post("completions", {"prompt": "x"}, lambda got: got)
    assert waited == pytest.approx([2.0, 2.0])


def test_redirects_are_not_followed():
    with served() as server:
        server.faults = ["302"]
        with pytest.raises(InputError, match=r"status 302.*is it the address of the API"):
            Client(server.url).post("completions", {"prompt": "x"}, lambda got: got)


def test_commands(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, count in (("shots", 12), ("new", 3)):
        lines = [{"id": f"{name}{n}", "input": f"where is the {WORDS[n % 6]}?",
                  "output": f"at place {n % 6}"} for n in range(count)]  # fmt: skip
        Path(f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def call(words: str, code: int = 0) -> str:
        assert main(["shots", *words.split()]) == code
        out, err = capsys.readouterr()
        return err if code else out

    call("embed --data shots.jsonl --queries new.jsonl")
    with served() as server:
        there = f"--url {server.url} --model m"
        flags = f"--host.url {server.url} --host.model m --shots 1 --beam 1 --json"
        assert json.loads(call(f"teach {flags} --sampler.num_candidates 4"))["taught"] == 3
        report = call(f"evaluate --selector mmr --data embedded {there} --shots 1 --json")
        assert all(0 <= row["mean"] <= 1 for row in json.loads(report)["accuracy"])
        one = "predict --selector mmr --embedded embedded --question where? --json"
        assert json.loads(call(f"{one} {there}"))["answer"] == "at place 1"
        call(f"predict --data embedded --selector mmr --out a.jsonl {there}")
        said = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]
        assert [line["accuracy"] for line in said] == [0.0, 1.0, 0.0]
        assert "--url: also name the model" in call(f"{one} --url {server.url}", code=2)


def test_embedded_images_are_checked_first(tmp_path: Path):
    """As for a host of this machine."""
    path = tmp_path / "embedded"
    embedded(path)
    pool, queries, _ = open_embedded(path)
    assert len(pool) == len(queries) == 18
    config = teach_config(tmp_path, host={"url": "http://127.0.0.1:9/v1", "model": "m"})
    broken = [{**item, "image": str(tmp_path / "no.png")} for item in queries.payload or ()]
    with pytest.MonkeyPatch.context() as patch:
        odd = Pool(queries.ids, queries.views, payload=broken)
        patch.setattr("eligo.shots.teacher.run.open_embedded", lambda _: (pool, odd, {}))
        with pytest.raises(InputError, match=r"no\.png"):
            teach(config)
