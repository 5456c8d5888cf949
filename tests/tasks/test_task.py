"""A task of one's own: what it takes, how it becomes token ids, and what is refused."""

from __future__ import annotations

import pytest
import torch
from small_models import Numbers, prompts

from gradpath.errors import InputError, UsageError
from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.metrics import probability_difference
from gradpath.tasks.task import Task, encode

TOKENIZER = Tokenizer(Numbers())
LABELS = torch.tensor([[3, 4]])


def test_text_and_token_ids_are_the_same_task():
    text = encode(Task(["5 6 7"], ["5 9 7"], LABELS), TOKENIZER)
    ids = encode(Task(torch.tensor([[5, 6, 7]]), torch.tensor([[5, 9, 7]]), LABELS), None)
    assert torch.equal(text.clean, ids.clean)
    assert torch.equal(text.corrupted, ids.corrupted)


def test_pairs_know_their_last_token_and_where_they_first_differ():
    pairs = encode(prompts([4, 7, 5], [[0], [3, 5], [4]]), TOKENIZER)
    assert pairs.last.tolist() == [3, 6, 4]
    assert pairs.first.tolist() == [0, 3, 4]
    assert pairs.clean.shape == (3, 7)
    assert pairs.rows(torch.tensor([0, 2])).clean.shape == (2, 5)  # cut to the longest of them
    assert encode(Task(["5 6 7"], ["5 6 7"], LABELS), TOKENIZER).first.tolist() == [2]  # equal ones: the last token


def test_labels_may_be_words_numbers_or_of_several_lengths():
    def labels(given):
        task = Task(["5 6"] * len(given), ["7 6"] * len(given), given, metric=lambda logits, labels: logits[:, 0])
        return encode(task, TOKENIZER).labels

    assert labels([(" 8", " 9"), (" 10", " 11")]).tolist() == [[8, 9], [10, 11]]
    assert labels([3, 4]).tolist() == [3, 4]
    assert [row.tolist() for row in labels([[1, 2], [3]])] == [[1, 2], [3]]
    assert labels([torch.tensor([1, 2])]).tolist() == [[1, 2]]


def test_a_task_is_indexed_and_iterated_pair_by_pair():
    task = prompts([4, 7, 5], [[0], [3], [4]])
    pair = task[1]
    assert (pair.clean, pair.corrupted) == (task.clean[1], task.corrupted[1])
    assert torch.equal(pair.label, task.labels[1])
    assert task[-1].clean == task.clean[2]
    assert [clean for clean, _, _ in task] == list(task.prompts) == list(task.clean)
    assert len(task[:2].prompts) == 2
    with pytest.raises(IndexError, match="3 pairs, from 0 to 2: got 3"):
        task[3]
    with pytest.raises(UsageError, match="a number or a slice"):
        task["first"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Task(["5 6 7"], ["5 6"], LABELS), "pair 0 has 3 and 2. Drop the pair, or reword it"),
        (lambda: Task(["5", ""], ["6", ""], LABELS.repeat(2, 1)), "pair 1 has an empty one"),
        (lambda: Task(["5 6"], ["5 7"], [(" 8 9", " 3")]), "' 8 9' is 2"),
        (lambda: Task(torch.zeros(1, 2), torch.zeros(1, 2), LABELS), "must be token ids"),
        (lambda: Task(LABELS[0], LABELS[0], [1, 2]), "must be token ids"),
        (lambda: Task(LABELS > 3, LABELS > 4, LABELS), "must be token ids"),
        (lambda: Task(["5"], ["5", "6"], LABELS), "as many corrupted prompts"),
        (lambda: Task([], [], []), "at least one pair"),
        (lambda: Task("abc", "abd", [[1, 2]] * 3), "a list of strings.*got 'abc'"),
        (lambda: Task([[5, 6]], [[5, 7]], LABELS), r"one tensor of token ids.*got \[\[5, 6\]\]"),
        (lambda: Task(["5"], ["6"], LABELS, "kl"), "got 'kl'. Metrics by name are for load_task"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_prompts_and_metrics_that_cannot_be_used_are_refused(make, words):
    with pytest.raises(InputError, match=words):
        encode(make(), TOKENIZER)


def test_text_for_a_model_without_a_tokenizer_is_refused():
    with pytest.raises(InputError, match="came without a tokenizer"):
        encode(Task(["5"], ["6"], LABELS), None)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (torch.tensor([[3, 4, 5]]), r"\(n, 2\): got shape \(1, 3\)"),
        (torch.tensor([3]), r"\(n, 2\): got shape \(1,\)"),
        (torch.tensor(3), r"one entry per example: got tensor\(3\)"),
        (torch.tensor([[3.0, 4.0]]), "whole numbers: got torch.float32"),
        (torch.tensor([[True, False]]), "whole numbers: got torch.bool"),
        (torch.tensor([[-1, 4]]), "example 0 has the correct answer -1"),
        (torch.tensor([[4, 4]]), "token 4 on both sides"),
        (" 8", "one entry per example: got ' 8'"),
        (None, "one entry per example: got None"),
        ([{"right": 3}], "labels have to be numbers"),
    ],
)
def test_labels_that_a_logit_difference_would_misread_are_refused(labels, words):
    with pytest.raises(InputError, match=words):
        encode(Task(["5 6"], ["7 6"], labels), TOKENIZER)


def test_ragged_labels_are_refused_by_a_logit_difference_and_padded_by_a_probability_difference():
    clean, corrupted = ["5 6", "5 8"], ["7 6", "7 8"]
    with pytest.raises(InputError, match=r"rows of different shapes, \(2,\), \(1,\)"):
        encode(Task(clean, corrupted, [[1, 2], [3]]), TOKENIZER)
    lists = [[[" 8", " 9"], [" 3"]], [[1], [2]]]
    labels = encode(Task(clean, corrupted, lists, probability_difference), TOKENIZER).labels
    assert labels.tolist() == [[[8, 9], [3, -1]], [[1, -1], [2, -1]]]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([[[3, 3], [4, -1]]], "correct answer twice"),
        ([[[3, 5], [5, -1]]], "token 5 on both sides"),
        ([[[3, 5], [-1, -1]]], "a wrong answer for every example: example 0 has none"),
        ([[[3, 5], [-2, 4]]], "wrong answer -2"),
    ],
)
def test_labels_that_a_probability_difference_would_misread_are_refused(labels, words):
    with pytest.raises(InputError, match=words):
        encode(Task(["5 6"], ["7 6"], torch.tensor(labels), probability_difference), TOKENIZER)


@pytest.mark.parametrize(
    ("rows", "most", "padding"), [(12, 50, 1.0), (30, 3, 0.3), (1, 50, 1.0), (1000, 50, 1.0), (1000, 50, 0.3)]
)
def test_tight_batches_have_every_pair_once_and_little_padding(rows, most, padding):
    pairs = encode(
        prompts([6, 9, 6, 7, 9, 6, 12, 7], [[0], [4], [2, 3], [6], [8], [5], [1], [0]]), Tokenizer(Numbers())
    )

    def size(batch):
        real = int((batch.last - batch.first + 1).sum())
        return real + padding * (len(batch) * (int(batch.last.max()) - batch.start + 1) - real)

    tight = pairs.tight_batches(rows, most, price=2, padding=padding)
    assert sorted(i for batch in tight for i in batch.index.tolist()) == list(range(8))
    assert all(len(batch) <= most and (size(batch) <= rows or len(batch) == 1) for batch in tight)
    if rows == 1000:  # no even cut is cheaper
        even = [list(pairs.batches(n)) for n in range(1, 9)]
        assert sum(map(size, tight)) + 2 * len(tight) <= min(sum(map(size, x)) + 2 * len(x) for x in even)


@pytest.mark.parametrize("at", [slice(None, None, -1), slice(3, 0, -2), slice(1, None)])
def test_slices_of_tensors_and_lists_go_either_way(at):
    ids, labels = torch.arange(8).reshape(4, 2), torch.arange(8).reshape(4, 2)
    texts = [str(row) for row in ids.tolist()]
    for column in (ids, texts):
        part = Task(column, column, labels)[at]
        assert list(map(str, part.clean)) == list(map(str, [column[i] for i in range(4)[at]]))
        assert part.labels.tolist() == labels.tolist()[at]
