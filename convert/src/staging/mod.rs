//! A folder that appears under its final name complete, or not at all, whatever kills the process.
//!
//! Everything is written to `.NAME.partial-PID` beside the final name and flushed; one rename then
//! puts it in place. An older output changes places with the new one in a single step, so there is
//! no moment without an output under its name. What a killed run left behind is removed by the next
//! one ([`leftovers`]).

mod leftovers;
mod place;
mod space;

pub(crate) use place::{check_new_folder, check_output};
pub(crate) use space::free_space;

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use w4pack_format::source::W4PACK_FOLDER;

use crate::ConvertError;
use place::parent;

/// The folder in the making, a sibling of the final one; removed when dropped.
pub(crate) struct Staging {
    folder: PathBuf,
    out: PathBuf,
    /// Folders that had to be made for it, the outermost first.
    made: Vec<PathBuf>,
    /// Held open and locked while the folder is in the making: so others see that somebody works
    /// on it, in whatever process namespace they are.
    _lock: Option<File>,
    needed: u64,
    in_place: bool,
}

impl Staging {
    /// Makes the folder, once the disk has `needed` bytes free (what is known of the output before
    /// it is written), and removes what killed runs left of theirs.
    pub(crate) fn create(out: &Path, needed: u64) -> Result<Self, ConvertError> {
        let folder = leftovers::sibling(out, leftovers::PARTIAL);
        let mut staging = Staging {
            folder,
            out: out.to_path_buf(),
            made: Vec::new(),
            _lock: None,
            needed,
            in_place: false,
        };
        staging.make_parents()?;
        leftovers::clear(out)?;
        let free = space::free(parent(out))?;
        if free < needed {
            let place = parent(out).display().to_string();
            return Err(ConvertError::NoSpace { place, needed, free });
        }
        let folder = &staging.folder;
        fs::create_dir(folder).map_err(ConvertError::io("create", folder))?;
        let lock = File::open(folder).map_err(ConvertError::io("open", folder))?;
        // A file system without locks: then the number of the process alone says who works here.
        staging._lock =
            flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok().then_some(lock);
        Ok(staging)
    }

    fn make_parents(&mut self) -> Result<(), ConvertError> {
        let missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let mut missing: Vec<&Path> = self.out.ancestors().skip(1).take_while(missing).collect();
        missing.reverse();
        for folder in missing {
            match fs::create_dir(folder) {
                // Somebody else was faster.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                other => {
                    other.map_err(ConvertError::io("create", folder))?;
                    self.made.push(folder.to_path_buf());
                }
            }
        }
        Ok(())
    }

    /// The path of a file below the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Makes the subfolder for what w4pack adds.
    pub(crate) fn make_w4pack_folder(&self) -> Result<(), ConvertError> {
        let inner = self.path(W4PACK_FOLDER);
        fs::create_dir(&inner).map_err(ConvertError::io("create", &inner))
    }

    /// Writes a small file whole.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), ConvertError> {
        let path = self.path(name);
        let written = fs::write(&path, bytes).and_then(|()| File::open(&path)?.sync_all());
        written.map_err(ConvertError::io("write", &path))
    }

    /// An error met while writing here: a full disk is told with the bytes needed and free.
    pub(crate) fn explain(&self, error: ConvertError) -> ConvertError {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        match error {
            ConvertError::Io { cause, .. }
                if matches!(cause.kind(), StorageFull | QuotaExceeded) =>
            {
                let place = parent(&self.out);
                // What this run has written is free again as soon as it is removed.
                let own = space::occupied(&self.folder);
                let free = space::free(place).map_or(own, |free| free + own);
                ConvertError::DiskFull {
                    place: place.display().to_string(),
                    needed: self.needed,
                    free,
                }
            }
            other => other,
        }
    }

    /// Puts the folder in place of what stands under the final name.
    pub(crate) fn commit(mut self) -> Result<(), ConvertError> {
        self.make_readable().map_err(ConvertError::io("finish", &self.folder))?;
        self.take_place()?;
        self.in_place = true;
        let folder = parent(&self.out);
        let flushed = File::open(folder).and_then(|folder| folder.sync_all());
        flushed.map_err(ConvertError::io("flush", folder))?;
        // Where an older output stood, it lies here now.
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(ConvertError::io("remove", &self.folder)(error))
            }
            _ => Ok(()),
        }
    }

    fn take_place(&self) -> Result<(), ConvertError> {
        let failed = |cause: Errno| ConvertError::io("move into place", &self.out)(cause.into());
        // A rename takes the place of nothing, or of an empty folder.
        match rustix::fs::rename(&self.folder, &self.out) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            other => return other.map_err(failed),
        }
        match renameat_with(CWD, &self.folder, CWD, &self.out, RenameFlags::EXCHANGE) {
            // A file system that cannot exchange.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            other => return other.map_err(failed),
        }
        self.take_place_in_two_steps()
    }

    /// The older output steps aside first, and comes back if the new one cannot take its place. A
    /// run killed in between leaves it aside; the next one brings it back ([`leftovers::clear`]).
    fn take_place_in_two_steps(&self) -> Result<(), ConvertError> {
        let old = leftovers::sibling(&self.out, leftovers::OLD);
        fs::rename(&self.out, &old).map_err(ConvertError::io("move", &self.out))?;
        if let Err(cause) = fs::rename(&self.folder, &self.out) {
            fs::rename(&old, &self.out).map_err(ConvertError::io("move back", &self.out))?;
            return Err(ConvertError::io("move into place", &self.out)(cause));
        }
        fs::remove_dir_all(&old).map_err(ConvertError::io("remove", &old))
    }

    /// Files 0644, folders 0755, all flushed to the disk.
    fn make_readable(&self) -> io::Result<()> {
        let inner = Some(self.path(W4PACK_FOLDER)).filter(|inner| inner.exists());
        for folder in inner.into_iter().chain([self.folder.clone()]) {
            for entry in fs::read_dir(&folder)? {
                let path = entry?.path();
                let mode = if path.is_dir() { 0o755 } else { 0o644 };
                fs::set_permissions(&path, Permissions::from_mode(mode))?;
                File::open(&path)?.sync_all()?;
            }
            fs::set_permissions(&folder, Permissions::from_mode(0o755))?;
            File::open(&folder)?.sync_all()?;
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.in_place {
            return;
        }
        // Nothing more can be done about a scratch folder that cannot be removed; the error that
        // led here is the one to report.
        let _ = fs::remove_dir_all(&self.folder);
        for folder in self.made.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staged(out: &Path, content: &str) -> Staging {
        let staging = Staging::create(out, 0).unwrap();
        staging.write("file", content.as_bytes()).unwrap();
        staging
    }

    fn content(out: &Path) -> String {
        fs::read_to_string(out.join("file")).unwrap()
    }

    #[test]
    fn both_ways_of_taking_a_place_leave_the_new_output_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("a/b/out");
        staged(&out, "one").commit().unwrap();
        assert_eq!(content(&out), "one");
        staged(&out, "two").commit().unwrap();
        assert_eq!(content(&out), "two");
        let mut third = staged(&out, "three");
        third.take_place_in_two_steps().unwrap();
        third.in_place = true;
        assert_eq!(content(&out), "three");
        assert_eq!(fs::read_dir(out.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_not_committed_goes_with_the_folders_made_for_it() {
        let folder = tempfile::tempdir().unwrap();
        drop(staged(&folder.path().join("a/b/out"), "never"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_disk_with_too_little_room_is_named_with_both_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("a/out");
        let error = Staging::create(&out, u64::MAX).err().unwrap();
        assert!(error.to_string().contains(&u64::MAX.to_string()), "{error}");
        assert!(matches!(error, ConvertError::NoSpace { free, .. } if free > 0));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
