from __future__ import annotations

import csv

import torch

from vitling.evaluation.mistakes import find_mistakes, write_mistakes

FILES, CLASSES = ["a.png", "b.png", "c.png", "d.png"], ["cat", "dog"]


def test_the_most_confident_mistake_comes_first(tmp_path):
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0], [1.0, 0.0]])
    found = find_mistakes(logits, torch.tensor([0, 0, 0, 1]), FILES, CLASSES, 1.0, "val")
    assert [(m.file, m.label, m.predicted) for m in found] == [
        ("c.png", "cat", "dog"),
        ("b.png", "cat", "dog"),
        ("d.png", "dog", "cat"),
    ]
    assert found[0].probability == f"{torch.tensor([0.0, 3.0]).softmax(0)[1]:.4f}"
    write_mistakes(tmp_path / "m.csv", found)
    rows = list(csv.DictReader((tmp_path / "m.csv").open()))
    assert [row["file"] for row in rows] == ["c.png", "b.png", "d.png"]
    assert rows[0]["split"] == "val"


def test_several_labels():
    logits = torch.tensor([[2.0, 2.0], [2.0, -2.0], [-1.0, -3.0], [-2.0, 3.0]])
    labels = torch.tensor([[True, True], [False, False], [True, False], [False, True]])
    found = find_mistakes(logits, labels, FILES, CLASSES, 1.0, "test")
    assert [(m.file, m.label, m.predicted) for m in found] == [("b.png", "", "cat"), ("c.png", "cat", "")]


def test_no_mistakes_make_a_heading_only(tmp_path):
    write_mistakes(tmp_path / "m.csv", [])
    assert (tmp_path / "m.csv").read_text() == "file,split,label,predicted,probability,label_probability\n"
