"""The facts themselves: nothing twice, nothing that would make an answer ambiguous or give it away."""

from __future__ import annotations

import csv
from collections import Counter
from itertools import chain

from gradpath.tasks.builtin import read_json, read_text


def twice(items):
    return [item for item, count in Counter(items).items() if count > 1]


def test_no_name_profession_template_or_noun_is_there_twice():
    bias, years = read_json("gender_bias.json"), read_json("greater_than.json")
    for listed in ([*bias["male"], *bias["female"]], bias["templates"], years["nouns"], read_json("ioi.json")["names"]):
        assert not twice(listed)
    assert all(len(century) == 2 for century in years["centuries"])


def test_countries_are_not_named_by_their_capitals():
    rows = list(csv.DictReader(read_text("capital_country.csv").splitlines()))
    assert not twice(row["capital"] for row in rows)
    assert not twice(row["country"] for row in rows)
    for row in rows:
        capital, country = row["capital"].lower(), row["country"].lower()
        assert country not in capital, row
        assert capital not in country, row
        assert row["article"] in ("", "the"), row


def test_hypernyms_belong_to_one_kind_each():
    kinds = read_json("hypernymy.json")["kinds"]
    assert not twice(chain.from_iterable(kind["examples"] for kind in kinds))
    for kind in kinds:
        assert not twice(kind["kinds"])
        assert not set(kind["kinds"]) & set(kind["examples"])


def test_verbs_and_nouns_differ_in_number():
    facts = read_json("sva.json")
    for singular, plural in [*facts["nouns"], *facts["verbs"], *facts["acts"]]:
        assert singular != plural
    forms = list(chain.from_iterable(facts["verbs"]))
    assert not twice(forms), "a form of two verbs would count twice"
    assert not twice(chain.from_iterable(facts["nouns"]))
