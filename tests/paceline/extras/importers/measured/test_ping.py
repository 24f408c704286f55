"""Output of ping: Linux, macOS, BusyBox, Windows."""

from __future__ import annotations

import re

import pytest

from paceline.extras.importers.measured.ping import read
from paceline.extras.importers.readings import ForeignFile, PathReading
from paceline.sim.errors import InputError
from paceline.sim.foreign import decode, foreign_kind

LINUX = """\
PING 10.0.0.2 (10.0.0.2) 56(84) bytes of data.
64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=40.3 ms
64 bytes from 10.0.0.2: icmp_seq=2 ttl=64 time=40.9 ms

--- 10.0.0.2 ping statistics ---
2 packets transmitted, 2 received, 0% packet loss, time 1001ms
rtt min/avg/max/mdev = 40.312/40.606/40.901/0.294 ms
"""
STAMPED = """\
PING db.example (192.0.2.7) 56(84) bytes of data.
[1795806965.018984] 64 bytes from 192.0.2.7: icmp_seq=1 ttl=64 time=1.00 ms
[1795806966.018984] 64 bytes from 192.0.2.7: icmp_seq=1 ttl=64 time=9.00 ms (DUP!)
[1795806967.018984] 64 bytes from 192.0.2.7: icmp_seq=3 ttl=64 time=2.00 ms
[1795806967.018984] 64 bytes from 192.0.2.7: icmp_seq=4 ttl=64 time=2.00 ms
[1795806967.018984] 64 bytes from 192.0.2.7: icmp_seq=5 ttl=64 time=2.00 ms
[1795806967.018984] 64 bytes from 192.0.2.7: icmp_seq=6 ttl=64 time=3.00 ms

--- db.example ping statistics ---
10 packets transmitted, 5 received, +1 duplicates, 50% packet loss, time 9001ms
rtt min/avg/max/mdev = 1.000/2.000/3.000/0.632 ms
"""
QUIET = """\
PING 10.0.0.2 (10.0.0.2) 56(84) bytes of data.

--- 10.0.0.2 ping statistics ---
20 packets transmitted, 20 received, 0% packet loss, time 19001ms
rtt min/avg/max/mdev = 39.1/40.0/44.0/0.8 ms
"""
MACOS = """\
PING eu.example (192.0.2.9): 56 data bytes
64 bytes from 192.0.2.9: icmp_seq=0 ttl=57 time=88.250 ms
Request timeout for icmp_seq 1
64 bytes from 192.0.2.9: icmp_seq=2 ttl=57 time=90.250 ms

--- eu.example ping statistics ---
4 packets transmitted, 2 packets received, 50.0% packet loss
round-trip min/avg/max/stddev = 88.250/89.250/90.250/1.000 ms
"""
BUSYBOX = """\
PING 10.0.0.3 (10.0.0.3): 56 data bytes
64 bytes from 10.0.0.3: seq=0 ttl=64 time=0.200 ms
64 bytes from 10.0.0.3: seq=1 ttl=64 time=0.400 ms

--- 10.0.0.3 ping statistics ---
2 packets transmitted, 2 packets received, 0% packet loss
round-trip min/avg/max = 0.200/0.300/0.400 ms
"""
GERMAN_LINUX = """\
PING 10.0.0.2 (10.0.0.2) 56(84) Bytes an Daten.
64 Bytes von 10.0.0.2: icmp_seq=1 ttl=64 Zeit=40,3 ms
64 Bytes von 10.0.0.2: icmp_seq=2 ttl=64 Zeit=40,9 ms

--- 10.0.0.2 ping statistics ---
4 Pakete übertragen, 2 empfangen, 50% Paketverlust, Zeit 1001ms
rtt min/avg/max/mdev = 40.312/40.606/40.901/0.294 ms
"""
WINDOWS = """\

Pinging us.example [192.0.2.4] with 32 bytes of data:
Reply from 192.0.2.4: bytes=32 time=12ms TTL=57
Request timed out.
Reply from 192.0.2.1: Destination host unreachable.
Reply from 192.0.2.4: bytes=32 time=14ms TTL=57

Ping statistics for 192.0.2.4:
    Packets: Sent = 4, Received = 3, Lost = 1 (25% loss),
Approximate round trip times in milli-seconds:
    Minimum = 12ms, Maximum = 14ms, Average = 13ms
"""
GERMAN = """\

Ping wird ausgeführt für us.example [192.0.2.4] mit 32 Bytes Daten:
Antwort von 192.0.2.4: Bytes=32 Zeit=12ms TTL=57
Antwort von 192.0.2.4: Bytes=32 Zeit=14ms TTL=57

Ping-Statistik für 192.0.2.4:
    Pakete: Gesendet = 2, Empfangen = 2, Verloren = 0
    (0% Verlust),
Ca. Zeitangaben in Millisek.:
    Minimum = 12ms, Maximum = 14ms, Mittelwert = 13ms
"""
FRENCH = """\

Envoi d\u2019une requête 'Ping'  us.example [192.0.2.4] avec 32 octets de données :
Réponse de 192.0.2.4 : octets=32 temps=12 ms TTL=57
Réponse de 192.0.2.4 : octets=32 temps=14 ms TTL=57

Statistiques Ping pour 192.0.2.4:
    Paquets : envoyés = 2, reçus = 2, perdus = 0 (perte 0%),
Durée approximative des boucles en millisecondes :
    Minimum = 12ms, Maximum = 14ms, Moyenne = 13ms
"""
MACOS_6 = """\
PING6(56=40+8+8 bytes) ::2 --> ::1
16 bytes from ::1, icmp_seq=0 hlim=64 time=0.200 ms
16 bytes from ::1, icmp_seq=1 hlim=64 time=0.400 ms

--- ::1 ping6 statistics ---
2 packets transmitted, 2 packets received, 0.0% packet loss
round-trip min/avg/max/std-dev = 0.200/0.300/0.400/0.100 ms
"""
SPANISH = """\
Haciendo ping a us.example [192.0.2.4] con 32 bytes de datos:
Respuesta desde 192.0.2.4: bytes=32 tiempo=12ms TTL=57
Respuesta desde 192.0.2.4: bytes=32 tiempo=14ms TTL=57
"""
FLOOD = QUIET.replace("0.8 ms", "0.8 ms, pipe 4, ipg/ewma 1.0/1.0 ms")
NEAR = """\
Pinging 10.0.0.2 with 32 bytes of data:
Reply from 10.0.0.2: bytes=32 time<1ms TTL=64
Reply from 10.0.0.2: bytes=32 time<1ms TTL=64
Reply from 10.0.0.2: bytes=32 time=3ms TTL=64
"""


def _path(text: str) -> PathReading:
    assert foreign_kind(text) == "ping"
    (path,) = read(ForeignFile("ping.txt", text, ("us", "eu"))).paths
    assert (path.source, path.target) == ("us", "eu")
    return path


@pytest.mark.parametrize(
    ("text", "latency_ms", "loss"),
    [
        (LINUX, 20.3, 0.0), (STAMPED, 1.0, 0.5), (QUIET, 20.0, 0.0), (MACOS, 44.625, 0.5),
        (BUSYBOX, 0.15, 0.0), (WINDOWS, 6.5, 0.5), (GERMAN_LINUX, 20.3, 0.5), (GERMAN, 6.5, 0.0),
        (FRENCH, 6.5, 0.0), (MACOS_6, 0.15, 0.0), (SPANISH, 6.5, None), (FLOOD, 20.0, 0.0),
    ],
)  # fmt: skip
def test_half_of_the_median_round_trip_and_the_packets_lost(
    text: str, latency_ms: float, loss: float | None
) -> None:
    path = _path(text)
    assert path.latency_s == pytest.approx(latency_ms / 1000)
    assert path.loss == loss


@pytest.mark.parametrize(
    "content",
    [
        GERMAN.encode("cp1252"), GERMAN.replace("\n", "\r\n").encode("utf-16"),
        b"\xef\xbb\xbf" + GERMAN.encode(),
        ("\n\n" + GERMAN + "\nC:\\> ").encode(),
    ],
)  # fmt: skip
def test_encodings_and_what_stands_around(content: bytes) -> None:
    assert _path(decode(content)).latency_s == pytest.approx(0.0065)


def test_jitter_is_that_of_one_way_from_five_packets_on() -> None:
    assert _path(LINUX).jitter_s is None
    # Variance of 1, 2, 2, 2, 3 ms: 0.4; one way has half of it.
    assert _path(STAMPED).jitter_s == pytest.approx(0.2**0.5 / 1000)
    assert _path(QUIET).jitter_s == pytest.approx(0.0008 / 2**0.5)


def test_without_a_summary_nothing_is_known_of_losses() -> None:
    assert _path("".join(LINUX.splitlines(keepends=True)[:3])).loss is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LINUX.splitlines()[0], r"^ping\.txt: has no round trip of a packet"),
        (LINUX.replace("40.9 ms", "40.9 us"), r"^ping\.txt:3: has a round trip in 'us', not in ms"),
        (LINUX.replace("time=40.3 ms", "time=40.3"), r"^ping\.txt:2: has a round trip in '', not in ms"),
        (LINUX.replace("=40.9 ms", "=4.0.9 ms"), r"^ping\.txt:3: '4\.0\.9' is no number from 0"),
        (LINUX + LINUX.replace("0.2", "0.7"), r"^ping\.txt: has pings of 10\.0\.0\.2 and 10\.0\.0\.7"),
        (QUIET.replace("0.8 ms", "0.8 us"), r"^ping\.txt:5: has round trips in 'us'"),
        (LINUX.replace("2 received", "0 received"), r"has 0 packets received of 2"),
        (LINUX.replace("2 received", "7 received"), r"has 7 packets received of 2"),
        (QUIET.replace("/40.0/", "/60/"), r"^ping\.txt:5: is damaged: its mean, 60 ms, is not in 39\.1 to"),
        (NEAR, r"half of the round trips are up to 1 ms; leave it out, and add --latency"),
    ],
)  # fmt: skip
def test_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        _path(text)


@pytest.mark.parametrize("text", [LINUX, STAMPED, MACOS, BUSYBOX, GERMAN_LINUX, WINDOWS])
def test_an_answer_whose_time_is_damaged_is_refused_with_its_line(text: str) -> None:
    lines = text.splitlines()
    rows = [k for k, line in enumerate(lines) if re.search("(?i)(time|zeit)[=<].*(ms$|TTL)", line) and k < 9]
    assert len(rows) >= 2
    for row in rows:
        for other in (re.sub("(?i)(time|zeit)=", "ti#e=", lines[row]), lines[row].replace("=", "=x")):
            changed = "\n".join([*lines[:row], other, *lines[row + 1 :]])
            with pytest.raises(InputError, match=f"^x.txt:{row + 1}: "):
                read(ForeignFile("x.txt", changed))


def test_answers_missing_before_a_summary_are_refused() -> None:
    text = "\n".join(line for line in LINUX.splitlines() if "40.9 ms" not in line)
    with pytest.raises(InputError, match="shows 1 round trips, and its summary counts 2"):
        read(ForeignFile("x.txt", text))
