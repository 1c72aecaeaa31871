"""Attack 26: what a process without the credentials of `fedcipher cluster` can do on its ports, which is nothing."""

import json
import re
import socket
import stat
import struct
import subprocess
import textwrap
import time
from pathlib import Path

import httpx
import pytest
from deployment_harness import BIN, fedcipher, processes
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import ListNodesRequest, StartRunRequest
from flwr.proto.fleet_pb2 import PullMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.fab import Fab
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

CLIENTS = 2
TASKS = ["flwr-serverapp", "flwr-clientapp"]


def thief(folder, loot):
    """An app that copies the key file of each node that runs it, and says when its server part runs."""
    package = folder / "thief"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (folder / "pyproject.toml").write_text(
        textwrap.dedent("""\
        [build-system]
        requires = ["hatchling"]
        build-backend = "hatchling.build"
        [project]
        name = "thief"
        version = "1.0.0"
        description = "Copies key files"
        license = "Apache-2.0"
        dependencies = []
        [tool.flwr.app]
        publisher = "somebody"
        [tool.flwr.app.components]
        serverapp = "thief.server:app"
        clientapp = "thief.client:app"
        [tool.flwr.app.config]
        """)
    )
    (package / "server.py").write_text(
        textwrap.dedent(f"""\
        from pathlib import Path
        from flwr.app import Message, RecordDict
        from flwr.serverapp import ServerApp
        app = ServerApp()
        @app.main()
        def main(grid, context):
            Path({str(loot)!r}, "server").touch()
            ask = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in grid.get_node_ids()]
            for answer in grid.send_and_receive(ask, timeout=60):
                print("refused:" if answer.has_error() else "obeyed", answer.error if answer.has_error() else "")
        """)
    )
    (package / "client.py").write_text(
        textwrap.dedent(f"""\
        from pathlib import Path
        from flwr.app import Message, RecordDict
        from flwr.clientapp import ClientApp
        app = ClientApp()
        @app.query()
        def query(message, context):
            key = Path(context.node_config["fedcipher-key"])
            Path({str(loot)!r}, key.name).write_bytes(key.read_bytes())
            return Message(RecordDict(), reply_to=message)
        """)
    )
    return folder


class Up:
    """A cluster in a folder, and where its programs listen."""

    def __init__(self, folder):
        self.folder = folder
        self.port = json.loads((folder / "cluster.json").read_text())["port"]
        self.owner = {"PATH": str(BIN), "FLWR_HOME": str(folder / "access" / "flwr")}

    def sockets(self):
        """(address, port) of every TCP socket that one of its processes listens on."""
        inodes = set()
        for process in processes(str(self.folder)):
            for descriptor in Path(f"/proc/{process}/fd").iterdir():
                try:
                    inodes |= set(re.findall(r"socket:\[(\d+)\]", str(descriptor.readlink())))
                except OSError:
                    continue
        found = []
        for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    address, port = fields[1].split(":")
                    raw = bytes.fromhex(address)
                    words = [struct.pack(">I", *struct.unpack("=I", raw[at : at + 4])) for at in range(0, len(raw), 4)]
                    found.append((socket.inet_ntop(family, b"".join(words)), int(port, 16)))
        return found

    def logs(self):
        return "\n".join(f"--- {p.name}\n{p.read_text()[-2000:]}" for p in sorted((self.folder / "logs").glob("*.log")))


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    """Started with what a user's environment may hold that opens doors, or leads out through a proxy."""
    folder = tmp_path_factory.mktemp("attack26") / "cluster"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    doors = {name: "1" for name in ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API")}
    nowhere = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
    made = fedcipher("cluster", "up", "--clients", CLIENTS, "--folder", folder, cwd=folder.parent, **doors, **nowhere)
    try:
        assert made.returncode == 0, made.stdout + made.stderr
        yield Up(folder)
    finally:
        fedcipher("cluster", "down", "--folder", folder, cwd=folder.parent)


def asked(port, path, request, **headers):
    """The status of a request as another user of the machine makes it, who has read no file of the cluster."""
    headers = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE, **headers}
    for protocol in ("https", "http"):
        try:
            answer = httpx.post(
                f"{protocol}://127.0.0.1:{port}{path}",
                content=request.SerializeToString(),
                headers=headers,
                verify=False,
                trust_env=False,
            )
        except httpx.TransportError:
            continue
        return answer.status_code
    raise AssertionError(f"nothing answers on port {port}")


def taken(loot, seconds, enough=CLIENTS + 1):
    """What was copied within ``seconds``."""
    until = time.monotonic() + seconds
    while len(found := sorted(path.name for path in loot.iterdir())) < enough and time.monotonic() < until:
        time.sleep(0.2)
    return found


def test_attack_26_whoever_reaches_the_port_starts_no_run(up, tmp_path):
    loot = tmp_path / "loot"
    loot.mkdir()
    bundle = build_fab_from_disk(thief(tmp_path / "app", loot))
    run = StartRunRequest(fab=fab_to_proto(Fab("", bundle, {})))
    guesses = [
        {},
        {"authorization": "Bearer x"},
        {"authorization": "Basic eDp4"},
        {"host": "x?"},
        {"host": "a.example"},
    ]
    said = [asked(up.port, "/v1/control/start-run", run, **headers) for headers in guesses]
    assert taken(loot, 60 if 200 in said else 3) == [], said
    assert set(said) == {403}
    assert asked(up.port, "/v1/control/list-nodes", ListNodesRequest()) == 403


def test_attack_26_the_nodes_run_no_app_that_the_cluster_has_not_signed(up, tmp_path):
    """Also where the server is false, or its control API was reached."""
    loot = tmp_path / "loot"
    loot.mkdir()
    app = thief(tmp_path / "app", loot)
    command = [str(BIN / "flwr"), "run", str(app), "cluster", "--stream"]
    done = subprocess.run(
        command,
        env=up.owner,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert taken(loot, 0) == ["server"], done.stdout + done.stderr + up.logs()
    assert done.stdout.count("refused:") == CLIENTS, done.stdout + done.stderr


def test_attack_26_what_its_owner_runs_is_signed_and_no_token_is_on_a_command_line(up, tmp_path):
    loot = tmp_path / "loot"
    loot.mkdir()
    app = thief(tmp_path / "app", loot)
    command = [str(BIN / "fedcipher"), "cluster", "run", str(app), "--folder", str(up.folder), "--stream"]
    shown = set()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while process.poll() is None:
            for line in processes(str(up.folder)).values():
                shown |= {word for word in line.split() if "token" in word}
            time.sleep(0.01)
        said = process.stdout.read()
    assert taken(loot, 0) == ["client-0.key", "client-1.key", "server"], said + up.logs()
    assert "--token-file" in shown and "--token" not in shown


def test_attack_26_nobody_takes_the_tasks_of_the_programs(up):
    """A task's token is an app's place: with it, one sends updates in a node's name or messages in the server's."""
    task = AcquireTaskRequest(supported_task_types=TASKS)
    ports = [port for _, port in up.sockets()]
    assert len(ports) == CLIENTS + 1
    assert {asked(port, "/v1/runtime/acquire-task", task) for port in ports} <= {401, 403}


def test_attack_26_nobody_is_a_node_that_has_not_its_key(up):
    """Not by a Host either that hides the path from what checks it."""
    for host in ("127.0.0.1", "x?", "x#", "x/y?", ""):
        pull = asked(up.port, "/v1/fleet/pull-messages", PullMessagesRequest(node=Node(node_id=1)), host=host)
        made = asked(up.port, "/v1/fleet/register-node", RegisterNodeFleetRequest(public_key=b"x"), host=host)
        assert {pull, made} <= {400, 401, 403}, host


def test_attack_26_what_is_not_needed_is_closed(up):
    for path in ("/docs", "/openapi.json", "/", "/v1/none", "/v1/control", "//v1/control/start-run"):
        assert httpx.get(f"https://127.0.0.1:{up.port}{path}", verify=False, trust_env=False).status_code == 403


def test_attack_26_every_port_is_one_of_loopback_and_speaks_tls(up):
    found = up.sockets()
    assert len(found) == CLIENTS + 1 and {address for address, _ in found} == {"127.0.0.1"}
    for _, port in found:
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/", trust_env=False)


def test_attack_26_other_users_see_nothing_of_its_folder(up):
    for path in (up.folder, *(up.folder / name for name in ("tls", "nodes", "keys", "access", "private", "apps"))):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    secrets = [up.folder / "access" / name for name in ("control.token", "publisher.key", "flwr/credentials.yaml")]
    secrets += [*(up.folder / "nodes").glob("*.key"), *up.folder.glob("private/*/now/*.secret")]
    assert len(secrets) == 3 + CLIENTS + CLIENTS + 1
    for path in secrets:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
