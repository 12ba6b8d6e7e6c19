"""Text becomes tokens on disk, these become batches.  sources -> prepare -> shards -> windows"""
