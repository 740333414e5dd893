"""Checkpoints in a bucket, against a server that speaks Cloud Storage's interface; and gs:// where it cannot work."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from jaxsink_converters.convert import convert
from support.checkpoints import assert_same, make
from support.fake_bucket import FakeBucket, serve
from support.miniatures import random_model

import jaxsink
from jaxsink.checkpoints import gcs as cloud
from jaxsink.cli.main import build_parser
from jaxsink.errors import JaxsinkError
from jaxsink.zoo.resolve import resolve

pytestmark = pytest.mark.usefixtures("quick_compilation")

URL = "gs://bucket/models/tiny"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeBucket]:
    monkeypatch.setenv("JAXSINK_CHECKPOINTS", str(tmp_path / "fetched"))
    monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "none")
    monkeypatch.setattr(cloud, "RETRIES", 1)
    with serve() as (bucket, address):
        monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", address)
        yield bucket


def test_a_model_goes_into_a_bucket_and_comes_back(bucket: FakeBucket, tmp_path: Path) -> None:
    bucket.objects["models/tiny-other/file"] = (b"not ours", 7)
    model = random_model("mini-llada")
    jaxsink.save(model, URL)
    written = [request.removeprefix("POST ") for request in bucket.requests if request.startswith("POST")]
    assert written[-1] == "models/tiny/jaxsink.json" and all(name.startswith("models/tiny/") for name in written)
    again = jaxsink.load(URL)
    assert again.config == model.config
    tokens = np.arange(12).reshape(2, 6)
    assert (jaxsink.forward(again, tokens).logits == jaxsink.forward(model, tokens).logits).all()
    before = len(bucket.requests)
    assert resolve(Path(URL)) == resolve(URL + "/")  # pathlib takes one of the slashes
    assert bucket.requests[before:] == ["GET models/tiny/jaxsink.json"] * 2  # the rest is here already
    assert [path.name for path in (tmp_path / "fetched").iterdir()] == [resolve(URL).name]
    assert not (resolve(URL) / "file").exists()


def test_a_bucket_is_only_overwritten_on_request(bucket: FakeBucket) -> None:
    jaxsink.save(random_model("mini-llada"), URL)
    first, old = resolve(URL), dict(bucket.objects)
    with pytest.raises(JaxsinkError, match="exists already; choose another"):
        jaxsink.save(random_model("mini-llama"), URL)
    assert bucket.objects == old
    bucket.objects["models/tiny/weights/left-over"] = (b"", 1)
    jaxsink.save(random_model("mini-llama"), URL, overwrite=True)
    assert resolve(URL) != first and jaxsink.load(URL).config.family == "llama"
    assert "models/tiny/weights/left-over" not in bucket.objects
    deleted = bucket.requests.index("DELETE models/tiny/jaxsink.json")
    assert any("POST models/tiny/weights" in request for request in bucket.requests[deleted:])
    bucket.objects["notes/today"] = (b"mine", 1)
    with pytest.raises(JaxsinkError, match="is not a checkpoint of jaxsink"):
        jaxsink.save(random_model("mini-llama"), "gs://bucket/notes", overwrite=True)


def test_an_upload_that_was_interrupted_is_no_checkpoint_and_can_be_done_again(
    bucket: FakeBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    jaxsink.save(random_model("mini-llada"), URL)
    del bucket.objects["models/tiny/jaxsink.json"]
    with pytest.raises(JaxsinkError, match="no converted checkpoint at gs://bucket/models/tiny"):
        jaxsink.load(URL)
    jaxsink.save(random_model("mini-llada"), URL, overwrite=True)
    assert jaxsink.load(URL).config.family == "llada"


def test_what_killed_uploads_left_is_cleared_and_living_ones_are_not_touched(
    bucket: FakeBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    code = """if True:
        import sys, tempfile
        from jaxsink.runs.atomic import scratch_directory
        tempfile.tempdir = sys.argv[1]
        with scratch_directory("upload") as folder:
            (folder / "weights").write_text("16 GB")
            print(folder, flush=True)
            sys.stdin.read()
    """
    command = [sys.executable, "-c", code, str(tmp_path / "temporary")]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    dead, alive = (Path(process.stdout.readline().strip()) for process in started if process.stdout is not None)
    started[0].kill()
    started[0].communicate()
    assert (dead / "weights").exists()
    jaxsink.save(random_model("mini-llada"), URL)
    assert not dead.exists() and (alive / "weights").exists()
    started[1].communicate("")
    assert list((tmp_path / "temporary").iterdir()) == []


def test_convert_and_the_commands_take_buckets(bucket: FakeBucket, tmp_path: Path, capsys) -> None:
    source, model = make(tmp_path / "source", "llada")
    report = convert(str(source), URL, verify=True)
    assert report.target == URL and report.verified is not None
    bucket.requests.clear()
    args = build_parser().parse_args(["inspect", URL, "--json"])
    assert args.run(args) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == report.parameters
    assert not any("weights" in request for request in bucket.requests)
    assert_same(jaxsink.load(URL), model)
    assert not list(Path.cwd().glob("gs:*"))


def test_what_the_server_refuses_is_one_sentence(bucket: FakeBucket) -> None:
    bucket.refuse = 403
    for call in (lambda: jaxsink.save(random_model("mini-llada"), URL), lambda: jaxsink.load(URL)):
        with pytest.raises(JaxsinkError, match=r"PERMISSION_DENIED|may read"):
            call()


@pytest.mark.parametrize(
    ("path", "message"),
    [("s3://bucket/model", "gs:// buckets, not s3://"), ("gs://bucket", "a whole bucket"), ("gs://", "a whole bucket")],
)
def test_other_places_are_refused(path: str, message: str) -> None:
    with pytest.raises(JaxsinkError, match=message):
        jaxsink.load(path)


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "mini-llama", "task", "--out", "gs://b/runs"],
        ["study", "fig7", "--out", "gs://b/runs"],
        ["train", "mini-llama", "--out", "gs://b/runs"],
        ["table1", "gs://b/runs"],
        ["evaluate", "mini-llama", "task", "--out", "runs", "--data-dir", "gs://b/r"],
        ["report", "runs", "--out", "gs://b/report.html"],
        ["generate", "mini-llama", "Mia", "--record", "gs://b/record.npz"],
    ],
)
def test_results_cannot_go_to_a_bucket(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAXSINK_COMPILE_CACHE", "off")
    args = build_parser().parse_args(words)
    with pytest.raises(JaxsinkError, match="on this machine, not gs://b/r"):
        args.run(args)
    assert not list(tmp_path.iterdir())


def test_a_directory_with_a_strange_name_is_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gs:" / "b").mkdir(parents=True)
    assert not cloud.is_remote("gs://b") and resolve("gs://b") == Path("gs:/b")
