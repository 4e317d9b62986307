#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::path::Path;

use super::*;
use crate::vfs::{Access, Vfs};

fn p(path: &str) -> &Path {
    Path::new(path)
}

#[test]
fn nothing_is_kept_of_files_that_nothing_leads_to() {
    let disk = SimVfs::new();
    let dir = disk.open_dir(p("/")).unwrap();
    let nodes = || disk.shared.lock().node_count();
    for round in 0..3 {
        // Removed before its name was ever synced: it goes with the unsynced changes.
        disk.create(p("/a")).unwrap().write_at(b"x", 0).unwrap();
        disk.remove_file(p("/a")).unwrap();
        assert_eq!(nodes(), 2, "round {round}");
        dir.sync().unwrap();
        assert_eq!(nodes(), 1);

        // Removed after: the medium keeps it until the directory is synced again.
        disk.create_dir(p("/d")).unwrap();
        disk.create(p("/d/a")).unwrap();
        disk.hard_link(p("/d/a"), p("/b")).unwrap();
        disk.open_dir(p("/d")).unwrap().sync().unwrap();
        dir.sync().unwrap();
        disk.remove_file(p("/d/a")).unwrap();
        disk.remove_dir(p("/d")).unwrap();
        disk.rename(p("/b"), p("/c")).unwrap();
        let open = disk.open(p("/c"), Access::Read).unwrap();
        disk.remove_file(p("/c")).unwrap();
        assert_eq!(nodes(), 3);
        dir.sync().unwrap();
        assert_eq!(
            nodes(),
            2,
            "the file is open, the directory went with its stored names"
        );
        drop(open);
        assert_eq!(nodes(), 1);
    }
    assert_eq!(disk.shared.lock().handles.len(), 1);
}

#[test]
fn a_kill_and_a_power_loss_let_go_too() {
    let disk = SimVfs::new();
    let open = disk.create(p("/a")).unwrap();
    disk.remove_file(p("/a")).unwrap();
    disk.open_dir(p("/")).unwrap().sync().unwrap();
    assert_eq!(disk.shared.lock().node_count(), 2);
    assert_eq!(disk.snapshot().shared.lock().node_count(), 1);
    disk.kill();
    assert_eq!(disk.shared.lock().node_count(), 1);
    disk.create(p("/b")).unwrap();
    disk.power_loss(PowerLoss::DropAll);
    assert_eq!(disk.shared.lock().node_count(), 1);
    drop(open);
    assert!(disk.shared.lock().handles.is_empty());
}
