from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from vitling.data.decode import decode, squash
from vitling.errors import UserError
from vitling.evaluation import find_images, load
from vitling.evaluation.inputs import Source
from vitling.views import eval_view


def test_predicts_every_kind_of_input(bundle, pictures):
    model = load(bundle, device="cpu")
    path = pictures / "0.png"
    with Image.open(path) as image:
        answers = [model.predict(one)[0] for one in (path, str(path), image, np.asarray(image))]
    assert len({a.label for a in answers}) == 1
    for a in answers[1:]:
        assert [name for name, _ in a.top] == [name for name, _ in answers[0].top]
        assert a.probability == pytest.approx(answers[0].probability)
    assert sum(p for _, p in answers[0].top) == pytest.approx(1)
    assert answers[0].source == str(path)
    assert answers[0].top[0] == (answers[0].label, answers[0].probability)


def test_pixels_match_store_and_evaluation_view(bundle, pictures):
    """Compare with the steps by hand: decode, squash, evaluation view, network, temperature."""
    model = load(bundle, device="cpu")
    decoded = decode((pictures / "0.png").read_bytes(), channels=3, draft_size=48)
    pixels = torch.from_numpy(squash(decoded, 48, 3))[None]
    view = eval_view(pixels, torch.tensor([60 / 40]), 32, 0.875, (0.5,) * 3, (0.25,) * 3)
    expected = model.logits(view).softmax(1)[0]
    answer = model.predict(pictures / "0.png", top=3)[0]
    for name, probability in answer.top:
        assert probability == pytest.approx(float(expected[model.class_names.index(name)]), abs=1e-5)


def test_probabilities_are_scaled_by_the_temperature(make_bundle, tmp_path, pictures):
    make_bundle(tmp_path / "cold")
    make_bundle(tmp_path / "hot", temperature=10.0)
    cold, hot = (load(tmp_path / which).predict(pictures / "0.png")[0] for which in ("cold", "hot"))
    assert cold.label == hot.label
    assert cold.probability > hot.probability > 1 / 3


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        (None, {}),
        (5, {}),
        ([5], {}),
        *(("0.png", {"top": top}) for top in ("3", 1.5, 0, -1)),
        *(("0.png", {"abstain": abstain}) for abstain in ("0.5", 2, float("nan"))),
        *(("0.png", {"coverage": coverage}) for coverage in ("0.8", 1.0)),
    ],
)
def test_arguments_of_another_type_are_user_errors(bundle, pictures, inputs, options):
    with pytest.raises(UserError):
        load(bundle, device="cpu").predict(pictures / inputs if isinstance(inputs, str) else inputs, **options)


def test_bad_files_do_not_stop_a_prediction(bundle, pictures):
    (pictures / "broken.jpg").write_bytes((pictures / "deeper" / "0.jpg").read_bytes()[:200])
    (pictures / "empty.png").write_bytes(b"")
    (pictures / "notes.txt").write_text("not an image, not looked at")
    answers = load(bundle).predict(pictures)
    assert len(answers) == 8
    bad = {a.source.split("/")[-1]: a.error for a in answers if a.error}
    assert bad.keys() == {"broken.jpg", "empty.png"}
    assert bad["empty.png"] == "empty file"
    assert all(a.label is None and a.top == [] for a in answers if a.error)
    assert all(a.label for a in answers if not a.error)


def test_order_is_kept_across_batches(bundle, monkeypatch, pictures):
    monkeypatch.setattr("vitling.evaluation.model.BATCH", 2)
    model = load(bundle)
    files = find_images(pictures)
    together = model.predict(files)
    for file, answer in zip(files, together):
        assert answer.source == str(file)
        assert answer.probability == pytest.approx(model.predict(file)[0].probability, abs=1e-5)


def test_abstaining(bundle, pictures):
    model = load(bundle)
    assert model.predict(pictures / "0.png", abstain=0.0)[0].label is not None
    unsure = model.predict(pictures / "0.png", abstain=1.0)[0]
    assert unsure.unsure
    assert unsure.label is None
    assert len(unsure.top) == 3


def test_several_labels(make_bundle, tmp_path, pictures):
    make_bundle(tmp_path / "m", task="multi")
    model = load(tmp_path / "m", device="cpu")
    with torch.no_grad():
        model.head.bias.copy_(torch.tensor([50.0, -50.0, 50.0]))
    answer = model.predict(pictures / "0.png", top=2)[0]
    assert answer.labels == ["cat", "owl"]
    assert answer.label is None
    assert [p for _, p in answer.top] == pytest.approx([1, 1])


def test_features(bundle, pictures):
    model = load(bundle)
    assert model.embed(pictures).shape == (6, 128)
    assert np.allclose(model.embed([pictures / "1.png"]), model.embed(pictures)[1], atol=1e-5)
    (pictures / "empty.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"1 images cannot be read.*empty file"):
        model.embed(pictures)


def test_find_images(pictures):
    assert len(find_images(pictures)) == 6
    assert find_images(str(pictures / "*.png")) == [pictures / f"{i}.png" for i in range(3)]
    assert find_images([pictures / "1.png", str(pictures / "[12].png")]) == [pictures / "1.png", pictures / "2.png"]
    with pytest.raises(UserError, match="no images at"):
        find_images(pictures / "*.nothing")


def test_other_objects_are_refused(bundle):
    with pytest.raises(UserError, match="A dict is not an image"):
        load(bundle).predict([{}])


def test_importing_the_package_imports_no_torch():
    code = "import sys, vitling.evaluation; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_errors_give_the_reason(bundle):
    def fail():
        raise ValueError("the row has no image bytes")

    found = load(bundle).embed_sources([Source("row 1", fail)])
    assert found.errors == {"row 1": "cannot be read: the row has no image bytes"}
