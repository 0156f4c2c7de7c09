"""Readers of images: every layout, and every way in which image data can be wrong."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy.data.image_data import class_names, image_data_identity, read_images
from deploy.data.image_pixels import decode_image, resize_image

SHARED = Path(__file__).parents[4] / "shared" / "data"
WITHOUT_DATA = pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data beside the checkout")
Image = pytest.importorskip("PIL.Image")


def encoded(colour: int, *, kind: str = "PNG", mode: str = "RGB", size: tuple[int, int] = (4, 4)) -> bytes:
    stream = io.BytesIO()
    value = (colour, 2 * colour, 3 * colour) if mode == "RGB" else colour
    Image.new(mode, size, value).save(stream, kind)
    return stream.getvalue()


def write_parquet(path: Path, columns: dict[str, list[Any]]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path)
    return path


def write_classes(folder: Path, counts: dict[str, int]) -> Path:
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for index in range(count):
            (folder / name / f"{index}.png").write_bytes(encoded(index))
    return folder


@pytest.mark.parametrize(
    "column", [{"jpeg": [encoded(1), encoded(2)]}, {"image": [{"bytes": encoded(k), "path": "x.png"} for k in (1, 2)]}]
)
def test_both_layouts_of_a_parquet_file_give_images_and_labels_in_the_order_of_the_rows(
    tmp_path: Path, column: dict[str, list[Any]]
) -> None:
    file = write_parquet(tmp_path / "a.parquet", {"file": ["x", "y"], "label": [3, 0], **column})
    images = read_images(file)
    assert [image.label for image in images] == [3, 0]
    assert [image.read() for image in images] == [encoded(1), encoded(2)]
    assert images[1].where == f"{file} row 2"
    assert [image.label for image in read_images(file, labelled=False)] == [None, None]
    assert read_images(file, limit=1) == images[:1]


def test_of_a_folder_of_parquet_files_the_split_that_serves_the_purpose_is_read(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", {"image": [encoded(1)], "label": [1]})
    write_parquet(tmp_path / "test.parquet", {"image": [encoded(2)], "label": [2]})
    (tmp_path / "notes.txt").write_text("not an image")
    assert [image.label for image in read_images(tmp_path)] == [1]
    assert [image.label for image in read_images(tmp_path, purpose="evaluation")] == [2]
    with pytest.raises(ValueError, match="evaluation split"):
        read_images(tmp_path / "test.parquet")
    assert read_images(tmp_path / "test.parquet", allow_evaluation_split=True)[0].label == 2
    assert class_names(tmp_path) is None


def test_class_folders_are_numbered_by_name_and_taken_in_turn(tmp_path: Path) -> None:
    write_classes(tmp_path, {"dog": 3, "cat": 1})
    images = read_images(tmp_path)
    assert [(image.label, Path(image.where).parent.name) for image in images] == [
        (0, "cat"), (1, "dog"), (1, "dog"), (1, "dog"),
    ]  # fmt: skip
    assert class_names(tmp_path) == ("cat", "dog")
    assert read_images(tmp_path, limit=2) == images[:2]


def test_class_folders_may_lie_in_folders_of_splits(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"cat": 2, "dog": 2})
    write_classes(tmp_path / "val", {"cat": 1, "dog": 1})
    assert len(read_images(tmp_path)) == 4
    assert len(read_images(tmp_path, purpose="evaluation")) == 2
    assert class_names(tmp_path, purpose="evaluation") == ("cat", "dog")
    with pytest.raises(ValueError, match="evaluation split"):
        read_images(tmp_path / "val")


def test_without_labels_a_folder_of_images_or_one_image_will_do(tmp_path: Path) -> None:
    (tmp_path / "b.JPG").write_bytes(encoded(1, kind="JPEG"))
    (tmp_path / "a.png").write_bytes(encoded(2))
    (tmp_path / ".hidden.png").write_bytes(b"no")
    assert [Path(image.where).name for image in read_images(tmp_path, labelled=False)] == ["a.png", "b.JPG"]
    assert read_images(tmp_path / "a.png", labelled=False)[0].read() == encoded(2)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"picture": [b"x"], "label": [0]}, "no column 'image'.*its columns are picture, label"),
        ({"image": [b"x"]}, "row 1 has no column 'label'"),
        ({"image": [b"x"], "label": [-1]}, "label is -1; expected a class number"),
        ({"image": [b"x"], "label": ["cat"]}, "label is 'cat'; expected a class number"),
        ({"image": ["x"], "label": [0]}, "holds a str; expected an encoded image"),
        ({"image": [{"bytes": None, "path": "x"}], "label": [0]}, "holds no bytes"),
    ],
)
def test_a_wrong_column_is_named(tmp_path: Path, columns: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_images(write_parquet(tmp_path / "a.parquet", columns))


def test_what_holds_no_labelled_image_is_refused_with_the_reason(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(FileNotFoundError, match="no images at"):
        read_images(tmp_path / "absent")
    with pytest.raises(ValueError, match="path of the images is empty"):
        read_images("")
    with pytest.raises(ValueError, match="holds no image; expected"):
        read_images(tmp_path)
    (tmp_path / "a.png").write_bytes(encoded(1))
    with pytest.raises(ValueError, match=r"images without labels, such as a\.png"):
        read_images(tmp_path)
    with pytest.raises(ValueError, match="one image and has no label"):
        read_images(tmp_path / "a.png")
    (tmp_path / "a.csv").write_text("image,label\n")
    with pytest.raises(ValueError, match=r"expected \.parquet"):
        read_images(tmp_path / "a.csv")
    (tmp_path / "b.parquet").write_bytes(b"no")
    with pytest.raises(ValueError, match="not a parquet file"):
        read_images(tmp_path / "b.parquet")
    empty = write_classes(tmp_path / "classes", {"cat": 1, "dog": 0})
    with pytest.raises(ValueError, match="dog holds no image"):
        read_images(empty)
    with pytest.raises(ValueError, match="limit is 0"):
        read_images(empty, limit=0)
    file = write_parquet(tmp_path / "c.parquet", {"image": [b"x"][:0], "label": [1][:0]})
    with pytest.raises(ValueError, match="holds no image"):
        read_images(file)


def test_the_identity_follows_contents_labels_and_limit_but_not_the_place(tmp_path: Path) -> None:
    first = write_classes(tmp_path / "one", {"cat": 2, "dog": 1})
    second = write_classes(tmp_path / "two", {"cat": 2, "dog": 1})
    assert image_data_identity(first) == image_data_identity(second)
    assert image_data_identity(first)["images"] == 3
    assert image_data_identity(first, limit=2) != image_data_identity(first)
    (second / "dog" / "0.png").write_bytes(encoded(9))
    assert image_data_identity(first) != image_data_identity(second)
    file = write_parquet(tmp_path / "a.parquet", {"image": [encoded(1)], "label": [0]})
    assert [entry["name"] for entry in image_data_identity(file)["files"]] == ["a.parquet"]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_mode_of_8_bits_becomes_rgb(mode: str) -> None:
    stream = io.BytesIO()
    picture = Image.effect_noise((5, 3), 60).convert(mode)
    picture.save(stream, "PNG")
    pixels_HWC = decode_image(stream.getvalue(), where="x")
    assert pixels_HWC.shape == (3, 5, 3)
    assert pixels_HWC.dtype == np.uint8
    assert np.array_equal(pixels_HWC, np.asarray(picture.convert("RGB")))


def test_what_is_no_image_is_refused_by_its_place() -> None:
    stream = io.BytesIO()
    Image.effect_noise((64, 64), 60).save(stream, "JPEG")
    whole = stream.getvalue()
    with pytest.raises(ValueError, match="row 7 is not a JPEG or PNG image"):
        decode_image(b"not an image", where="row 7")
    with pytest.raises(ValueError, match="row 7 is not a JPEG or PNG image"):
        decode_image(b"", where="row 7")
    with pytest.raises(ValueError, match="row 7 is a damaged or truncated JPEG"):
        decode_image(whole[: len(whole) // 2], where="row 7")
    with pytest.raises(ValueError, match="row 7 is not a JPEG or PNG image"):
        decode_image(encoded(1, kind="GIF"), where="row 7")
    with pytest.raises(ValueError, match="row 7 has pixels of mode 'I"):
        decode_image(encoded(1, mode="I;16"), where="row 7")


def test_an_image_of_the_right_size_is_not_resampled() -> None:
    pixels_HWC = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
    assert resize_image(pixels_HWC, (3, 3), interpolation="bicubic") is pixels_HWC


@WITHOUT_DATA
def test_real_images_are_read_and_every_prefix_is_balanced() -> None:
    images = read_images(SHARED / "cifar10_jpeg", limit=20)
    assert sorted(image.label for image in images if image.label is not None) == sorted([*range(10)] * 2)
    assert decode_image(images[0].read(), where=images[0].where).shape == (32, 32, 3)
