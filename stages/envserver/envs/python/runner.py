"""Runs a policy's code for package python: shuts itself in, loads the code, calls its function, writes down what came back.

The job comes as JSON on standard input. Results go to file descriptor 3, one JSON object a line: {"ready": true} once nothing
of the code has run and every limit holds, or {"setup": why} if that cannot be; then {"call": i, "value": v} or {"call": i,
"error": text} per call, or {"error": text} if the code cannot be loaded. What is right is not known here.
"""

import json
import os
import resource
import sys

RESULTS = 3
LONGEST = 65536  # characters of a value

NOSUID, NODEV, RDONLY, REMOUNT, BIND, REC, PRIVATE = 2, 4, 1, 32, 4096, 16384, 1 << 18
KEPT = 1 | 2 | 4 | 8 | 1024 | 2048  # of a mount's flags: a bind may not take them away
DETACH = 2
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
SIGKILL = 9


def tell(result):
    os.write(RESULTS, (json.dumps(result) + "\n").encode())


def shut_in(root, prefixes, file_bytes, user):
    """Leaves a root of its own behind: Python and the system's libraries read-only, /tmp, nothing else; and no right to change it."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    def do(name, *args):
        args = [a.encode() if isinstance(a, str) else a for a in args]
        if getattr(libc, name)(*args) != 0:
            number = ctypes.get_errno()
            raise OSError(number, "%s: %s" % (name, os.strerror(number)))

    def mount(source, target, kind, flags, options=None):
        do("mount", source, target, kind, ctypes.c_ulong(flags), options)

    def bind(path):
        if os.path.isdir(path):
            os.makedirs(root + path, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            open(root + path, "x").close()
        mount(path, root + path, None, BIND)
        kept = os.statvfs(root + path).f_flag & KEPT
        mount(None, root + path, None, REMOUNT | BIND | RDONLY | NOSUID | kept)

    mount(None, "/", None, REC | PRIVATE)
    mount("tmpfs", root, "tmpfs", NOSUID | NODEV, "size=1m,mode=755")
    shown = []
    for path in ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/etc/ld.so.cache"] + prefixes:
        if any(path == s or path.startswith(s + "/") for s in shown) or not os.path.lexists(path):
            continue
        if os.path.islink(path):
            os.symlink(os.readlink(path), root + path)
            continue
        shown.append(path)
        bind(path)
    for device in ["/dev/null", "/dev/zero", "/dev/urandom"]:
        bind(device)
    os.mkdir(root + "/tmp")
    mount("tmpfs", root + "/tmp", "tmpfs", NOSUID | NODEV, "size=%d,nr_inodes=1000,mode=1777" % file_bytes)
    mount(None, root, None, REMOUNT | BIND | RDONLY | NOSUID | NODEV)
    os.chdir(root)
    do("pivot_root", ".", ".")
    do("umount2", ".", DETACH)
    os.chdir("/tmp")
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    do("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    do("capset", header, none)
    do("prctl", PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)  # setresuid has taken it away


def limit(limits):
    for name, most in limits.items():
        kind = getattr(resource, "RLIMIT_" + name, None)
        if kind is not None:
            resource.setrlimit(kind, (most, most))


def describe(error):
    text = "%s: %s" % (type(error).__name__, error) if str(error) else type(error).__name__
    return text[:300]


def main():
    job = json.loads(sys.stdin.read())
    try:
        if job["root"]:
            shut_in(job["root"], job["prefixes"], job["limits"]["FSIZE"], job["user"])
        nothing = os.open("/dev/null", os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        limit(job["limits"])
    except BaseException as error:
        tell({"setup": describe(error)})
        return
    tell({"ready": True})

    sys.path = [p for p in sys.path if p]
    sys.argv = ["answer.py"]
    space = {"__name__": "answer"}
    try:
        exec(compile(job["code"], "answer.py", "exec"), space)
        function = space[job["function"]]
    except BaseException as error:
        tell({"error": describe(error)})
        return
    for i, args in enumerate(job["calls"]):
        try:
            value = function(*args)
            if len(json.dumps(value, allow_nan=False)) > LONGEST:
                raise ValueError("the value is too long")
            tell({"call": i, "value": value})
        except BaseException as error:
            tell({"call": i, "error": describe(error)})


main()
sys.stdout.flush()
os._exit(0)
