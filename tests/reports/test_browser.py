"""The report in a real browser: nothing is cut off, and no request leaves the page."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.reports.page import build
from paceline.sim.records.folder import write_results
from tests.support.browser import browse, found_in, in_a_browser
from tests.support.made_results import SCENARIO, measured, simulated

MEASURE = """
<script>
addEventListener("load", () => {
  const wide = [...document.querySelectorAll("body *")].filter(e => {
    if (e.closest("svg") && e.tagName !== "svg") return false;
    for (let up = e.parentElement; up; up = up.parentElement)
      if (["auto", "hidden"].includes(getComputedStyle(up).overflowX)) return false;
    return e.getBoundingClientRect().right > innerWidth + 1;
  }).map(e => e.tagName + "." + e.className);
  const pictures = [...document.querySelectorAll("figure svg")];
  const empty = pictures.filter(e => e.getBoundingClientRect().height < 6);
  const page = getComputedStyle(document.body);
  document.body.innerHTML = "<pre id=found>" + JSON.stringify({
    width: innerWidth, scroll: document.documentElement.scrollWidth, wide, empty: empty.length,
    figures: document.querySelectorAll("figure").length,
    requests: performance.getEntriesByType("resource").length,
    paper: page.backgroundColor, ink: page.color,
  }) + "</pre>";
  if (parent !== window) parent.postMessage(document.body.innerHTML, "*");
});
</script>
"""

FRAME = """
<!DOCTYPE html><body><iframe src="probe.html" style="border: 0; width: {width}px; height: 2000px"></iframe>
<script>addEventListener("message", e => {{ document.body.innerHTML = e.data; }});</script>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("browser")
    write_results(top / "simulated", SCENARIO, "four", simulated())
    write_results(top / "measured", SCENARIO, "four", measured())
    write_results(top / "other", SCENARIO.replace("four", "other"), "other", simulated()[:4])
    build([top / "simulated", top / "measured", top / "other"], top / "report.html")
    return top / "report.html"


@in_a_browser
@pytest.mark.parametrize(
    ("width", "flags", "dark"),
    [
        (1280, (), False),
        (500, (), False),
        (390, (), False),
        (1280, ("--blink-settings=preferredColorScheme=0",), True),
    ],
    ids=["wide", "narrow", "phone", "dark"],
)
def test_nothing_is_cut_off(
    page: Path, tmp_path: Path, width: int, flags: tuple[str, ...], dark: bool
) -> None:
    probe = tmp_path / "probe.html"
    probe.write_text(
        page.read_text(encoding="utf-8").replace("</body>", MEASURE + "</body>"), encoding="utf-8"
    )
    framed = tmp_path / "framed.html"  # no window is as narrow as a phone
    framed.write_text(FRAME.format(width=width), encoding="utf-8")
    shown, how = (probe, ()) if width >= 500 else (framed, ("--virtual-time-budget=5000",))
    text = browse(shown, tmp_path, f"--window-size={max(width, 500)},2000", "--dump-dom", *how, *flags)
    measures = json.loads(found_in(text))
    assert measures["width"] == width
    assert measures["wide"] == []
    assert measures["scroll"] <= width
    assert (measures["empty"], measures["requests"]) == (0, 0)
    assert measures["figures"] > 20
    assert (sum(map(int, measures["paper"][4:-1].split(","))) < 200) == dark


@in_a_browser
def test_it_prints(page: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.pdf"
    browse(page, tmp_path, f"--print-to-pdf={out}")
    assert out.read_bytes().startswith(b"%PDF")
    assert out.stat().st_size > 50_000


@pytest.fixture
def proxy() -> Iterator[tuple[int, list[bytes]]]:
    """A proxy that notes what it is asked for and answers nothing."""
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        over = threading.Event()

        def listen() -> None:
            while not over.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                with connection:
                    requests.append(connection.recv(2000))

        thread = threading.Thread(target=listen)
        thread.start()
        yield server.getsockname()[1], requests
        over.set()
        thread.join()


@in_a_browser
def test_no_request_leaves_the_page(page: Path, tmp_path: Path, proxy: tuple[int, list[bytes]]) -> None:
    port, requests = proxy
    flags = (f"--proxy-server=127.0.0.1:{port}", "--proxy-bypass-list=<-loopback>", "--dump-dom")
    browse(page, tmp_path, *flags)
    noise = (b"google", b"gstatic", b"gvt1")  # the browser's own, which a page has no part in
    assert [each for each in requests if not any(name in each for name in noise)] == []
