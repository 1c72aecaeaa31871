"""Attack 26: what a process without the credentials of `fedcipher cluster` can do on its ports, which is nothing."""

import asyncio
import hashlib
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
import yaml
from deployment_harness import BIN, fedcipher, processes
from fedcipher.cluster.access import sign
from fedcipher.cluster.certificates import server_certificate
from fedcipher.cluster.gate import Gate
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import ListNodesRequest, StartRunRequest
from flwr.proto.fab_pb2 import GetFabResponse
from flwr.proto.fleet_pb2 import PullMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.fab import Fab
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supernode import start_client_internal

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


def asgi(gate, path, *, body=b"", method="POST", client="10.0.0.9", kind="http", **headers):
    """(status, body) of one request to a gate, without a server."""
    answered = []
    sent = iter(
        [{"type": "http.request", "body": body[:9], "more_body": True}, {"type": "http.request", "body": body[9:]}]
    )
    named = [(name.encode(), value.encode()) for name, value in {"host": "link.example:8000", **headers}.items()]
    scope = {"type": kind, "method": method, "path": path, "headers": named, "client": (client, 1)}

    async def receive():
        return next(sent)

    async def send(message):
        answered.append(message)

    asyncio.run(gate(scope, receive, send))
    if kind != "http":
        return answered[0]["type"], b""
    length = dict(answered[0]["headers"])[b"content-length"]
    found = b"".join(message.get("body", b"") for message in answered[1:])
    assert int(length) == len(found)
    return answered[0]["status"], found


class Behind:
    """An application that answers every request with a bundle, in two pieces, and counts them."""

    def __init__(self):
        self.asked = 0
        self.bundle = GetFabResponse(fab=fab_to_proto(Fab("", b"bundle", {}))).SerializeToString()

    async def __call__(self, scope, receive, send):
        self.asked += 1
        headers = [(b"content-length", str(len(self.bundle)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.bundle[:3], "more_body": True})
        await send({"type": "http.response.body", "body": self.bundle[3:]})


TOKEN = "t" * 43
LOGIN = {"authorization": f"Bearer {TOKEN}"}


def test_attack_26_a_gate_lets_nothing_by_that_it_does_not_know(tmp_path):
    behind = Behind()
    gate = Gate(behind, TOKEN.encode(), tmp_path)
    local = Gate(behind, TOKEN.encode(), tmp_path, frozenset({"127.0.0.1"}))
    refused = [
        asgi(gate, "/v1/control/start-run"),
        asgi(gate, "/v1/control/start-run", authorization=f"Bearer {TOKEN}x"),
        asgi(gate, "/v1/control/start-run", authorization=f"bearer {TOKEN}"),
        asgi(gate, "/v1/control/get-login-details"),
        asgi(gate, "/v1/control/fedcipher-signatures"),
        asgi(gate, "/v1/control/fedcipher-signatures", method="GET", **LOGIN),
        asgi(gate, "/v1/runtime/acquire-task", **LOGIN),
        asgi(gate, "/health", **LOGIN),
        asgi(gate, "/v1/control", **LOGIN),
        *(asgi(gate, "/v1/fleet/pull-messages", host=host) for host in ("", "x?", "x#y", "x/y", "x@y", "x:1:2", "x y")),
        asgi(local, "/v1/fleet/pull-messages"),
        asgi(local, "/v1/control/start-run", **LOGIN),
    ]
    assert set(refused) == {refused[0]} and refused[0][0] == 403 and behind.asked == 0
    assert asgi(gate, "/v1/control/x", kind="websocket", **LOGIN)[0] == "websocket.close" and behind.asked == 0
    taken = [
        asgi(gate, "/v1/control/start-run", **LOGIN),
        asgi(gate, "/v1/fleet/pull-messages"),
        asgi(gate, "/v1/runtime/acquire-task", client="127.0.0.1"),
        asgi(local, "/v1/control/start-run", host="127.0.0.1:8000", **LOGIN),
    ]
    assert [status for status, _ in taken] == [200] * 4 and behind.asked == 4


def test_attack_26_only_whole_signatures_are_kept_and_they_go_with_their_bundle_only(tmp_path):
    gate = Gate(Behind(), TOKEN.encode(), tmp_path)
    path, digest = "/v1/control/fedcipher-signatures", hashlib.sha256(b"bundle").hexdigest()
    one = {"signature": "s" * 86, "signed_at": 1}
    odd = [
        b"",
        b"[]",
        b"{" * 10000,
        *({"bundle": name, "signatures": {"fpk_a": one}} for name in ("", "../" + digest[3:], digest.upper(), 7)),
        *({"bundle": digest, "signatures": {name: one}} for name in ("valid_license", "fpk_", "x", "fpk_/")),
        *(
            {"bundle": digest, "signatures": {"fpk_a": {**one, "signed_at": n}}}
            for n in (-1, 2**40, 1.0, "1", None, True)
        ),
        *(
            {"bundle": digest, "signatures": {"fpk_a": {**one, "signature": s}}}
            for s in ("", "s" * 85, "s" * 85 + "=", 5)
        ),
        {"bundle": digest, "signatures": {f"fpk_{k}": one for k in range(1000)}},
        {"bundle": digest, "signatures": [one]},
    ]
    for body in odd:
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        assert asgi(gate, path, body=body, **LOGIN)[0] == 403, body[:200]
    assert list(tmp_path.iterdir()) == []
    bare = GetFabResponse.FromString(asgi(gate, "/v1/fleet/get-fab")[1])
    assert dict(bare.fab.verifications) == {} and bare.fab.content == b"bundle"
    for name in (digest, "0" * 64):
        body = json.dumps({"bundle": name, "signatures": {f"fpk_{name[:4]}": one}}).encode()
        assert asgi(gate, path, body=body, **LOGIN)[0] == 200
    signed = GetFabResponse.FromString(asgi(gate, "/v1/fleet/get-fab")[1])
    assert dict(signed.fab.verifications) == {"valid_license": "Valid", f"fpk_{digest[:4]}": json.dumps(one)}
    assert signed.fab.content == b"bundle"


def test_attack_26_no_program_starts_with_a_door_open(tmp_path):
    """Where an option, its beginning or an empty list of publishers would open one."""
    nobody = tmp_path / "nobody.yaml"
    nobody.write_text("{}")
    link = ["--port", "1", "--ssl-certfile", "c", "--ssl-keyfile", "k", "--ssl-ca-certfile", "a"]
    node = ["--port", "1", "--superlink", "l", "--root-certificates", "a", "--auth-supernode-private-key", "k"]
    cases = [
        ("superlink", link, "without --enable-supernode-auth"),
        ("superlink", [*link, "--insec"], "sends everything unencrypted"),
        ("superlink", [*link, "--isolation=subprocess"], "leave it out"),
        ("superlink", [*link, "--control-api-address", "0.0.0.0:9093"], "is not protected by the gate"),
        ("superlink", link[:6], "needs --ssl-ca-certfile"),
        ("supernode", node, "needs --trusted-entities"),
        ("supernode", [*node, "--trusted-entities", str(nobody)], "trusts every app"),
        ("supernode", [*node, "--trusted-entities", str(tmp_path / "none")], "cannot be read"),
        (
            "supernode",
            [*node, "--trusted-entities", str(nobody), "--host", "0.0.0.0"],
            "no other machine connects to a SuperNode",
        ),
        ("supernode", [*node, "--allow-runtime"], "install them first"),
    ]
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    for program, options, why in cases:
        more = ("--control-token", token) if program == "superlink" else ()
        said = fedcipher(program, *more, "--private", tmp_path / "own", "--", *options, cwd=tmp_path)
        assert said.returncode == 2 and why in said.stderr, (options, said.stderr)
    short = tmp_path / "short"
    short.write_text("secret")
    short.chmod(0o600)
    options = ("--private", tmp_path / "own", "--", *link, "--enable-supernode-auth")
    weak = fedcipher("superlink", "--control-token", short, *options, cwd=tmp_path)
    assert weak.returncode == 2 and "is not a token" in weak.stderr
    elsewhere = tmp_path / "link"
    elsewhere.symlink_to(tmp_path)
    options = ("--private", elsewhere, "--", *link, "--enable-supernode-auth")
    linked = fedcipher("superlink", "--control-token", token, *options, cwd=tmp_path)
    assert linked.returncode == 2 and "not a folder of this user" in linked.stderr


def test_attack_26_what_runs_elsewhere_needs_the_folder_that_access_makes(tmp_path):
    """The token for the SuperLink, the publisher for the nodes; both are made once, for this user alone."""
    server_certificate(tmp_path)
    options = ("access", tmp_path / "access", "--superlink", "127.0.0.1:1", "--root-certificates", tmp_path / "ca.crt")
    made = fedcipher(*options, cwd=tmp_path)
    assert made.returncode == 0 and stat.S_IMODE((tmp_path / "access").stat().st_mode) == 0o700
    again = fedcipher(*options, cwd=tmp_path)
    assert again.returncode == 2 and "name a new folder" in again.stderr
    app = thief(tmp_path / "app", tmp_path)
    for form in ("default", "json"):
        nobody = fedcipher("run", app, "--access", tmp_path / "access", "--format", form, cwd=tmp_path)
        said = nobody.stdout + nobody.stderr
        assert (
            nobody.returncode != 0
            and "Connection refused" in " ".join(said.replace("│", " ").split())
            and "Traceback" not in said
        ), said
    trusted = yaml.safe_load((tmp_path / "access" / "trusted.yaml").read_text())
    signed = {"valid_license": "Valid"} | {k: json.dumps(v) for k, v in sign(tmp_path / "access", b"bundle").items()}
    for content, good in ((b"bundle", True), (b"bundle2", False)):
        assert start_client_internal._verify_fab(Fab("", content, signed), trusted) is good
