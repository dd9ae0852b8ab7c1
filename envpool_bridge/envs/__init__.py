"""One file per source of environments; all keep the protocol of `rows`."""
