"""The contract as Python: generated from protos/cutaway/v1 by `make protos`."""
