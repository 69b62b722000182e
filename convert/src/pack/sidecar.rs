//! `w4pack/exact.safetensors`, as `w4pack_format::exact` describes it: what the stored steps cannot
//! say about the source's bytes.
//!
//! Module by module, groups are noted in ascending order. The signs of zeros are collected under
//! all three rules at once, and the shortest one is kept when the module ends.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use w4pack_format::dtype::Dtype;
use w4pack_format::exact::{Part, ZeroRule};
use w4pack_format::group::GROUP;
use w4pack_format::header::Header;

use super::spool::{Spool, Stream};
use crate::ConvertError;

/// What there is to say about a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupNote {
    /// Whether its stored step gives all values back.
    pub step: Step,
    /// Bit i set: element i has code 0.
    pub zeros: u32,
    /// Bit i set: element i is -0.0; a subset of `zeros`.
    pub negative_zeros: u32,
    /// Whether the stored step is negative.
    pub negative_step: bool,
}

/// What gives a group's values back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// The stored step.
    Stored,
    /// This one.
    Finer(f32),
    /// No step; these are the bf16 bits.
    Verbatim([u16; GROUP]),
}

/// Collects the notes of all modules and writes the file.
pub struct Sidecar {
    spool: Spool,
    modules: Vec<Option<ModuleParts>>,
    names: Vec<String>,
}

/// The finished parts of a module: shape and bytes.
type ModuleParts = Vec<(Part, Vec<usize>, Stream)>;

/// The notes of the module being written.
pub struct ModuleNotes<'a> {
    sidecar: &'a mut Sidecar,
    module: usize,
    steps: Listed,
    verbatim: Listed,
    by_rule: [Listed; 2],
    bits: Bits,
}

impl Sidecar {
    /// Begins a sidecar for these modules; `scratch` is a path for a file that is gone at the end.
    pub(super) fn create(scratch: &Path, names: Vec<String>) -> Result<Self, ConvertError> {
        let spool = Spool::create(scratch).map_err(ConvertError::io("create", scratch))?;
        Ok(Sidecar { spool, modules: names.iter().map(|_| None).collect(), names })
    }

    /// Begins the notes of a module, which is counted as in [`super::Contents::modules`].
    pub fn module(&mut self, module: usize) -> ModuleNotes<'_> {
        ModuleNotes {
            sidecar: self,
            module,
            steps: Listed::default(),
            verbatim: Listed::default(),
            by_rule: [Listed::default(), Listed::default()],
            bits: Bits::default(),
        }
    }

    /// Writes the file and removes the scratch one. Returns the file's size.
    pub(super) fn write(self, path: &Path) -> Result<u64, ConvertError> {
        let Sidecar { spool, modules, names } = self;
        let mut tensors = Vec::new();
        for (name, parts) in names.iter().zip(modules) {
            for (part, shape, stream) in parts.into_iter().flatten() {
                tensors.push((part.tensor_name(name), dtype_of(part), shape, stream));
            }
        }
        // Wider elements first, as in the weights: each tensor begins on a multiple of its size.
        tensors.sort_by_key(|(_, dtype, ..)| std::cmp::Reverse(dtype.size()));
        let entries: Vec<_> = tensors
            .iter()
            .map(|(name, dtype, shape, _)| (name.clone(), *dtype, shape.clone()))
            .collect();
        let header = Header::lay_out(&entries)?;
        let copy = || -> io::Result<()> {
            let mut file = BufWriter::new(File::create_new(path)?);
            file.write_all(&header.prefix())?;
            for (.., stream) in &tensors {
                stream.replay(&spool, &mut |bytes| file.write_all(bytes))?;
            }
            file.into_inner()?.sync_all()
        };
        copy().map_err(ConvertError::io("write", path))?;
        remove(spool)?;
        Ok(header.file_bytes())
    }

    /// Removes the scratch file; nothing is written.
    pub(super) fn discard(self) -> Result<(), ConvertError> {
        remove(self.spool)
    }
}

fn remove(spool: Spool) -> Result<(), ConvertError> {
    let scratch = spool.path().to_path_buf();
    spool.remove().map_err(ConvertError::io("remove", &scratch))
}

impl ModuleNotes<'_> {
    /// Notes a group. Groups come in ascending order; what is left out is a group with nothing but
    /// +0.0 zeros under a positive step, of which [`ModuleNotes::plain`] must be told.
    pub fn note(&mut self, group: u64, note: &GroupNote) -> Result<(), ConvertError> {
        let spool = &mut self.sidecar.spool;
        let mut push = || -> io::Result<()> {
            match note.step {
                Step::Stored => {}
                Step::Finer(step) => self.steps.push(spool, group, &step.to_le_bytes())?,
                Step::Verbatim(values) => {
                    let bytes: Vec<u8> =
                        values.iter().flat_map(|bits| bits.to_le_bytes()).collect();
                    return self.verbatim.push(spool, group, &bytes);
                }
            }
            let expected = [0, if note.negative_step { note.zeros } else { 0 }];
            for (listed, expected) in self.by_rule.iter_mut().zip(expected) {
                let other = note.negative_zeros ^ expected;
                if other != 0 {
                    listed.push(spool, group, &other.to_le_bytes())?;
                }
            }
            self.bits.push(spool, note.zeros, note.negative_zeros)
        };
        push().map_err(ConvertError::io("write", self.sidecar.spool.path()))
    }

    /// Notes that zeros of groups without any note come next, `zeros` of them, all +0.0 under
    /// positive steps.
    pub fn plain(&mut self, zeros: u64) -> Result<(), ConvertError> {
        let spool = &mut self.sidecar.spool;
        let pushed = self.bits.push_positive(spool, zeros);
        pushed.map_err(ConvertError::io("write", self.sidecar.spool.path()))
    }

    /// Ends the module: keeps the shortest rule for zeros, the lowest number on a tie.
    pub fn end(self) -> Result<(), ConvertError> {
        let ModuleNotes { sidecar, module, steps, verbatim, by_rule, bits } = self;
        let mut parts = ModuleParts::new();
        steps.into_parts(&mut parts, Part::StepGaps, Part::StepValues, &[]);
        verbatim.into_parts(&mut parts, Part::VerbatimGaps, Part::VerbatimValues, &[GROUP]);
        let [positive, sign_of_step] = by_rule;
        // Rules 1 and 2 take a byte to be named.
        let sizes = [positive.bytes(), 1 + sign_of_step.bytes(), 1 + bits.bytes()];
        let shortest = (0..3).min_by_key(|&rule| sizes[rule]).unwrap_or_default();
        let rule = [ZeroRule::Positive, ZeroRule::SignOfStep, ZeroRule::Bits][shortest];
        if rule != ZeroRule::Positive {
            let mut named = Stream::default();
            let pushed = named.push(&mut sidecar.spool, &[rule as u8]);
            pushed.map_err(ConvertError::io("write", sidecar.spool.path()))?;
            parts.push((Part::ZeroRule, vec![1], named));
        }
        match rule {
            ZeroRule::Positive => {
                positive.into_parts(&mut parts, Part::ZeroGaps, Part::ZeroMasks, &[])
            }
            ZeroRule::SignOfStep => {
                sign_of_step.into_parts(&mut parts, Part::ZeroGaps, Part::ZeroMasks, &[]);
            }
            ZeroRule::Bits => {
                let stream = bits
                    .into_stream(&mut sidecar.spool)
                    .map_err(ConvertError::io("write", sidecar.spool.path()))?;
                parts.push((Part::ZeroBits, vec![stream.bytes() as usize], stream));
            }
        }
        for (.., stream) in &mut parts {
            let flushed = stream.flush(&mut sidecar.spool);
            flushed.map_err(ConvertError::io("write", sidecar.spool.path()))?;
        }
        sidecar.modules[module] = Some(parts);
        Ok(())
    }
}

/// Ascending group numbers as a gap list, with a value for each.
#[derive(Default)]
struct Listed {
    gaps: Stream,
    values: Stream,
    count: usize,
    next: u64,
}

impl Listed {
    fn push(&mut self, spool: &mut Spool, group: u64, value: &[u8]) -> io::Result<()> {
        let mut gap = group - self.next;
        while gap >= 255 {
            self.gaps.push(spool, &[255])?;
            gap -= 255;
        }
        self.gaps.push(spool, &[gap as u8])?;
        self.values.push(spool, value)?;
        self.count += 1;
        self.next = group + 1;
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.gaps.bytes() + self.values.bytes()
    }

    fn into_parts(self, parts: &mut ModuleParts, gaps: Part, values: Part, width: &[usize]) {
        if self.count > 0 {
            parts.push((gaps, vec![self.gaps.bytes() as usize], self.gaps));
            let shape = [&[self.count], width].concat();
            parts.push((values, shape, self.values));
        }
    }
}

/// One bit for each zero, lowest first.
#[derive(Default)]
struct Bits {
    stream: Stream,
    byte: u8,
    filled: u32,
}

impl Bits {
    fn bytes(&self) -> u64 {
        self.stream.bytes() + u64::from(self.filled > 0)
    }

    fn push(&mut self, spool: &mut Spool, mut zeros: u32, negative: u32) -> io::Result<()> {
        while zeros != 0 {
            let element = zeros.trailing_zeros();
            zeros &= zeros - 1;
            self.push_bit(spool, (negative >> element) as u8 & 1)?;
        }
        Ok(())
    }

    fn push_positive(&mut self, spool: &mut Spool, mut zeros: u64) -> io::Result<()> {
        while zeros > 0 && self.filled > 0 {
            self.push_bit(spool, 0)?;
            zeros -= 1;
        }
        const EMPTY: [u8; 4096] = [0; 4096];
        let mut bytes = zeros / 8;
        while bytes > 0 {
            let now = bytes.min(EMPTY.len() as u64);
            self.stream.push(spool, &EMPTY[..now as usize])?;
            bytes -= now;
        }
        for _ in 0..zeros % 8 {
            self.push_bit(spool, 0)?;
        }
        Ok(())
    }

    fn push_bit(&mut self, spool: &mut Spool, bit: u8) -> io::Result<()> {
        self.byte |= bit << self.filled;
        self.filled += 1;
        if self.filled == 8 {
            self.stream.push(spool, &[self.byte])?;
            (self.byte, self.filled) = (0, 0);
        }
        Ok(())
    }

    fn into_stream(mut self, spool: &mut Spool) -> io::Result<Stream> {
        if self.filled > 0 {
            self.stream.push(spool, &[self.byte])?;
        }
        Ok(self.stream)
    }
}

fn dtype_of(part: Part) -> Dtype {
    match part {
        Part::StepValues => Dtype::F32,
        Part::VerbatimValues => Dtype::BF16,
        Part::ZeroMasks => Dtype::U32,
        Part::StepGaps | Part::VerbatimGaps | Part::ZeroRule | Part::ZeroGaps | Part::ZeroBits => {
            Dtype::U8
        }
    }
}
