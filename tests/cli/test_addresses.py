"""One reading of addresses for all commands, and no proxy between programs of one machine."""

import http.server
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from engine_harness import flashe
from fedcipher import _native, cli, errors
from fedcipher._addresses import host_and_port, joined, listening
from fedcipher.cluster.environment import for_flower
from fedcipher.engine.accelerator import usage
from fedcipher.engine.local import find_program, lock_arguments, new_authority, started

READ = {
    "[::1]:7700": ("::1", 7700),
    "[2001:db8::7]:0": ("2001:db8::7", 0),
    "127.0.0.1:80": ("127.0.0.1", 80),
    "engine.example:443": ("engine.example", 443),
}
UNREADABLE = ["::1:7700", "[::1]", "[::1", "[::1]7700", "[host]:80", "[]:80", ":80", "host", "host:", "host:x"]
UNREADABLE += ["host:-1", "host:+1", "host:70000", "http://host:80", ""]


def has_ipv6():
    try:
        listening("::1", 0).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.mark.parametrize("text", READ)
def test_an_address_of_ipv6_is_in_brackets(text):
    assert host_and_port(text) == READ[text]
    assert joined(*READ[text]) == text


@pytest.mark.parametrize("text", UNREADABLE)
def test_what_is_no_address_is_refused_with_an_example(text):
    with pytest.raises(errors.ParameterError, match=r"--listen .*is not HOST:PORT.*\[::1\]:8080"):
        host_and_port(text, "--listen")


@pytest.mark.parametrize("text", [*READ, *UNREADABLE])
def test_engines_read_addresses_in_the_same_way(text, tmp_path):
    """The client's error is about its credentials where the address is one."""
    with pytest.raises(errors.FedcipherError) as refused:
        _native.EngineClient(text, "", None, 1.0)
    assert ("is neither unix:/path nor host:port" in str(refused.value)) == (text in UNREADABLE)
    assert text in READ or "[::1]:7700" in str(refused.value)
    done = subprocess.run(
        [find_program("fedcipher-engine"), "serve", f"--listen={text}", "--state", tmp_path / "state"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ("is neither unix:/path nor host:port" in done.stderr) == (text in UNREADABLE)


@pytest.mark.parametrize("text", ["::1:7700", "[::1]", "host:x"])
@pytest.mark.parametrize(
    "command", ["bench serve --listen", "bench round --schemes flashe --server", "access F --superlink"]
)
def test_commands_refuse_what_is_no_address(command, text, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("ca.crt").write_text("")
    roots = ["--root-certificates", "ca.crt"] if command.startswith("access") else []
    status = cli.main([*command.split(), text, *roots])
    said = capsys.readouterr()
    assert status != 0 and "is not HOST:PORT" in said.err + said.out
    assert not Path("F").exists()


@needs_ipv6
def test_a_bench_is_served_and_reached_over_ipv6(tmp_path):
    command = [sys.executable, "-m", "fedcipher.cli", "bench"]
    with subprocess.Popen([*command, "serve", "--listen", "[::1]:0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            at = server.stdout.readline().removeprefix("listening on ").strip()
            assert at.startswith("[::1]:")
            arguments = ["round", "--schemes", "flashe", "--values", "10", "--runs", "1", "--server", at]
            done = subprocess.run(
                [*command, *arguments, "--out", tmp_path / "out"], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
        finally:
            server.terminate()


@needs_ipv6
def test_an_authority_listens_on_ipv6(tmp_path):
    new_authority(flashe(1), 1, tmp_path / "run")
    command = ("fedcipher-authority", "--state", tmp_path / "run" / "authority", *lock_arguments(), "serve")
    with started(*command, "--listen", "[::1]:0", log=tmp_path / "log") as served:
        assert host_and_port(served.address)[0] == "::1"


# --- proxies ---------------------------------------------------------------------------------------

LOOPBACK = {"127.0.0.1", "localhost", "::1"}


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY", "no_grpc_proxy"])
@pytest.mark.parametrize("before", [None, "", "intranet", " , intranet,127.0.0.1"])
def test_flowers_programs_reach_this_machine_without_a_proxy(name, before, tmp_path):
    environment = {"http_proxy": "http://127.0.0.1:9", **({} if before is None else {name: before})}
    made = for_flower(tmp_path, environment)
    assert made["http_proxy"] == "http://127.0.0.1:9"
    for lists in ("no_proxy", "NO_PROXY", *([name] if before is not None else [])):
        assert set(made[lists].split(",")) >= LOOPBACK
    assert before is None or "intranet" not in before or "intranet" in made[name].split(",")
    # gRPC takes its own list for all there is.
    assert ("no_grpc_proxy" in made) == (name == "no_grpc_proxy" and before is not None)


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'fedcipher_engine_accelerator_total{kind="cycles"} 7\n')

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
def test_an_engines_page_is_read_past_a_proxy(host, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    class Server(http.server.HTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    with Server((host, 0), _Page) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert usage(joined(host, server.server_port)) == {"cycles": 7.0}
        thread.join()
