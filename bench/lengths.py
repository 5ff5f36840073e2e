"""Makes bench/lengths.csv: how long samples of real data are.

usage: bench/lengths.py PEPS TORCH AZURE CYPRESS > bench/lengths.csv

  PEPS     documents: a clone of github.com/python/peps (public domain or CC0; 736 texts at ba4deeb7 of 2026-08-22)
  TORCH    code: the folder of an installed torch, its Python files (BSD-3-Clause; 2,057 files of 2.11.0)
  AZURE    chats: a clone of github.com/Azure/AzurePublicDataset, context and answer of the requests of the trace "conv" of
           2023 (CC BY 4.0; Patel et al. 2024, "Splitwise"; 19,366 requests at b469a113 of 2025-10-20)
  CYPRESS  images: a clone of github.com/cypress-io/cypress-documentation, the pages that show an image (MIT; 193 pages
           at 4df0c75e of 2026-08-22)

Texts count a token for four bytes. An image has a tile for each 448 x 448 pixels, 1 to 12, as InternVL divides images.
Samples are sorted by their length, a tile as 256 tokens; a row is the sample at each half percent.
"""

import pathlib
import re
import struct
import subprocess
import sys

TILE_TOKENS, TILE_PIXELS, TILES_MAX = 256, 448 * 448, 12
IMAGE = re.compile(rb"[\w/.@ -]+\.(?:png|jpe?g)")


def git(clone, *command):
    return subprocess.run(["git", "-C", clone, *command], stdout=subprocess.PIPE, check=True).stdout


def files(clone):
    """Names and sizes."""
    rows = (line.split(None, 4) for line in git(clone, "ls-tree", "-rl", "HEAD").decode().splitlines())
    return {row[4]: int(row[3]) for row in rows if row[3].isdigit()}


def pixels(image):
    if image[:4] == b"\x89PNG":
        width, height = struct.unpack(">II", image[16:24])
        return width * height
    at = 2  # JPEG: segments, until one that begins a frame
    while image[at + 1] not in (0xC0, 0xC1, 0xC2):
        at += 2 + int.from_bytes(image[at + 2 : at + 4])
    height, width = struct.unpack(">HH", image[at + 5 : at + 9])
    return width * height


def pages(clone):
    names = files(clone)
    by_end = {name.removeprefix("static"): name for name in names if name.endswith(("png", "jpg", "jpeg"))}
    for name, size in names.items():
        if not name.endswith((".md", ".mdx")):
            continue
        folder = f"{name.rpartition('/')[0]}/"
        tiles = 0
        for found in map(bytes.decode, IMAGE.findall(git(clone, "show", f"HEAD:{name}"))):
            image = by_end.get(found) or by_end.get(folder + found.removeprefix("./"))
            if image:
                area = pixels(git(clone, "show", f"HEAD:{image}"))
                tiles += min(max(round(area / TILE_PIXELS), 1), TILES_MAX)
        if tiles:
            yield size // 4, tiles


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    peps, torch, azure, cypress = sys.argv[1:]
    trace = git(azure, "show", "HEAD:data/AzureLLMInferenceTrace_conv.csv").decode().splitlines()[1:]
    kinds = {
        "documents": [(size // 4, 0) for name, size in files(peps).items() if re.fullmatch(r"peps/pep-\d+\.rst", name)],
        "code": [(file.stat().st_size // 4, 0) for file in pathlib.Path(torch).rglob("*.py")],
        "chats": [(sum(map(int, row.split(",")[1:])), 0) for row in trace],
        "images": list(pages(cypress)),
    }
    print("kind,tokens,tiles")
    for kind, samples in kinds.items():
        samples = sorted((s for s in samples if s[0]), key=lambda s: s[0] + TILE_TOKENS * s[1])
        print(f"{kind}: {len(samples)} samples", file=sys.stderr)
        for at in range(201):
            text, tiles = samples[round(at * (len(samples) - 1) / 200)]
            print(f"{kind},{text},{tiles}")


if __name__ == "__main__":
    main()
