//! A process that has the journal open for writing, and what it was told.

use stepwell::journal::{AppendTicket, Journal, Position, Receipt, Workers};
use stepwell::vfs::sim::SimVfs;

use crate::books::Batch;
use crate::site::Site;

#[derive(Debug)]
pub struct Process {
    pub vfs: SimVfs,
    pub journal: Journal,
    /// Runs by hand what threads would do aside.
    pub workers: Workers,
    /// What was submitted and has no outcome yet, in order.
    pub pending: Vec<(Batch, AppendTicket)>,
    pub epoch: u64,
    /// Its place among all attempts to open.
    pub number: u64,
    /// The faults that had hit somebody when it was opened.
    pub fired: u64,
    /// Whether an answer has told it that it is faulted.
    pub poisoned: bool,
    /// The last Lsn that it was told to be durable.
    pub acknowledged: u64,
    /// Where records of it stand.
    pub places: Vec<(u64, Position)>,
}

impl Process {
    /// Whether it may fail: a fault has hit, it has crashed, or somebody else has begun to open.
    pub fn is_excused(&self, site: &Site) -> bool {
        self.poisoned
            || self.vfs.has_crashed()
            || site.disk.faults_fired() > self.fired
            || site.openings() > self.number
    }

    pub fn note(&mut self, receipt: &Receipt) {
        let placed = receipt.records.iter();
        self.places
            .extend(placed.map(|at| (at.lsn.get(), at.position)));
    }
}
