"""
The way of a call: which of the project's files it passes, counted by single steps through the optimized library with its
line table. Files of the standard library and of other crates that were inlined are not counted.

    cc -O2 -I dist/include -o calls docs/bench/calls.c
    gdb -batch-silent -nx -x docs/bench/way.py --args target/release/shunt run -- ./calls plain 100 1

WAY_TRACE prints each entry in order. WAY_CALL names another call (`recv`), WAY_AFTER another number of calls before the one that is counted: the first ones set the
connection up, and every 64th asks the kernel whether the peer is there.
"""

import os
import re
import subprocess

import gdb

CALL = os.environ.get("WAY_CALL", "send")
AFTER = int(os.environ.get("WAY_AFTER", "3000"))
# Longer than any call that does not wait.
MOST = 20000


def place(pc):
    """The file of an instruction by the project's layout; None: it is of none."""
    symtab = gdb.find_pc_line(pc).symtab
    found = re.search(r"crates/(shunt-[a-z]+)/src/(.*)", symtab.filename) if symtab else None
    return f"{found[1]}: {found[2]}" if found else None


def register(name):
    return int(gdb.newest_frame().read_register(name))


def way():
    """The file of each instruction of the call."""
    back, stack = gdb.newest_frame().older().pc(), register("sp")
    passed = []
    while len(passed) < MOST:
        pc = register("pc")
        if pc == back and register("sp") > stack:
            return passed
        passed.append(place(pc))
        gdb.execute("stepi", to_string=True)
    raise gdb.GdbError(f"the call is not over after {MOST} instructions: does it wait?")


for setting in ("confirm off", "pagination off", "breakpoint pending on", "detach-on-fork on", "follow-fork-mode parent"):
    gdb.execute(f"set {setting}")
gdb.execute("handle all nostop noprint pass", to_string=True)
gdb.execute("catch exec", to_string=True)
gdb.execute("run", to_string=True)
# The library is there when the program begins.
gdb.execute("tbreak main", to_string=True)
gdb.execute("continue", to_string=True)
def exported(name):
    """The address of a function that the library exports."""
    pid = gdb.selected_inferior().pid
    with open(f"/proc/{pid}/maps") as maps:
        mapped = next((line.split() for line in maps if line.rstrip().endswith("libshunt.so")), None)
    if mapped is None:
        raise gdb.GdbError("libshunt.so is not in the program")
    symbols = subprocess.run(["nm", "-D", mapped[-1]], check=True, capture_output=True, text=True).stdout
    at = re.search(rf"^([0-9a-f]+) T {name}$", symbols, re.MULTILINE)
    return int(mapped[0].split("-")[0], 16) + int(at[1], 16)


stop = gdb.Breakpoint(f"*{exported(CALL):#x}")
stop.ignore_count = AFTER
gdb.execute("continue", to_string=True)
passed = way()
entries, instructions, last = {}, {}, None
for file in passed:
    instructions[file] = instructions.get(file, 0) + 1
    if file is not None and file != last:
        entries[file] = entries.get(file, 0) + 1
        last = file
text = "".join(
    f"{n:4} times {instructions[file]:5} instructions  {file}\n"
    for file, n in sorted(entries.items(), key=lambda entry: -entry[1])
)
text += f"{len(entries)} files, entered {sum(entries.values())} times; {len(passed)} instructions, "
text += f"{instructions.get(None, 0)} of others\n"
# gdb itself is silent.
os.write(1, text.encode())
if "WAY_TRACE" in os.environ:
    named = [file for file in passed if file is not None]
    steps = (file for file, before in zip(named, [None, *named]) if file != before)
    os.write(1, "".join(f"{file}\n" for file in steps).encode())
gdb.execute("kill", to_string=True)
