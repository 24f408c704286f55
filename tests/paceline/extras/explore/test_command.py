"""``paceline explore``: a page that needs nothing, lets nothing in, and says who is first."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from paceline.commands.app import app
from paceline.extras.explore.export import build
from tests.support.browser import browse, found_in, in_a_browser

LABEL = "</script><img src=x onerror=alert(1)>&"
SCENARIO = f"""
name: small
workload: {{task: digits-mlp, batch_size: 16, optimizer: {{lr: 0.2, momentum: 0.9}}, payload: 24 MB}}
cluster:
  workers: 4
  compute: {{time: 50 ms, jitter: {{lognormal: {{cv: 0.2}}}}}}
  network: {{latency: 20 ms, bandwidth: 1 Gbit/s}}
evaluate: {{every: 5 steps}}
schemes:
  - all_reduce: {{label: {json.dumps(LABEL)}}}
  - local_sgd: {{period: 8}}
  - gossip: {{topology: ring}}
  - ad_psgd
price: {{worker_hour: 3 EUR}}
stop: {{target: {{metric: test_accuracy, value: 0.8}}, max_iterations: 60}}
repeats: 2
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.extras.explore.export.GRID_POINTS", 3)
        return written(tmp_path_factory.mktemp("explore"))


def written(folder: Path) -> Path:
    (folder / "small.yaml").write_text(SCENARIO, encoding="utf-8")
    done = CliRunner().invoke(
        app, ["explore", str(folder / "small.yaml"), "--out", str(folder / "page.html")]
    )
    assert done.exit_code == 0, done.output
    assert "not in the page: gossip" not in done.stderr
    assert "not in the page: ad_psgd: the scheme is not synchronous" in done.stderr
    return folder / "page.html"


def content_of(page: Path) -> dict[str, Any]:
    packed = re.findall(r'id="data">([^<]*)<', page.read_text(encoding="utf-8"))[0]
    content: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed)))
    return content


@pytest.mark.slow
def test_the_page_runs_its_own_script_alone(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    allowed = re.findall(r"'(sha256-[^']*)'", text)
    inside = [
        *re.findall(r"<script>(.*?)</script>", text, re.S),
        *re.findall(r"<style>(.*?)</style>", text, re.S),
    ]
    digests = [hashlib.sha256(each.encode()).digest() for each in inside]
    assert allowed == [f"sha256-{base64.b64encode(each).decode()}" for each in digests]
    assert "default-src 'none'; script-src" in text
    assert not re.search(r"unsafe|\son\w+=|<img|<link|src=", text.replace("x onerror", ""))
    assert len(text) < 1_000_000


def test_the_page_knows_what_the_sliders_start_from(page: Path) -> None:
    content = content_of(page)
    assert content["link"] == [0.02, 1.25e8]
    assert (content["compute_s"], content["payload_bytes"]) == (0.05, pytest.approx(24e6))
    assert content["price"] == [3.0, "EUR"]
    assert {"aws-ten-regions"} < set(content["clusters"])
    assert [each["label"] for each in content["schemes"]] == [LABEL, "local_sgd", "gossip"]


def tags(folder: Path, name: str) -> list[str]:
    """All start tags of the page of a study in which everything has this name."""
    scheme = {"label": name, "scheme": "all_reduce", "runs": []}
    content = {"name": name, "schemes": [scheme], "left_out": {name: name}, "between": "workers"}
    content["transport"] = {"name": "ideal", "all_reduce": name, "not_validated": []}
    build(content, folder / "page.html")
    return re.findall(r"<(\w+)", (folder / "page.html").read_text(encoding="utf-8"))


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from((LABEL, "<!--", "'}}{{ 7 }}")))
def test_no_text_of_a_study_becomes_markup(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("markup")
    assert tags(folder, text) == tags(folder, "plain")


def test_another_file_is_not_replaced(page: Path) -> None:
    done = CliRunner().invoke(app, ["explore", "two-sites", "--out", str(page.with_name("small.yaml"))])
    assert (done.exit_code, "it is no report" in str(done.exception)) == (1, True)


MEASURE = """
<script>
setTimeout(() => {
  const found = {
    verdict: document.getElementById("verdict").textContent,
    first: [...document.querySelectorAll("#rows th")].map((each) => each.textContent),
    gone: document.getElementById("gone").textContent,
    along: document.getElementById("along").textContent,
    cells: document.querySelectorAll("#map-svg rect").length,
    curves: document.querySelectorAll("#curves-svg polyline").length,
    sliders: [...document.querySelectorAll("input")].map((each) => each.getAttribute("aria-valuetext")),
    unnamed: [...document.querySelectorAll("input, select, svg")].filter((each) => !(each.labels?.length
      || document.getElementById(each.getAttribute("aria-labelledby"))?.textContent)).length,
    requests: performance.getEntriesByType("resource").length,
    wide: document.documentElement.scrollWidth > innerWidth,
    paper: getComputedStyle(document.body).backgroundColor,
  };
  document.body.replaceChildren(Object.assign(document.createElement("pre"), { id: "found" }));
  document.getElementById("found").textContent = JSON.stringify(found);
}, 4000);
</script>
"""


def opened(page: Path, folder: Path, fragment: str, *flags: str) -> dict[str, Any]:
    """What the page shows; its policy has to let the probe in, and nothing else."""
    digest = hashlib.sha256(MEASURE.partition("<script>")[2].partition("</script>")[0].encode()).digest()
    probe = folder / "probe.html"
    text = page.read_text(encoding="utf-8").replace("</body>", MEASURE.strip() + "</body>")
    own = f"script-src 'sha256-{base64.b64encode(digest).decode()}' "
    probe.write_text(text.replace("script-src ", own), encoding="utf-8")
    dumped = browse(probe, folder, "--dump-dom", "--virtual-time-budget=20000", *flags, fragment=fragment)
    answer: dict[str, Any] = json.loads(
        found_in(dumped).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    )
    return answer


@in_a_browser
@pytest.mark.parametrize("width", [500, 800, 1400])
def test_it_works_from_a_file(page: Path, tmp_path: Path, width: int) -> None:
    shown = opened(page, tmp_path, "", f"--window-size={width},2000")
    assert re.fullmatch(
        r"local_sgd reaches test accuracy 0\.8 first: after .* times as long.*\.", shown["verdict"]
    )
    assert shown["first"] == ["local_sgd", LABEL, "\u2248 gossip"]
    assert shown["gone"] == ""
    assert shown["along"].startswith(
        "First by bandwidth, from 10 Mbit/s to 100 Gbit/s, the rest as set: local_sgd"
    )
    assert (shown["cells"], shown["curves"]) == (99, 3)
    assert shown["sliders"] == ["1 Gbit/s", "20 ms", "50 ms", "factor 1", "24 MB", "EUR 3"]
    assert (shown["unnamed"], shown["requests"], shown["wide"]) == (0, 0, False)


@in_a_browser
def test_the_fragment_holds_numbers_of_sliders_alone(page: Path, tmp_path: Path) -> None:
    hostile = "#bandwidth=-100&latency=1e9&compute=<b>&straggler=20&up=-1&across=7&price=9999&__proto__=1"
    shown = opened(page, tmp_path, hostile)
    assert shown["sliders"] == ["100 Mbit/s", "20 ms", "50 ms", "factor 1.58", "24 MB", "EUR 3"]
    assert shown["cells"] == 99
    assert len(shown["first"]) == 2  # worker 0 is slowed down
    assert shown["gone"].startswith(
        "\u2248 gossip: not shown, since interpolated by bandwidth and latency alone"
    )


@in_a_browser
def test_it_is_dark_where_the_reader_is(page: Path, tmp_path: Path) -> None:
    shown = opened(page, tmp_path, "", "--blink-settings=preferredColorScheme=0")
    assert sum(map(int, shown["paper"][4:-1].split(","))) < 200
