"""The assembler: capture records and the end of a lease in, one trajectory per lease out."""
