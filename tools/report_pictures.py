"""Writes docs/pictures/report-*.png: the reports of real jobs over a table, images and texts, in Chromium.

``python -m tools.report_pictures`` trains the examples' models, a minute or two; Chromium must be installed.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from PIL import Image

from cutaway.contract.requests import InspectRequest, Raw
from cutaway.jobs import Job, report, run
from cutaway.server.worker.worker import Worker
from examples.digits import audit
from examples.sentences.package import model_directory, package
from examples.sentences.sentences_adapter import Sentences
from examples.tumours import package as tumours

_FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
_WIDTH = 1180
_COLOURS = 128

_QUERY = "a complaint about late delivery"
_REVIEWS = (
    "The parcel came two weeks late, and nobody answered my mails.",
    "Great sound, and the battery lasts all day.",
    "I waited a month for the package, then cancelled the order.",
    "The colour is nicer than in the picture.",
    "Delivery was promised for Monday; it is Friday now and nothing has arrived.",
    "Setup took five minutes, no manual needed.",
    "The courier left it in the rain and it came too late for the birthday.",
    "Support was friendly and replaced the broken lamp at once.",
)


class Picture(NamedTuple):
    """What part of a report is drawn.

    Attributes:
        name: the name of the file.
        section: the id of the page's first section in the picture.
        height: the height of the picture, in pixels.
    """

    name: str
    section: str
    height: int


def _table(directory: Path) -> Job:
    return Job.load(tumours.package(directory))


def _images(directory: Path) -> Job:
    audit.prepare(directory)
    return Job.load(directory / "job.yaml")


def _texts(directory: Path) -> Job:
    """Returns a job that explains how near each review is to a query."""
    source = model_directory()
    worker = Worker.of(Sentences(directory=source, weights=source / "model.safetensors"), "sentences")
    query = worker.inspect(InspectRequest("sentences", raw=(Raw(_QUERY.encode(), "text/plain"),))).predictions[
        "embedding"
    ]
    np.save(directory / "query.npy", query)
    parquet.write_table(pa.table({"text": list(_REVIEWS)}), directory / "reviews.parquet")
    return Job(
        model={"archive": package(directory)},
        data={"path": str(directory / "reviews.parquet")},
        inputs={"raw": {"column": "text", "media_type": "text/plain"}},
        target={"cotangent": {"tensor": query.tolist()}},
        request={
            "attributions": [
                {"method": "layer_integrated_gradients", "layer": "embeddings.word_embeddings", "n_steps": 32}
            ]
        },
        output={"folder": directory / "explained", "keep_inputs": True},
    )


_PICTURES = {
    Picture("report-table.png", "features", 900): _table,
    Picture("report-images.png", "contrary", 900): _images,
    Picture("report-text.png", "first", 620): _texts,
}


def _draw(page: Path, picture: Picture, browser: str, scratch: Path) -> None:
    """Draws the page from its section on, in few colours."""
    copy, file = scratch / "page.html", scratch / "page.png"
    hidden = f"main > :not(#{picture.section}, #{picture.section} ~ *) {{ display: none !important }}"
    style = f"<style>{hidden} main {{ padding-top: 0 }} h2 {{ margin-top: 20px }}</style>"
    copy.write_text(page.read_text("utf-8").replace("</head>", f"{style}</head>"), "utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={scratch / 'profile'}", f"--window-size={_WIDTH},{picture.height}"]
    command += ["--blink-settings=preferredColorScheme=1", f"--screenshot={file}", copy.as_uri()]
    subprocess.run(command, check=True, capture_output=True)
    _FOLDER.mkdir(parents=True, exist_ok=True)
    Image.open(file).convert("RGB").quantize(_COLOURS).save(_FOLDER / picture.name, optimize=True)


def main() -> None:
    """Writes every picture."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("Chromium is not installed: apt-get install chromium")
    for picture, prepare in _PICTURES.items():
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch)
            job = prepare(directory)
            run(job)
            _draw(report(job.output.folder), picture, browser, directory)
            print(_FOLDER / picture.name, f"{(_FOLDER / picture.name).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
