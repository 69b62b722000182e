//! From Google's bf16 to packed words: plan, recover, write.
