from __future__ import annotations

import pkgutil
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

import calibration_data
import deploy

FORBIDDEN = ("torch", "transformers", "timm", "accelerate", "safetensors")
ROOT = Path(__file__).parents[2]


def modules_of(package: object) -> list[str]:
    path, name = package.__path__, package.__name__  # type: ignore[attr-defined]
    return [entry.name for entry in pkgutil.walk_packages(path, prefix=f"{name}.")]


def test_deploy_and_calibration_data_import_where_torch_cannot_be_found() -> None:
    modules = modules_of(deploy) + modules_of(calibration_data)
    assert len(modules) > 20
    code = textwrap.dedent(f"""
        import importlib, sys

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {FORBIDDEN!r}:
                    raise ModuleNotFoundError(f"{{name}} is not installed", name=name)

        sys.meta_path.insert(0, Absent())
        for module in {modules!r}:
            importlib.import_module(module)
        found = sorted(name for name in sys.modules if name.partition(".")[0] in {FORBIDDEN!r})
        assert not found, found
    """)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


WORK = textwrap.dedent("""
    import importlib.util
    from pathlib import Path

    import numpy as np
    import onnx

    for package in {forbidden!r}:
        assert importlib.util.find_spec(package) is None, package

    from deploy.backends.opening import open_backend
    from deploy.calibration.calibrate import calibrate
    from deploy.quantization.lint import lint
    from deploy.quantization.quantize import quantize
    from encoder_graph import encoder, feeds

    graph, quantized = Path("model.onnx"), Path("model.int8.onnx")
    onnx.save(encoder(), graph)
    data = {{"kind": "test"}}
    cache = calibrate(graph, [feeds(seed=seed) for seed in range(4)], method="minmax", data=data, seed=0)
    quantize(graph, cache, quantized)
    assert not lint(quantized, "tensorrt")
    for name in ("openvino", "onnxruntime"):
        with open_backend(name, graph) as exact, open_backend(name, quantized) as rounded:
            expected, found = (list(backend.infer(feeds(seed=9)).values())[0] for backend in (exact, rounded))
        assert 0 < np.abs(expected - found).max() < 0.5
    print("done without torch")
""")


@pytest.fixture(scope="module")
def python_without_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that sees every installed package but torch and what belongs to it; nothing is downloaded."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    packages = folder / "packages"
    packages.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.lower().startswith((*FORBIDDEN, "functorch", "__editable__", "_quietformer")):
            (packages / entry.name).symlink_to(entry)
    python = folder / "venv" / "bin" / "python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    (Path(site) / "packages.pth").write_text(f"{packages}\n{ROOT}\n{ROOT / 'tests' / 'deploy'}\n")
    return python


@pytest.mark.slow
def test_deploy_calibrates_quantizes_and_runs_in_an_environment_without_torch(
    python_without_torch: Path, tmp_path: Path
) -> None:
    code = WORK.format(forbidden=FORBIDDEN)
    done = subprocess.run(
        [python_without_torch, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("done without torch")
