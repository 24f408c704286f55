"""How long the page of ``paceline explore`` takes from a slider to its picture, in headless Chromium.

    python -m benchmarks.explore

Five schemes, five repeats of 500 steps each; the median and the slowest of forty moves of the slider.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import torch

from paceline.extras.explore.export import build, export
from paceline.sim.experiments import prepare
from paceline.sim.scenario.schema import parse

SCENARIO: Final = """
name: slider
workload: {task: digits-mlp, batch_size: 32, optimizer: {lr: 0.1}, payload: 20 MB}
cluster:
  workers: 8
  compute: {time: 50 ms, jitter: {lognormal: {cv: 0.2}}}
  network: {latency: 20 ms, bandwidth: 1 Gbit/s, sharing: none}
evaluate: {every: 5 steps}
schemes:
  - all_reduce
  - local_sgd: {period: 8}
  - diloco: {period: 8}
  - gossip: {topology: ring, label: ring gossip}
  - gossip: {topology: one_peer_exponential, label: one-peer gossip}
stop: {max_iterations: 500}
repeats: 5
"""
MOVES: Final = """
const took = [], slider = document.getElementById("latency");
for (let move = 0; move < 40; move++) {
  slider.value = 5 * move - 100;
  const begin = performance.now();
  slider.dispatchEvent(new Event("input"));
  document.body.getBoundingClientRect();
  took.push(performance.now() - begin);
}
took.sort((a, b) => a - b);
document.body.innerHTML = `<pre id="took">${took[20].toFixed(0)} ${took[39].toFixed(0)}</pre>`;
"""


def main() -> None:
    """Build the page, move its slider, and print the times and the page's size."""
    device = torch.device("cpu")
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "page.html"
        content = export(prepare.resolve(parse(SCENARIO), device), device)
        build(content, page)
        text = page.read_text(encoding="utf-8")
        size_kb = len(text.encode()) / 1e3
        text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
        at_once = (
            f"show({json.dumps(content)});{MOVES}</script>"  # the browser prints the page when it has loaded
        )
        page.write_text(text.partition("new Response(")[0] + at_once, encoding="utf-8")
        done = subprocess.run(
            [
                "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
                f"--user-data-dir={scratch}/profile", page.as_uri(),
            ],
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
    median, slowest = re.findall(r'<pre id="took">(\d+) (\d+)', done.stdout)[0]
    print(f"slider to picture: median {median} ms, slowest {slowest} ms; page {size_kb:.0f} kB")


if __name__ == "__main__":
    main()
