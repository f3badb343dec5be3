"""Many texts at once."""

import itertools

import ptero
import pytest

PROMPTS = ["The king", "Once upon a time", "The sea", "It was", "A long way off", "She", "On the third day", "No"]


def test_each_row_is_the_text_that_it_would_be_alone(model: ptero.Model) -> None:
    # More rows than lanes, of different lengths.
    prompts = [f"{prompt} {number}" for number, prompt in enumerate(PROMPTS * 5)]
    rows = model.generate_batch(prompts, seed=42, lanes=4, max_tokens=12)
    assert len(rows) == 40
    for number, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
        assert row == model.generate(prompt, seed=ptero.mix(42, number), max_tokens=12), number


def test_lanes_change_nothing(model: ptero.Model) -> None:
    rows = [model.generate_batch(PROMPTS, seed=1, lanes=lanes, max_tokens=8) for lanes in (1, 3, 16)]
    assert rows[0] == rows[1] == rows[2]


def test_seeds_can_be_chosen(model: ptero.Model) -> None:
    rows = model.generate_batch(PROMPTS[:3], seeds=[5, 5, 6], max_tokens=8)
    assert [row.seed for row in rows] == [5, 5, 6]
    assert rows[1] == model.generate(PROMPTS[1], seed=5, max_tokens=8)
    with pytest.raises(ValueError, match="more prompts than seeds"):
        model.generate_batch(PROMPTS, seeds=[1, 2], max_tokens=2)
    with pytest.raises(ValueError, match="exclude each other"):
        model.generate_batch(PROMPTS, seeds=[1], seed=1)


def test_prompts_are_taken_as_lanes_become_free(model: ptero.Model) -> None:
    taken = 0

    def endless() -> "itertools.count[int]":
        return itertools.count()

    def prompts() -> "object":
        nonlocal taken
        for number in endless():
            taken += 1
            yield f"Chapter {number}"

    rows = model.iterate_batch(prompts(), seed=1, lanes=2, max_tokens=3)  # type: ignore[arg-type]
    first = list(itertools.islice(rows, 10))
    rows.close()  # type: ignore[attr-defined]
    assert len(first) == 10 and taken <= 10 + 2 * 2


def test_progress_is_counted(model: ptero.Model) -> None:
    counts: list[int] = []
    model.generate_batch(PROMPTS, seed=1, max_tokens=2, progress=counts.append)
    assert counts == list(range(1, len(PROMPTS) + 1))
    assert model.generate_batch([], seed=1) == []


def test_a_row_that_is_refused_ends_the_batch(model: ptero.Model) -> None:
    with pytest.raises(ptero.errors.PromptError, match="leaves no room"):
        model.generate_batch(["fine", "x " * 10_000, "fine"], seed=1, max_tokens=4)
    with pytest.raises(ptero.errors.SettingError, match="top-p"):
        model.generate_batch(["fine"], seed=1, top_p=2.0)
    with pytest.raises(ValueError, match="lanes"):
        model.generate_batch(["fine"], lanes=0)


def test_rows_with_grammars_and_log_probabilities(model: ptero.Model) -> None:
    rows = model.generate_batch(PROMPTS, seed=3, regex="[a-z]{3}", logprobs=1, max_tokens=9)
    assert all(len(row.text) == 3 and row.text.islower() for row in rows)
    assert all(row.logprobs is not None and len(row.logprobs) == len(row.tokens) for row in rows)


def test_mix_keeps_the_first_seed_and_spreads_the_others() -> None:
    seeds = [ptero.mix(42, number) for number in range(1000)]
    assert seeds[0] == 42 and len(set(seeds)) == 1000
    assert sorted(seeds) != seeds
