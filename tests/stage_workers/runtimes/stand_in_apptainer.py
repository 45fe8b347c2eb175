"""Plays the program `apptainer`, for machines without it: refuses arguments that the real one doesn't have, and runs what it is told.

An instance is a set of namespaces (user, mount, pid, and a network of its own with `--network none`), with the machine's own
system directories as its read-only image. `--memory` becomes a limit of each process; processes aren't limited. Its state
is a directory beside this program. On its own: it imports nothing of ours.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys
import time
from fcntl import ioctl
from pathlib import Path

STATE = Path(sys.argv[0]).absolute().parent / "instances"
SYSTEM = ("usr", "bin", "sbin", "lib", "lib64", "etc")
NAMESPACES = {"user": 0x10000000, "mnt": 0x00020000, "pid": 0x20000000, "net": 0x40000000}
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
START_FLAGS = {
    "--containall": 0,
    "--no-privs": 0,
    "--home": 1,
    "--bind": 1,
    "--net": 0,
    "--network": 1,
    "--writable-tmpfs": 0,
}
START_FLAGS |= {"--overlay": 1, "--memory": 1, "--memory-swap": 1, "--cpus": 1, "--pids-limit": 1, "--nv": 0}
EXEC_FLAGS = {"--cleanenv": 0, "--pwd": 1}
libc = ctypes.CDLL(None, use_errno=True)


def fatal(text: str) -> None:
    sys.stderr.write(f"FATAL:   {text}\n")
    sys.exit(255)


def checked(result: int, what: str) -> None:
    if result != 0:
        fatal(f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(source: str, target: str, kind: str | None, flags: int) -> None:
    done = libc.mount(source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), None)
    checked(done, f"mount {source} at {target}")


def parse(argv: list[str], known: dict[str, int]) -> tuple[dict[str, list[str]], list[str]]:
    flags: dict[str, list[str]] = {}
    while argv and argv[0].startswith("--"):
        flag, argv = argv[0], argv[1:]
        if flag not in known:
            fatal(f"unknown flag: {flag}")
        flags.setdefault(flag, []).append(argv[0] if known[flag] else "")
        argv = argv[known[flag] :]
    return flags, argv


def start(argv: list[str]) -> None:
    flags, rest = parse(argv, START_FLAGS)
    if len(rest) != 2:
        fatal(f"instance start takes an image and a name, not {rest}")
    image, name = rest
    if "--containall" not in flags or "--no-privs" not in flags:
        fatal("a sandbox without --containall and --no-privs would see this machine's files")
    if ("--net" in flags) != (flags.get("--network") == ["none"]):
        fatal("--net and --network none belong together")
    if not Path(image).exists():
        fatal(f"could not open image {image}: no such file or directory")
    if (STATE / name).exists():
        fatal(f"instance {name} already exists")
    root = STATE / name / "root"
    root.mkdir(parents=True)
    told, tell = os.pipe()
    if os.fork():
        os.close(tell)
        if os.read(told, 1) != b"k":
            sys.exit(255)
        return
    os.close(told)
    os.setsid()
    network = NAMESPACES["net"] if "--net" in flags else 0
    uid, gid = os.geteuid(), os.getegid()
    checked(libc.unshare(NAMESPACES["user"] | NAMESPACES["mnt"] | NAMESPACES["pid"] | network), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1\n")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1\n")
    ready, gone = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ready)
        keep(root, flags, gone)
    os.close(gone)
    if os.read(ready, 1) != b"k":
        sys.exit(255)
    limit = flags.get("--memory", ["0M"])[0].removesuffix("M")
    state = {"pid": pid, "img": image, "memory_mb": int(limit), "home": flags["--home"][0].rsplit(":", 1)[1]}
    (STATE / name / "state.json").write_text(json.dumps(state))
    os.write(tell, b"k")
    for descriptor in (0, 1, 2, tell):
        os.close(descriptor)
    os.waitpid(pid, 0)
    os._exit(0)


def keep(root: Path, flags: dict[str, list[str]], ready: int) -> None:
    """The first process of an instance: makes its view of the file system, then takes in orphans for ever."""
    libc.prctl(1, signal.SIGKILL)
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", str(root), "tmpfs", 0)
    for name in SYSTEM:
        source = Path("/", name)
        if source.is_symlink():
            (root / name).symlink_to(source.readlink())
        elif source.exists():
            bind(str(source), root / name, read_only=True)
    bind("/dev", root / "dev", read_only=False)
    (root / "proc").mkdir()
    mount("proc", str(root / "proc"), "proc", 0)
    for text in (*flags.get("--bind", []), *flags["--home"]):
        source, target, *mode = text.split(":")
        bind(source, root / target.lstrip("/"), read_only=mode == ["ro"])
    (root / "tmp").mkdir(exist_ok=True)
    if "--net" in flags:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            ioctl(probe, 0x8914, struct.pack("16sH14s", b"lo", 1, b""))
    os.chroot(root)
    os.chdir("/")
    signal.signal(signal.SIGCHLD, lambda *_: None)
    os.write(ready, b"k")
    os.closerange(0, 20)
    while True:
        signal.pause()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def bind(source: str, target: Path, *, read_only: bool) -> None:
    if Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount(source, str(target), None, MS_BIND | MS_REC)
    if read_only:
        # Flags that the outer mount has are locked in a user namespace: nosuid, nodev, relatime go with it where they stand.
        flags = MS_BIND | MS_REMOUNT | MS_RDONLY | (os.statvfs(source).f_flag & (2 | 4 | 8))
        mount("none", str(target), None, flags)


def execute(argv: list[str]) -> None:
    flags, rest = parse(argv, EXEC_FLAGS)
    if "--cleanenv" not in flags or not rest or not rest[0].startswith("instance://"):
        fatal(f"exec takes --cleanenv and instance://NAME, not {rest[:1]}")
    state = load(rest[0].removeprefix("instance://"))
    pid = state["pid"]
    root = os.open(f"/proc/{pid}/root", os.O_RDONLY)
    for name, kind in NAMESPACES.items():
        space = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
        # One may not enter the user namespace that one is in already.
        checked(libc.setns(space, kind), f"setns {name}")
        os.close(space)
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.exit(128 - code if code < 0 else code)
    os.fchdir(root)
    os.chroot(".")
    os.chdir(flags["--pwd"][0])
    if state["memory_mb"]:
        limit = state["memory_mb"] * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": state["home"]}
    for name, value in os.environ.items():
        if name.startswith("APPTAINERENV_"):
            environment[name.removeprefix("APPTAINERENV_")] = value
    os.close(root)
    os.execvpe(rest[1], rest[1:], environment)


def load(name: str) -> dict[str, int]:
    try:
        return json.loads((STATE / name / "state.json").read_text())
    except OSError:
        fatal(f"no instance found with name {name}")
        raise


def stop(argv: list[str]) -> None:
    flags, rest = parse(argv, {"--signal": 1})
    state = load(rest[0])
    assert flags["--signal"] == ["KILL"]
    os.kill(state["pid"], signal.SIGKILL)
    while Path(f"/proc/{state['pid']}").exists() and " Z" not in Path(f"/proc/{state['pid']}/stat").read_text():
        time.sleep(0.01)
    (STATE / rest[0] / "state.json").unlink()
    (STATE / rest[0] / "root").rmdir()
    (STATE / rest[0]).rmdir()


def listing(argv: list[str]) -> None:
    _, rest = parse(argv, {"--json": 0})
    found = [
        {"instance": place.name, "pid": load(place.name)["pid"], "img": load(place.name)["img"]}
        for place in sorted(STATE.glob("*"))
        if (place / "state.json").exists() and (not rest or place.name == rest[0])
    ]
    sys.stdout.write(json.dumps({"instances": found}))


if __name__ == "__main__":
    STATE.mkdir(exist_ok=True)
    verbs = {"start": start, "stop": stop, "list": listing}
    if sys.argv[1] == "exec":
        execute(sys.argv[2:])
    elif sys.argv[1] == "instance" and sys.argv[2] in verbs:
        verbs[sys.argv[2]](sys.argv[3:])
    else:
        fatal(f"unknown command {sys.argv[1:3]}")
