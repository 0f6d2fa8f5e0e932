"""The files for clusters and CI: manifest, container file and workflows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from tensorpool.cli import cli

ROOT = Path(__file__).parents[3]
MANIFESTS = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
CONTAINERFILE = ROOT / "deploy/Containerfile"
# The oldest with init containers that keep running.
KUBERNETES = "1.29"


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text("utf-8")))


@pytest.fixture(params=MANIFESTS, ids=lambda path: path.name)
def manifest(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return documents(request.param)


def pod_of(manifest: list[dict[str, Any]]) -> dict[str, Any]:
    (deployment,) = [document for document in manifest if document["kind"] == "Deployment"]
    pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return pod


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def test_manifest_is_valid(manifest: list[dict[str, Any]]) -> None:
    for document in manifest:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_checker_refuses_a_misspelt_key(manifest: list[dict[str, Any]]) -> None:
    pod_of(manifest)["shareProcessNamespaces"] = True
    (deployment,) = [document for document in manifest if document["kind"] == "Deployment"]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, KUBERNETES, strict=True)


def test_every_role_of_the_manifest_accepts_its_arguments(
    manifest: list[dict[str, Any]], tmp_path: Path
) -> None:
    (config_map,) = [document for document in manifest if document["kind"] == "ConfigMap"]
    ((name, text),) = config_map["data"].items()
    (tmp_path / name).write_text(text)
    roles = [container["args"] for container in containers(pod_of(manifest)) if "args" in container]
    assert len(roles) == 3
    for arguments in roles:
        here = [argument.replace("/etc/tensorpool", str(tmp_path)) for argument in arguments]
        done = CliRunner().invoke(cli, [*here, "--check"])
        assert done.exit_code == 0, f"{arguments}: {done.output} {done.exception}"


def test_all_containers_share_the_memory(manifest: list[dict[str, Any]]) -> None:
    pod = pod_of(manifest)
    (memory,) = [volume for volume in pod["volumes"] if volume["name"] == "memory"]
    assert memory["emptyDir"]["medium"] == "Memory"
    for container in containers(pod):
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert mounts["/dev/shm"] == "memory", container["name"]
    assert pod["shareProcessNamespace"] is True
    declared = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for each in containers(pod) for mount in each["volumeMounts"]} <= declared


def test_quota_of_the_driver_fits_into_the_memory(manifest: list[dict[str, Any]]) -> None:
    from tensorpool.units import parse_size

    pod = pod_of(manifest)
    (config_map,) = [document for document in manifest if document["kind"] == "ConfigMap"]
    settings = tomllib.loads(config_map["data"]["tensorpool.toml"])
    (memory,) = [volume for volume in pod["volumes"] if volume["name"] == "memory"]
    size = parse_size(memory["emptyDir"]["sizeLimit"] + "B")
    limit = parse_size(pod["initContainers"][0]["resources"]["limits"]["memory"] + "B")
    assert parse_size(settings["driver"]["quota"]) < size <= limit


def test_user_of_image_and_manifest_is_the_same(manifest: list[dict[str, Any]]) -> None:
    (user,) = re.findall(r"^USER (\d+):\d+$", CONTAINERFILE.read_text("utf-8"), re.M)
    context = pod_of(manifest)["securityContext"]
    assert {context["runAsUser"], context["runAsGroup"], context["fsGroup"]} == {int(user)}


def test_container_file_copies_what_exists() -> None:
    text = CONTAINERFILE.read_text("utf-8")
    (sources,) = re.findall(r"^COPY (.*) \S+$", text, re.M)
    # Wheels are built; the rest is in the repository.
    assert [name for name in sources.split() if not name.startswith("dist/")] == [
        "requirements/constraints.txt"
    ]
    assert (ROOT / "requirements/constraints.txt").is_file()
    assert 'ENTRYPOINT ["tensorpool"]' in text


def test_there_is_a_workflow_for_each_purpose() -> None:
    assert {path.stem for path in WORKFLOWS} >= {"tests", "wheels", "docs", "release"}
    assert (ROOT / ".github/dependabot.yml").is_file()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_has_no_secret_and_few_rights(path: Path) -> None:
    text = path.read_text("utf-8")
    # Releases are trusted by identity, not by a password.
    assert "secrets." not in text
    assert "pull_request_target" not in text
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    hosts = set(re.findall(r"https?://([^/\s\"']+)", text))
    assert hosts <= {"github.com", "pypi.org"}


def actionlint() -> str:
    """The checker's path. Skips the test if the machine has none and `tools/actionlint` has not built one."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    built = sorted(Path(cache, "tensorpool").glob("actionlint-*/actionlint"))
    program = shutil.which("actionlint") or (str(built[-1]) if built else None)
    if program is None:
        pytest.skip("no actionlint: tools/actionlint builds it, and make test calls it")
    return program


def test_workflows_pass_actionlint() -> None:
    # Without the checkers of scripts, which differ between machines.
    command = [actionlint(), "-no-color", "-shellcheck=", "-pyflakes=", *map(str, WORKFLOWS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout


def test_actionlint_refuses_an_unknown_job(tmp_path: Path) -> None:
    workflow = tmp_path / "release.yml"
    release = (ROOT / ".github/workflows/release.yml").read_text("utf-8")
    workflow.write_text(release.replace("needs: check", "needs: chekc"))
    done = subprocess.run(
        [actionlint(), "-no-color", str(workflow)], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 1
    assert "chekc" in done.stdout


def test_hooks_before_a_commit_run_what_lint_runs() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (hooks,) = [repo["hooks"] for repo in documents(ROOT / ".pre-commit-config.yaml")[0]["repos"]]
    steps = (
        re.search(r"^lint: .*?^$", makefile, re.M | re.S),
        re.search(r"^check-source: .*?^$", makefile, re.M | re.S),
    )
    named = {
        name.strip('"') for step in steps if step for name in re.findall(r'tools/step ("[^"]+"|\w+)', step[0])
    }
    assert {hook["name"] for hook in hooks} == named


def test_release_checks_the_changelog_and_attests() -> None:
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text("utf-8"))
    jobs = release["jobs"]
    assert "tools.release check" in str(jobs["check"])
    assert jobs["wheels"]["needs"] == "check"
    publish = jobs["publish"]
    assert publish["permissions"]["id-token"] == publish["permissions"]["attestations"] == "write"
    assert "pypa/gh-action-pypi-publish" in str(publish["steps"])
