//! What happens next: the seed decides.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use stepwell::journal::Lsn;
use stepwell::vfs::sim::{FaultKind, Op, PowerLoss};

use crate::process::Process;
use crate::rot::rot;
use crate::site::{Site, dir};
use crate::world::{World, lock, loss};

impl World {
    /// One step; false ends the run, because the medium lied and lost its power.
    pub fn step(&mut self) -> bool {
        self.change_weather();
        if self.process.is_none() {
            return self.reopen();
        }
        if !self.stale.is_empty() && self.rng.chance(20) {
            self.wake_stale();
        }
        match self.rng.below(100) {
            0..28 => self.append(),
            28..32 => self.fork(),
            32..41 => self.submit(),
            41..52 => self.run_aside(),
            52..58 => self.read(),
            58..64 => self.read_kept(3),
            64..69 => self.keep(),
            69..73 => self.with_owner(|world, process| world.site.witness(process)),
            73..79 => self.take_over(),
            79..83 => self.take_over_within(),
            83..89 => {
                let calls = self.rng.below(25);
                self.with_owner(|_, process| process.vfs.crash_after(calls));
                self.append();
            }
            _ => return self.end_process(),
        }
        self.bury()
    }

    /// Faults and a full disk come and go.
    fn change_weather(&mut self) {
        match self.rng.below(100) {
            0..8 => self.plan_fault(),
            8..14 => self.site.clear_faults(),
            14..17 => {
                let room = self.rng.below(30_000);
                self.site.say(|| format!("only {room} bytes are free"));
                self.site.count("full disks");
                self.site.set_full(Some(room));
            }
            17..27 => self.site.set_full(None),
            _ => {}
        }
    }

    /// One call, picked by kind and number, will fail.
    fn plan_fault(&mut self) {
        let loss = PowerLoss::Seeded(self.rng.next());
        let size = self.rng.below(2000) as usize;
        let kind = *self.rng.pick(&[
            FaultKind::Eio,
            FaultKind::Enospc,
            FaultKind::Edquot,
            FaultKind::Erofs,
            FaultKind::Eintr,
            FaultKind::ShortRead(size),
            FaultKind::ShortWrite(size),
            FaultKind::ShortWrite(0),
            FaultKind::FailedWrite(size),
            FaultKind::Crash(size),
            FaultKind::SyncKept(loss),
            FaultKind::SyncKept(loss),
            FaultKind::SyncReverted(loss),
            FaultKind::SyncReverted(loss),
            FaultKind::SyncLate(loss),
            FaultKind::WriteBack(loss),
            FaultKind::DirSync(loss),
        ]);
        let class = self.rng.below(3);
        let number = match class {
            0 => self.rng.below(60),
            _ => self.rng.below(12),
        };
        self.site
            .say(|| format!("planned: {kind:?} at call {number} of class {class}"));
        self.site.count("faults planned");
        self.site.books().gaps = true;
        let (calls, site) = (AtomicU64::new(0), self.site.clone());
        let filter = move |op: &Op| {
            let picked = op.path().starts_with(dir())
                && match class {
                    0 => true,
                    1 => op.is_sync(),
                    _ => op.changes_disk(),
                };
            let hit = picked && calls.fetch_add(1, Ordering::SeqCst) == number;
            if hit && matches!(kind, FaultKind::SyncLate(_)) {
                site.lie();
                site.count("syncs that lied");
            }
            if hit && op.is_sync() {
                site.count("failed syncs");
            }
            hit
        };
        self.site.disk.fail_nth(filter, 0, kind);
    }

    fn with_owner(&mut self, act: impl FnOnce(&mut World, &mut Process)) {
        if let Some(mut process) = self.process.take() {
            act(self, &mut process);
            self.process = Some(process);
        }
    }

    // ---- the owner

    fn append(&mut self) {
        let batch = self.batch();
        let expected = match (self.rng.below(10), batch.first()) {
            (0..3, Some((session, _))) => Some(self.site.books().last_seq(*session)),
            (3, Some((session, _))) => {
                self.site.count("wrong positions");
                Some(self.site.books().last_seq(*session) + 1 + self.rng.below(3))
            }
            _ => None,
        };
        // Another process may look at any call of it.
        let moment = self.rng.chance(15).then(|| self.moment());
        self.with_owner(|world, process| {
            let site = world.site.clone();
            let looking = site.clone();
            let look = move || {
                looking.count("views within a call");
                looking.look();
            };
            within(&site, moment, look, || {
                site.append(process, &batch, expected)
            });
        });
    }

    /// A few batches that are queued; who appends next, or what runs aside, writes them as one group.
    fn submit(&mut self) {
        for _ in 0..self.rng.between(1, 3) {
            let batch = self.batch();
            self.with_owner(|world, process| world.site.submit(process, &batch));
        }
    }

    fn run_aside(&mut self) {
        for _ in 0..self.rng.between(1, 4) {
            let moment = self.rng.chance(10).then(|| self.moment());
            self.with_owner(|world, process| {
                let site = world.site.clone();
                let looking = site.clone();
                let look = move || {
                    looking.count("views within a piece aside");
                    looking.look();
                };
                within(&site, moment, look, || site.run_one(process));
            });
        }
    }

    /// A call of an append: mostly one of its write, its sync and its check, else one of a roll.
    fn moment(&mut self) -> u64 {
        match self.rng.chance(75) {
            true => self.rng.below(4),
            false => self.rng.below(40),
        }
    }

    fn read(&mut self) {
        let from = match self.rng.chance(50) {
            true => 0,
            false => self.rng.below(40),
        };
        let place = self.rng.next();
        self.with_owner(|world, process| {
            world.site.read_own(process, from);
            if !process.places.is_empty() {
                let index = place as usize % process.places.len();
                read_place(&world.site, process, index);
            }
        });
    }

    /// The owner goes, in one of the ways there are.
    fn end_process(&mut self) -> bool {
        match self.rng.below(10) {
            0..3 => {
                if let Some(process) = self.process.take() {
                    let (site, moment) = (self.site.clone(), self.rng.below(20));
                    let moment = self.rng.chance(30).then_some(moment);
                    let looking = site.clone();
                    let look = move || {
                        looking.look();
                    };
                    within(&site, moment, look, || site.close(process));
                }
                true
            }
            3..5 => {
                self.site.say(|| "dropped without a close".to_owned());
                self.site.count("drops without a close");
                if let Some(process) = self.process.take() {
                    self.site.bury(process);
                }
                true
            }
            5..7 => {
                self.kill();
                true
            }
            _ => self.lose_power(),
        }
    }

    fn lose_power(&mut self) -> bool {
        if self.site.has_lied() {
            return false;
        }
        self.cut_power();
        true
    }

    /// What has crashed on its way is dead, by a kill or with the whole machine; what is poisoned
    /// is sometimes given up.
    fn bury(&mut self) -> bool {
        let Some(process) = &self.process else {
            return true;
        };
        if process.vfs.has_crashed() {
            self.site.count("crashes within a call");
            self.keep_relics();
            if self.rng.chance(60) {
                return self.lose_power();
            }
            self.kill();
        } else if process.poisoned {
            self.site.count("steps with a poisoned journal");
            self.keep_relics();
            if self.rng.chance(50) {
                return self.end_process();
            }
        }
        true
    }

    /// Nobody has the journal open. Damage may be tried on copies of the disk; then it is opened,
    /// perhaps with crashes inside recovery.
    fn reopen(&mut self) -> bool {
        if self.site.is_full() && self.rng.chance(40) {
            self.site.set_full(None);
        }
        if self.stale.is_empty() && !self.site.has_lied() && self.rng.chance(35) {
            let image = self.site.disk.snapshot();
            image.power_loss_with(&mut loss(self.rng.next()));
            let times = self.rng.between(1, 4);
            rot(&self.site, image, times, &mut self.rng);
        }
        if !self.stale.is_empty() {
            // One of them may still hold the lock.
            let _ = self.site.disk.break_lock(lock());
        }
        for _ in 0..3 {
            if !self.rng.chance(25) {
                break;
            }
            let vfs = self.site.disk.new_process();
            vfs.crash_after(self.rng.below(40));
            let records = self.first_records();
            let opened = self.site.open(&vfs, &records);
            if !vfs.has_crashed() {
                self.process = opened;
                return true;
            }
            self.site.count("crashes inside recovery");
            drop(opened);
            vfs.kill();
            if self.rng.chance(60) && !self.lose_power() {
                return false;
            }
        }
        if self.rng.chance(10) {
            self.open_within();
            return true;
        }
        let vfs = self.site.disk.new_process();
        let records = self.first_records();
        let moment = self.rng.chance(20).then(|| self.rng.below(60));
        let (site, looking) = (self.site.clone(), self.site.clone());
        let look = move || {
            looking.count("views within an opening");
            looking.look();
        };
        self.process = within(&site, moment, look, || site.open(&vfs, &records));
        if vfs.has_crashed() {
            self.kill();
        }
        true
    }

    /// Two openings at once: the lock of the one is broken within any call of it, and the other opens
    /// from its beginning to its end, and goes on to work.
    fn open_within(&mut self) {
        let (first, second) = (self.site.disk.new_process(), self.site.disk.new_process());
        let new = Arc::new(Mutex::new(None));
        let site = self.site.clone();
        let (opening, opened, process) = (site.clone(), new.clone(), second.clone());
        let (records, batch) = (self.first_records(), self.batch());
        let act = move || {
            opening.count("openings within an opening");
            let _ = opening.disk.break_lock(lock());
            let mut new = opening.open(&process, &[]);
            if let Some(new) = &mut new {
                opening.append(new, &batch, None);
                for _ in 0..3 {
                    opening.run_one(new);
                }
            }
            *opened.lock().unwrap() = new;
        };
        let moment = self.rng.below(90);
        let old = within(&site, Some(moment), act, || site.open(&first, &records));
        let new = new.lock().unwrap().take();
        // The first may have begun again and overtaken the second: the later epoch counts.
        let rank = self.site.books().rank;
        for mut opened in old.into_iter().chain(new) {
            // Either may have lost its right to the other, also to one that failed afterwards.
            opened.number = 0;
            match opened.epoch == rank {
                true => self.process = Some(opened),
                false => self.stale.push(opened),
            }
        }
        if first.has_crashed() || second.has_crashed() {
            self.kill();
        }
    }

    fn first_records(&mut self) -> Vec<crate::site::Record> {
        match self.rng.chance(40) {
            true => self.batch(),
            false => Vec::new(),
        }
    }

    // ---- takeovers

    /// The owner loses its lock unawares and somebody else opens. It may act within any call of
    /// that opening, and lives on as a stale writer.
    fn take_over(&mut self) {
        let Some(old) = self.process.take() else {
            return;
        };
        self.site.count("takeovers");
        self.site
            .say(|| format!("epoch {} loses its lock", old.epoch));
        let _ = self.site.disk.break_lock(lock());
        let vfs = self.site.disk.new_process();
        let records = self.first_records();
        let moment = self.rng.chance(70).then(|| self.rng.below(70));
        let old = Arc::new(Mutex::new(Some(old)));
        let (site, rng) = (self.site.clone(), Mutex::new(self.rng.fork()));
        let batch = self.batch();
        let (acting, stale) = (site.clone(), old.clone());
        let act = move || {
            if let Some(old) = &mut *stale.lock().unwrap() {
                acting.count("acts of a stale writer within a takeover");
                match rng.lock().unwrap().below(12) {
                    0 => acting.witness(old),
                    1 => acting.read_own(old, 0),
                    2..6 => acting.run_one(old),
                    _ => acting.append(old, &batch, None),
                }
            }
        };
        self.process = within(&site, moment, act, || site.open(&vfs, &records));
        let old = old.lock().unwrap().take();
        match old {
            Some(old) if old.vfs.has_crashed() => self.site.bury(old),
            old => self.stale.extend(old),
        }
        if vfs.has_crashed() {
            self.kill();
        }
    }

    /// The owner is stopped within an append, overtaken, and goes on.
    fn take_over_within(&mut self) {
        let Some(mut old) = self.process.take() else {
            return;
        };
        self.site.count("takeovers within a call");
        self.site
            .say(|| format!("epoch {} is stopped within a call", old.epoch));
        let vfs = self.site.disk.new_process();
        let records = self.first_records();
        let new = Arc::new(Mutex::new(None));
        let site = self.site.clone();
        let (opening, opened, process) = (site.clone(), new.clone(), vfs.clone());
        let act = move || {
            opening.count("takeovers within a call");
            let _ = opening.disk.break_lock(lock());
            *opened.lock().unwrap() = opening.open(&process, &records);
        };
        let (moment, batch) = (self.moment(), self.batch());
        let call = self.rng.below(20);
        if call < 3 {
            within(&site, Some(moment % 12), act, || site.close(old));
        } else if call < 8 {
            within(&site, Some(moment % 12), act, || site.run_one(&mut old));
            self.stale.push(old);
        } else {
            within(&site, Some(moment), act, || {
                site.append(&mut old, &batch, None)
            });
            self.stale.push(old);
        }
        self.process = new.lock().unwrap().take();
        if vfs.has_crashed() {
            self.kill();
        } else if self.process.is_none()
            && self.stale.last().is_some_and(|old| {
                old.epoch == self.site.books().rank && self.site.openings() == old.number
            })
        {
            // The moment never came: it is the owner as before.
            self.process = self.stale.pop();
        }
    }

    /// A process that was overtaken wakes up and tries what it can.
    fn wake_stale(&mut self) {
        let index = self.rng.below(self.stale.len() as u64) as usize;
        let mut stale = self.stale.remove(index);
        self.site.count("acts of a stale writer");
        match self.rng.below(14) {
            0..5 => {
                let batch = self.batch();
                self.site.append(&mut stale, &batch, None);
            }
            5 => self.site.witness(&mut stale),
            6..8 => self.site.read_own(&stale, 0),
            8 => return self.site.close(stale),
            9..12 => self.site.run_one(&mut stale),
            12 => {
                let batch = self.batch();
                self.site.submit(&mut stale, &batch);
            }
            _ => {
                stale.vfs.kill();
                return self.site.bury(stale);
            }
        }
        if stale.vfs.has_crashed() || self.stale.len() >= 3 {
            self.site.bury(stale);
        } else {
            self.stale.push(stale);
        }
    }
}

/// Runs `inside` before the call number `moment` to the disk that `outer` leads to.
fn within<T>(
    site: &Site,
    moment: Option<u64>,
    inside: impl FnMut() + Send + 'static,
    outer: impl FnOnce() -> T,
) -> T {
    let Some(moment) = moment else {
        return outer();
    };
    let calls = AtomicU64::new(0);
    let inside = Mutex::new(inside);
    // The journal takes a panic of its disk for a fault, and goes on: it has to be kept for later.
    let panicked = Arc::new(Mutex::new(None));
    let seen = panicked.clone();
    site.disk.set_hook(move |_| {
        if calls.fetch_add(1, Ordering::SeqCst) == moment
            && let Ok(mut inside) = inside.try_lock()
            && let Err(panic) = catch_unwind(AssertUnwindSafe(&mut *inside))
        {
            *seen.lock().unwrap() = Some(panic);
        }
    });
    site.set_hooked(true);
    let result = outer();
    site.set_hooked(false);
    site.disk.clear_hook();
    if let Some(panic) = panicked.lock().unwrap().take() {
        resume_unwind(panic);
    }
    result
}

/// The record at a place that a receipt named.
fn read_place(site: &Site, process: &Process, index: usize) {
    let fired = site.disk.faults_fired();
    let (lsn, position) = process.places[index];
    match process.journal.read_at(&position) {
        Ok(Some(entry)) => {
            let books = site.books();
            let item = &books.settled[lsn as usize - 1];
            crate::site::check(crate::books::matches(&entry, item), "a place");
        }
        Ok(None) => panic!("VIOLATION: nothing at the place of Lsn {}", Lsn::new(lsn)),
        Err(_) if site.disk.faults_fired() > fired || process.vfs.has_crashed() => {}
        Err(error) => panic!("VIOLATION: the place of Lsn {lsn}: {error}"),
    }
}
