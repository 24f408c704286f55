"""One-peer gossip as actors of SimGrid, by its Python bindings; runs under the system's Python.

    /usr/bin/python3 benchmarks/speed/simgrid_gossip.py PLATFORM.xml WORKERS STEPS COMPUTE_S BYTES

Prints the seconds that the simulation took, and the simulated seconds.
"""

from __future__ import annotations

import sys
import time

from simgrid import Actor, Engine, Host, Mailbox, this_actor


def worker(rank: int, workers: int, steps: int, compute_s: float, num_bytes: int) -> None:
    """Compute, and exchange with one peer, at every step."""
    distances = max(1, (workers - 1).bit_length())
    own = Mailbox.by_name(str(rank))
    for step in range(steps):
        this_actor.sleep_for(compute_s)
        peer = Mailbox.by_name(str((rank + 2 ** (step % distances)) % workers))
        sending = peer.put_async(step, num_bytes)
        own.get()
        sending.wait()


def main() -> None:
    """Simulate and print."""
    engine = Engine(
        ["gossip", "--cfg=network/model:CM02", "--cfg=network/crosstraffic:no", "--log=root.thres:error"]
    )
    workers, steps = int(sys.argv[2]), int(sys.argv[3])
    engine.load_platform(sys.argv[1])
    for rank in range(workers):
        arguments = rank, workers, steps, float(sys.argv[4]), int(sys.argv[5])
        Actor.create(str(rank), Host.by_name(f"host{rank}"), worker, *arguments)
    begin_s = time.perf_counter()
    engine.run()
    print(time.perf_counter() - begin_s, Engine.clock)


if __name__ == "__main__":
    main()
