"""A short file of each kind that ``paceline import`` reads, in our own numbers."""

from __future__ import annotations

from tests.paceline.extras.importers.maps import samples
from tests.paceline.extras.importers.measured.test_iperf3 import made
from tests.paceline.extras.importers.measured.test_mtr import JSON
from tests.paceline.extras.importers.measured.test_nccl_tests import TEXT
from tests.paceline.extras.importers.measured.test_ping import LINUX
from tests.paceline.extras.importers.measured.test_traces_of_steps import TIMELINE, TRACE

SAMPLES = {
    "ping": LINUX,
    "iperf3": made([900.0]),
    "mtr": JSON,
    "nccl-tests": TEXT,
    "torch-trace": TRACE,
    "horovod": TIMELINE,
    **{kind: texts[0] for kind, texts in samples.SAMPLES.items()},
}
"""By kind."""
ARGUMENTS = {
    "iperf3": ["--latency", "1 ms"],
    "slurm": ["--latency", "5 us", "--bandwidth", "25 Gbit/s"],
    "nccl-topology": ["--latency", "5 us", "--workers", "2"],
    "diloco-profile": ["--latency", "50 us"],
}
"""What must be said beside a sample."""
