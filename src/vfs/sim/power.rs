//! What a power loss leaves: the choices, and every image they can lead to.

use std::path::PathBuf;

use super::SimVfs;

/// Which of the unsynced changes survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PowerLoss {
    /// None: only what was synced is left.
    DropAll,
    /// All of them, as if everything had been synced.
    KeepAll,
    /// An arbitrary subset that depends on nothing but this number and the changes themselves.
    Seeded(u64),
}

/// One thing that a power loss decides on its own, apart from all others.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChoicePoint {
    /// The file, or for a change of a directory the name that it changes.
    pub path: PathBuf,
    /// What of it.
    pub part: Part,
    /// The number of answers. Answer 0 keeps what was durable; answer k keeps the first k of the
    /// unsynced changes of this part.
    pub options: usize,
}

/// The part of the disk that a [`ChoicePoint`] decides on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Part {
    /// One unsynced change of a directory: kept or not. A rename within one directory is one
    /// change, a rename between two is one in each.
    Name,
    /// The length of a file.
    Length,
    /// The sector of a file with this number.
    Sector(u64),
}

pub(super) type Choose<'a> = dyn FnMut(&ChoicePoint) -> usize + 'a;

impl PowerLoss {
    pub(super) fn chooser(self) -> impl FnMut(&ChoicePoint) -> usize {
        let mut state = match self {
            PowerLoss::Seeded(seed) => seed,
            _ => 0,
        };
        move |point| match self {
            PowerLoss::DropAll => 0,
            PowerLoss::KeepAll => point.options - 1,
            PowerLoss::Seeded(_) => (splitmix(&mut state) % point.options as u64) as usize,
        }
    }
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Every image that a power loss can leave, each as a disk of its own, made when it is asked for.
/// Comes from [`SimVfs::power_loss_images`]. There are as many as the product of all options, so
/// bound it with `take` where the number of [`SimVfs::pending_choices`] is not small.
#[derive(Debug)]
pub struct PowerLossImages {
    base: SimVfs,
    // The answers of the next image with their options. Which points come up may depend on the
    // answers before, so the list is replayed and grows with zeros.
    answers: Vec<(usize, usize)>,
    done: bool,
}

impl PowerLossImages {
    pub(super) fn new(base: SimVfs) -> Self {
        PowerLossImages {
            base,
            answers: Vec::new(),
            done: false,
        }
    }
}

impl Iterator for PowerLossImages {
    type Item = SimVfs;

    fn next(&mut self) -> Option<SimVfs> {
        if self.done {
            return None;
        }
        let image = self.base.snapshot();
        let mut place = 0;
        let answers = &mut self.answers;
        image.power_loss_with(&mut |point| {
            place += 1;
            match answers.get(place - 1) {
                Some((answer, _)) => *answer,
                None => {
                    answers.push((0, point.options));
                    0
                }
            }
        });
        while let Some((answer, options)) = self.answers.pop() {
            if answer + 1 < options {
                self.answers.push((answer + 1, options));
                return Some(image);
            }
        }
        self.done = true;
        Some(image)
    }
}
