"""The catalog: what every cloud sells, which network it has, and how that network is used.

Facts are rows with their sources (`data/<cloud>.toml`), read by `Catalog`.
"""

from gpufabric.catalog.index import Catalog, CloudCatalog

__all__ = ["Catalog", "CloudCatalog"]
