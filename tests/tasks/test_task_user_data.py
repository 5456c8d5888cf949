"""The user's own data: files and rows, what is refused with its place, and halves."""

from __future__ import annotations

import json
import types
import unicodedata

import pytest

from gradpath.errors import InputError
from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks import load_task, logit_difference, probability_difference

pytestmark = pytest.mark.filterwarnings("ignore:nothing is held out")  # most of these files have one row

HEADER = "clean,corrupted,answers,wrong_answers\n"
OWN = HEADER + '"Then Alice gave it to","Then Bruce gave it to", Mary, John\n'


def load(tmp_path, content, model, name="pairs.csv", **options):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_task(None, model, data=file, **{"n": None, **options})


def answers(task, model):
    rows = task.labels.reshape(len(task), 2, -1).tolist()
    return [[[model.tokenizer.decode([i]) for i in side if i >= 0] for side in row] for row in rows]


@pytest.mark.parametrize(
    "content",
    [
        OWN.replace("\n", "\r\n"),
        b"\xef\xbb\xbf" + OWN.encode(),
        "\n\n" + OWN + "\n",
        OWN.replace("clean,corrupted", "Clean, Corrupted").replace("wrong_answers", "Wrong answers"),
        OWN.replace("answers,wrong_answers", "answer,wrong"),
        OWN.replace("clean,", "id,clean,", 1).replace('"Then A', '7,"Then A'),
    ],
    ids=["windows", "bom", "blank-lines", "spelling", "names-of-options", "further-column"],
)
def test_files_as_other_programs_write_them(tmp_path, words, content):
    task = load(tmp_path, content, words)
    assert task.clean == ["Then Alice gave it to"]
    assert answers(task, words) == [[[" Mary"], [" John"]]]
    assert task.metric is logit_difference


def test_quotes_and_commas_and_line_breaks_in_prompts(tmp_path, words):
    content = HEADER + '"He said ""no"", and\nleft","She said ""no"", and\nleft", a, b\n'
    assert load(tmp_path, content, words).clean == ['He said "no", and\nleft']


def test_several_answers(tmp_path, words):
    content = OWN.replace(" Mary, John", "\"[' Mary', ' Ann']\", John| Bob| Tom")
    task = load(tmp_path, content, words)
    assert task.metric is probability_difference
    assert answers(task, words) == [[[" Mary", " Ann"], [" John", " Bob", " Tom"]]]


def test_jsonl_with_lists_and_token_ids(tmp_path, words):
    ids = [words.tokenizer.token(word) for word in (" Mary", " John")]
    row = {"clean": "Alice gave it to", "corrupted": "Bruce gave it to", "answers": ids[:1], "wrong_answers": ids[1]}
    task = load(tmp_path, json.dumps(row) + "\n\n", words, name="pairs.jsonl")
    assert task.labels.tolist() == [ids]
    assert f"answers that are numbers in a list are token ids: {ids[0]} is ' Mary'" in task.facts["notes"]


def test_a_missing_space_is_said_and_not_mended(tmp_path, words):
    task = load(tmp_path, OWN.replace(" Mary, John", "Mary,John"), words)
    assert "'Mary' (row 1 (line 2 of pairs.csv)) follows its prompt without a space" in task.facts["notes"][0]
    assert answers(task, words) == [[["Mary"], ["John"]]]


def test_an_answer_outside_the_vocabulary_is_not_the_unknown_token(tmp_path, closed):
    row = "Then{} gave it to,Then{} gave it to,{},{}\n"
    content = HEADER + row.format(" Ann", " Bob", " Mary", " Zed") + row.format(" Bob", " Ann", " Mary", "?")
    task = load(tmp_path, content, closed, split="all")
    assert answers(task, closed) == [[[" Mary"], ["?"]]]  # "?" itself is in the vocabulary
    [drop] = task.facts["dropped"].values()
    assert drop["rows"] == ["row 1 (line 2 of pairs.csv): an answer is not a single token (' Zed' is no token)"]
    assert not any("vocabulary" in note for note in task.facts["notes"])


def test_prompts_with_unknown_text_are_warned_about_once(tmp_path, closed):
    row = "Then{} gave it to{},Then{} gave it to{}, Mary, John\n"
    content = HEADER + row.format(" Ann", "", " Bob", "") + row.format(" Zed", "?", " Ann", "?")
    content += row.format(" Bob", "", " Zoe", "") + row.format(" Ann", "?", " Bob", "?")
    with pytest.warns(UserWarning, match="2 pairs have text in their prompts that is not in the model's") as said:
        load(tmp_path, content, closed, split="all")
    assert len(said) == 1
    assert "(first: row " in str(said[0].message)


def many(count):
    for i in range(count):
        yield {"clean": f"a{i} x", "corrupted": f"b{i} x", "answers": " y", "wrong_answers": " z"}


def test_halves_of_a_file_share_no_pair(words):
    rows = [row for row in many(40) for _ in range(2)]  # each pair twice, one row after the other
    train, test = (load_task(None, words, data=rows, split=split, n=20) for split in ("train", "test"))
    assert not set(train.clean) & set(test.clean)
    assert len(set(train.clean)) == len(set(test.clean)) == 20


def test_a_huge_file_is_read_in_part_and_says_so(words, monkeypatch):
    monkeypatch.setattr("gradpath.tasks.data._MAX_ROWS", 500)
    taken = []
    rows = (taken.append(i) or row for i, row in enumerate(many(10_000_000)))
    task = load_task(None, words, data=rows, n=100)
    assert len(task) == 100
    assert len(taken) == 501
    assert task.facts["rows_read"] == 500
    assert "only the first 500 rows were read" in task.facts["notes"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n \n", "pairs has no rows"),
        (HEADER, "pairs has no rows. Add one for each pair"),
        ("clean;corrupted;answers\n", r"no column clean .*its columns are clean;corrupted;answers\. .*by commas"),
        ("Clean,corrupted,Answer\na,b,c\n", r"no column wrong_answers: its columns are Clean, corrupted, Answer\."),
        ("clean,clean,corrupted,answers,wrong\n", "has the column 'clean' twice"),
        (HEADER + "a b,c d, x, y\n,c d, x, y\n", r"row 2 \(line 3 of pairs.csv\) has nothing in 'clean'"),
        (HEADER + "a b,  , x, y\n", r"row 1 \(line 2 of pairs.csv\) has nothing in 'corrupted'"),
        (HEADER + "a b,c d, x|, y\n", "row 1 .* has nothing in 'answers'"),
        (HEADER + "a b,c d,[], y\n", "row 1 .* has nothing in 'answers'"),
        (HEADER + "a b,c d,[ x, y\n", r"row 1 .* must have a list such as .* got '\[ x'"),
        (HEADER + "a, b,c d, x, y\n", r"row 1 \(line 2 of pairs.csv\) has 5 fields, and the header has 4"),
        (HEADER + '"a b,c d, x, y\n', "cannot be read as CSV: .*double quote"),
        (HEADER.encode() + b"caf\xe9,the, x, y\n", "not UTF-8 text: byte 0xe9"),
        (HEADER.encode("utf-16"), "not UTF-8 text: byte 0xff"),
        (HEADER + "a b,c d, x y, z\n", r"(?s)no pair of .* can be used.*row 1 .*' x y' is ' x' \+ ' y'"),
        (HEADER + "a b,c d,[99999999], z\n", r"row 1 .*\(99999999 is not one of"),
    ],
)
def test_bad_files_are_refused_with_the_row(tmp_path, words, content, message):
    with pytest.raises(InputError, match=message):
        load(tmp_path, content, words)


def row(**changes):
    """A row as JSON, with other values, or without some."""
    whole = {"clean": "a", "corrupted": "b", "answers": " x", "wrong_answers": "c", **changes}
    return json.dumps({name: value for name, value in whole.items() if value is not ...})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no rows"),
        ("{", r"row 1 \(line 1 of pairs.jsonl\) is not JSON"),
        ("[1, 2]\n", "is a list, not an object"),
        (row(clean=3), "must have text in 'clean': got 3"),
        (row(clean="\ud800"), "without an incomplete Unicode character in 'clean'"),
        (row(answers=[]), "row 1 .* has nothing in 'answers'"),
        (row(answers={"x": 1}), "must have text in 'answers'"),
        (row() + "\n" + row(answers=...), r"row 2 \(line 2 of pairs.jsonl\) has no column answers"),
        (row(Answer=" y"), r"row 1 \(line 1 of pairs.jsonl\) has the column 'answers' twice"),
    ],
    ids=range(9),
)
def test_bad_jsonl_is_refused_with_the_row(tmp_path, words, content, message):
    with pytest.raises(InputError, match=message):
        load(tmp_path, content, words, name="pairs.jsonl")


def test_data_of_no_known_kind(tmp_path, words):
    with pytest.raises(InputError, match=r"there is no file .*nothing\.csv"):
        load_task(None, words, data=str(tmp_path / "nothing.csv"))
    with pytest.raises(InputError, match="is a folder"):
        load_task(None, words, data=tmp_path)
    with pytest.raises(InputError, match=r"has to be CSV.*got pairs\.parquet"):
        load(tmp_path, "x", words, name="pairs.parquet")
    with pytest.raises(InputError, match=r"got int\. .*to_dict"):
        load_task(None, words, data=7)


def test_equal_clean_prompts_are_in_one_half(tmp_path, words):
    prompts = "abcdefgh"
    lines = [f"{x} gave it to,{x.upper()}{i} gave it to, Mary, John\n" for i in range(3) for x in prompts]
    halves = [load(tmp_path, HEADER + "".join(lines), words, split=split) for split in ("train", "test")]
    assert [len(half) for half in halves] == [12, 12]
    assert not set(halves[0].clean) & set(halves[1].clean)


def test_texts_that_are_the_same_tokens_are_one_prompt(words):
    """NFC and NFD, under a tokenizer that normalises text: twins were attributed and called held out."""
    normalising = types.SimpleNamespace(tokenizer=Tokenizer(_Normalising(words.tokenizer.hf)))
    rows = [
        {"clean": f"\u00e9{i} {x}", "corrupted": f"b{i} {x}", "answers": " y", "wrong_answers": " z"}
        for i in range(8)
        for x in ("p", "q")
    ]
    twins = [row | {"clean": unicodedata.normalize("NFD", row["clean"])} for row in rows]
    halves = [load_task(None, normalising, data=rows + twins, split=split) for split in ("train", "test")]
    texts = [{unicodedata.normalize("NFC", prompt) for prompt in half.clean} for half in halves]
    assert not texts[0] & texts[1]
    assert [len(half) for half in halves] == [8, 8]
    dropped = [half.facts["dropped"]["an earlier pair has the same prompts"]["count"] for half in halves]
    assert dropped == [16, 16]  # all of them, whichever half is taken


class _Normalising:
    """A tokenizer that reads text in one Unicode form, as many do."""

    def __init__(self, hf):
        self._hf = hf

    def __len__(self):
        return len(self._hf)

    def __call__(self, texts, **options):
        return self._hf([unicodedata.normalize("NFC", text) for text in texts], **options)

    def decode(self, ids, **options):
        return self._hf.decode(ids, **options)


def test_a_file_that_grows_keeps_its_halves(tmp_path, words):
    lines = [f"{x} gave it to,{y} gave it to, Mary, John\n" for x, y in zip("aabcadefgh", "pqrstuvwxy", strict=True)]
    short, long = (load(tmp_path, HEADER + "".join(lines[:n]), words, split="train") for n in (9, 10))
    assert set(zip(short.clean, short.corrupted, strict=True)) <= set(zip(long.clean, long.corrupted, strict=True))


def own_rows(count):
    return HEADER + "".join(f"a{i} gave it to,b{i} gave it to, Mary, John\n" for i in range(count))


def test_data_of_any_size_is_taken(tmp_path, words):
    sizes = {
        count: [len(load(tmp_path, own_rows(count), words, n="auto", split=x)) for x in ("train", "test", "all")]
        for count in (1, 2, 7, 8, 21, 150)
    }
    task = load(tmp_path, own_rows(20), words, n=50)
    assert len(task) == 10
    assert "50 pairs were requested, but pairs has 10: all are used" in task.facts["notes"]
    assert sizes == {1: [1] * 3, 2: [2] * 3, 7: [7] * 3, 8: [4, 4, 8], 21: [11, 10, 21], 150: [75, 75, 150]}


def test_too_few_rows_to_hold_some_out_are_said(tmp_path, words):
    few, enough = (load(tmp_path, own_rows(count), words, split="test").facts for count in (7, 8))
    assert "nothing is held out, because there are fewer than 8 usable pairs or all have the same" in few["notes"][-1]
    assert (few["held_out"], enough["held_out"]) == (False, True)
    one_prompt = HEADER + "".join(f"a gave it to,b{i} gave it to, Mary, John\n" for i in range(9))
    task = load(tmp_path, one_prompt, words, split="test")
    assert (len(task), task.facts["held_out"]) == (9, False)
    assert "all have the same clean prompt" in task.facts["notes"][-1]


def test_all_bad_rows_are_reported_at_once_with_their_lines(tmp_path, words):
    bad = own_rows(3) + "a,b, Mary\n" + "c d,e d,, John\n" + '"[x, y","z, y",[bad, John\n'
    with pytest.raises(InputError) as caught:
        load(tmp_path, bad, words)
    first, *lines = str(caught.value).splitlines()
    assert first == "3 of the 6 rows cannot be read:"
    assert [line.split("(")[1].split(" of")[0] for line in lines] == ["line 5", "line 6", "line 7"]
    assert "3 fields" in lines[0]
    assert "nothing in 'answers'" in lines[1]
    assert "a list such as" in lines[2]


def test_every_row_that_is_left_out_is_named_with_its_reason(tmp_path, words):
    content = own_rows(8) + "a gave it,b gave it to, Mary, John\n" + "c gave,d gave, two words, John\n"
    dropped = load(tmp_path, content, words, split="all").facts["dropped"]
    assert {reason: drop["rows"] for reason, drop in dropped.items()} == {
        "the prompts have different numbers of tokens": [
            "row 9 (line 10 of pairs.csv): the prompts have different numbers of tokens (3 and 4)"
        ],
        "an answer is not a single token": [
            "row 10 (line 11 of pairs.csv): an answer is not a single token (' two words' is ' two' + ' words')"
        ],
    }
