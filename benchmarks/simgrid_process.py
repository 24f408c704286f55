"""Flows in SimGrid: JSON from standard input to standard output. Run by the Python that has SimGrid.

In: a list of platforms that know nothing of each other, each {"links": [[bandwidth, latency], ...], "flows":
[[start_s, bytes, [link, ...]], ...]}. Out: for each the times at which its flows are complete.
"""

import json
import sys

from simgrid import Actor, Comm, Engine, LinkInRoute, NetZone, this_actor


def send(source, destination, start_s, num_bytes, ends, number):  # type: ignore[no-untyped-def]
    """An actor: sends once, and notes when it is done."""
    this_actor.sleep_for(start_s)
    Comm.sendto_async(source, destination, num_bytes).wait()
    ends[number] = Engine.clock


def main() -> None:
    """Simulate all platforms in one engine, each flow between two hosts of its own."""
    options = ("network/model:CM02", "network/TCP-gamma:0", "network/crosstraffic:0", "network/weight-S:0")
    engine = Engine([sys.argv[0], "--log=root.threshold:error", *(f"--cfg={each}" for each in options)])
    zone = NetZone.create_full_zone("all")
    ends_s = []
    for p, platform in enumerate(json.load(sys.stdin)):
        links = []
        for number, (bandwidth, latency_s) in enumerate(platform["links"]):
            link = zone.create_link(f"{p}-{number}", float(bandwidth))
            links.append(link.set_latency(float(latency_s)).seal())
        ends_s.append([0.0] * len(platform["flows"]))
        for number, (start_s, num_bytes, route) in enumerate(platform["flows"]):
            hosts = [zone.create_host(f"{p}-{number}-{end}", 1.0).seal() for end in ("from", "to")]
            points = [host.netpoint for host in hosts]
            zone.add_route(*points, None, None, [LinkInRoute(links[each]) for each in route], False)
            Actor.create("send", hosts[0], send, *hosts, start_s, num_bytes, ends_s[-1], number)
    zone.seal()
    engine.run()
    json.dump(ends_s, sys.stdout)


if __name__ == "__main__":
    main()
