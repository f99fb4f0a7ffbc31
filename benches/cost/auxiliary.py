"""Has a process started under valgrind see the auxiliary vector that valgrind made for it.

Without this, the crate rustix asks the kernel for the vector (PR_GET_AUXV), and finds the address of
a vDSO there that valgrind has unmapped. If the kernel refuses, as kernels before 6.4 do, it reads
/proc/self/auxv, which valgrind replaces."""

import ctypes
import errno
import platform
import struct

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
PR_GET_AUXV = 0x41555856
PRCTL = {"x86_64": 157, "aarch64": 167}[platform.machine()]

# Loads a word, compares it, returns: instructions of the filter, and what the kernel is told.
LOAD, SKIP_UNLESS, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000 | errno.EINVAL
# Where the number of the call is, and its first argument.
NUMBER, ARGUMENT = 0, 16

FILTER = [
    (LOAD, 0, 0, NUMBER),
    (SKIP_UNLESS, 0, 3, PRCTL),
    (LOAD, 0, 0, ARGUMENT),
    (SKIP_UNLESS, 0, 1, PR_GET_AUXV),
    (RETURN, 0, 0, FAIL),
    (RETURN, 0, 0, ALLOW),
]


def refuse():
    """Refuses the question from now on, for this process and for all that it starts."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in FILTER))
    program = struct.pack("HxxxxxxP", len(FILTER), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0),
    ):
        if libc.prctl(*call):
            raise OSError(ctypes.get_errno(), "the kernel takes no filter of calls (seccomp)")
