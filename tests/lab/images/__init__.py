"""Stand-in images built offline from Debian's packages, shaped like those of the public hubs, and what serves them."""
