//! The three tensors of a packed module.

use w4pack_format::checkpoint::{Checkpoint, Located};
use w4pack_format::dtype::Dtype;
use w4pack_format::group::GROUP;
use w4pack_format::scale::ScaleDtype;

use crate::ledger::{Class, Ledger, Side};
use crate::report::{Fault, FaultClass};

/// Which of the three tensors of a packed module a checkpoint holds.
pub struct Parts<'a> {
    words: Option<Located<'a>>,
    scales: Option<Located<'a>>,
    shape: Option<Located<'a>>,
}

/// Looks for the tensors of a packed module.
pub fn parts_of<'a>(checkpoint: &'a Checkpoint, module: &str) -> Parts<'a> {
    let part = |suffix: &str| checkpoint.tensor(&format!("{module}.{suffix}"));
    Parts {
        words: part("weight_packed"),
        scales: part("weight_scale"),
        shape: part("weight_shape"),
    }
}

impl Parts<'_> {
    /// Whether any of them is there.
    pub fn any(&self) -> bool {
        self.words.is_some() || self.scales.is_some() || self.shape.is_some()
    }

    /// The file to name in faults.
    pub fn file(&self, checkpoint: &Checkpoint) -> String {
        let found = self.words.or(self.scales).or(self.shape);
        let shard = found.map(|found| found.shard).or(checkpoint.shards().first());
        shard.map_or_else(String::new, |shard| shard.path.clone())
    }

    /// Checks presence, dtypes and shapes for a module of `[rows, columns]`; gives the scales'
    /// dtype, or everything that is wrong.
    pub fn check(
        &self,
        checkpoint: &Checkpoint,
        module: &str,
        [rows, columns]: [usize; 2],
    ) -> Result<ScaleDtype, Vec<Fault>> {
        let mut faults = Vec::new();
        let file = self.file(checkpoint);
        let mut fail = |class, suffix: &str, detail: String| {
            // In shards the three may lie apart.
            let name = format!("{module}.{suffix}");
            let own = checkpoint.tensor(&name).map(|found| &found.shard.path);
            faults.push(Fault::of_tensor(class, own.unwrap_or(&file), &name, detail));
        };
        if !columns.is_multiple_of(GROUP) {
            let detail = format!("{columns} columns are no multiple of the group size {GROUP}");
            fail(FaultClass::Header, "weight_packed", detail);
        }
        let mut expect = |found: Option<Located<'_>>,
                          suffix: &str,
                          wanted: Vec<usize>,
                          good: &dyn Fn(Dtype) -> bool| {
            match found {
                None => fail(
                    FaultClass::TensorMissing,
                    suffix,
                    "a packed module needs this tensor".into(),
                ),
                Some(found) if found.info.shape != wanted || !good(found.info.dtype) => {
                    let (dtype, shape) = (found.info.dtype, &found.info.shape);
                    let detail = format!("it is {dtype} {shape:?}, the shape must be {wanted:?}");
                    fail(FaultClass::Header, suffix, detail);
                }
                Some(_) => {}
            }
        };
        expect(self.words, "weight_packed", vec![rows, columns / 8], &|dtype| dtype == Dtype::I32);
        expect(self.scales, "weight_scale", vec![rows, columns / GROUP], &|dtype| {
            ScaleDtype::from_dtype(dtype).is_some()
        });
        expect(self.shape, "weight_shape", vec![2], &|dtype| {
            matches!(dtype, Dtype::I64 | Dtype::I32)
        });
        if let Some(shape) = self.shape.filter(|shape| shape.info.elements() == 2) {
            match stored_shape(checkpoint, shape) {
                Ok(stored) if stored == [rows as i64, columns as i64] => {}
                Ok(stored) => {
                    let detail = format!("it says {stored:?}, the source [{rows}, {columns}]");
                    fail(FaultClass::Header, "weight_shape", detail);
                }
                Err(error) => fail(FaultClass::SourceChanged, "weight_shape", error.to_string()),
            }
        }
        let dtype = self.scales.and_then(|scales| ScaleDtype::from_dtype(scales.info.dtype));
        match dtype {
            Some(dtype) if faults.is_empty() => Ok(dtype),
            _ => Err(faults),
        }
    }

    /// Whether `weight_shape` holds 32-bit numbers: readers take them, writers write 64 bits.
    pub fn has_narrow_shape(&self) -> bool {
        self.shape.is_some_and(|shape| shape.info.dtype == Dtype::I32)
    }

    /// Claims the three tensors.
    pub fn claim(&self, checkpoint: &Checkpoint, module: &str, ledger: &mut Ledger) {
        for (suffix, class) in [
            ("weight_packed", Class::Codes),
            ("weight_scale", Class::Scales),
            ("weight_shape", Class::Shapes),
        ] {
            ledger.claim_tensor(Side::Result, checkpoint, &format!("{module}.{suffix}"), class);
        }
    }
}

/// The two numbers of a `weight_shape`.
fn stored_shape(checkpoint: &Checkpoint, found: Located<'_>) -> w4pack_format::Result<Vec<i64>> {
    let bytes = checkpoint.read(&found.info.name)?;
    let numbers = match found.info.dtype {
        Dtype::I32 => {
            let words = bytes.as_chunks().0.iter();
            words.map(|word| i64::from(i32::from_le_bytes(*word))).collect()
        }
        _ => bytes.as_chunks().0.iter().map(|word| i64::from_le_bytes(*word)).collect(),
    };
    Ok(numbers)
}
