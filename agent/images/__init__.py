"""Images: names, registries, safe unpacking and the node's store of layers."""
