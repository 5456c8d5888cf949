"""Every built-in task under every kind of tokenizer: counts, halves, and labels that mean what they say."""

from __future__ import annotations

import csv
import re
from dataclasses import replace

import pytest
from covering import covering, some

from gradpath.errors import UsageError
from gradpath.tasks import TASKS, describe_tasks, encode, load_task
from gradpath.tasks.builtin import read_built_in, read_json, read_text
from gradpath.tasks.load import more_examples

# As many distinct pairs as the field uses.
FIELD = {"ioi": 1000, "sva": 3000, "gender-bias": 900, "capital-country": 190, "hypernymy": 190, "greater-than": 1000}
FIELD |= {"arithmetic-addition": 1000, "arithmetic-subtraction": 1000, "mcqa": 1000}
NAMES = sorted(FIELD)
TOKENIZERS = ["smollm2", "gpt2", "sentencepiece"]


def sides(task, model):
    """Each example's correct and wrong answers as text."""
    cache = {}

    def text(token):
        if token not in cache:
            cache[token] = model.tokenizer.decode([token])
        return cache[token]

    rows = task.labels.reshape(len(task), 2, -1).tolist()
    return [[[text(token) for token in side if token >= 0] for side in row] for row in rows]


class Counting:
    """A tokenizer that counts how often it is called, and for how many texts."""

    def __init__(self, hf):
        self.hf, self.calls, self.texts = hf, 0, 0

    def __call__(self, texts, **options):
        self.calls += 1
        self.texts += len(texts)
        return self.hf(texts, **options)

    def __getattr__(self, name):
        return getattr(self.hf, name)

    def __len__(self):
        return len(self.hf)


@pytest.mark.parametrize(("model", "name"), covering(TOKENIZERS, NAMES), indirect=["model"])
def test_there_are_as_many_pairs_as_the_field_uses(model, name):
    """And they come quickly: no more is tokenised than some texts a pair, many in a call."""
    counting = Counting(model.tokenizer.hf)
    counted = replace(model, tokenizer=replace(model.tokenizer, hf=counting))
    task = load_task(name, counted, n=FIELD[name], split="all")
    assert len(set(zip(task.clean, task.corrupted, strict=True))) == FIELD[name]
    assert counting.texts < 10 * FIELD[name]
    assert counting.calls < 1000


@pytest.mark.parametrize(("model", "name"), covering(TOKENIZERS, NAMES), indirect=["model"])
def test_pairs_can_be_run(model, name):
    """Equal lengths, a difference somewhere, the same last token: ``encode`` checks and shows it."""
    task = load_task(name, model, n=60)
    pairs = encode(task, model.tokenizer)
    assert (pairs.clean != pairs.corrupted).any(1).all()
    assert (pairs.first <= pairs.last).all()
    assert task.labels.dtype.is_floating_point is False
    assert task.labels.numel() < 60 * 2 * 200  # compact: lists of ids, never a row of the vocabulary


@pytest.mark.parametrize("name", NAMES)
def test_reworded_has_the_words_of_test_in_other_templates(name, smollm2):
    task = load_task(name, smollm2, n=30, split="reworded")
    assert not set(task.clean) & set(load_task(name, smollm2, n=30, split="all").clean)
    source = read_built_in(name, "reworded", smollm2.tokenizer).candidates.pairs
    kinds = {re.sub(r"\W+", " ", source[i].clean) for i in range(0, len(source), max(1, len(source) // 50))}
    assert len(kinds) > 10
    own = read_json("reworded.json")[name]
    patterns = [re.sub(r"\\{\w+\\}", ".+", re.escape(text)) for text in own]
    assert all(any(re.search(pattern, clean) for pattern in patterns) for clean in task.clean)


def test_reworded_is_refused_where_there_are_no_other_templates(smollm2):
    with pytest.raises(UsageError, match="your own data has no other templates"):
        load_task(None, smollm2, data=[{"clean": "a", "corrupted": "b", "answers": "c"}], split="reworded")


@pytest.mark.parametrize("name", some(NAMES, ["ioi", "mcqa"]))
def test_the_same_seed_gives_the_same_pairs_and_more_of_them_begin_with_the_fewer(name, smollm2):
    once, again = (load_task(name, smollm2, n=50, seed=4) for _ in range(2))
    assert once.clean == again.clean
    assert once.corrupted == again.corrupted
    assert once.labels.equal(again.labels)
    assert load_task(name, smollm2, n=50, seed=5).clean != once.clean
    assert load_task(name, smollm2, n=20, seed=4).clean == once.clean[:20]


def _capital(prompt):
    return prompt.split(", the capital of")[0]


FACTS = {
    "ioi": lambda prompt: set(re.findall(r"[A-Z]\w+", prompt)) & set(read_json("ioi.json")["names"]),
    "sva": lambda prompt: {
        singular
        for singular, plural in read_json("sva.json")["nouns"]
        if {singular, plural} & set(re.findall(r"\w+", prompt))
    },
    "gender-bias": lambda prompt: {prompt.split()[1]} - {"man", "woman"},
    "capital-country": lambda prompt: {_capital(prompt)},
    "hypernymy": lambda prompt: {re.fullmatch(r", (.*?),? (?:and|or) other", prompt)[1]},
    "greater-than": lambda prompt: {prompt.split()[1]},
    "arithmetic-addition": lambda prompt: {tuple(sorted(re.findall(r"\d+", prompt)))},
    "arithmetic-subtraction": lambda prompt: {tuple(sorted(re.findall(r"\d+", prompt)))},
    "mcqa": lambda prompt: {re.match(r"Question: (.*?) is ", prompt)[1]},
}


@pytest.mark.parametrize("name", NAMES)
def test_the_halves_share_no_fact(name, smollm2):
    train, test = (
        {fact for prompts in (task.clean, task.corrupted) for prompt in prompts for fact in FACTS[name](prompt)}
        for task in (load_task(name, smollm2, n=60, split=split, seed=1) for split in ("train", "test"))
    )
    assert train
    assert test
    assert not train & test


def test_all_is_both_halves(smollm2):
    both = {split: load_task("gender-bias", smollm2, n=None, split=split) for split in ("train", "test", "all")}
    sets = {split: set(zip(task.clean, task.corrupted, strict=True)) for split, task in both.items()}
    assert sets["all"] == sets["train"] | sets["test"]
    assert not sets["train"] & sets["test"]


def test_ioi_labels_and_corruption(model):
    task = load_task("ioi", model, n=60)
    orders = set()
    for clean, corrupted, (right, wrong) in zip(task.clean, task.corrupted, sides(task, model), strict=True):
        receiver, subject = right[0][1:], wrong[0][1:]
        assert right == [f" {receiver}"]
        assert clean.split().count(receiver) + clean.count(f"{receiver},") == 1
        assert len(re.findall(rf"\b{subject}\b", clean)) == 2
        assert len(re.findall(rf"\b{subject}\b", corrupted)) == 1
        third = FACTS["ioi"](corrupted) - {receiver, subject}
        assert len(third) == 1
        assert clean.rsplit(subject, 1)[0] == corrupted.rsplit(next(iter(third)), 1)[0]
        orders.add(clean.index(receiver) < clean.index(subject))
    assert orders == {True, False}


def test_sva_labels_agree_with_the_subject(model):
    verbs = read_json("sva.json")["verbs"]
    forms = [{f" {verb[number]}" for verb in verbs} for number in (0, 1)]
    numbers = {word: at for noun in read_json("sva.json")["nouns"] for at, word in enumerate(noun)}
    task = load_task("sva", model, n=60)
    for clean, corrupted, (right, wrong) in zip(task.clean, task.corrupted, sides(task, model), strict=True):
        (subject,) = set(re.findall(r"\w+", clean)) - set(re.findall(r"\w+", corrupted))
        assert set(right) <= forms[numbers[subject]]
        assert set(wrong) <= forms[1 - numbers[subject]]
        assert len(right) == len(wrong) > 50


def test_gender_bias_labels_follow_the_stereotype(model):
    facts = read_json("gender_bias.json")
    task = load_task("gender-bias", model, n=60)
    seen = set()
    for clean, corrupted, answers in zip(task.clean, task.corrupted, sides(task, model), strict=True):
        male = clean.split()[1] in facts["male"]
        assert corrupted.split()[1] == ("woman" if male else "man")
        assert answers == ([[" he"], [" she"]] if male else [[" she"], [" he"]])
        seen.add(male)
    assert seen == {True, False}


def test_capital_country_labels_begin_the_country(model):
    rows = {row["capital"]: row for row in csv.DictReader(read_text("capital_country.csv").splitlines())}
    task = load_task("capital-country", model, n=60)
    for clean, corrupted, answers in zip(task.clean, task.corrupted, sides(task, model), strict=True):
        for prompt, (first,) in zip((clean, corrupted), answers, strict=True):
            row = rows[_capital(prompt)]
            assert first.strip()
            assert f" {row['country']}".startswith(first)
            assert prompt.endswith(f"the capital of {row['article']}".rstrip())
        assert answers[0] != answers[1]


def test_hypernymy_labels_are_the_kinds_of_both_words(model):
    kinds = {word: kind["kinds"] for kind in read_json("hypernymy.json")["kinds"] for word in kind["examples"]}
    task = load_task("hypernymy", model, n=60)
    for clean, corrupted, answers in zip(task.clean, task.corrupted, sides(task, model), strict=True):
        for prompt, side in zip((clean, corrupted), answers, strict=True):
            (word,) = FACTS["hypernymy"](prompt)
            assert side
            assert set(side) <= {f" {kind}" for kind in kinds[word]}
        assert not set(answers[0]) & set(answers[1])


def test_greater_than_labels_are_later_and_earlier_years(model):
    task = load_task("greater-than", model, n=60)
    for clean, (right, wrong) in zip(task.clean, sides(task, model), strict=True):
        start, end = re.search(r"year (\d{4}) to the year (\d+)$", clean).groups()
        width = len(right[0])
        assert all(int((end + text).ljust(4, "0")) > int(start) for text in right)
        assert all(int((end + text).ljust(4, "9")) <= int(start) for text in wrong)
        neither = 10**width - len(right) - len(wrong)
        assert neither in ((0,) if width == 2 else (0, 1))


def test_every_task_is_described():
    rows = {row["name"]: row for row in describe_tasks()}
    for name in NAMES:
        assert rows[name]["metric"] in ("logit-difference", "probability-difference")
        assert all(rows[name].values())
        assert TASKS[name].name == name


@pytest.mark.parametrize(("name", "sign"), [("arithmetic-addition", 1), ("arithmetic-subtraction", -1)])
def test_arithmetic_answers_are_results_or_begin_them(name, sign, model):
    task = load_task(name, model, n=60)
    for clean, corrupted, answers in zip(task.clean, task.corrupted, sides(task, model), strict=True):
        assert clean.endswith(" ")
        for prompt, (answer,) in zip((clean, corrupted), answers, strict=True):
            x, y = map(int, re.findall(r"\d+", prompt))
            assert x + sign * y > 0
            assert str(x + sign * y).startswith(answer.strip())
        assert answers[0] != answers[1]


def test_mcqa_answers_are_the_letters_of_the_right_color(model):
    task = load_task("mcqa", model, n=60)
    places = set()
    for clean, corrupted, answers in zip(task.clean, task.corrupted, sides(task, model), strict=True):
        color = re.search(r" is (\w+)\.", clean)[1]
        for prompt, (answer,) in zip((clean, corrupted), answers, strict=True):
            letters = dict(re.findall(r"^([A-Z])\. (\w+)$", prompt, re.MULTILINE))
            assert len(set(letters.values())) == 4
            assert letters[answer.strip()] == color
        places.add(answers[0][0])
        assert re.sub(r"\n[A-Z]\.", "", clean) == re.sub(r"\n[A-Z]\.", "", corrupted)
    assert len(places) == 4


@pytest.mark.parametrize("model", ["smollm2"], indirect=True)
def test_a_built_in_task_has_more_examples_of_its_kind_as_many_as_there_are(model):
    few = load_task("gender-bias", model, n=5, seed=3)
    some, every = more_examples(few, model, 50), more_examples(few, model, 10**5)
    assert len(few) < len(some) == 50 < len(every) < 10**5
    for more in (some, every):
        assert list(more.clean[:5]) == list(few.clean)
        assert (more.labels[:5] == few.labels).all()
        assert more.facts["split"] == "train"
    assert more_examples(few[:3], model, 50).clean == some.clean
    # Examples that were changed, or not drawn in this way, have no others of their kind.
    other = replace(few, clean=[*few.clean[1:], few.clean[0]])
    assert more_examples(other, model, 50) is other
