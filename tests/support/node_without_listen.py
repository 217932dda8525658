"""Runs a real node to which the kernel refuses the system call `listen`, as the services in deploy/systemd do.

The filter is classic BPF over `struct seccomp_data` (linux/seccomp.h): if the number is that of `listen`, EPERM."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

from thinwire_node.__main__ import main

LISTEN = {"x86_64": 50, "aarch64": 201}
"""The number of the system call, by machine."""
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD_NUMBER, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE_WITH_EPERM = 0x7FFF0000, 0x00050001


def refuse_listen() -> None:
    steps = [
        (LOAD_NUMBER, 0, 0, 0),
        (JUMP_IF_EQUAL, 0, 1, LISTEN[platform.machine()]),
        (RETURN, 0, 0, REFUSE_WITH_EPERM),
        (RETURN, 0, 0, ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for option in ((PR_SET_NO_NEW_PRIVS, 1, None), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program)):
        if libc.prctl(*option, 0, 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    refuse_listen()
    main()
