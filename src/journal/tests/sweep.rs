//! What the sweep removes (W6). A stale opener may come to its sweep while a newer owner works: no
//! single process shows that.

use std::path::Path;
use std::sync::Arc;

use super::super::directory::{Directory, Ownership};
use super::super::frame::LogId;
use super::super::manifest::{Manifest, SegmentEntry};
use super::super::names::{SegmentName, temporary};
use crate::identity::SessionId;
use crate::vfs::Vfs;
use crate::vfs::sim::SimVfs;

fn segment(number: u64, epoch: u64) -> SegmentName {
    SegmentName {
        number,
        generation: 0,
        epoch,
    }
}

#[test]
fn the_sweep_leaves_what_is_listed_and_what_is_newer() {
    let vfs: Arc<dyn Vfs> = Arc::new(SimVfs::new());
    let path = Path::new("/journal");
    vfs.create_dir(path).unwrap();
    let directory = Directory::open(vfs, path).unwrap();
    let log = LogId([1; 16]);
    let manifest = Manifest {
        log,
        owner: SessionId::nil(),
        shared: true,
        number: 5,
        epoch: 3,
        max_payload: 1024,
        segments: vec![SegmentEntry::own(segment(1, 1), log, None)],
    };
    let names = |epoch| {
        [
            segment(7, epoch).to_string(),
            segment(7, epoch).footer(),
            temporary(epoch, 9),
        ]
    };
    let listed = [segment(1, 1).to_string(), segment(1, 1).footer()];
    let others = ["LOCK", "notes.txt", "seg-7"].map(str::to_owned);
    let kept = [&listed[..], &names(3), &names(4), &others].concat();
    let swept = [names(1), names(2)].concat();
    for name in kept.iter().chain(&swept) {
        directory.create_file(name).unwrap();
    }
    let ownership = Ownership::publish(&directory, manifest, 1).unwrap();
    ownership.sweep(&directory).unwrap();
    for name in &kept {
        assert!(directory.exists(name).unwrap(), "{name} was swept");
    }
    for name in &swept {
        assert!(!directory.exists(name).unwrap(), "{name} was left");
    }
}
