"""Between plain typed values and the contract's messages, both ways. Decoding happens once, at the edge."""
