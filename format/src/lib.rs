//! The nouns: tensors, shards, groups, scales, names, configuration, manifest.
