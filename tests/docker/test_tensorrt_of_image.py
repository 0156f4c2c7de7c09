from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from docker import tensorrt_of_image
from docker.image_file import read_stages
from docker.tensorrt_of_image import check, library_version, main, version_of

DOCKERFILE = Path(__file__).parents[2] / "docker" / "tensorrt.Dockerfile"


def test_the_images_of_both_major_versions_are_known_and_the_break_lies_between_may_and_june() -> None:
    assert [version_of(image).partition(".")[0] for image in ("26.05", "26.06")] == ["10", "11"]


def test_the_default_image_is_in_the_table() -> None:
    final = read_stages(DOCKERFILE)[-1]
    image = final.image.removeprefix("nvcr.io/nvidia/tritonserver:").removesuffix("-py3")
    assert main([image]).splitlines() == [
        f"tensorrt_cu13=={version_of(image)}",
        f"tensorrt_cu13_bindings=={version_of(image)}",
    ]


def test_an_unknown_image_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match=r"image '24\.01'; known are 26\.03, 26\.05"):
        version_of("24.01")


def test_a_library_tells_its_own_version() -> None:
    """TensorRT-RTX exports the functions that TensorRT does."""
    tensorrt_rtx = pytest.importorskip("tensorrt_rtx")
    libraries = Path(tensorrt_rtx.__file__).parents[1] / "tensorrt_rtx_libs"
    library = next(libraries.glob("libtensorrt_rtx.so*"))
    assert library_version(str(library)) == tensorrt_rtx.__version__


@pytest.mark.parametrize(("library", "bindings"), [("10.16.1.11", "10.16.0.72"), ("10.16.0.72", "10.16.1.11")])
def test_an_image_that_holds_another_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, library: str, bindings: str
) -> None:
    monkeypatch.setattr(tensorrt_of_image, "library_version", lambda _name: library)
    module = types.ModuleType("tensorrt")
    module.__version__ = bindings  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    with pytest.raises(ValueError, match=r"26\.05 has TensorRT .* 10\.16\.0\.72; .* says 10\.16\.1\.11"):
        check("26.05")
    monkeypatch.setattr(tensorrt_of_image, "library_version", lambda _name: "10.16.1.11")
    module.__version__ = "10.16.1.11"  # type: ignore[attr-defined]
    assert main(["26.05", "--check"]) == "TensorRT 10.16.1.11"
