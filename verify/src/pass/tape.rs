//! The reading thread: files from the first byte to the last, cut into blocks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use w4pack_format::Result;
use w4pack_format::checkpoint::{Checkpoint, Shard};
use w4pack_format::digest::Hasher;

use super::{Part, Tasks};
use crate::progress::Progress;

/// Bytes in a block; a whole number of groups.
pub const BLOCK: u64 = 1 << 20;

/// A piece of one part of a source tensor. Its buffer goes back when the last holder lets it go.
pub struct Block {
    /// Its place among all blocks.
    pub number: u64,
    /// The tensor.
    pub tensor: Arc<str>,
    /// Which part of the tensor it belongs to.
    pub part: usize,
    /// Its first byte in the part.
    pub offset: u64,
    /// Whether the part ends with it.
    pub is_last: bool,
    /// Whether the tensor ends with it.
    pub ends_tensor: bool,
    bytes: Vec<u8>,
    home: Sender<Vec<u8>>,
}

impl Block {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // When the reader is gone nobody needs buffers.
        let _ = self.home.send(std::mem::take(&mut self.bytes));
    }
}

/// A number of buffers that go round.
pub struct Buffers {
    free: Receiver<Vec<u8>>,
    home: Sender<Vec<u8>>,
}

impl Buffers {
    /// So many buffers.
    pub fn new(number: usize) -> Buffers {
        let (home, free) = channel();
        for _ in 0..number {
            // The other end is in our hands.
            let _ = home.send(Vec::new());
        }
        Buffers { free, home }
    }

    /// Waits for a buffer.
    fn take(&self, bytes: u64) -> Vec<u8> {
        let mut buffer = self.free.recv().unwrap_or_default();
        buffer.resize(bytes as usize, 0);
        buffer
    }
}

/// What is read.
pub struct Tape<'a> {
    /// All its shards.
    pub source: &'a Checkpoint,
    /// The parts of each tensor.
    pub tasks: &'a Tasks<'a>,
    /// Whether files are hashed.
    pub hashed: bool,
    /// Who hears of it.
    pub progress: &'a dyn Progress,
}

impl Tape<'_> {
    /// Reads everything and sends it block by block, until `send` says `false`; gives the files'
    /// SHA-256.
    pub fn play(
        &self,
        buffers: &Buffers,
        mut send: impl FnMut(Arc<Block>) -> bool,
    ) -> Result<BTreeMap<String, String>> {
        let mut hashes = BTreeMap::new();
        let mut number = 0;
        for shard in self.source.shards() {
            let mut hasher = Hasher::default();
            if !self.play_shard(shard, &mut hasher, &mut number, buffers, &mut send)? {
                break;
            }
            if self.hashed {
                hashes.insert(shard.path.clone(), hasher.finish());
            }
        }
        Ok(hashes)
    }

    /// Whether the shard was read to its end.
    fn play_shard(
        &self,
        shard: &Shard,
        hasher: &mut Hasher,
        number: &mut u64,
        buffers: &Buffers,
        send: &mut impl FnMut(Arc<Block>) -> bool,
    ) -> Result<bool> {
        let files = self.source.source();
        let mut header = vec![0; shard.header.data_start() as usize];
        files.read_at(&shard.path, 0, &mut header)?;
        if self.hashed {
            hasher.update(&header);
        }
        for info in &shard.header.tensors {
            let tensor: Arc<str> = info.name.as_str().into();
            let begin = shard.header.data_start() + info.begin;
            // Every tensor of the source has parts.
            let parts = self.tasks.get(&*info.name).map_or(&[][..], Vec::as_slice);
            for (part, place) in parts.iter().enumerate().flat_map(blocks) {
                let whole = &parts[part].bytes;
                let mut bytes = buffers.take(place.end - place.start);
                files.read_at(&shard.path, begin + place.start, &mut bytes)?;
                if self.hashed {
                    hasher.update(&bytes);
                }
                self.progress.advance(place.end - place.start);
                let block = Block {
                    number: *number,
                    tensor: tensor.clone(),
                    part,
                    offset: place.start - whole.start,
                    is_last: place.end == whole.end,
                    ends_tensor: place.end == info.bytes(),
                    bytes,
                    home: buffers.home.clone(),
                };
                *number += 1;
                if !send(Arc::new(block)) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// The blocks of a part: the part's number and bytes of the tensor.
fn blocks((number, part): (usize, &Part<'_>)) -> impl Iterator<Item = (usize, Range<u64>)> + use<> {
    let end = part.bytes.end;
    let begins = part.bytes.clone().step_by(BLOCK as usize);
    begins.map(move |begin| (number, begin..end.min(begin + BLOCK)))
}
