"""What the static checks share: the files of the repository and the way a finding is printed."""
import pathlib
import subprocess
import sys

# Own code. Generated files, lock files and data are not listed here.
CODE = {".h", ".cc", ".inl", ".def", ".rs", ".py", ".cmake", ".sh"}


def repository_files(root):
    """Paths relative to `root` of all files that git tracks or would track; of all files where there is no git."""
    root = pathlib.Path(root)
    try:
        out = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True, check=True).stdout
        files = [pathlib.Path(name) for name in out.decode().split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        files = [p.relative_to(root) for p in root.rglob("*") if not {"build", "target", ".git"} & set(p.relative_to(root).parts)]
    return sorted(p for p in files if (root / p).is_file() and not (root / p).is_symlink())


def text_of(path):
    """The file's text, or None for a binary one."""
    raw = path.read_bytes()
    if b"\0" in raw[:8192]:
        return None
    return raw.decode("utf-8", errors="replace")


def is_test(path):
    """Tests, and the tools that make their reference numbers, may hold what product code may not: hostile text, checkpoint names, long tables."""
    return path.parts[0] == "tests" or path.stem.endswith(("_test", "_fuzz")) or (path.parts[0] == "tools" and "golden" in path.stem)


def finish(name, findings):
    """Prints 'file:line: why' rows and ends with 1 if there is one."""
    for row in findings:
        print(row)
    if findings:
        print(f"{name}: {len(findings)} finding{'s' if len(findings) > 1 else ''}", file=sys.stderr)
    sys.exit(1 if findings else 0)
