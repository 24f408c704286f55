"""Reports of result folders: tables, one self-contained page, and anonymous bundles."""
