"""Reports: from result folders to tables, one self-contained page, and bundles that can be sent."""

from .bundle import describe_bundle, unpack, write_bundle
from .page import build

__all__ = ["build", "describe_bundle", "unpack", "write_bundle"]
