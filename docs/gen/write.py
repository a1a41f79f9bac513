"""Hands the generated pages to mkdocs, which runs this script (plug-in gen-files) whenever it builds the site."""

import sys
from pathlib import Path

import mkdocs_gen_files

sys.path.insert(0, str(Path(__file__).parent))

from reference import pages  # only now is its folder known

for path, text in pages():
    with mkdocs_gen_files.open(path, "w") as file:
        file.write(text)
