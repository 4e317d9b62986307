//! The file that says who holds the lock (P9; `docs/format.md` section 9). It is for people only: it
//! is not synced and not part of the log, and a failure to write it fails nothing.

use super::directory::{Directory, OpenFile};
use super::error::{DiskError, OpenError};
use super::frame::crc;
use super::names::HOLDER;
use crate::identity::Timestamp;
use crate::vfs::{Access, Holder};

/// Bytes of the file: always one sector, so that it is written over as a whole.
const LEN: usize = 512;
/// Longest name of a host or a boot that is written or believed, in bytes.
const MAX_NAME: usize = 128;
const MAGIC: &str = "stepwell holder 1";

/// Says that this process holds the lock; called by who has just taken it.
pub(crate) fn announce(directory: &Directory) {
    let holder = directory.vfs().holder();
    if let Err(error) = write(directory, &encode(&holder)) {
        tracing::warn!(%error, "who holds the lock could not be written; others are not told");
    }
}

fn write(directory: &Directory, bytes: &[u8]) -> Result<(), DiskError> {
    let file = match directory.open_file(HOLDER, Access::Write)? {
        Some(file) => file,
        None => directory.create_file(HOLDER)?,
    };
    file.write_all(bytes, 0)?;
    match file.len()? {
        length if length == bytes.len() as u64 => Ok(()),
        _ => file.set_len(bytes.len() as u64),
    }
}

/// The error of a lock that somebody else holds, with who that is as far as it can be told.
pub(crate) fn locked(directory: &Directory) -> OpenError {
    let read = directory.open_file(HOLDER, Access::Read);
    let holder = read.and_then(|file| file.map_or(Ok(None), |file| self::read(&file)));
    OpenError::Locked {
        path: directory.file_path(super::names::LOCK),
        holder: holder.ok().flatten(),
    }
}

fn read(file: &OpenFile) -> Result<Option<Holder>, DiskError> {
    let mut bytes = [0; LEN + 1];
    let read = file.read_full(&mut bytes, 0)?;
    Ok(decode(bytes.get(..read).unwrap_or_default()))
}

fn encode(holder: &Holder) -> Vec<u8> {
    let started = holder.started.map(|started| started.to_string());
    let text = format!(
        "{MAGIC}\npid {}\nhost {}\nboot {}\nstarted {}\n",
        holder.pid,
        plain(&holder.host).unwrap_or_default(),
        plain(&holder.boot_id).unwrap_or_default(),
        started.unwrap_or_default(),
    );
    filled(&text)
}

/// The text with its checksum, filled up to the length of the file.
fn filled(text: &str) -> Vec<u8> {
    let mut bytes = format!("{text}crc {:08x}\n", crc(text.as_bytes())).into_bytes();
    bytes.resize(LEN, b'\n');
    bytes
}

/// The holder that a file names: only if it is whole, since it is written over in place.
fn decode(bytes: &[u8]) -> Option<Holder> {
    let whole = std::str::from_utf8(bytes).ok()?;
    let (text, _) = whole.split_at_checked(whole.rfind("crc ")?)?;
    if bytes != filled(text) {
        return None;
    }
    let mut lines = text.lines();
    if lines.next()? != MAGIC {
        return None;
    }
    let mut field = |name: &str| lines.next()?.strip_prefix(name);
    let holder = Holder {
        pid: field("pid ")?.parse().ok()?,
        host: plain(field("host ")?)?.to_owned(),
        boot_id: plain(field("boot ")?)?.to_owned(),
        started: match field("started ")? {
            "" => None,
            text => Some(text.parse::<Timestamp>().ok()?),
        },
    };
    lines.next().is_none().then_some(holder)
}

/// A name that fits on a line and can be shown on any terminal.
fn plain(name: &str) -> Option<&str> {
    let shown = name.len() <= MAX_NAME && name.bytes().all(|byte| byte.is_ascii_graphic());
    shown.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::Vfs;
    use crate::vfs::sim::SimVfs;

    fn holder() -> Holder {
        SimVfs::new().holder()
    }

    #[test]
    fn a_holder_reads_back_and_every_flip_and_cut_is_seen() {
        let bytes = encode(&holder());
        assert_eq!(decode(&bytes), Some(holder()));
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert_eq!(decode(&bad), None, "byte {at}");
            assert_eq!(decode(&bytes[..at]), None, "cut at {at}");
        }
        let mut longer = bytes;
        longer.push(b'\n');
        assert_eq!(decode(&longer), None);
    }

    #[test]
    fn what_is_not_known_stays_empty() {
        let unknown = Holder {
            started: None,
            host: String::new(),
            ..holder()
        };
        assert_eq!(decode(&encode(&unknown)), Some(unknown));
    }

    /// A name that a terminal would obey is neither written nor believed.
    #[test]
    fn names_are_harmless() {
        for host in ["a\x1b[2J", "two\nlines", "\u{202e}", &"x".repeat(129)] {
            let evil = Holder {
                host: host.to_owned(),
                ..holder()
            };
            assert_eq!(decode(&encode(&evil)).unwrap().host, "");
            let text = format!("{MAGIC}\npid 1\nhost {host}\nboot \nstarted \n");
            assert_eq!(decode(&filled(&text)), None);
        }
    }
}
