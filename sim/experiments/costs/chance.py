"""What is random in the clock of a scheme: asked of the scenario, as two draws may be equal by chance."""

from __future__ import annotations

from ...drivers.job import Job


def chance(job: Job) -> list[str]:
    """What a job draws from its seed for its times and faults, as phrases; none: all repeats are alike.

    A run whose times depend on values, which clocks alone cannot follow, is random besides.
    """
    transfer, compute = job.transfer, job.compute
    phrases = {
        "computing times": compute.random or compute.compute.spread is not None,
        "latencies or bandwidths": transfer.network.varies,
        "messages of the profile": transfer.wake_up_delays_s or transfer.resume_jitter_s or transfer.uneven,
        "faults": job.churn is not None and any(each.mean_time_between for each in job.churn.faults),
        "the scheme's own draws": job.scheme.draws(job.options),
    }
    return [phrase for phrase, there in phrases.items() if there]
