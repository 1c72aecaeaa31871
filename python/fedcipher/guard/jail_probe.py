"""A hostile program: tries to get past each wall of the jail that it runs in, and reports over its one connection.

`fedcipher.guard.jail.walls` runs the text of this file. The program takes nothing but the standard library, so that it
starts in any jail that has an interpreter. Its argument is a JSON object of the things that it must not reach.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import platform
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = ["main"]

X86 = platform.machine() == "x86_64"
LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE, MOUNT, UNSHARE, CLONE = (101, 165, 272, 56) if X86 else (117, 40, 97, 220)
IO_URING_SETUP, CLONE3, BPF, VM_READV = 425, 435, (321 if X86 else 280), (310 if X86 else 270)
SHMGET, PR_GET_SECUREBITS = (29 if X86 else 194), 27
LOCKED_SECUREBITS = 0b11101111
NEW_USER, NEW_NET = 0x10000000, 0x40000000

facts: dict[str, Any] = {}
passed: list[str] = []
"""The tries that have got past the present wall."""


def refused(what: str, attempt: Callable[[], object]) -> None:
    """Note ``what`` if the attempt works."""
    try:
        attempt()
    except (OSError, MemoryError, ValueError):
        return
    passed.append(what)


def read(path: str) -> bytes:
    """The first byte of a file."""
    with open(path, "rb") as file:
        return file.read(1)


def write(path: str, mode: str = "w") -> None:
    """A word into a file."""
    with open(path, mode) as file:
        file.write("probe")


def call(number: int, *arguments: object) -> int:
    """A system call. Raises `OSError`."""
    done = LIBC.syscall(ctypes.c_long(number), *arguments)
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return done


def in_child(attempt: Callable[[], object]) -> Callable[[], None]:
    """The attempt in a child, which ends with it. Fails as the attempt does."""

    def tried() -> None:
        child = os.fork()
        if child == 0:
            try:
                attempt()
            except BaseException:
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            raise OSError(errno.EPERM, "the attempt failed")

    return tried


def connected(family: int, kind: int, address: Any, protocol: int = 0) -> None:
    with socket.socket(family, kind, protocol) as tried:
        tried.settimeout(2)
        tried.connect(address)


def network() -> str:
    for name, address in (("127.0.0.1", "127.0.0.1"), ("a public address", "192.0.2.1")):
        target = (address, facts["outside"])
        refused(f"a connection to {name}", partial(connected, socket.AF_INET, socket.SOCK_STREAM, target))
    refused(
        "a connection to an abstract socket",
        lambda: connected(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + facts["abstract"]),
    )
    with open("/proc/net/dev") as devices:
        names = [line.split(":")[0].strip() for line in devices.readlines()[2:]]
    passed.extend(f"interface {name}" for name in names if name != "lo")
    return "connections to a port of 127.0.0.1, a public address and an abstract UNIX socket outside"


def namespaces() -> str:
    for name, outside in facts["namespaces"].items():
        if os.readlink(f"/proc/self/ns/{name}") == outside:
            passed.append(f"the guard's {name} namespace")
    refused("shared memory of the guard's", lambda: call(SHMGET, facts["segment"], 0, 0))
    return "namespaces and shared memory of the guard's"


def mounts() -> str:
    own = (facts["work"], "/tmp", "/dev/shm", "/proc")
    with open("/proc/self/mounts") as file:
        for _, path, kind, options, *_ in map(str.split, file):
            flags = options.split(",")
            device = path.startswith("/dev/") and kind != "tmpfs"
            passed.extend(f"{path} with {flag}" for flag in flags if flag == "rw" and path not in own and not device)
            passed.extend(
                f"{path} without {flag}"
                for flag in ("nosuid", "nodev")
                if flag not in flags and not (device and flag == "nodev")
            )
    return "folders that are not the work, and are mounted to write, with devices or set-uid programs"


def families() -> str:
    packet, netlink, vsock, mptcp = 17, 16, 40, 262
    for name, family, kind, protocol in (
        ("UDP", socket.AF_INET, socket.SOCK_DGRAM, 0),
        ("raw", socket.AF_INET, socket.SOCK_RAW, 1),
        ("UDP over IPv6", socket.AF_INET6, socket.SOCK_DGRAM, 0),
        ("MPTCP", socket.AF_INET, socket.SOCK_STREAM, mptcp),
        ("packet", packet, socket.SOCK_RAW, 0),
        ("netlink", netlink, socket.SOCK_RAW, 0),
        ("vsock", vsock, socket.SOCK_STREAM, 0),
    ):
        refused(name, lambda f=family, k=kind, p=protocol: socket.socket(f, k, p).close())
    return "UDP, raw, MPTCP, packet, netlink and vsock sockets"


def files() -> str:
    refused("a file outside", lambda: read(facts["secret"]))
    with open("/etc/passwd") as users:
        passed.extend("the machine's users" for line in users if line.startswith("root:"))
    for folder in ("/root/.ssh", "/home", "/var", "/run", "/boot", "/etc/ssh"):
        refused(f"the list of {folder}", lambda f=folder: os.listdir(f))
    # A path through another process's root, or the first one's, leads past a mount.
    for process in ("1", "self"):
        path = f"/proc/{process}/root{facts['secret']}"
        refused(f"a file by {path}", lambda p=path: read(p))
    return "a file and folders of the machine, also by /proc/1/root"


def writing() -> str:
    for folder in ("/", "/etc", "/usr/lib", os.path.dirname(os.__file__), facts["shown"], "/dev"):
        path = os.path.join(folder, f"probe-{os.getpid()}")
        refused(f"a file in {folder}", lambda p=path: write(p, "x"))
    refused("the mode of a folder", lambda: os.chmod(facts["shown"], 0o777))
    refused("/proc/sys", lambda: write("/proc/sys/kernel/hostname"))
    refused("a device", lambda: os.mknod(os.path.join(facts["work"], "device"), 0o20666, os.makedev(1, 1)))
    return "files in folders to read, in /etc and in /dev, a device, and settings of the kernel"


def processes() -> str:
    for number in (facts["guard"], facts["victim"]):
        if number > 64:
            refused(f"process {number}", partial(os.stat, f"/proc/{number}"))
    seen = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    passed.extend(f"process {number}" for number in seen if number not in (1, os.getpid()))
    for file in ("mem", "environ", "maps"):
        refused(f"the {file} of the jail's first process", lambda f=file: read(f"/proc/1/{f}"))
    return "the guard and other processes in /proc, and the memory of the jail's first process"


def signals() -> None:
    """Sent without a report: the guard looks whether the process outside is alive."""
    if facts["victim"] > 64:
        refused("a signal", lambda: os.kill(facts["victim"], signal.SIGKILL))


def privileges() -> str:
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
    passed.extend(name for name in status if name.startswith("Cap") and int(status[name], 16))
    passed.extend(name for name, value in (("NoNewPrivs", 1), ("Seccomp", 2)) if int(status[name]) != value)
    if LIBC.prctl(PR_GET_SECUREBITS, 0, 0, 0, 0) != LOCKED_SECUREBITS:
        passed.append("securebits")
    if facts["uid"] == 0 and os.getuid() in (0, facts["uid"]):
        passed.append("the guard's user")
    if facts["uid"] == 0 and os.getgroups():
        passed.append("the guard's groups")
    for name, attempt in (
        ("user 0", lambda: os.setuid(0)),
        ("group 0", lambda: os.setgid(0)),
        ("groups", lambda: os.setgroups([0])),
        ("root's files", lambda: os.chown(facts["work"], 0, 0)),
    ):
        refused(name, in_child(attempt))
    return "capabilities, the bounding set, user 0, group 0, other groups"


def calls() -> str:
    size = 64
    for name, attempt in (
        ("ptrace", lambda: call(PTRACE, 0, 0, 0, 0)),
        ("process_vm_readv", lambda: call(VM_READV, os.getpid(), 0, 0, 0, 0, 0)),
        ("a user namespace", lambda: call(UNSHARE, NEW_USER)),
        ("a network namespace", lambda: call(UNSHARE, NEW_USER | NEW_NET)),
        ("a mount", lambda: call(MOUNT, b"none", b"/tmp", b"tmpfs", 0, None)),
        ("bpf", lambda: call(BPF, 0, ctypes.create_string_buffer(size), size)),
        ("io_uring", lambda: call(IO_URING_SETUP, 1, ctypes.create_string_buffer(120))),
        ("clone3", lambda: call(CLONE3, ctypes.create_string_buffer(88), 88)),
        ("a call of tomorrow", lambda: call(1000)),
    ):
        refused(name, in_child(attempt))
    refused("a user namespace by clone", in_child(cloned))
    # The kernel itself refuses some of these to a program without capabilities. The filter's own answer tells.
    for name, number, answer in (("io_uring", IO_URING_SETUP, errno.ENOSYS), ("clone3", CLONE3, errno.ENOSYS)):
        try:
            call(number, None, 0)
        except OSError as error:
            if error.errno != answer:
                passed.append(f"{name}: {error.strerror}")
    return "ptrace, process_vm_readv, unshare, clone, clone3, mount, bpf, io_uring, an unknown call"


def cloned() -> None:
    if call(CLONE, NEW_USER | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os._exit(0)


def landlock() -> str:
    """The kernel's ABI decides which of these the program tries: the guard knows it."""
    refused("this process's name", lambda: write("/proc/self/comm"))
    if facts["landlock"] >= 4:
        refused("a port to listen on", bound)
        try:
            connected(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", facts["outside"]))
        except PermissionError:
            pass
        except OSError as error:
            passed.append(f"a connection to another port: {error.strerror}")
    return "a write to /proc, a port to listen on, and a connection to another port of the jail"


def bound() -> None:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))


def descriptors() -> str:
    """Descriptors and variables that the guard did not give."""
    with open("/proc/self/cmdline", "rb") as file:
        own = file.fileno()
        passed.extend(f"descriptor {n}" for n in os.listdir("/proc/self/fd") if int(n) not in (0, 1, 2, own, own + 1))
    passed.extend(f"variable {name}" for name in os.environ if name not in ("PROBE", "LC_CTYPE"))
    if os.readlink("/proc/self/fd/0") != "/dev/null":
        passed.append("standard input")
    return "descriptors and variables of the guard's"


def limits() -> str:
    memory, processes, file_size, open_files = facts["limits"]
    refused("memory", in_child(lambda: bytearray(2 * memory)))
    refused("shared memory", in_child(lambda: mmap.mmap(-1, 5 * memory)))
    refused("core dumps", lambda: resource.setrlimit(resource.RLIMIT_CORE, (1, 1)))
    refused("locked memory", lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096)))
    with open("/proc/self/oom_score_adj") as file:
        if int(file.read()) != 1000:
            passed.append("a place behind the guard where memory ends")
    refused("a higher limit", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (open_files + 1, open_files + 1)))
    refused("a file", in_child(lambda: written(file_size + 1)))
    refused("descriptors", in_child(lambda: [os.dup(0) for _ in range(open_files + 1)]))
    refused("a file system in memory", lambda: filled(memory + file_size, file_size))
    refused("processes", lambda: forked(processes + 1))
    return "memory, processes, a file, descriptors and core dumps above the limits"


def written(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open(os.path.join(facts["work"], "large"), "wb") as file:
        os.truncate(file.fileno(), size)


def filled(size: int, piece: int) -> None:
    """Fills /dev/shm with files below the limit of one."""
    made: list[str] = []
    try:
        for index in range(size // piece + 1):
            made.append(f"/dev/shm/{index}")
            with open(made[-1], "wb") as file:
                os.posix_fallocate(file.fileno(), 0, piece)
    finally:
        for path in made:
            os.unlink(path)


def forked(count: int) -> None:
    children: list[int] = []
    try:
        for _ in range(count):
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            children.append(child)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def leave_a_child() -> None:
    """A child in a session of its own, with the output open, that a parent's end does not end."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)


TRIED = {
    "namespaces": namespaces,
    "mounts": mounts,
    "network": network,
    "sockets": families,
    "files": files,
    "writing": writing,
    "processes": processes,
    "privileges": privileges,
    "system calls": calls,
    "landlock": landlock,
    "limits": limits,
}


def report(name: str, attempt: Callable[[], str]) -> str:
    """A line about one wall."""
    passed.clear()
    tried = attempt()
    return json.dumps([name, not passed, ", ".join(passed) or tried]) + "\n"


def main() -> None:
    """Try every wall and report each over the one connection that the jail allows."""
    facts.update(json.loads(sys.argv[1]))
    first = report("descriptors", descriptors)
    with socket.create_connection(("127.0.0.1", facts["port"]), 30) as guard, guard.makefile("rw") as lines:
        facts["landlock"] = int(lines.readline())
        signals()
        lines.write(first)
        for name, attempt in TRIED.items():
            lines.write(report(name, attempt))
        lines.write(json.dumps(["end", True, ""]) + "\n")
    leave_a_child()


if __name__ == "__main__":
    main()
