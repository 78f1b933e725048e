"""Products of tensors that are sharded over processes (torch's DTensors): by all of them, each its part."""
