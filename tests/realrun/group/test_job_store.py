"""The store of a job that something else has started: a stranger changes nothing in it."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore

from paceline.realrun.group import control_server, job_store
from paceline.realrun.group.control_server import MAX_STRANGERS, Channel, Refused, open_channel
from paceline.realrun.group.job_store import JobStore, is_one_host, job_secret, open_job_store
from paceline.realrun.group.store import Control, torchrun_store
from paceline.realrun.transport.connections import connect
from paceline.sim.errors import InputError, RunError

SECRET = b"the secret of a job"
HERE = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}


class Job:
    """A server, and the ranks that are connected to it."""

    def __init__(self) -> None:
        listener = job_store._listen({}, "127.0.0.1", 0, True)
        self.address = listener.getsockname()
        self.server = job_store._start_server(listener, SECRET)
        self.ranks: list[JobStore] = []

    def rank(self) -> JobStore:
        """Connect one more rank."""
        server = None if self.ranks else self.server
        channel = job_store._connect(self.address, SECRET, time.monotonic() + 10)
        self.ranks.append(JobStore(channel, server))
        return self.ranks[-1]

    def stranger(self) -> socket.socket:
        """Connect without saying anything."""
        return socket.create_connection(self.address, timeout=10)


@pytest.fixture
def job() -> Iterator[Job]:
    running = Job()
    yield running
    for rank in running.ranks:
        rank.close()
    if running.server.stdin is not None:
        running.server.stdin.close()
    assert running.server.wait(10) == 0


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No secret in the environment, and none on this host yet."""
    monkeypatch.delenv("PACELINE_SECRET", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"paceline-{os.getuid()}"


def is_closed(connection: socket.socket) -> bool:
    """Wait until the other side closes a connection."""
    with connection:
        try:
            while connection.recv(4096):
                pass
        except ConnectionError:
            pass
        return True


# --- what ranks do ------------------------------------------------------------------------------


def test_it_is_a_store_of_torchs(job: Job) -> None:
    one, two = job.rank(), job.rank()
    one.set("binary", bytes(range(256)))
    assert two.get("binary") == bytes(range(256))
    assert [one.add("n", 2), two.add("n", 3), one.add("n", 0)] == [2, 5, 5]
    assert (one.check(["binary", "n"]), one.check(["n", "absent"]), one.num_keys()) == (True, False, 2)
    assert one.compare_set("lock", "", "one") == b"one"
    assert two.compare_set("lock", "", "two") == b"one"
    assert two.compare_set("lock", "one", "two") == b"two"
    assert (one.delete_key("lock"), one.delete_key("lock")) == (True, False)
    within: Any = PrefixStore("within", one)
    within.clone().set("key", "value")  # torch's stubs leave this out
    assert (two.get("within/key"), within.delete_key("key"), within.num_keys()) == (b"value", True, 2)
    with pytest.raises(dist.DistStoreError, match=r"nobody has set absent within 0\.01 s"):
        one.wait(["absent"], timedelta(seconds=0.01))
    with pytest.raises(dist.DistStoreError, match="bytes are more than the job's store takes"):
        one.set("large", "x" * (control_server.MAX_MESSAGE_BYTES + 1))
    assert one.check(["n"])


def test_a_value_that_comes_later_is_waited_for(job: Job) -> None:
    one, two = job.rank(), job.rank()
    threading.Timer(0.05, two.set, ("late", "there")).start()
    assert one.get("late") == b"there"


def test_what_all_ranks_have_shared_comes_in_one_round_trip(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    controls = [Control(job.rank(), rank, 3, "run 1") for rank in range(3)]
    for rank in (0, 1):
        controls[rank].put(f"ready/{rank}", rank)
    requests: list[str] = []
    ask = JobStore._ask

    def counted(store: JobStore, *request: Any) -> Any:
        requests.append(request[0])
        return ask(store, *request)

    monkeypatch.setattr(JobStore, "_ask", counted)
    assert controls[2].meet("ready", 2, 10) == [0, 1, 2]
    assert requests == ["set", "has", "get"]


def test_ranks_meet_and_sum_over_gloo(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo's own addresses go through it, too."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    sums: dict[int, float] = {}

    def take_part(rank: int, store: JobStore) -> None:
        assert Control(store, rank, 3).meet("here", rank, 10.0) == [0, 1, 2]
        value = torch.tensor([float(rank + 1)])
        group: Any = connect(store, "gloo", rank, 3)
        group.allreduce([value]).wait()
        sums[rank] = value.item()

    threads = [threading.Thread(target=take_part, args=(rank, job.rank())) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sums == {0: 6.0, 1: 6.0, 2: 6.0}


def test_a_dead_server_is_named_at_once(job: Job) -> None:
    control = Control(job.rank(), 0, 2)
    os.kill(job.server.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(RunError, match=r"the job's control store is lost .*; rank 0 holds it"):
            control.put("key", 1)
    job.server = subprocess.Popen(["true"], stdin=subprocess.PIPE)  # for the fixture


def test_it_outlives_rank_0_and_ends_with_the_last(job: Job) -> None:
    first, last = job.rank(), job.rank()
    first.close()
    last.set("still", "here")
    assert job.server.poll() is None
    last.close()
    assert job.server.wait(10) == 0


# --- what strangers do --------------------------------------------------------------------------


def garbage(job: Job) -> None:
    stranger = job.stranger()
    stranger.sendall(b"GET / HTTP/1.1\r\nHost: anybody\r\n\r\n" + secrets.token_bytes(100))
    assert is_closed(stranger)


def another_secret(job: Job) -> None:
    with job.stranger() as stranger, pytest.raises(Refused):
        open_channel(stranger, b"another secret")


def a_handshake_again(job: Job) -> None:
    """What a rank has sent once opens no second connection: the server's nonce is another one."""
    stranger = job.stranger()
    nonce = stranger.recv(32)
    own = secrets.token_bytes(32)
    sent = own + hmac.digest(SECRET, b"client" + nonce + own, "sha256")
    stranger.sendall(sent)
    assert len(stranger.recv(32)) == 32
    stranger.close()
    again = job.stranger()
    again.recv(32)
    again.sendall(sent)
    assert is_closed(again)


def a_giant(job: Job) -> None:
    """Before and after the handshake, what is announced is not waited for, nor stored."""
    stranger = job.stranger()
    stranger.sendall(b"\xff" * 68)
    assert is_closed(stranger)
    rank = job.stranger()
    open_channel(rank, SECRET)
    rank.sendall(struct.pack("!I", 2**32 - 1) + bytes(32))
    assert is_closed(rank)


def a_forged_message(job: Job) -> None:
    connection = job.stranger()
    open_channel(connection, SECRET)
    body = json.dumps(["set", "key", "forged"]).encode()
    connection.sendall(struct.pack("!I", len(body)) + bytes(32) + body)
    assert is_closed(connection)


def a_message_again(job: Job) -> None:
    """And in its own connection: its number has passed."""
    connection = job.stranger()
    sent: list[bytes] = []

    class Recorded:
        def sendall(self, content: bytes) -> None:
            sent.append(content)
            connection.sendall(content)

    channel = open_channel(connection, SECRET)
    recorded = Channel(connection, channel._key, b"c", b"s")
    recorded._connection = Recorded()  # type: ignore[assignment]
    recorded.send(json.dumps(["add", "times", 1]).encode())
    recorded._connection = connection
    assert recorded.receive(10) == b"1"
    connection.sendall(sent[0])
    assert is_closed(connection)


@pytest.mark.parametrize(
    "attack", [garbage, another_secret, a_handshake_again, a_giant, a_forged_message, a_message_again]
)
def test_a_stranger_changes_nothing(attack: Any, job: Job) -> None:
    one = job.rank()
    one.set("key", "value")
    attack(job)
    assert one.get("key") == b"value"
    assert one.num_keys() == (2 if attack is a_message_again else 1)
    assert attack is not a_message_again or one.get("times") == b"1"
    assert job.rank().get("key") == b"value"


def test_who_says_nothing_holds_up_nobody(job: Job) -> None:
    """More silent connections than are kept: the oldest make room, and ranks come and go meanwhile."""
    silent = [job.stranger() for _ in range(MAX_STRANGERS + 10)]
    assert job.rank().add("n", 1) == 1
    assert job.rank().add("n", 1) == 2
    assert is_closed(silent[0])
    for stranger in silent[1:]:
        stranger.close()


def test_who_says_nothing_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that goes on sending a byte now and then."""
    monkeypatch.setattr(control_server, "HANDSHAKE_S", 0.1)
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def dribble() -> None:
            for _ in range(8):
                ours.send(b"x")
                time.sleep(0.03)

        sending = threading.Thread(target=dribble)
        sending.start()
        with pytest.raises(TimeoutError):
            control_server.accept_channel(theirs, SECRET)
        sending.join()


def test_an_impostor_gets_no_rank(job: Job) -> None:
    """A server that does not know the secret is not believed."""
    with pytest.raises(RunError, match="does not share this rank's secret: PACELINE_SECRET is not"):
        job_store._connect(job.address, b"of another job", time.monotonic() + 10)


# --- who belongs to a job -----------------------------------------------------------------------


@pytest.mark.parametrize("master", ["127.0.0.1", "node07"])
def test_ranks_of_one_host_share_a_private_file(master: str, alone: Path) -> None:
    """Whatever torchrun calls the host."""
    torch_store = HashStore()
    stores: dict[int, JobStore] = {}

    def open_store(rank: int) -> None:
        stores[rank] = open_job_store({**HERE, "MASTER_ADDR": master}, rank, 2, 10.0, torch_store)

    threads = [threading.Thread(target=open_store, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert (alone.stat().st_mode & 0o777, (alone / "secret").stat().st_mode & 0o777) == (0o700, 0o600)
    assert [file.name for file in alone.iterdir()] == ["secret"]
    host, port, _ = json.loads(torch_store.get("paceline control 0 "))
    assert host == "127.0.0.1"
    with pytest.raises(OSError, match="refused"):  # on no other interface
        socket.create_connection(("127.0.0.2", port), timeout=1)
    stores[0].set("key", "value")
    assert stores[1].get("key") == b"value"
    for store in stores.values():
        store.close()


def test_a_job_without_torchrun_uses_its_port(alone: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": str(port), **HERE}
    store, rank, size = torchrun_store(environment, 10.0, "")
    assert (rank, size) == (0, 1)
    with pytest.raises(InputError, match=f"rank 0 cannot listen at 127.0.0.1, port {port}: .*in use"):
        torchrun_store(environment, 10.0, "")
    store.close()


def open_as(rank: int, secret: str, torch_store: HashStore | None, timeout_s: float, port: int = 0) -> str:
    """Open a store as one of two ranks on several hosts; returns why it cannot."""
    environment = {**HERE, "MASTER_ADDR": "node07", "MASTER_PORT": str(port), "PACELINE_SECRET": secret}
    if torch_store is None:
        environment["MASTER_ADDR"] = "127.0.0.1"
    try:
        open_job_store(environment, rank, 2, timeout_s, torch_store).close()
    except RunError as error:
        return str(error)
    return ""


def test_rank_0_is_told_of_another_secret(alone: Path) -> None:
    """It does not wait for a rank that has been refused."""
    torch_store = HashStore()
    with ThreadPoolExecutor(2) as both:
        zero = both.submit(open_as, 0, "a" * 20, torch_store, 60.0)
        one = both.submit(open_as, 1, "b" * 20, torch_store, 60.0)
        assert "not signed with this rank's secret: PACELINE_SECRET" in one.result(10)
        assert zero.result(10) == "a rank was refused: PACELINE_SECRET is not the same on all hosts"


def test_without_torchs_store_rank_0_names_who_is_missing(alone: Path) -> None:
    """A stranger with another secret ends nothing by itself; the message tells of it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with ThreadPoolExecutor(2) as both:
        zero = both.submit(open_as, 0, "a" * 20, None, 1.0, port)
        one = both.submit(open_as, 1, "b" * 20, None, 1.0, port)
        assert "does not share this rank's secret: PACELINE_SECRET" in one.result(10)
        why = zero.result(10)
    assert why.startswith("rank 1 does not connect to rank 0; 3 connections showed another secret")


def test_an_announcement_of_somebody_else_is_not_believed(alone: Path) -> None:
    torch_store = HashStore()
    torch_store.set("paceline control 0 ", json.dumps(["127.0.0.1", 9, "0" * 64]))
    with pytest.raises(RunError, match="not signed with this rank's secret: PACELINE_SECRET"):
        open_job_store(dict(HERE), 1, 2, 10.0, torch_store)
    torch_store.set("paceline control 0 ", "[]")
    with pytest.raises(RunError, match="not signed with this rank's secret"):
        open_job_store(dict(HERE), 1, 2, 10.0, torch_store)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"RANK": "abc"}, "RANK is 'abc', and has to be a whole number from 0 on"),
        ({"RANK": "-1"}, "RANK is '-1', and has to be"),
        ({"RANK": "1_0"}, "RANK is '1_0', and has to be"),
        ({"RANK": "٣"}, "RANK is '٣', and has to be"),
        ({"WORLD_SIZE": "9" * 5000}, "WORLD_SIZE is '9+…', and has to be"),
        ({"RANK": ""}, "RANK not set: HOW"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR not set: HOW"),
        ({"RANK": "4"}, "RANK=4, WORLD_SIZE=4 and MASTER_PORT=29500 do not fit together"),
        ({"WORLD_SIZE": "0"}, "do not fit together"),
        ({"MASTER_PORT": "0"}, "do not fit together"),
        ({"MASTER_PORT": "70000"}, "do not fit together"),
    ],
)
def test_an_environment_that_cannot_be_is_named(changes: dict[str, str], says: str) -> None:
    environment = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "29500"}
    with pytest.raises(InputError, match=says):
        torchrun_store({**environment, **changes}, 1.0, "HOW")


def test_a_line_end_is_no_part_of_the_secret() -> None:
    keys = {job_secret({"PACELINE_SECRET": text}, False) for text in ("a" * 20, " " + "a" * 20 + "\n")}
    assert len(keys) == 1


def test_several_hosts_need_a_secret(alone: Path) -> None:
    environment = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "29500"}
    with pytest.raises(InputError, match="on every host add the line: export PACELINE_SECRET="):
        torchrun_store({**environment, "LOCAL_WORLD_SIZE": "2"}, 1.0, "")
    with pytest.raises(InputError, match="PACELINE_SECRET has 5 letters; give it 16 or more"):
        torchrun_store({**environment, "PACELINE_SECRET": "short"}, 1.0, "")
    assert not alone.exists()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "node07"}, True),
        ({"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node07"}, False),
        ({"SLURM_NNODES": "1", "MASTER_ADDR": "node07"}, True),
        ({"SLURM_NNODES": "2", "MASTER_ADDR": "node07"}, False),
        ({"MASTER_ADDR": "localhost"}, True),
        ({"MASTER_ADDR": "::1"}, True),
        ({"MASTER_ADDR": "10.1.2.3"}, False),
    ],
)
def test_whether_all_ranks_are_on_one_host(environment: dict[str, str], expected: bool) -> None:
    assert is_one_host(environment, 4) is expected


def test_jobs_and_secrets_have_keys_of_their_own(alone: Path) -> None:
    job = {"TORCHELASTIC_RUN_ID": "a"}
    keys = {
        job_secret(environment, True)
        for environment in ({}, job, {**job, "PACELINE_SECRET": "x" * 16}, {"PACELINE_SECRET": "x" * 16})
    }
    assert len(keys) == 4
    assert job_secret(job, True) in keys


@pytest.mark.parametrize("secret", ["x" * 15, " " * 40, "x\n" + " " * 40])
def test_a_secret_that_anybody_would_guess_is_refused(secret: str) -> None:
    with pytest.raises(InputError, match=r"PACELINE_SECRET has .* letters; give it 16 or more"):
        job_secret({"PACELINE_SECRET": secret}, True)


def test_a_secret_may_be_any_bytes() -> None:
    keys = {job_secret({"PACELINE_SECRET": os.fsdecode(bytes([k]) * 32)}, False) for k in (0x78, 0xFE, 0xFF)}
    assert len(keys) == 3


def test_an_empty_file_is_no_secret(alone: Path) -> None:
    job_secret({}, True)
    (alone / "secret").write_bytes(b"")
    with pytest.raises(InputError, match="holds no secret: remove it"):
        job_secret({}, True)


@pytest.mark.parametrize("spoil", ["open folder", "open file", "link", "file in its place"])
def test_a_folder_that_others_may_use_keeps_no_secret(spoil: str, alone: Path) -> None:
    if spoil == "link":
        alone.symlink_to(alone.parent)
    elif spoil == "file in its place":
        alone.write_text("")
    else:
        job_secret({}, True)
        (alone if spoil == "open folder" else alone / "secret").chmod(0o755)
    with pytest.raises(InputError, match="is not this user's alone, so that it keeps no secret"):
        job_secret({}, True)
