//! The sidecar's lists, each read once from front to back with little memory.

use w4pack_format::dtype::Dtype;
use w4pack_format::exact::{EXACT_FILE, Part};
use w4pack_format::header::Header;
use w4pack_format::source::Source;

use crate::ConvertError;

/// Bytes of a list read at a time.
const PIECE: u64 = 64 << 10;

/// The sidecar of a packed checkpoint, its header read.
pub(super) struct Sidecar<'a> {
    source: &'a dyn Source,
    header: Header,
}

/// A tensor of the sidecar, read from front to back. One that is not there is empty.
pub(super) struct Bytes<'a> {
    source: &'a dyn Source,
    name: String,
    /// Places in the file: what comes next, and the end.
    next: u64,
    end: u64,
    piece: Vec<u8>,
    taken: usize,
}

/// Ascending group numbers.
pub(super) struct Gaps<'a> {
    bytes: Bytes<'a>,
    next: Option<u64>,
}

impl<'a> Sidecar<'a> {
    /// Errors: the file is not there, or no sound safetensors file.
    pub(super) fn open(source: &'a dyn Source) -> Result<Self, ConvertError> {
        let bytes = source.size(EXACT_FILE).ok_or_else(|| ConvertError::NotRestorable {
            place: source.label().into(),
            problem: format!("it has no `{EXACT_FILE}`, which says what 16-bit steps cannot"),
        })?;
        let file = format!("{}/{EXACT_FILE}", source.label());
        let header = Header::parse(&file, bytes, &mut |offset, buffer| {
            source.read_at(EXACT_FILE, offset, buffer)
        })?;
        Ok(Sidecar { source, header })
    }

    /// A part of a module.
    pub(super) fn part(&self, module: &str, part: Part) -> Result<Bytes<'a>, ConvertError> {
        let name = part.tensor_name(module);
        let mut bytes = Bytes {
            source: self.source,
            next: 0,
            end: 0,
            piece: Vec::new(),
            taken: 0,
            name: name.clone(),
        };
        if let Some(info) = self.header.tensors.iter().find(|tensor| tensor.name == name) {
            let dtype = match part {
                Part::StepValues => Dtype::F32,
                Part::VerbatimValues => Dtype::BF16,
                Part::ZeroMasks => Dtype::U32,
                _ => Dtype::U8,
            };
            if info.dtype != dtype {
                return Err(bytes.fault(format!("it is {}, the schema says {dtype}", info.dtype)));
            }
            bytes.next = self.header.data_start() + info.begin;
            bytes.end = self.header.data_start() + info.end;
        }
        Ok(bytes)
    }
}

impl Bytes<'_> {
    /// The next `N` bytes; `None` at the end. Errors: fewer are left.
    pub(super) fn take<const N: usize>(&mut self) -> Result<Option<[u8; N]>, ConvertError> {
        let mut taken = [0; N];
        for (number, byte) in taken.iter_mut().enumerate() {
            match self.byte()? {
                Some(next) => *byte = next,
                None if number == 0 => return Ok(None),
                None => return Err(self.fault("it ends in the middle of an entry".into())),
            }
        }
        Ok(Some(taken))
    }

    /// The next `N` bytes, which must be there.
    pub(super) fn must_take<const N: usize>(&mut self) -> Result<[u8; N], ConvertError> {
        self.take()?.ok_or_else(|| self.fault("it ends before its list of groups".into()))
    }

    fn byte(&mut self) -> Result<Option<u8>, ConvertError> {
        if self.taken == self.piece.len() {
            let length = PIECE.min(self.end - self.next);
            self.piece.resize(length as usize, 0);
            self.source.read_at(EXACT_FILE, self.next, &mut self.piece)?;
            self.next += length;
            self.taken = 0;
        }
        let byte = self.piece.get(self.taken).copied();
        self.taken += usize::from(byte.is_some());
        Ok(byte)
    }

    /// Errors: something is left.
    pub(super) fn end(&mut self) -> Result<(), ConvertError> {
        match self.byte()? {
            None => Ok(()),
            Some(_) => Err(self.fault("it goes on behind the last group".into())),
        }
    }

    pub(super) fn fault(&self, problem: String) -> ConvertError {
        ConvertError::Tensor {
            file: format!("{}/{EXACT_FILE}", self.source.label()),
            tensor: self.name.clone(),
            problem,
        }
    }
}

impl<'a> Gaps<'a> {
    pub(super) fn new(bytes: Bytes<'a>) -> Result<Self, ConvertError> {
        let mut gaps = Gaps { bytes, next: None };
        gaps.next = gaps.decode()?;
        Ok(gaps)
    }

    /// Takes the next group if its number is below `end`.
    pub(super) fn take_below(&mut self, end: u64) -> Result<Option<u64>, ConvertError> {
        let Some(group) = self.next.filter(|&group| group < end) else { return Ok(None) };
        self.next = self.decode()?.map(|difference| group + 1 + difference);
        Ok(Some(group))
    }

    /// Errors: a group is left.
    pub(super) fn end(&self) -> Result<(), ConvertError> {
        match self.next {
            None => Ok(()),
            Some(group) => {
                Err(self.bytes.fault(format!("it names group {group}, which is not there")))
            }
        }
    }

    fn decode(&mut self) -> Result<Option<u64>, ConvertError> {
        let mut difference = 0;
        let mut begun = false;
        loop {
            match self.bytes.take::<1>()? {
                Some([255]) => difference += 255,
                Some([rest]) => return Ok(Some(difference + u64::from(rest))),
                None if begun => {
                    return Err(self.bytes.fault("it ends in the middle of a number".into()));
                }
                None => return Ok(None),
            }
            begun = true;
        }
    }
}
