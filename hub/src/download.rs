//! From the Hub into the cache: what is missing is fetched, what broke off is continued, and nothing
//! gets its final name before size and hash are the listed ones.

use crate::cache::{Place, create, failed, parent};
use crate::check::FileHash;
use crate::http::{Answer, Call, Patience, io_in_words};
use crate::{Hub, HubError, RemoteFile, Result, Snapshot};
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Bytes read at a time.
const BLOCK: usize = 1 << 18;

/// Fills the cache with all files of a snapshot; gives their folder.
pub(crate) fn download(hub: &Hub, snapshot: &Snapshot, revision: &str) -> Result<PathBuf> {
    let place = Place::of(&hub.settings, &snapshot.name);
    let folder = place.snapshot(&snapshot.commit);
    let is_missing = |file: &&RemoteFile| !file.is_in(&folder);
    let missing: Vec<&RemoteFile> = snapshot.files.iter().filter(is_missing).collect();
    create(&place.root)?;
    let bytes = check_room(hub, &place, snapshot, &missing)?;
    if bytes > 0 {
        hub.progress.begin("downloading", bytes);
    }
    for file in &missing {
        let download = Download { hub, snapshot, file, place: &place };
        download.run(&place.blob(file.blob()))?;
    }
    // Only now, since a folder that is there is taken for whole when nobody can be asked.
    create(&folder)?;
    for file in &missing {
        place.link(&place.blob(file.blob()), &folder.join(&file.path))?;
    }
    if revision != snapshot.commit {
        place.write_whole(&place.reference(revision), &snapshot.commit)?;
    }
    Ok(folder)
}

/// Bytes still to be fetched. Errors: the disk has no room for them.
fn check_room(
    hub: &Hub,
    place: &Place,
    snapshot: &Snapshot,
    missing: &[&RemoteFile],
) -> Result<u64> {
    let size = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
    let needed: u64 = missing
        .iter()
        .filter(|file| size(&place.blob(file.blob())) != file.bytes)
        .map(|file| file.bytes.saturating_sub(size(&place.incomplete(file.blob()))))
        .fold(0, u64::saturating_add);
    let disk = rustix::fs::statvfs(&place.root)
        .map_err(|cause| failed("look at the disk of", &place.root)(cause.into()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if needed > free {
        return Err(HubError::NoSpace {
            place: hub.settings.cache.display().to_string(),
            name: snapshot.name.to_string(),
            needed,
            free,
        });
    }
    Ok(needed)
}

struct Download<'a> {
    hub: &'a Hub,
    snapshot: &'a Snapshot,
    file: &'a RemoteFile,
    place: &'a Place,
}

impl Download<'_> {
    /// Makes the blob whole, unless it is.
    fn run(&self, blob: &Path) -> Result<()> {
        let lock = self.place.lock(self.file.blob());
        create(parent(&lock))?;
        create(parent(blob))?;
        let lock_file = File::create(&lock).map_err(failed("create", &lock))?;
        // Python's library takes the same lock on the same file.
        if let Err(TryLockError::WouldBlock) = lock_file.try_lock() {
            let path = &self.file.path;
            self.hub.progress.note(&format!("another process is downloading `{path}`: waiting"));
        }
        lock_file.lock().map_err(failed("lock", &lock))?;
        if fs::metadata(blob).is_ok_and(|found| found.len() == self.file.bytes) {
            return Ok(());
        }
        let path = self.place.incomplete(self.file.blob());
        let mut again = true;
        loop {
            let (file, hash) = self.fetch(&path)?;
            match hash.check(self.snapshot.name.as_str(), self.file) {
                Ok(()) => {
                    file.set_permissions(fs::Permissions::from_mode(0o644))
                        .and_then(|()| file.sync_all())
                        .and_then(|()| fs::rename(&path, blob))
                        .map_err(failed("write", blob))?;
                    return Ok(());
                }
                Err(error) => {
                    // What lay there before may be to blame: once more from the first byte.
                    fs::remove_file(&path).map_err(failed("remove", &path))?;
                    if !std::mem::take(&mut again) {
                        return Err(error);
                    }
                    self.hub.progress.note(&format!("{error}; fetching it once more"));
                }
            }
        }
    }

    /// Fetches what is missing of the file, over as many connections as it takes.
    fn fetch(&self, path: &Path) -> Result<(File, FileHash)> {
        let io = |attempt| failed(attempt, path);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            // A link there would lead to a file that is none of ours.
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(path)
            .map_err(io("open"))?;
        let mut hash = FileHash::of(self.file);
        let mut have = read_again(&mut file, &mut hash, self.file.bytes).map_err(io("read"))?;
        let mut patience = Patience::new(&self.hub.http);
        while have < self.file.bytes {
            let before = have;
            let call = self.call(have);
            let mut answer = self.hub.http.send(&call)?;
            if !self.continues(&answer, have)? {
                hash = FileHash::of(self.file);
                file.set_len(0).and_then(|()| file.rewind()).map_err(io("write"))?;
                have = 0;
            }
            let finding =
                self.copy(&mut answer, &mut file, &mut hash, &mut have).map_err(io("write"))?;
            let Some(finding) = finding else { continue };
            let next = format!(
                "after {have} of {} bytes of `{}`: going on from there",
                self.file.bytes, self.file.path
            );
            let gained = have.saturating_sub(before);
            patience.broken(&call, &answer.host, &finding, gained, &next)?;
        }
        Ok((file, hash))
    }

    fn call(&self, from: u64) -> Call<'_> {
        let Snapshot { name, commit, .. } = self.snapshot;
        let url = self.hub.file_url(name, commit, &self.file.path);
        let call = Call::get(url, format!("download `{}` of `{name}`", self.file.path));
        if from > 0 { call.header("range", format!("bytes={from}-")) } else { call }
    }

    /// Whether an answer goes on from byte `have`; otherwise it begins at the first.
    ///
    /// Errors: another part of the file, or a file of another size.
    fn continues(&self, answer: &Answer, have: u64) -> Result<bool> {
        let wrong = |problem: String| {
            let attempt = self.call(0).attempt;
            HubError::Answer { attempt, host: answer.host.clone(), problem }
        };
        let wanted = self.file.bytes;
        if answer.status == 206 {
            return match answer.content_range() {
                Some((first, size)) if (first, size) == (have, wanted) => Ok(true),
                found => {
                    Err(wrong(format!("asked for bytes {have}- of {wanted}, it has {found:?}")))
                }
            };
        }
        match answer.length() {
            Some(length) if length != wanted => {
                Err(wrong(format!("it has {length} bytes, the Hub lists {wanted}")))
            }
            _ => Ok(have == 0),
        }
    }

    /// Writes what comes; gives what ended it too early, if anything did.
    fn copy(
        &self,
        answer: &mut Answer,
        file: &mut File,
        hash: &mut FileHash,
        have: &mut u64,
    ) -> std::io::Result<Option<String>> {
        let mut block = vec![0; BLOCK];
        loop {
            let length = match answer.read(&mut block) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) => return Ok(Some(io_in_words(&error))),
            };
            // A body longer than the file is cut there; the hash then says whether it was the file.
            let length = length.min((self.file.bytes - *have) as usize);
            file.write_all(&block[..length])?;
            hash.update(&block[..length]);
            *have += length as u64;
            self.hub.progress.advance(length as u64);
            if *have == self.file.bytes {
                return Ok(None);
            }
        }
        Ok(Some("ended the transfer".into()))
    }
}

/// Takes up a file that was left incomplete: hashes what is there, and stands behind it.
fn read_again(file: &mut File, hash: &mut FileHash, whole: u64) -> std::io::Result<u64> {
    let mut have = file.metadata()?.len();
    if have > whole {
        file.set_len(0)?;
        have = 0;
    }
    let mut block = vec![0; BLOCK];
    let mut left = have;
    while left > 0 {
        let length = file.read(&mut block[..BLOCK.min(left as usize)])?;
        if length == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        hash.update(&block[..length]);
        left -= length as u64;
    }
    file.seek(SeekFrom::Start(have))?;
    Ok(have)
}
