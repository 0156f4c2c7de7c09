"""Preprocessing against the libraries whose checkpoints it serves."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from deploy.data.image_data import LabelledImage
from deploy.data.image_encoding import ImageEncoder
from deploy.data.image_preprocessing import preprocessor_file, read_image_encoder

Image = pytest.importorskip("PIL.Image")

FLOAT_ROUNDING = 2e-6
"""Normalised values reach 3; the libraries order the same operations differently."""
SHAPES = [(40, 52), (33, 31), (24, 24), (57, 24)]
"""Heights and widths: enlarged and reduced, odd and even excess, the exact size."""


def photo(shape: tuple[int, int], *, seed: int = 0) -> NDArray[np.uint8]:
    """Blocks and noise: edges that filters ring at."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (shape[0] // 6 + 1, shape[1] // 6 + 1, 3), dtype=np.uint8)
    fine = np.kron(coarse, np.ones((6, 6, 1), dtype=np.uint8))[: shape[0], : shape[1]]
    return np.clip(fine.astype(int) + generator.integers(-9, 10, fine.shape), 0, 255).astype(np.uint8)


def encoder(**changes: Any) -> ImageEncoder:
    return ImageEncoder(**({"size": (8, 8), "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)} | changes))


PROCESSORS: list[tuple[str, dict[str, Any]]] = [
    ("ViTImageProcessorPil", {"size": {"height": 24, "width": 24}}),
    ("ViTImageProcessorPil", {"size": {"height": 24, "width": 40}, "resample": 3, "image_mean": [0.4, 0.5, 0.6]}),
    ("ViTImageProcessorPil", {"size": {"height": 16, "width": 16}, "do_normalize": False, "resample": 0}),
    ("DeiTImageProcessorPil", {"size": {"height": 28, "width": 28}, "crop_size": {"height": 23, "width": 24}}),
    (
        "CLIPImageProcessorPil",
        {"size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24}, "image_std": [0.2, 0.25, 0.3]},
    ),
]


@pytest.mark.parametrize(("name", "settings"), PROCESSORS)
@pytest.mark.parametrize("shape", SHAPES)
def test_pixel_values_are_those_of_the_image_processor_whose_file_was_read(
    tmp_path: Path, name: str, settings: dict[str, Any], shape: tuple[int, int]
) -> None:
    transformers = pytest.importorskip("transformers")
    processor = getattr(transformers, name)(**settings)
    processor.save_pretrained(tmp_path)
    picture = photo(shape)
    expected = processor(Image.fromarray(picture), return_tensors="np")["pixel_values"]
    found = read_image_encoder(tmp_path).encode([picture])
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=FLOAT_ROUNDING)


@pytest.mark.parametrize("shape", SHAPES)
def test_torchvision_based_processors_differ_by_at_most_one_grey_level(tmp_path: Path, shape: tuple[int, int]) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torchvision")
    processor = transformers.ViTImageProcessor(size={"height": 24, "width": 24})
    processor.save_pretrained(tmp_path)
    picture = photo(shape)
    expected = processor(Image.fromarray(picture), return_tensors="pt")["pixel_values"].numpy()
    found = read_image_encoder(tmp_path).encode([picture])
    grey_level = 1 / 255 / 0.5
    np.testing.assert_allclose(found, expected, rtol=0, atol=grey_level + FLOAT_ROUNDING)
    assert np.abs(found - expected).mean() < 0.05 * grey_level


@pytest.mark.parametrize(
    "settings",
    [
        {"input_size": [3, 24, 24], "crop_pct": 0.9, "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3},
        {"input_size": [3, 24, 24], "crop_pct": 1.0, "interpolation": "bilinear"},
        {"input_size": [3, 21, 21]},
        {"input_size": [3, 24, 24], "crop_pct": 0.83, "crop_mode": "squash"},
        {"input_size": [3, 20, 28], "crop_pct": 1.0, "crop_mode": "squash"},
    ],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_pixel_values_are_those_of_timms_evaluation_transform(
    tmp_path: Path, settings: dict[str, Any], shape: tuple[int, int]
) -> None:
    data = pytest.importorskip("timm.data")
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 10, "pretrained_cfg": settings}
    (tmp_path / "config.json").write_text(json.dumps(config))
    transform = data.create_transform(**data.resolve_data_config(pretrained_cfg=settings), is_training=False)
    picture = photo(shape)
    expected = transform(Image.fromarray(picture))[None].numpy()
    found = read_image_encoder(tmp_path).encode([picture])
    np.testing.assert_allclose(found, expected, rtol=0, atol=FLOAT_ROUNDING)


@pytest.mark.parametrize(
    "settings",
    [
        {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6), "interpolation": "lanczos"},
        {"resize": (11, 9)},
        {"resize": 12, "crop_rounding": "even"},
    ],
)
def test_a_written_preprocessing_file_is_read_back(tmp_path: Path, settings: dict[str, Any]) -> None:
    (tmp_path / "preprocessor_config.json").write_text(preprocessor_file(encoder(**settings)))
    assert read_image_encoder(tmp_path) == encoder(**settings)


def test_keys_that_an_old_file_leaves_out_are_those_of_its_class(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({"feature_extractor_type": "DeiTFeatureExtractor", "image_mean": [0.4] * 3, "resample": 3})
    )
    assert read_image_encoder(tmp_path) == encoder(
        size=(224, 224), resize=(256, 256), interpolation="bicubic", mean=(0.4,) * 3
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("preprocessor_config.json", "{", "is not JSON"),
        ("preprocessor_config.json", "[]", "is a JSON list"),
        ("preprocessor_config.json", '{"size": 8, "do_resize": false}', "do_resize is false"),
        ("preprocessor_config.json", '{"size": {"longest_edge": 8}}', "size is {'longest_edge': 8}"),
        ("preprocessor_config.json", '{"size": {"shortest_edge": 8}}', "not cropped"),
        ("preprocessor_config.json", '{"size": 8, "resample": 9}', "resample is 9"),
        ("preprocessor_config.json", '{"size": 8, "image_std": [1, 0, 1]}', "std is .*above 0"),
        ("preprocessor_config.json", '{"size": 8, "image_mean": [1, 0]}', "three finite numbers"),
        ("preprocessor_config.json", '{"size": 8, "rescale_factor": 1}', "rescale_factor is 1"),
        ("preprocessor_config.json", '{"image_processor_type": "OtherProcessor"}', "no 'size'"),
        ("config.json", '{"pretrained_cfg": {"input_size": [1, 8, 8]}}', "1 channels"),
        ("config.json", '{"pretrained_cfg": {"crop_mode": "border"}}', "crop_mode is 'border'"),
        ("config.json", '{"pretrained_cfg": {"input_size": [3, 8, 9]}}', "8 x 9"),
        ("config.json", '{"pretrained_cfg": {"interpolation": "random"}}', "unknown interpolation 'random'"),
    ],
)
def test_preprocessing_that_cannot_be_done_is_refused_by_file_and_key(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_image_encoder(tmp_path)
    assert name in str(caught.value)


def test_a_folder_without_preprocessing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(FileNotFoundError, match="does not say how images are prepared"):
        read_image_encoder(tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder"):
        read_image_encoder(tmp_path / "absent")


def test_encoded_and_decoded_images_give_the_same_feeds() -> None:
    picture, stream = photo((9, 13)), io.BytesIO()
    Image.fromarray(picture).save(stream, "PNG")
    encoded = LabelledImage(where="x", source=stream.getvalue(), label=0)
    feeds = encoder().feeds([encoded, picture])
    assert feeds["pixel_values"].shape == (2, 3, 8, 8)
    assert np.array_equal(*feeds["pixel_values"])


def test_wrong_settings_and_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="no images to encode"):
        encoder().encode([])
    with pytest.raises(ValueError, match="cannot make input 'input_ids'"):
        encoder().feeds([photo((8, 8))], input_names=["pixel_values", "input_ids"])
    for changes, message in (
        ({"size": (0, 8)}, "image size"),
        ({"resize": 7}, "leaves no"),
        ({"resize": (8, 7)}, "leaves no"),
        ({"mean": (0.0, float("nan"), 0.0)}, "mean"),
        ({"interpolation": "best"}, "unknown interpolation"),
        ({"crop_rounding": "up"}, "unknown crop_rounding"),
    ):
        with pytest.raises(ValueError, match=message):
            encoder(**changes)


def test_the_identity_is_plain_values_that_differ_with_the_settings() -> None:
    assert json.loads(json.dumps(encoder().identity())) == encoder().identity()
    assert encoder().identity() != encoder(interpolation="bicubic").identity()
