"""Reports: from result folders to tables, one self-contained page, and bundles that can be sent."""
