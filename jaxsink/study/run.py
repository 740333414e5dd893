"""Conducting a study: all measurements first, with the time that is left; then the findings, the player and the page."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from jaxsink.errors import JaxsinkError
from jaxsink.parallel.hosts import is_main
from jaxsink.runs.atomic import new_file
from jaxsink.runs.progress import progress, stage
from jaxsink.study import player
from jaxsink.study.finding import Finding
from jaxsink.study.measure import Piece, Recorded, Study
from jaxsink.study.plots import styled
from jaxsink.version import __version__

LIBRARIES = ("jax", "jaxlib", "flax", "numpy", "orbax-checkpoint", "optax")


def conduct(study: Study, experiments: Sequence[Any]) -> list[Finding]:
    """Run experiments (modules of experiments/); everything that is already on the disk is kept."""
    write_manifest(study)
    left = [piece for piece in all_pieces(study, experiments) if not study.is_done(piece)]
    with progress([piece.cost for piece in left]) as (begin, end):
        for piece in left:
            begin(piece.label)
            study.compute(piece)
            end()
    with styled(), stage("drawing figures", total=len(experiments), unit="experiments") as task:
        findings = []
        for experiment in experiments:
            findings.append(experiment.run(study))
            task.update(len(findings))
    if is_main():
        for finding in findings:
            finding.save(study.folder / "experiments")
        with stage("writing the generations of the player"):
            player.export(study)
    return findings


def all_pieces(study: Study, experiments: Sequence[Any]) -> list[Piece]:
    """What the experiments need, each piece once, model by model so that compiled programs are used again."""
    found: dict[str, Piece] = {}
    for experiment in experiments:
        needs = getattr(experiment, "needs", None)
        wanted = needs(study) if needs else [(subject, Recorded()) for subject in study.subjects]
        for subject, spec in [*wanted, *player.needs(study)]:
            found |= {piece.name: piece for piece in study.pieces(subject, spec)}
    return list(found.values())


def write_manifest(study: Study) -> None:
    """What a reader needs to run it again: versions, settings, the models' hashes, the machine. A folder holds one study:
    findings of other models or sizes would lie beside each other and look alike."""
    if not is_main():
        return
    manifest = {
        "jaxsink": __version__,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        "settings": {
            "problems": study.problems,
            "generations": study.generations,
            "eps": study.eps,
            "seed": study.seed,
        },
        "models": {
            subject.name: {
                "sha256": subject.fingerprint,
                "sampler": repr(subject.sampler),
                "parameters": sum(leaf.size for leaf in jax.tree.leaves(subject.model)),
            }
            for subject in study.subjects
        },
        "machine": {
            "devices": [str(device.device_kind) for device in jax.devices()],
            "cores": os.cpu_count(),
            "system": platform.system(),
            "processor": platform.machine(),
        },
    }
    check_same(study.folder / "manifest.json", manifest)
    with new_file(study.folder / "manifest.json") as partial:
        partial.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def check_same(path: Path, manifest: dict[str, Any]) -> None:
    """The manifest on the disk, if any, is of the same study."""
    if not path.is_file():
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        before = {**found["settings"], "models": {name: model["sha256"] for name, model in found["models"].items()}}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JaxsinkError(f"{path} is not the manifest of a study; choose another --out.") from error
    now = {**manifest["settings"], "models": {name: model["sha256"] for name, model in manifest["models"].items()}}
    for key, value in now.items():
        if before.get(key) != value:
            other = "of other models" if key == "models" else f"with {key} = {before.get(key)}, not {value}"
            raise JaxsinkError(f"{path.parent} holds a study {other}; choose another --out.")
