"""The command `prepare`: turns an organizer's files into content-addressed shards with a manifest.

A run needs each shard to be a fair sample of its source, the same shards on every machine, and documents that are held
out as a whole. Sorting all documents by the SHA-256 of their text gives all three: the order is as good as random, it
does not depend on the order of the files, and the documents with the smallest hashes are held out. Duplicates are
neighbours, on one side.

Sources do not fit into memory, so they are sorted on disk. `spill` appends each document, as tokens, to one of 64 files
by the first bits of its hash, and later sorts one file after another. Then `shards` cuts the sorted tokens.
"""
