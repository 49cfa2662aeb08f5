"""Linux calls that the standard library lacks: process attributes, capabilities, namespaces. Best effort each."""

import ctypes
import os

PDEATHSIG, DUMPABLE, KEEPCAPS, SUBREAPER, NO_NEW_PRIVS = 1, 4, 8, 36, 38
NEWNET, NEWIPC = 0x40000000, 0x08000000
READ_SEARCH = 1 << 2  # CAP_DAC_READ_SEARCH
CAPABILITY_V3 = 0x20080522


def prctl(option: int, value: int) -> bool:
    """Set one attribute of this process; False where the kernel refuses or there is none."""
    try:
        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    except (AttributeError, OSError):
        return False


def unshare(flags: int) -> bool:
    """Leave the shared namespaces; False where not allowed."""
    try:
        return bool(ctypes.CDLL(None).unshare(flags) == 0)
    except (AttributeError, OSError):
        return False


def become(user: int, reading: bool) -> None:
    """Give up root for the unprivileged `user`. `reading` keeps the right to read what root may read.

    Raises OSError where the change is refused.
    """
    prctl(KEEPCAPS, int(reading))
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    if reading:
        header = (ctypes.c_uint32 * 2)(CAPABILITY_V3, 0)
        sets = (ctypes.c_uint32 * 6)(READ_SEARCH, READ_SEARCH, 0, 0, 0, 0)
        if ctypes.CDLL(None).capset(header, sets) != 0:
            raise OSError("capset was refused")
