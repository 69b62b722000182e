//! An `lm_head` beside a tied table.

use w4pack_format::checkpoint::{Checkpoint, Located};

use crate::ConvertError;

/// The head's name in both layouts.
pub(super) const HEAD: &str = "lm_head.weight";

/// Bytes compared at a time.
const BLOCK: usize = 4 << 20;

/// Whether a tensor of the head holds the very bytes of the table's tensor `table_name`; anything
/// else is refused, since the output has one table, or the same one twice.
pub(super) fn check_tied_copy(
    checkpoint: &Checkpoint,
    table_name: &str,
    head: Located<'_>,
) -> Result<(), ConvertError> {
    let table = checkpoint.tensor(table_name).ok_or_else(|| checkpoint.missing(table_name))?;
    let name = &head.info.name;
    let differs = |problem| ConvertError::Tensor {
        file: checkpoint.place(&head.shard.path),
        tensor: name.clone(),
        problem,
    };
    if (head.info.dtype, &head.info.shape) != (table.info.dtype, &table.info.shape) {
        return Err(differs(format!(
            "{} {:?} is not `{table_name}`'s {} {:?}, and no layout has two tables",
            head.info.dtype, head.info.shape, table.info.dtype, table.info.shape
        )));
    }
    let (mut of_head, mut of_table) = (vec![0; BLOCK], vec![0; BLOCK]);
    let mut at = 0;
    while at < head.info.bytes() {
        let length = (head.info.bytes() - at).min(BLOCK as u64) as usize;
        let (of_head, of_table) = (&mut of_head[..length], &mut of_table[..length]);
        checkpoint.read_range(name, at, of_head)?;
        checkpoint.read_range(table_name, at, of_table)?;
        if let Some(byte) = of_head.iter().zip(&*of_table).position(|(one, other)| one != other) {
            let row_bytes = head.info.bytes() / head.info.shape[0] as u64;
            return Err(differs(format!(
                "it differs from `{table_name}` (first in row {}), and no layout has two tables",
                (at + byte as u64) / row_bytes
            )));
        }
        at += length as u64;
    }
    Ok(())
}
