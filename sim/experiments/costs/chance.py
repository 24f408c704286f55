"""What is random in the clock of a scheme: asked of the scenario, as two draws may be equal by chance."""

from __future__ import annotations

from ...scenario.entries import SchemeEntry
from ...scenario.schema import Scenario
from ..prepare import over_profile, prepare


def chance(scenario: Scenario, entry: SchemeEntry) -> list[str]:
    """What a scheme's times and faults draw from the seed, as phrases; none: all repeats are alike.

    A run whose times depend on values, which the clock alone does not show, is random besides.
    """
    job = over_profile(prepare(scenario, entry, scenario.seed), scenario.cluster.profile)
    transfer, compute = job.transfer, job.compute
    phrases = {
        "computing times": compute.random or compute.compute.spread is not None,
        "latencies or bandwidths": transfer.network.varies,
        "messages of the profile": transfer.wake_up_delays_s or transfer.resume_jitter_s or transfer.uneven,
        "faults": job.churn is not None and any(each.mean_time_between for each in job.churn.faults),
        "the scheme's own draws": job.scheme.draws(job.options),
    }
    return [phrase for phrase, there in phrases.items() if there]
