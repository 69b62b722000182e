//! The kernels' parameter structs, field for field as in `kernels/cuda/`; the tests know the sizes
//! that the CUDA compiler gives them, by the same rules of alignment.

mod batch;
mod block;
mod cache;
mod chain;
mod chunk;
mod embed;
mod long;
mod matrix;
mod token;

pub use batch::{BATCH_TOKENS, BatchProduct, batch_columns, batch_digit_bytes};
pub use block::TokenBlock;
pub use cache::{Attention, KvLayer, Rows, Step};
pub use chain::{ChainProduct, MOST_CHAINED, TokenChain};
pub use chunk::{Activations, Attend, ChunkLaunch, Commit, Gemm, MapRows, NormRows, RopeRows};
pub use embed::{EMBED_THREADS, Embed};
pub use long::TokenLong;
pub use matrix::{
    Epilogue, GEMV_THREADS, Gemv, Input, Kind, Matrix, TallGemv, digit_bytes, row_shape,
};
pub use token::{
    ATTENTION_HEADS, ATTENTION_THREADS, KEYS_THREADS, MOST_PIECES, PRODUCT_THREADS, SLIDING_PIECES,
    STATIC_SHARED, Span, TokenAttention, TokenKeys, TokenLaunch, TokenProduct, TokenResult,
};
