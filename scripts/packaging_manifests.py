"""Checks what schemas do not see in the compose file and the manifests of Kubernetes: each file that they name
is there, and `keyfall config check` accepts the configuration.

packaging_manifests.py KEYFALL
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import compose_spec
import yaml

COMPOSE = Path("ops/compose/compose.yml")
KUBERNETES = Path("ops/kubernetes")


def check(holds: bool, fault: str) -> None:
    if not holds:
        sys.exit(fault)


def check_compose() -> None:
    text = COMPOSE.read_text()
    compose_spec.PyCompose.from_yaml(text)
    services = yaml.safe_load(text)["services"]
    for name, service in services.items():
        for volume in service["volumes"]:
            file = volume.split(":")[0]
            # The folder of secrets is made by hand.
            if file.startswith(".") and not file.startswith("./secrets"):
                check((COMPOSE.parent / file).exists(), f"{COMPOSE}: {name} mounts {file}, which is not there")
    build = services["keyfall"]["build"]
    check((COMPOSE.parent / build["context"] / build["dockerfile"]).exists(), f"{COMPOSE}: no such dockerfile")


def check_kubernetes(keyfall: str) -> None:
    objects = {}
    listed = yaml.safe_load((KUBERNETES / "kustomization.yml").read_text())["resources"]
    there = {file.name for file in KUBERNETES.glob("*.yml")} - {"kustomization.yml"}
    check(set(listed) == there, f"{KUBERNETES}/kustomization.yml lists {listed}, and there are {there}")
    for name in listed:
        found = yaml.safe_load((KUBERNETES / name).read_text())
        objects[found["kind"]] = found

    pod = objects["Deployment"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    for selector in (
        objects["Deployment"]["spec"]["selector"]["matchLabels"],
        objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        objects["Service"]["spec"]["selector"],
    ):
        check(selector.items() <= labels.items(), f"{selector} selects no pod with {labels}")

    # The files of the pod, in a folder, and the configuration with their places there.
    contents = {"config": objects["ConfigMap"]["data"], "secret": objects["Secret"]["stringData"]}
    container = pod["spec"]["containers"][0]
    config = container["args"][container["args"].index("--config") + 1]
    with tempfile.TemporaryDirectory() as folder:
        for mount in container["volumeMounts"]:
            place = Path(folder + mount["mountPath"])
            place.mkdir(parents=True)
            for name, text in contents[mount["name"]].items():
                (place / name).write_text(text.replace('"/run', f'"{folder}/run'))
        checked = subprocess.run([keyfall, "config", "check", folder + config], capture_output=True, text=True)
        check(checked.returncode == 0, f"{KUBERNETES}: {checked.stdout}{checked.stderr}")


check_compose()
check_kubernetes(sys.argv[1])
