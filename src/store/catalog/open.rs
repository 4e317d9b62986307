//! Opening the files of the index: only those that a clean close vouched for. Anything else is moved
//! away and begun anew, since sled was seen to open damaged files with entries silently missing, or to
//! panic.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::sled::SledIndex;
use super::thread::BATCH;
use super::{DIRECTORY, Entries, Index, IndexHarm, LOCK, Opened};
use crate::identity::SessionId;
use crate::journal::{DiskError, Operation};
use crate::vfs::{Lock, Vfs};

/// sled's files, and nothing else.
const FILES: &str = "sled-v1";
/// Their names, lengths and checksums after a clean close.
const DIGEST: &str = "sled-v1.digest";
/// A digest on its way to its name.
const DIGEST_TEMPORARY: &str = "sled-v1.digest.tmp";
/// The beginning of the names of files that are being removed.
const TRASH: &str = "trash-";
/// The first line of a digest.
const MAGIC: &str = "stepwell index digest 1";
/// Longest digest that is read, in bytes.
const MAX_DIGEST: u64 = 1024 * 1024;
/// How deep sled's directories are.
const DEPTH: usize = 3;

/// Opens the index of a store; `None` if somebody else has it.
pub(super) fn open(vfs: &Arc<dyn Vfs>, store: &Path) -> Result<Option<Opened>, IndexHarm> {
    let place = Place {
        vfs: vfs.clone(),
        dir: store.join(DIRECTORY),
    };
    match vfs.create_dir(&place.dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(DiskError::new(Operation::Create, &place.dir, &error).into());
        }
        _ => {}
    }
    let path = place.dir.join(LOCK);
    let held = vfs.try_lock(&path);
    let held = held.map_err(|error| DiskError::new(Operation::Lock, &path, &error))?;
    let Some(held) = held else {
        return Ok(None);
    };
    place.sweep();
    let believed = place.is_vouched_for();
    // From here on the files change: the digest is gone before, for good.
    place.forget_digest()?;
    if believed && let Ok(files) = place.files() {
        return Ok(Some(Sled::opened(files, place, held, false)));
    }
    place.move_away()?;
    Ok(Some(Sled::opened(place.files()?, place, held, true)))
}

/// sled with its place in the store.
struct Sled {
    /// Closed only by what ends its use.
    files: Option<SledIndex>,
    place: Place,
    /// Whether something was removed. sled leaves its bytes in its files.
    removed: bool,
    #[allow(dead_code, reason = "held until the files are closed")]
    held: Box<dyn Lock>,
}

impl Sled {
    fn opened(files: SledIndex, place: Place, held: Box<dyn Lock>, fresh: bool) -> Opened {
        let index = Box::new(Sled {
            files: Some(files),
            place,
            removed: false,
            held,
        });
        Opened { index, fresh }
    }
}

impl Sled {
    fn files(&self) -> Result<&SledIndex, IndexHarm> {
        self.files.as_ref().ok_or_else(|| IndexHarm::Engine {
            message: "its files could not be made anew".to_owned(),
        })
    }

    fn finish(&mut self) -> Result<(), IndexHarm> {
        self.files.take().map_or(Ok(()), SledIndex::finish)
    }
}

impl Index for Sled {
    fn scan(&mut self) -> Result<Entries, IndexHarm> {
        self.files()?.scan()
    }

    fn put(&mut self, batch: &[(SessionId, Vec<u8>)]) -> Result<(), IndexHarm> {
        self.files()?.put(batch)
    }

    fn remove(&mut self, ids: &[SessionId]) -> Result<(), IndexHarm> {
        self.removed = true;
        self.files()?.remove(ids)
    }

    /// Into new files: sled leaves the bytes of what was removed in the old ones.
    fn tidy(&mut self) -> Result<(), IndexHarm> {
        if !self.removed {
            return Ok(());
        }
        let entries = self.scan()?;
        self.finish()?;
        self.place.move_away()?;
        self.files = Some(self.place.files()?);
        for batch in entries.chunks(BATCH) {
            self.put(batch)?;
        }
        self.removed = false;
        Ok(())
    }

    fn close(mut self: Box<Self>) -> Result<(), IndexHarm> {
        self.finish()?;
        self.place.vouch()
    }
}

struct Place {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
}

impl Place {
    /// Opens sled; a panic is an error like any other.
    fn files(&self) -> Result<SledIndex, IndexHarm> {
        let path = self.dir.join(FILES);
        let opened = catch_unwind(AssertUnwindSafe(|| SledIndex::open(&path)));
        opened.unwrap_or(Err(IndexHarm::Panicked))
    }

    /// Whether the files are those of the last clean close.
    fn is_vouched_for(&self) -> bool {
        let digest = read_limited(&self.dir.join(DIGEST));
        let files = digest_of(&self.dir.join(FILES));
        matches!((&digest, &files), (Ok(digest), Ok(files)) if digest.as_slice() == files.as_bytes())
    }

    fn vouch(&self) -> Result<(), IndexHarm> {
        let path = self.dir.join(DIGEST);
        let temporary = self.dir.join(DIGEST_TEMPORARY);
        let written = digest_of(&self.dir.join(FILES))
            .and_then(|digest| fs::write(&temporary, digest))
            // Nothing is synced: a power loss that leaves files of which this is not the digest only
            // costs their contents.
            .and_then(|()| self.vfs.rename(&temporary, &path));
        Ok(written.map_err(|error| DiskError::new(Operation::Write, &path, &error))?)
    }

    fn forget_digest(&self) -> Result<(), IndexHarm> {
        let path = self.dir.join(DIGEST);
        let failed = |operation, error: &io::Error| DiskError::new(operation, &path, error);
        let handle = self.vfs.open_dir(&self.dir);
        let handle = handle.map_err(|error| failed(Operation::Open, &error))?;
        match self.vfs.remove_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            removed => removed.map_err(|error| failed(Operation::Remove, &error))?,
        }
        let synced = handle.sync();
        Ok(synced.map_err(|error| failed(Operation::SyncDirectory, &error))?)
    }

    /// Takes the files out of the way, whatever they are.
    fn move_away(&self) -> Result<(), IndexHarm> {
        let files = self.dir.join(FILES);
        let trash = self.dir.join(format!("{TRASH}{}", uuid::Uuid::new_v4()));
        match self.vfs.rename(&files, &trash) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            renamed => {
                renamed.map_err(|error| DiskError::new(Operation::Rename, &files, &error))?;
            }
        }
        tracing::debug!(path = %files.display(), "the files of the index are made anew");
        self.sweep();
        Ok(())
    }

    /// Removes what was moved away.
    fn sweep(&self) {
        let trash = self.vfs.list(&self.dir).unwrap_or_default();
        for entry in trash.iter().filter(|entry| entry.name.starts_with(TRASH)) {
            let path = self.dir.join(&entry.name);
            let removed = match entry.is_dir {
                true => fs::remove_dir_all(&path),
                false => fs::remove_file(&path),
            };
            if let Err(error) = removed {
                tracing::debug!(%error, path = %path.display(), "files of an old index stay");
            }
        }
    }
}

fn read_limited(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path)?;
    file.take(MAX_DIGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The digest of the files in a directory and below it: one line each.
fn digest_of(dir: &Path) -> io::Result<String> {
    let mut lines = Vec::new();
    walk(dir, "", DEPTH, &mut lines)?;
    lines.sort();
    let text = format!("{MAGIC}\n{}", lines.concat());
    let crc = crc32fast::hash(text.as_bytes());
    Ok(format!("{text}crc {crc:08x}\n"))
}

fn walk(dir: &Path, prefix: &str, depth: usize, lines: &mut Vec<String>) -> io::Result<()> {
    let odd = || io::Error::from(ErrorKind::InvalidData);
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().into_string().map_err(|_| odd())?;
        let name = format!("{prefix}{name}");
        let kind = entry.file_type()?;
        if kind.is_dir() && depth > 0 {
            walk(&entry.path(), &format!("{name}/"), depth - 1, lines)?;
        } else if kind.is_file() {
            let (length, crc) = checksum(&entry.path())?;
            lines.push(format!("{crc:08x} {length} {name}\n"));
        } else {
            return Err(odd());
        }
    }
    Ok(())
}

fn checksum(path: &Path) -> io::Result<(u64, u32)> {
    let mut file = fs::File::open(path)?;
    let mut crc = crc32fast::Hasher::new();
    let mut buffer = vec![0; 64 * 1024];
    let mut length = 0;
    loop {
        let read = match file.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
        if read == 0 {
            return Ok((length, crc.finalize()));
        }
        crc.update(buffer.get(..read).unwrap_or_default());
        length += read as u64;
    }
}
