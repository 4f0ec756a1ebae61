"""Codecs between plain typed values and the contract's messages. Decoding happens once, at the edge."""
