"""Random requests of all dialects, sound and broken, against a running proxy: nothing may crash, hang, leak or go uncounted."""
