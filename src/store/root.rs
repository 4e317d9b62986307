//! The file that says what a store's directory is (`docs/format.md` section 8).

use std::path::Path;
use std::sync::Arc;

use super::StoreError;
use super::options::Layout;
use crate::journal::{DiskError, Operation};
use crate::vfs::{Access, Vfs};

pub(super) const NAME: &str = "STORE";
const MAGIC: [u8; 8] = *b"STEPSTOR";
const LEN: usize = 24;
const VERSION: u32 = 1;

/// The `STORE` file: magic, CRC of bytes 12 to 23, version, layout, zero.
fn encode(layout: Layout) -> Vec<u8> {
    let mut tail = Vec::new();
    tail.extend_from_slice(&VERSION.to_le_bytes());
    tail.extend_from_slice(
        &match layout {
            Layout::PerSession => 0u32,
            Layout::Shared => 1,
        }
        .to_le_bytes(),
    );
    tail.extend_from_slice(&[0; 4]);
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&crc32fast::hash(&tail).to_le_bytes());
    out.extend_from_slice(&tail);
    out
}

fn decode(bytes: &[u8], path: &Path) -> Result<Layout, StoreError> {
    let damaged = || StoreError::Damaged {
        path: path.to_owned(),
    };
    let number = |at: usize| -> Option<u32> {
        Some(u32::from_le_bytes(
            bytes.get(at..at.checked_add(4)?)?.try_into().ok()?,
        ))
    };
    if bytes.len() != LEN || bytes.get(..8) != Some(&MAGIC) {
        return Err(damaged());
    }
    let crc = crc32fast::hash(bytes.get(12..).unwrap_or_default());
    if number(8) != Some(crc) {
        return Err(damaged());
    }
    match (number(12), number(16)) {
        (Some(VERSION), Some(0)) => Ok(Layout::PerSession),
        (Some(VERSION), Some(1)) => Ok(Layout::Shared),
        (Some(version), _) if version > VERSION => Err(StoreError::NewerFormat {
            path: path.to_owned(),
            version,
        }),
        _ => Err(damaged()),
    }
}

/// Reads the file; `None` if there is none.
pub(super) fn read(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<Option<Layout>, StoreError> {
    let path = dir.join(NAME);
    let failed = |operation, error: &std::io::Error| DiskError::new(operation, &path, error);
    let file = match vfs.open(&path, Access::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(Operation::Open, &error).into()),
    };
    let mut bytes = [0; LEN + 1];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(Operation::Read, &error).into()),
        }
    }
    decode(bytes.get(..filled).unwrap_or_default(), &path).map(Some)
}

/// Writes the file, so that it is there whole or not at all: two processes that create the same store
/// at once write the same bytes.
pub(super) fn write(vfs: &Arc<dyn Vfs>, dir: &Path, layout: Layout) -> Result<(), StoreError> {
    let word = crate::identity::SessionId::try_new()
        .map_or_else(|_| std::process::id().to_string(), |id| id.to_string());
    let temporary = dir.join(format!("{NAME}.{word}.tmp"));
    let written = publish(vfs, dir, &temporary, layout);
    if written.is_err() {
        // What is left of it is in nobody's way: the next try makes a name of its own.
        let _ = vfs.remove_file(&temporary);
    }
    written
}

fn publish(
    vfs: &Arc<dyn Vfs>,
    dir: &Path,
    temporary: &Path,
    layout: Layout,
) -> Result<(), StoreError> {
    let path = dir.join(NAME);
    let handle = vfs
        .open_dir(dir)
        .map_err(|error| DiskError::new(Operation::Open, dir, &error))?;
    let file = vfs
        .create(temporary)
        .map_err(|error| DiskError::new(Operation::Create, temporary, &error))?;
    let mut bytes = &encode(layout)[..];
    let mut offset = 0;
    while !bytes.is_empty() {
        match file.write_at(bytes, offset) {
            Ok(0) => {
                let zero = std::io::ErrorKind::WriteZero.into();
                return Err(DiskError::new(Operation::Write, temporary, &zero).into());
            }
            Ok(written) => {
                bytes = bytes.get(written..).unwrap_or_default();
                offset += written as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(DiskError::new(Operation::Write, temporary, &error).into()),
        }
    }
    file.sync_data()
        .map_err(|error| DiskError::new(Operation::Sync, temporary, &error))?;
    vfs.rename(temporary, &path)
        .map_err(|error| DiskError::new(Operation::Rename, &path, &error))?;
    handle.sync().map_err(|error| {
        // As for directories: the next try makes a new name.
        let _ = vfs.remove_file(&path);
        DiskError::new(Operation::SyncDirectory, dir, &error).into()
    })
}
