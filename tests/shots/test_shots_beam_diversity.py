"""Diverse beam search: a slow oracle, properties, and the folder that `teach` writes."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from teach_cases import FakeScorer, embedded, files_of, teach_config

from eligo.cli import main
from eligo.errors import InputError
from eligo.shots import Query, beam_search, num_calls
from eligo.shots.inference.embed import open_embedded
from eligo.shots.teacher.beam_search import beam_difference, best_extensions
from eligo.shots.teacher.read import read_records
from eligo.shots.teacher.run import teach
from eligo.shots.teacher.shards import mean_difference
from eligo.shots.teacher.teacher import teach_query

QUERY = Query("q", torch.ones(2))


class Values:
    """A random value for each sequence, drawn once."""

    def __init__(self, seed: int, ordered: bool = True) -> None:
        self.generator, self.ordered = torch.Generator().manual_seed(seed), ordered
        self.known: dict[tuple[int, ...], float] = {}

    def of(self, picks: tuple[int, ...]) -> float:
        key = picks if self.ordered else tuple(sorted(picks))
        if key not in self.known:
            self.known[key] = float(torch.rand((), generator=self.generator))
        return self.known[key]

    def extend(self, prefix: tuple[int, ...], candidates: Sequence[int]) -> torch.Tensor:
        return torch.tensor([self.of((*prefix, c)) for c in candidates])


def slow_search(values: Values, size: int, shots: int, beam: int, diversity: float) -> list:
    """The formula of the module, on plain lists."""
    beams: list[tuple[int, ...]] = [()]
    for _ in range(min(shots, size)):
        left = [(*b, c) for b in beams for c in range(size) if c not in b]
        for picks in left:
            values.of(picks)
        kept: list[tuple[int, ...]] = []
        while left and len(kept) < beam:

            def objective(picks: tuple[int, ...], kept=tuple(kept)) -> float:
                common = sum(len(set(picks) & set(other)) for other in kept)
                return values.of(picks) - diversity * common / len(picks)

            kept.append(max(left, key=objective))
            left.remove(kept[-1])
        beams = sorted(kept, key=lambda picks: -values.of(picks))
    return beams


@given(
    st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 4), st.integers(1, 7),
    st.sampled_from([0.0, 0.05, 0.3, 1.0, 1e6]),
)  # fmt: skip
def test_search_matches_a_slow_one(seed: int, size: int, shots: int, beam: int, diversity: float):
    values = Values(seed)
    found = beam_search(values.extend, size, shots, beam, diversity)
    assert [b.picks for b in found.beams] == slow_search(values, size, shots, beam, diversity)
    for each in found.beams:  # no penalty in what is returned
        assert each.value == values.of(each.picks)
        prefixes = [each.picks[: n + 1] for n in range(len(each.picks))]
        assert list(each.step_values) == [values.of(prefix) for prefix in prefixes]
    scored = sum(int((~s.values.isnan()).sum()) for s in found.scored)
    assert scored + 1 == num_calls(size, shots, beam)


@pytest.mark.parametrize("seed", range(5))
def test_no_diversity_is_the_plain_search(seed: int):
    values = Values(seed)
    plain, zero = (beam_search(values.extend, 8, 3, 4, *more) for more in ((), (0.0,)))
    tiny = beam_search(values.extend, 8, 3, 4, 1e-12)  # too little to change any choice
    assert plain.beams == zero.beams == tiny.beams
    beams: list[tuple[int, ...]] = [()]
    for _ in range(3):
        left = [(*b, c) for b in beams for c in range(8) if c not in b]
        beams = sorted(left, key=lambda picks: -values.of(picks))[:4]
    assert [b.picks for b in plain.beams] == beams


def test_large_penalty_makes_beams_differ():
    means = []
    for diversity in (0.0, 0.1, 0.5, 100.0):
        shares = []
        for seed in range(30):
            values = Values(seed, ordered=False)  # the order of examples does not matter
            beams = beam_search(values.extend, 12, 3, 4, diversity).beams
            assert beams == sorted(beams, key=lambda b: -b.value)
            shares.append(beam_difference([b.picks for b in beams]))
        means.append(sum(shares) / len(shares))
    assert means == sorted(means)
    assert means[0] + 0.2 < means[-1]


def test_copies_in_another_order_are_dropped_first():
    """Without a penalty, the best pair takes two of three places."""
    value = {0: 3.0, 1: 2.9, 2: 2.0, 3: 1.9}

    def extend(prefix: tuple[int, ...], candidates: Sequence[int]) -> torch.Tensor:
        return torch.tensor([sum(value[p] for p in prefix) + value[c] for c in candidates])

    plain, diverse = (
        [b.picks for b in beam_search(extend, 4, 2, 3, diversity).beams] for diversity in (0.0, 2.0)
    )
    assert plain == [(0, 1), (1, 0), (0, 2)]
    assert diverse == [(0, 1), (0, 2), (1, 3)]


@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.2, 3.0]))
def test_queries_together_match_one_by_one(seed: int, diversity: float):
    generator = torch.Generator().manual_seed(seed)
    picks = torch.stack(
        [
            torch.stack([torch.randperm(5, generator=generator)[:2] for _ in range(3)])
            for _ in range(4)
        ]
    )
    values = torch.randint(0, 4, (4, 3, 5), generator=generator).float()  # with ties
    values[values == 3] = -torch.inf
    values = values.scatter(2, picks, torch.nan)
    values[0, 1:] = torch.nan  # fewer extensions than beams
    together = best_extensions(picks, values, 6, diversity)
    for n in range(4):
        alone = best_extensions(picks[n : n + 1], values[n : n + 1], 6, diversity)
        assert torch.equal(together[n : n + 1], alone)
        real = [index for index in alone[0].tolist() if index >= 0]
        assert len(set(real)) == len(real) == min(6, int((~values[n].isnan()).sum()))
        found = values[n].flatten()[real].tolist()
        assert found == sorted(found, reverse=True)
        assert found[0] == float(values[n][~values[n].isnan()].max())


def test_nan_is_never_chosen():
    def extend(prefix: tuple[int, ...], candidates: Sequence[int]) -> torch.Tensor:
        return torch.tensor([torch.nan if c == 0 else float(c) for c in candidates])

    beams = beam_search(extend, 4, 2, 20, 5.0).beams
    assert len(beams) == 6
    assert all(0 not in b.picks for b in beams)


@pytest.mark.parametrize("diversity", [-0.1, float("nan"), float("inf")])
def test_bad_diversity_is_refused(diversity: float):
    with pytest.raises(InputError, match=r"got diversity .*, expected a number >= 0"):
        beam_search(Values(0).extend, 3, 2, 2, diversity)


def test_difference_by_hand():
    assert beam_difference([]) is None
    assert beam_difference(["ab"]) is None
    assert beam_difference(["ab", "ba"]) == 0
    assert beam_difference(["ab", "cd"]) == 1
    assert beam_difference(["abc", "axy", "abz"]) == pytest.approx((2 / 3 + 1 / 3 + 2 / 3) / 3)


def test_shorter_search_from_kept_scores():
    names = list("abcdef")
    settings = {"beam": 4, "objective": "logprob", "diversity": 0.5}
    found = teach_query(QUERY, names, FakeScorer(), shots=3, **settings)
    shorter = teach_query(QUERY, names, FakeScorer(), shots=2, **settings)
    assert found.shortened(2, 4, "logprob", 0.5) == shorter.beams


# ------------------------------------------------------------------ eligo shots teach


def test_taught_folder_has_diverse_beams_with_true_values(tmp_path: Path):
    embedded(tmp_path / "embedded")
    plain = teach_config(tmp_path, out=tmp_path / "plain", beam=4)
    diverse = plain.replace({"out": tmp_path / "diverse", "beam_diversity": 2.0})
    shares = []
    for config in (plain, diverse):
        found = teach(config, lambda *_: FakeScorer())
        shares.append(found["examples that differ between beams"])
        assert shares[-1] == mean_difference(config.out)
        again = teach(config, lambda *_: 1 / 0)
        assert again["state"] == "was finished before"
        assert again["examples that differ between beams"] == shares[-1]
        meta = json.loads((config.out / "meta.json").read_text())
        assert meta["beam_diversity"] == config.beam_diversity
        for line in (config.out / "records.jsonl").read_text().splitlines():
            fields = json.loads(line)
            values = [beam["value"] for beam in fields["beams"]]
            assert values == sorted(values, reverse=True)
            for beam in fields["beams"]:
                value = FakeScorer().value(fields["query_id"], tuple(beam["ids"])) / 2
                assert beam["value"] == pytest.approx(value)
    assert shares[1] > shares[0]
    pool, queries, _ = open_embedded(diverse.data)
    records = read_records(diverse.out, pool, queries, labels="weighted").records
    assert len(records) == 18 * 4


def test_restart_refuses_another_diversity(tmp_path: Path):
    embedded(tmp_path / "embedded")
    config = teach_config(tmp_path)
    teach(config, lambda *_: FakeScorer())
    with pytest.raises(InputError, match=r"was started with beam_diversity 0\.0, got 0\.5"):
        teach(config.replace({"beam_diversity": 0.5}))


def test_folder_of_an_older_version_continues(tmp_path: Path):
    """It has no key for the penalty: there was none."""
    embedded(tmp_path / "embedded")
    config = teach_config(tmp_path)
    teach(config, lambda *_: FakeScorer())
    before = files_of(config.out)
    path = config.out / "meta.json"
    meta = json.loads(path.read_text())
    del meta["beam_diversity"]
    path.write_text(json.dumps(meta))
    assert teach(config, lambda *_: 1 / 0)["state"] == "was finished before"
    with pytest.raises(InputError, match="was started with beam_diversity"):
        teach(config.replace({"beam_diversity": 0.5}))
    assert {**files_of(config.out), "meta.json": b""} == {**before, "meta.json": b""}


def test_one_beam_has_no_difference(tmp_path: Path):
    embedded(tmp_path / "embedded")
    found = teach(teach_config(tmp_path, beam=1), lambda *_: FakeScorer())
    assert "examples that differ between beams" not in found


def test_command_prints_the_difference(tmp_path: Path, capsys):
    embedded(tmp_path / "embedded")
    args = ["shots", "teach", "--data", str(tmp_path / "embedded"), "--out", str(tmp_path / "out"),
            "--shots", "2", "--beam", "3", "--sampler.num_candidates", "6"]  # fmt: skip
    assert main([*args, "--beam_diversity", "0.5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 <= found["examples that differ between beams"] <= 1
    assert main([*args, "--beam_diversity", "-1"]) == 2
    assert "beam_diversity" in capsys.readouterr().err
    assert main(args) == 2
    assert "was started with beam_diversity 0.5, got 0.0" in capsys.readouterr().err
