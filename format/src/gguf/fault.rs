//! The ways in which a GGUF file can be wrong.

/// What is wrong with a GGUF file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GgufFault {
    /// Other first bytes.
    #[error("it does not begin with the bytes `GGUF`")]
    Magic,
    /// A file for machines with the other byte order.
    #[error("it is big-endian; w4pack reads little-endian files")]
    BigEndian,
    /// A version that is laid out in another way.
    #[error("its version is {version}; w4pack reads 2 and 3")]
    Version {
        /// As read.
        version: u32,
    },
    /// The file ends inside its header.
    #[error(
        "it ends inside {what}: {wanted} bytes wanted at offset {offset}, the file has {bytes}"
    )]
    Ends {
        /// What was being read.
        what: String,
        /// Where.
        offset: u64,
        /// How much.
        wanted: u64,
        /// Size of the file.
        bytes: u64,
    },
    /// A header larger than any honest one.
    #[error("its header exceeds the limit of {limit} bytes (at {what})")]
    TooLong {
        /// What was being read.
        what: String,
        /// [`super::file::HEADER_LIMIT`].
        limit: u64,
    },
    /// More entries than the file has room for.
    #[error("it claims {count} {what}, more than its {bytes} bytes have room for")]
    Count {
        /// Metadata entries or tensors.
        what: &'static str,
        /// As read.
        count: u64,
        /// Size of the file.
        bytes: u64,
    },
    /// A text that is not UTF-8.
    #[error("{what} is not UTF-8")]
    NotUtf8 {
        /// Which text.
        what: String,
    },
    /// A name that would steer a terminal, or is empty or too long.
    #[error("{what} `{name}` is empty, too long or holds control characters")]
    Name {
        /// What it is the name of.
        what: &'static str,
        /// The name, control characters escaped, cut.
        name: String,
    },
    /// One key or tensor name twice.
    #[error("{what} `{name}` appears twice")]
    Duplicate {
        /// The key or the tensor.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// A type number that the format does not know.
    #[error("`{name}` has the unknown {what} {number}")]
    Type {
        /// The key or tensor.
        name: String,
        /// "value type" or "tensor type".
        what: &'static str,
        /// As read.
        number: u32,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("`{key}` holds a boolean that is {byte}, neither 0 nor 1")]
    Boolean {
        /// The key.
        key: String,
        /// As read.
        byte: u8,
    },
    /// Arrays of arrays of arrays …
    #[error("`{key}` nests arrays more than {limit} deep")]
    Depth {
        /// The key.
        key: String,
        /// The limit.
        limit: usize,
    },
    /// An alignment that is no power of two, or not a number of the right kind.
    #[error("`general.alignment` is {found}, not a power of two between 8 and 65536")]
    Alignment {
        /// As read.
        found: String,
    },
    /// A tensor of no or too many dimensions, or with an empty one.
    #[error(
        "tensor `{tensor}` has the dimensions {dimensions:?}; 1 to 4 are possible, none of them 0"
    )]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// As read, fastest first.
        dimensions: Vec<u64>,
    },
    /// The size does not fit 64 bits.
    #[error("tensor `{tensor}`: the size of {dimensions:?} overflows 64 bits")]
    Overflow {
        /// The tensor.
        tensor: String,
        /// As read, fastest first.
        dimensions: Vec<u64>,
    },
    /// Rows that are no whole number of blocks.
    #[error(
        "tensor `{tensor}`: its rows of {columns} elements are no multiple of {block}, the block of {type_name}"
    )]
    Rows {
        /// The tensor.
        tensor: String,
        /// Elements in a row.
        columns: u64,
        /// Elements in a block.
        block: u64,
        /// The tensor type.
        type_name: &'static str,
    },
    /// A tensor that does not begin where the one before it ends, padded.
    #[error(
        "tensor `{tensor}` begins at byte {found} of the data, {expected} expected: tensors lie one behind the other"
    )]
    Offset {
        /// The tensor.
        tensor: String,
        /// As read.
        found: u64,
        /// By the sizes of the tensors before.
        expected: u64,
    },
    /// The file is shorter than its header says.
    #[error(
        "truncated: the header describes {needed} bytes, the file has {bytes} (tensor `{tensor}` is cut)"
    )]
    Truncated {
        /// The first tensor that does not fit.
        tensor: String,
        /// Bytes the header describes, header included.
        needed: u64,
        /// Size of the file.
        bytes: u64,
    },
    /// The file is longer than its header says.
    #[error("{bytes} bytes follow behind the last tensor")]
    Trailing {
        /// How many.
        bytes: u64,
    },
}
