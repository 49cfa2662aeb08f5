"""An audit hook for the level without namespaces: no network, no programs, no files but one's own.

It stops programs that do not try to get round it. It is no wall: stated in `sandbox.protection`.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing takes longer than all the rest of this process's start
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

NETWORK = ("connect", "bind", "sendto", "sendmsg", "getaddrinfo", "gethostbyname", "gethostbyaddr", "getnameinfo")
REFUSED = (
    *("os.exec", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen", "pty.spawn", "ctypes."),
    *(f"socket.{name}" for name in NETWORK),
)
FILES = ("remove", "rename", "rmdir", "mkdir", "link", "symlink", "truncate", "chmod", "chown", "utime")
CHANGES = tuple(f"os.{name}" for name in FILES)
STREAMS = ("/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/fd/0", "/dev/fd/1", "/dev/fd/2")
SIGNALS = ("os.kill", "os.killpg")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def hook(folder: str, readable: Sequence[str]) -> Callable[[str, tuple[Any, ...]], None]:
    """The hook: writes only below `folder`, reads below `readable` too."""
    own = (folder + "/", "/dev/null")
    others = (*own, *(f"{r}/" for r in readable), "/dev/urandom", "/dev/zero", "/usr/share/zoneinfo/")
    places = os.path.realpath

    def allowed(path: Any, among: tuple[str, ...]) -> bool:
        return isinstance(path, int) or path in STREAMS or (places(os.fsdecode(path)) + "/").startswith(among)

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            refused = not allowed(args[0], own if args[2] & WRITING else others)
        elif event in CHANGES:
            paths = [p for p in args[:2] if isinstance(p, str | bytes | os.PathLike)]
            refused = not all(allowed(p, own) for p in paths)
        elif event in SIGNALS:
            refused = args[0] != os.getpid()
        else:
            refused = event.startswith(REFUSED)
        if refused:
            raise PermissionError(f"{event} is refused in the sandbox")

    return watch


def install(folder: str) -> None:
    """Watch this process from here on; a hook can't be removed."""
    sys.addaudithook(hook(os.path.realpath(folder), [os.path.realpath(p) for p in sys.path if p]))
