from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from docker.image_file import read_stages
from docker.run_step import STEPS
from docker.tensorrt_of_image import version_of

ROOT = Path(__file__).parents[2]
TEXT = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (ROOT / "compose.yaml").read_text(encoding="utf-8"))
"""With the default of every variable."""
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BUILT = {name: service for name, service in SERVICES.items() if "build" in service}
NEED_A_GPU = {"train", "build", "bench", "triton-repo", "triton"} & set(SERVICES)


def stage_of(service: dict[str, Any]) -> Any:
    return read_stages(ROOT / service["build"]["dockerfile"], arguments=service["build"].get("args"))[-1]


def test_every_variable_has_a_default() -> None:
    assert "$" not in "\n".join(line for line in TEXT.splitlines() if not line.startswith("#"))


@pytest.mark.parametrize("name", BUILT)
def test_a_service_builds_from_a_dockerfile_and_starts_what_its_image_holds(name: str) -> None:
    service = BUILT[name]
    final = stage_of(service)
    entry = service.get("entrypoint", final.command("ENTRYPOINT"))
    script = final.command("ENTRYPOINT")[1]
    assert entry[1] == script
    if script.endswith("run_step.py"):
        assert entry[2] in STEPS
    assert (ROOT / service["command"][0]).is_file(), "the default recipe"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_runs_without_rights_that_it_does_not_need(name: str) -> None:
    service = SERVICES[name]
    assert service["user"] == "1000:1000"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.get("privileged")


@pytest.mark.parametrize("name", SERVICES)
def test_who_needs_a_gpu_reserves_one(name: str) -> None:
    devices = SERVICES[name].get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices")
    expected = [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}] if name in NEED_A_GPU else None
    assert devices == expected


@pytest.mark.parametrize("name", SERVICES)
def test_volumes_are_declared_or_lie_in_the_repository(name: str) -> None:
    for volume in SERVICES[name]["volumes"]:
        source, target = volume.split(":")[:2]
        assert (ROOT / source).is_dir() if source.startswith(".") else source in COMPOSE["volumes"]
        if name in BUILT and target in ("/srv/quietformer/runs", "/cache", "/models"):
            assert target in stage_of(SERVICES[name]).last("VOLUME").split()


def test_engines_are_built_by_the_image_that_serves_them() -> None:
    build = stage_of(SERVICES["build"]).image
    assert build.startswith("nvcr.io/nvidia/tritonserver:")
    assert version_of(SERVICES["build"]["build"]["args"]["TRITON"]) == version_of(
        build.split(":")[1].removesuffix("-py3")
    )
    if "triton" in SERVICES:
        assert SERVICES["triton"]["image"] == build


def test_servers_are_published_to_this_machine_only_and_checked() -> None:
    servers = {name: service for name, service in SERVICES.items() if "ports" in service}
    assert set(servers) == {"serve", "triton"} & set(SERVICES)
    for service in servers.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        check = service["healthcheck"]["test"] if "healthcheck" in service else stage_of(service).last("HEALTHCHECK")
        assert "/v2/health/ready" in str(check)
