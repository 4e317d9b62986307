//! Exhaustive mode: short stories, a crash before every call that changes the disk, every image that
//! a power loss can leave there, and then the same again within the recovery from each.
//!
//! Nothing is sampled. The stories are chosen so that few sectors and names are unsynced at any
//! moment; images that are equal, under equal books, are judged once.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use stepwell::identity::SessionId;
use stepwell::journal::{JournalOptions, Owner};
use stepwell::vfs::Vfs;
use stepwell::vfs::sim::SimVfs;

use crate::books::Books;
use crate::process::Process;
use crate::rng::{hash, mix};
use crate::site::{Record, Site, dir};
use crate::world::steady;

/// More images than this at one moment would be a story that is badly chosen.
const MOST_IMAGES: usize = 1 << 14;

/// What a story does after its opening.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// A batch of records of these lengths.
    Append(&'static [usize]),
    /// The same, queued: what comes next writes it.
    Submit(&'static [usize]),
    /// A piece of what threads would do aside.
    Piece,
    Witness,
    Close,
}

struct Story {
    name: &'static str,
    capacity: u64,
    /// What happened before, without a crash; the journal does not exist if there is nothing.
    before: &'static [Act],
    /// Records that are appended with the fence.
    first: &'static [usize],
    acts: &'static [Act],
}

const STORIES: &[Story] = &[
    Story {
        name: "a creation with two groups",
        capacity: 4096,
        before: &[],
        first: &[20],
        acts: &[Act::Append(&[30]), Act::Append(&[10, 40])],
    },
    Story {
        name: "four small appends in two groups",
        capacity: 4096,
        before: &[Act::Append(&[100]), Act::Close],
        first: &[],
        acts: &[Act::Append(&[16, 24]), Act::Append(&[8, 300])],
    },
    Story {
        name: "a group on each side of a roll",
        capacity: 4096,
        before: &[Act::Append(&[900])],
        first: &[],
        acts: &[Act::Append(&[700, 500]), Act::Append(&[900, 600])],
    },
    Story {
        name: "a group behind a roll that an earlier opening made",
        capacity: 4096,
        before: &[Act::Append(&[2000]), Act::Append(&[2500])],
        first: &[200],
        acts: &[Act::Append(&[1800])],
    },
    Story {
        name: "a batch larger than a segment",
        capacity: 4096,
        before: &[Act::Append(&[50])],
        first: &[],
        acts: &[Act::Append(&[3000, 1500])],
    },
    Story {
        name: "three callers that share a group, and a segment prepared aside",
        capacity: 4096,
        before: &[Act::Append(&[60]), Act::Close],
        first: &[],
        acts: &[
            Act::Submit(&[2200]),
            Act::Submit(&[10, 20]),
            Act::Append(&[30]),
            Act::Piece,
            Act::Piece,
            Act::Piece,
            Act::Append(&[40]),
            Act::Piece,
            Act::Submit(&[50]),
            Act::Submit(&[1500]),
            Act::Piece,
            Act::Piece,
        ],
    },
    Story {
        name: "an idle moment and a clean close",
        capacity: 8192,
        before: &[Act::Append(&[1500])],
        first: &[],
        acts: &[
            Act::Append(&[600]),
            Act::Witness,
            Act::Append(&[700]),
            Act::Close,
        ],
    },
];

/// A record that names itself. A long one is hollow: what is zero before and after has no choice in
/// it, so it fills a segment with few sectors that can be lost.
fn record(number: u64, length: usize) -> Record {
    let mut bytes = vec![0; length];
    let mut state = number;
    for (index, byte) in bytes.iter_mut().enumerate() {
        state = mix(state.wrapping_add(1));
        if index < 200 || index + 16 >= length {
            *byte = state as u8 | 1;
        }
    }
    (SessionId::from_bytes([7; 16]), bytes.into())
}

struct Teller {
    site: Site,
    next: u64,
}

impl Teller {
    fn records(&mut self, lengths: &[usize]) -> Vec<Record> {
        let mut make = |length: &usize| {
            self.next += 1;
            record(self.next, *length)
        };
        lengths.iter().map(&mut make).collect()
    }

    fn open(&mut self, first: &[usize]) -> Process {
        let records = self.records(first);
        let vfs = self.site.disk.new_process();
        self.site
            .open(&vfs, &records)
            .expect("nothing is in the way")
    }

    fn act(&mut self, mut process: Process, acts: &[Act]) {
        for act in acts {
            match act {
                Act::Append(lengths) => {
                    let records = self.records(lengths);
                    self.site.append(&mut process, &records, None);
                }
                Act::Submit(lengths) => {
                    let records = self.records(lengths);
                    self.site.submit(&mut process, &records);
                }
                Act::Piece => self.site.run_one(&mut process),
                Act::Witness => self.site.witness(&mut process),
                Act::Close => return self.site.close(process),
            }
        }
        process.vfs.kill();
        self.site.bury(process);
    }
}

/// A moment: the disk before a call, and the books.
type Moment = (SimVfs, Books);

/// The moments of whatever `run` does, one before each call that changes the disk and the last.
fn moments(site: &Site, run: impl FnOnce()) -> Vec<Moment> {
    let found: Arc<Mutex<Vec<Moment>>> = Arc::default();
    let (watched, seen) = (site.clone(), found.clone());
    site.disk.set_hook(move |op| {
        if op.changes_disk() {
            let moment = (watched.disk.snapshot(), watched.books().clone());
            seen.lock().unwrap().push(moment);
        }
    });
    run();
    site.disk.clear_hook();
    let mut found = std::mem::take(&mut *found.lock().unwrap());
    found.push((site.disk.snapshot(), site.books().clone()));
    found
}

/// What tells two states apart: all that the disk holds, and how far the books are.
fn fingerprint(disk: &SimVfs, books: &Books) -> u64 {
    let mut state = mix(books.settled.len() as u64);
    for batch in &books.unknown {
        state = mix(state ^ batch.id);
    }
    for (path, length) in disk.files() {
        state = mix(hash(steady(&path).as_bytes(), state) ^ length);
        let bytes = disk.read_file(&path).unwrap();
        for (index, chunk) in bytes.chunks(512).enumerate() {
            if chunk.iter().any(|byte| *byte != 0) {
                state = hash(chunk, state ^ index as u64);
            }
        }
    }
    state
}

#[derive(Default)]
struct Seen(Mutex<HashSet<u64>>);

impl Seen {
    fn is_new(&self, disk: &SimVfs, books: &Books) -> bool {
        let fingerprint = fingerprint(disk, books);
        self.0.lock().unwrap().insert(fingerprint)
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// The images of a power loss at a moment that have not been seen yet.
fn images(moment: &Moment, seen: &Seen, all: &AtomicUsize) -> Vec<SimVfs> {
    let (disk, books) = moment;
    // Who holds the lock is no part of the log, and is never synced: the choices of that file would
    // only multiply the images.
    let disk = disk.snapshot();
    let holder = dir().join("HOLDER");
    if disk.identity(&holder).is_ok() {
        disk.remove(&holder).unwrap();
    }
    let mut count = 0;
    let mut fresh = Vec::new();
    for image in disk.power_loss_images() {
        count += 1;
        assert!(
            count <= MOST_IMAGES,
            "too many images for an exhaustive run"
        );
        if seen.is_new(&image, books) {
            fresh.push(image);
        }
    }
    all.fetch_add(count, Ordering::SeqCst);
    fresh
}

#[derive(Default)]
struct Tally {
    moments: AtomicUsize,
    images: AtomicUsize,
    inner_moments: AtomicUsize,
    inner_images: AtomicUsize,
}

/// Judges one image, and every crash within the recovery from it.
fn judge(site: &Site, image: SimVfs, books: &Books, inner: &Seen, tally: &Tally) {
    let site = site.at(image, books.clone());
    site.settle_at_rest();
    recover(&site, inner, tally);
}

/// Opens; a crash at any call of that, of either kind, gives the same answer when it is opened again.
fn recover(site: &Site, inner: &Seen, tally: &Tally) {
    let found = moments(site, || {
        let vfs = site.disk.new_process();
        let opened = site.open(&vfs, &[]);
        opened.expect("nothing is in the way").vfs.kill();
    });
    tally.inner_moments.fetch_add(found.len(), Ordering::SeqCst);
    for moment in found {
        let (disk, books) = &moment;
        if inner.is_new(disk, books) {
            reopen(&site.at(disk.snapshot(), books.clone()));
        }
        for image in images(&moment, inner, &tally.inner_images) {
            let again = site.at(image, books.clone());
            again.settle_at_rest();
            reopen(&again);
        }
    }
}

fn reopen(site: &Site) {
    let vfs = site.disk.new_process();
    let mut process = site.open(&vfs, &[]).expect("nothing is in the way");
    site.append(&mut process, &[record(u64::MAX, 12)], None);
    site.read_own(&process, 0);
}

fn tell(story: &Story, supersede: u64) -> String {
    let options = JournalOptions {
        first_capacity: story.capacity,
        max_capacity: story.capacity,
        max_payload: 64 * 1024,
        supersede_limit: supersede,
        quarantine_files: 4,
        ..JournalOptions::default()
    };
    let owner = Owner::Session(SessionId::from_bytes([7; 16]));
    let site = Site::new(options, owner, false);
    let mut teller = Teller {
        site: site.clone(),
        next: 0,
    };
    if !story.before.is_empty() {
        let process = teller.open(&[]);
        teller.act(process, story.before);
    }
    // Whatever came before is durable: only the story itself has unsynced changes.
    let image = site.disk.snapshot();
    image.power_loss(stepwell::vfs::sim::PowerLoss::KeepAll);
    let site = site.on(image);
    teller.site = site.clone();
    let found = moments(&site, || {
        let process = teller.open(story.first);
        teller.act(process, story.acts);
    });
    let tally = Tally::default();
    tally.moments.fetch_add(found.len(), Ordering::SeqCst);
    let (outer, inner) = (Seen::default(), Seen::default());
    let mut work: Vec<Moment> = Vec::new();
    for moment in &found {
        // A kill leaves the page cache, unsynced changes and all.
        if outer.is_new(&moment.0, &moment.1) {
            work.push((moment.0.snapshot(), moment.1.clone()));
        }
    }
    let killed = work.len();
    for moment in &found {
        let fresh = images(moment, &outer, &tally.images);
        work.extend(fresh.into_iter().map(|image| (image, moment.1.clone())));
    }
    let next = AtomicUsize::new(0);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::SeqCst);
                    let Some((disk, books)) = work.get(place) else {
                        break;
                    };
                    let disk = disk.snapshot();
                    match place < killed {
                        true => recover(&site.at(disk, books.clone()), &inner, &tally),
                        false => judge(&site, disk, books, &inner, &tally),
                    }
                }
            });
        }
    });
    format!(
        "{}, copying up to {supersede}: {} moments, {} images, {} of them different; in recovery {} moments, {} images, {} different",
        story.name,
        tally.moments.into_inner(),
        tally.images.into_inner(),
        outer.len(),
        tally.inner_moments.into_inner(),
        tally.inner_images.into_inner(),
        inner.len(),
    )
}

#[test]
fn exhaustive() {
    // A debug build only looks whether all is well with the simulation itself.
    let count = if cfg!(debug_assertions) {
        2
    } else {
        STORIES.len()
    };
    for story in &STORIES[..count] {
        for supersede in [0, 1 << 20] {
            let begun = std::time::Instant::now();
            let tally = tell(story, supersede);
            println!("{tally}; {:.1?}", begun.elapsed());
        }
    }
}
