"""Reading of files with any content, and atomic writing."""
