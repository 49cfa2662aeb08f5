"""Programs that attack the sandbox. Each gives 2, the right answer, only if its attack worked."""

CHEATS = {
    "exits at import": "import sys\nsys.exit(0)",
    "exits in the call": "import sys\ndef f(x):\n    sys.exit(0)",
    "exits hard at import": "import os\nos._exit(0)",
    "exits hard in the call": "import os\ndef f(x):\n    os._exit(0)",
    "exits at exit": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x):\n    raise SystemExit",
    "prints a verdict": """
def f(x):
    import os
    for fd in range(256):
        for line in (b"pass\\n", b"0\\tpass\\t1\\t\\n0\\tdone\\t0\\t\\n", b'{"passed": true}\\n'):
            try: os.write(fd, line)
            except OSError: pass
""",
    "writes to every process's descriptors": """
import os
def f(x):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == os.getpid(): continue
        try: names = os.listdir(f"/proc/{pid}/fd")
        except OSError: continue
        for name in names:
            try:
                if os.readlink(f"/proc/{pid}/fd/{name}") == "/dev/null": continue
                with open(f"/proc/{pid}/fd/{name}", "wb", buffering=0) as file: file.write(b"0\\tpass\\t1\\t\\n")
                return 2
            except OSError: pass
""",
    "forges messages": """
import os, sys
def f(x):
    wire = sys.modules["box.wire"]
    for message in (("done",), ("pass", 1, ""), ("value", (True, {})), ("ask", "call", None, (), {})):
        data = wire.encode(message)
        for fd in range(3, 64):
            try: os.write(fd, wire.size(len(data)) + data)
            except OSError: pass
""",
    "equals everything": """
class Any:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return hash(2)
    def __bool__(self): return True
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
def f(x): return Any()
""",
    "equals everything as a number": """
class Any(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = int.__hash__
def f(x): return Any(7)
""",
    "equals everything as a list": """
class Any(list):
    def __eq__(self, other): return True
    def __len__(self): return 1
def f(x): return Any()
""",
    "patches builtins": """
import builtins
class Quiet(Exception): pass
builtins.AssertionError = Quiet
builtins.isinstance = lambda *a: True
builtins.compile = lambda *a, **k: (lambda: None).__code__
builtins.exec = lambda *a: None
builtins.len = builtins.abs = lambda *a: 2
def f(x): return 3
""",
    "patches the harness": """
import sys
def f(x):
    for name, module in list(sys.modules.items()):
        if name.startswith("box"):
            for key in list(vars(module)):
                if not key.startswith("__"):
                    setattr(module, key, lambda *a, **k: ("pass", ""))
    return 3
""",
    "walks frames and the heap for a writer": """
import gc, inspect
def f(x):
    frame = inspect.currentframe()
    while frame:
        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
            if hasattr(value, "say"):
                value.say("pass", 1); value.say("done"); return 2
        frame = frame.f_back
    for value in gc.get_objects():
        try: reports = type(value).__name__ == "Report" or "nonce" in getattr(value, "__dict__", ())
        except Exception: continue
        if reports:
            value.say("pass", 1); value.say("done"); return 2
""",
    "looks for the tests": """
import gc, glob
def f(x):
    texts = [v for v in gc.get_objects() if type(v) in (list, tuple, dict)]
    if any("assert f" in str(w) for v in texts for w in v if type(w) is str and "looks" not in w): return 2
    for path in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
        try:
            if b"assert f(1" in open(path, "rb").read(): return 2
        except OSError: pass
""",
    "raises what tests do not catch": "def f(x):\n    raise KeyboardInterrupt",
    "raises with a message that is a trap": """
class Trap(BaseException):
    def __str__(self): raise SystemExit(0)
def f(x): raise Trap
""",
}

HANGS = {
    "loops for ever": "def f(x):\n    while True: pass",
    "loops while it is compiled": "while True: pass",
    "sleeps for ever": "import time\ndef f(x):\n    time.sleep(1e6)",
    "ignores signals": """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
def f(x):
    while True: pass
""",
    "catches everything": """
def f(x):
    while True:
        try:
            while True: pass
        except BaseException: pass
""",
    "works in long steps": "def f(x):\n    return 3 ** (3 ** 30) % 7",
}

BOMBS = {
    "fork bomb": """
import os
def f(x):
    while True:
        try: os.fork()
        except OSError: pass
""",
    "thread bomb": """
import threading, time
def f(x):
    made = 0
    try:
        for made in range(5000): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    except RuntimeError: pass
    return 2 if made > 1000 else 0
""",
    "many sleepers": """
import os, time
def f(x):
    made = 0
    for made in range(2000):
        try:
            if os.fork() == 0:
                time.sleep(1000); os._exit(0)
        except OSError: break
    return 2 if made > 1000 else 0
""",
}

OTHERS = {
    "memory hog": "def f(x):\n    return 2 if len([bytearray(1 << 24) for _ in range(400)]) == 400 else 0",
    "memory hog at once": "def f(x):\n    return 2 if len(bytearray(1 << 36)) else 0",
    "infinite recursion": "def f(x):\n    return f(x)",
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(x):\n    return f(x) + 1",
    "huge stdout": "def f(x):\n    for _ in range(200): print('x' * 1000000)\n    return 0",
    "huge stderr": "import sys\ndef f(x):\n    for _ in range(200): sys.stderr.write('x' * 1000000)\n    return 0",
    "huge answer": "def f(x):\n    return 'x' * (100 << 20)",
    "endless answer": "def f(x):\n    return (0 for _ in iter(int, 1))",
    "cyclic answer": "def f(x):\n    a = []\n    a.append(a)\n    return a",
    "answer that grows": "def f(x):\n    a = [0]\n    for _ in range(60): a = [a, a]\n    return a",
    "closes every descriptor": "import os\ndef f(x):\n    os.closerange(0, 4096)\n    return 2",
    "crashes": "import sys\ndef f(x):\n    sys.setrecursionlimit(1 << 30)\n    eval('(' * 90 + ')' * 90)",
    "kills itself": "import os, signal\ndef f(x):\n    signal.raise_signal(signal.SIGKILL)",
    "deletes its folder": """
import os, shutil
def f(x):
    folder = os.getcwd()
    for place in (folder, "/PLACE/kept"): shutil.rmtree(place, ignore_errors=True)
    return 0
""",
    "fills its folder": """
def f(x):
    try:
        for n in range(100):
            with open(f"file{n}", "wb") as file: file.write(bytes(1 << 20))
        with open("large", "wb") as file:
            for n in range(1000): file.write(bytes(1 << 20))
    except OSError: return 0
    return 2
""",
    "orphan": """
import os, time
def f(x):
    if os.fork() == 0:
        time.sleep(1000); os._exit(0)
    os._exit(0)
""",
    "daemon": """
import os, time
def f(x):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir("/")
            os.closerange(0, 4096)
            time.sleep(1000)
        os._exit(0)
    time.sleep(0.2)
    return 0
""",
    "daemons that respawn": """
import os, time
def f(x):
    if os.fork() == 0:
        while True:
            os.setsid() if os.getsid(0) != os.getpid() else None
            if os.fork() != 0: os._exit(0)
            time.sleep(0.001)
    return 0
""",
    "kills its parent": """
import os, signal, time
def f(x):
    for kill in (os.kill, lambda p, s: signal.pidfd_send_signal(os.pidfd_open(p), s)):
        try: kill(os.getppid(), 9)
        except OSError: pass
    time.sleep(0.2)
    return 2 if os.getppid() != PARENT else 0
PARENT = os.getppid()
""",
    "stops its parent": """
import os, signal
def f(x):
    for kill in (os.kill, lambda p, s: signal.pidfd_send_signal(os.pidfd_open(p), s)):
        try: kill(os.getppid(), signal.SIGSTOP)
        except OSError: pass
    return 0
""",
    "reads what is not its own": """
def f(x):
    for path in ("/PLACE/secret", "/etc/passwd", "/etc/shadow", "/etc/hostname", "/root/.profile", "/root/.bashrc"):
        try:
            if open(path).read(): return 2
        except OSError: pass
    return 0
""",
    "writes outside": """
import os
def f(x):
    done = 0
    for path in ("/PLACE/trace", "/etc/coterie-trace", "/usr/coterie-trace", "/tmp/../usr/lib/coterie-trace"):
        try:
            with open(path, "w") as file: file.write("x")
            done = 2
        except OSError: pass
    return done
""",
    "connects": """
import socket
def f(x):
    with socket.create_connection(("127.0.0.1", PORT), 2) as door:
        door.sendall(b"secret")
    return 2
""",
    "looks names up": """
import socket
def f(x):
    return 2 if socket.gethostbyname("localhost.localdomain") else 0
""",
    "runs a program as root": """
import subprocess
def f(x):
    return 2 if subprocess.run(["id"], capture_output=True).stdout.startswith(b"uid=0") else 0
""",
    "reads the environment": "import os\ndef f(x):\n    return 2 if os.environ else 0",
    "becomes root": """
import os
def f(x):
    os.setuid(0)
    return 2 if os.getuid() == 0 else 0
""",
}

EVERYONE = {
    "kills everyone": "import os\ndef f(x):\n    os.kill(-1, 9)\n    return 0",
    "kills its group": "import os\ndef f(x):\n    os.killpg(0, 9)\n    return 0",
}
