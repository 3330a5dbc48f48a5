#!/usr/bin/env python3
"""check_layers.py PROJECT FOLDER MAY_USE...: fails when the room in FOLDER (src/ROOM, frontends/c) includes what it may not.

A room includes itself, the rooms it lists, and the public headers that belong to those. Prints one line per wrong
include: file, line, what, and what is allowed.
"""
import pathlib
import re
import sys

# Which room a public header belongs to; api.h, status.h, shape.h and version.h are base's.
PUBLIC = {"traits.h": "spec", "codec.h": "codec", "group.h": "comm", "plan.h": "plan", "engine.h": "engine",
          "world.h": "comm", "ddp.h": "frontends/torch", "c_api.h": "c_api"}
ROOM_OF_FRONTEND = {"frontends/c": "c_api"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def room_of(path, rooms):
    """The room an include path belongs to, or None for the standard library and other packages."""
    parts = path.split("/")
    if parts[0] == "gradpress":
        return PUBLIC.get(parts[1], "base")
    return parts[0] if len(parts) > 1 and parts[0] in rooms else None


def main():
    project, folder, *may_use = sys.argv[1:]
    source = pathlib.Path(project) / "src"
    room = ROOM_OF_FRONTEND.get(folder, pathlib.PurePath(folder).name)
    rooms = {p.name for p in source.iterdir() if p.is_dir()}
    allowed = {room, "base", *may_use} if room != "base" else {room}
    files = sorted(p for p in (pathlib.Path(project) / folder).rglob("*") if p.suffix in {".h", ".cc"})
    if not files:
        sys.exit(f"layers.{room}: no files under {folder}: is the room's name right?")
    wrong = 0
    for path in files:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            if match[1].startswith(("tests/", "frontends/", "../")):
                owner = match[1]
            else:
                owner = room_of(match[1], rooms)
            if owner is None or owner in allowed:
                continue
            wrong += 1
            print(f"{path.relative_to(project)}:{number}: includes {match[1]} ({owner}); "
                  f"{room} may use {', '.join(sorted(allowed))}")
    print(f"layers.{room}: {len(files)} files, {wrong} wrong includes")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
