"""Hard cases from the field, by number: inputs that broke other gateways, and what is right."""
