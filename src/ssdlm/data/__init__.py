"""Text on disk becomes tokens on disk, and those become batches.  sources -> prepare -> shards -> windows"""
