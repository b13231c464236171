# SPDX-License-Identifier: Apache-2.0
"""What the lints share: the files of the tree, C text without comments and strings, and the report.

A lint collects findings as (file, line, what), prints them as `file:line: what` and exits 1; when there are none
it prints one summary line. The root is the tree that the lint lies in, so a copy of a tree checks itself.
"""
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
LAYERS = ("dynamo_rt", "attention", "parallel", "data", "core", "launch")
C_SUFFIXES = (".c", ".h", ".cu", ".cuh")


def tree_files():
    """Paths relative to the root, sorted: tracked files and new ones that git does not ignore."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True)
    if listed.returncode != 0:
        sys.exit(f"{sys.argv[0]}: the tree is not a git repository: {listed.stderr.strip()}")
    return sorted({name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()})


def read(name):
    return (ROOT / name).read_text(encoding="utf-8", errors="replace")


TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S)


def blank(match):
    text = match.group(0)
    if text[0] in "\"'":
        return text[0] + text[-1]
    return re.sub(r"[^\n]+", " ", text)


def strip(text):
    """C text with comments blanked and strings emptied; lines keep their numbers."""
    text = TOKEN.sub(blank, text.replace("\\\n", "\\ \n"))
    return text


def finish(name, findings, summary):
    for path, line, what in sorted(set(findings)):
        print(f"{path}:{line}: {what}")
    if findings:
        sys.exit(1)
    print(f"{name}: {summary}")
    sys.exit(0)
