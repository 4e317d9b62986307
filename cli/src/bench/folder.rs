//! The temporary folder of a measurement.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use super::BenchError;

const PREFIX: &str = "stepwell-bench-";
const LOCK: &str = "LOCK";

/// A folder of our own below the directory that was given, removed when it is dropped. A run that was
/// killed leaves its folder behind; the next one in the same directory removes it.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    pub(super) fn make(dir: &Path) -> Result<Folder, BenchError> {
        remove_left_over(dir);
        let path = dir.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path).map_err(BenchError::disk(&path))?;
        let locked = File::create(path.join(LOCK)).and_then(|lock| {
            lock.lock()?;
            Ok(lock)
        });
        match locked {
            Ok(lock) => Ok(Folder { path, _lock: lock }),
            Err(error) => {
                let _ = fs::remove_dir_all(&path);
                Err(BenchError::Disk { path, error })
            }
        }
    }

    /// The path of something in it.
    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the folders of runs that have ended: nobody holds their lock.
fn remove_left_over(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let ours = path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with(PREFIX));
        if ours && is_abandoned(&path) {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

fn is_abandoned(path: &Path) -> bool {
    let Ok(lock) = File::open(path.join(LOCK)) else {
        return false;
    };
    !matches!(
        lock.try_lock(),
        Err(TryLockError::WouldBlock | TryLockError::Error(_))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_with_its_run_and_takes_abandoned_ones_along() {
        let dir = tempfile::tempdir().unwrap();
        let abandoned = dir.path().join("stepwell-bench-1");
        let foreign = dir.path().join("stepwell-bench-notes");
        fs::create_dir(&abandoned).unwrap();
        fs::write(abandoned.join(LOCK), "").unwrap();
        fs::create_dir(&foreign).unwrap();
        let folder = Folder::make(dir.path()).unwrap();
        fs::write(folder.join("data"), "x").unwrap();
        assert!(!abandoned.exists());
        assert!(!is_abandoned(&folder.path));
        let path = folder.path.clone();
        drop(folder);
        assert!(!path.exists());
        assert!(foreign.exists());
    }
}
