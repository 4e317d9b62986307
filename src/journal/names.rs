//! The names of a journal's files. A name counts only if writing its numbers again gives the same
//! name, so nothing that another tool made is ever taken for ours.

use std::fmt;

/// The name of a segment: its number, its generation under that number, and the epoch of the
/// opening that made it (W6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentName {
    /// The number; it orders the segments and seeds the checksums of their frames.
    pub number: u64,
    /// The generation: recovery replaces a segment by the next generation of the same number.
    pub generation: u32,
    /// The epoch of the opening that made the file.
    pub epoch: u64,
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seg-{:010}-{:06}-{:010}",
            self.number, self.generation, self.epoch
        )
    }
}

impl SegmentName {
    /// The name of the file beside it that holds the footer of a segment closed by recovery.
    pub(crate) fn footer(&self) -> String {
        format!(
            "foot-{:010}-{:06}-{:010}",
            self.number, self.generation, self.epoch
        )
    }
}

/// A file of a journal, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Name {
    Manifest(u64),
    Segment(SegmentName),
    Footer(SegmentName),
    /// A manifest on its way to its name, with the epoch of its maker.
    Temporary {
        epoch: u64,
    },
    Other,
}

pub(crate) const LOCK: &str = "LOCK";
pub(crate) const HOLDER: &str = "HOLDER";
pub(crate) const QUARANTINE: &str = "quarantine";

pub(crate) fn manifest(number: u64) -> String {
    format!("MANIFEST-{number:020}")
}

pub(crate) fn temporary(epoch: u64, random: u64) -> String {
    format!("tmp-{epoch:010}-{}-{random:016x}", std::process::id())
}

pub(crate) fn parse(name: &str) -> Name {
    let known = if let Some(number) = name.strip_prefix("MANIFEST-") {
        number.parse().ok().map(Name::Manifest)
    } else if let Some(rest) = name.strip_prefix("seg-") {
        segment_numbers(rest).map(Name::Segment)
    } else if let Some(rest) = name.strip_prefix("foot-") {
        segment_numbers(rest).map(Name::Footer)
    } else if let Some(rest) = name.strip_prefix("tmp-") {
        return temporary_epoch(rest).map_or(Name::Other, |epoch| Name::Temporary { epoch });
    } else {
        None
    };
    match known {
        Some(known) if written(&known).as_deref() == Some(name) => known,
        _ => Name::Other,
    }
}

fn written(name: &Name) -> Option<String> {
    match name {
        Name::Manifest(number) => Some(manifest(*number)),
        Name::Segment(segment) => Some(segment.to_string()),
        Name::Footer(segment) => Some(segment.footer()),
        Name::Temporary { .. } | Name::Other => None,
    }
}

fn segment_numbers(rest: &str) -> Option<SegmentName> {
    let mut parts = rest.split('-');
    let name = SegmentName {
        number: parts.next()?.parse().ok()?,
        generation: parts.next()?.parse().ok()?,
        epoch: parts.next()?.parse().ok()?,
    };
    parts.next().is_none().then_some(name)
}

fn temporary_epoch(rest: &str) -> Option<u64> {
    let mut parts = rest.split('-');
    let written_epoch = parts.next()?;
    let epoch: u64 = written_epoch.parse().ok()?;
    let pid: u32 = parts.next()?.parse().ok()?;
    let random = u64::from_str_radix(parts.next()?, 16).ok()?;
    let same = format!("{epoch:010}-{pid}-{random:016x}") == rest;
    (same && parts.next().is_none()).then_some(epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_by_the_function_that_wrote_them() {
        let segment = SegmentName {
            number: 7,
            generation: 2,
            epoch: 31,
        };
        assert_eq!(parse(&segment.to_string()), Name::Segment(segment));
        assert_eq!(parse(&segment.footer()), Name::Footer(segment));
        assert_eq!(parse(&manifest(u64::MAX)), Name::Manifest(u64::MAX));
        assert_eq!(parse(&temporary(9, 0xabc)), Name::Temporary { epoch: 9 });
        let large = SegmentName {
            number: u64::MAX,
            generation: u32::MAX,
            epoch: u64::MAX,
        };
        assert_eq!(parse(&large.to_string()), Name::Segment(large));
    }

    #[test]
    fn other_spellings_are_not_ours() {
        for name in [
            HOLDER,
            "MANIFEST-1",
            "MANIFEST-+0000000000000000001",
            "MANIFEST-00000000000000000001.bak",
            "seg-1-0-1",
            "seg-0000000001-000000-0000000001-0",
            "seg-0000000001-000000",
            "foot-0000000001-000000-000000000a",
            "tmp-0000000001-7",
            "tmp-0000000001-07-0000000000000abc",
            "",
            "LOCK",
        ] {
            assert_eq!(parse(name), Name::Other, "{name}");
        }
    }
}
