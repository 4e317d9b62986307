//! Rounds of appends: the limit, stepwell, and a file that grows besides.

use std::time::Duration;

use super::BenchError;
use super::counting::Counts;
use super::folder::Folder;
use super::group::grouped;
use super::journal::Subject;
use super::limit::{self, Ring};
use super::measure::Run;
use super::report::{RoundLine, Summary};
use super::steps::Steps;
use crate::args::BenchArgs;
use crate::failure::Failure;
use crate::output::{Output, Progress};

/// Seconds of a round, and between how many rounds they are divided.
const ROUND: f64 = 2.0;
const ROUNDS: (usize, usize) = (5, 61);
/// The growing file is there for comparison and gets this share of a part.
const INFORMATION: f64 = 0.5;

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) writers: usize,
    pub(super) tasks: bool,
    pub(super) size: usize,
    pub(super) rounds: usize,
    /// How long the limit and stepwell run in each round.
    pub(super) part: Duration,
}

impl Plan {
    fn of(args: &BenchArgs) -> Plan {
        let rounds = ((args.seconds / ROUND) as usize).clamp(ROUNDS.0, ROUNDS.1);
        Plan {
            writers: usize::from(args.writers),
            tasks: args.tasks,
            size: args.size as usize,
            rounds,
            part: Duration::from_secs_f64(args.seconds / rounds as f64 / 2.0),
        }
    }

    /// The limit that stepwell is compared with.
    pub(super) fn limit(&self) -> &'static str {
        match self.writers {
            1 => "overwrite",
            _ => "overwrite_group",
        }
    }

    /// The same loop over a file that grows.
    pub(super) fn growing(&self) -> &'static str {
        match self.writers {
            1 => "growing",
            _ => "growing_group",
        }
    }

    fn raw(&self, ring: &mut Ring, part: Duration) -> Result<Run, BenchError> {
        match self.writers {
            1 => limit::lone(ring, self.size, part),
            writers => grouped(ring, writers, self.size, part),
        }
    }
}

/// What takes the appends.
enum Measured {
    Journal(Subject),
    Steps(Steps),
}

impl Measured {
    fn make(folder: &Folder, args: &BenchArgs, number: usize) -> Result<Measured, BenchError> {
        Ok(match args.sessions {
            Some(layout) => Measured::Steps(Steps::make(folder, layout, number)?),
            None => Measured::Journal(Subject::make(folder, number)?),
        })
    }

    fn is_large(&self) -> bool {
        match self {
            Measured::Journal(journal) => journal.is_large(),
            Measured::Steps(steps) => steps.is_large(),
        }
    }

    fn remove(self) -> Result<(), BenchError> {
        match self {
            Measured::Journal(journal) => journal.remove(),
            Measured::Steps(steps) => steps.remove(),
        }
    }
}

/// What one round gave.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) limit: Run,
    pub(super) stepwell: Run,
    pub(super) counts: Counts,
    pub(super) growing: Run,
}

pub(super) fn run(folder: &Folder, args: &BenchArgs, out: &mut Output) -> Result<(), Failure> {
    let plan = Plan::of(args);
    let progress = Progress::new();
    progress.show("preparing");
    let group = (plan.writers * plan.size) as u64;
    let mut ring = Ring::make(&folder.join("overwrite"), group)?;
    let mut subject = Measured::make(folder, args, 0)?;
    let mut rounds = Vec::with_capacity(plan.rounds);
    for number in 0..plan.rounds {
        progress.show(&format!("round {} of {}", number + 1, plan.rounds));
        if subject.is_large() {
            subject.remove()?;
            subject = Measured::make(folder, args, number)?;
        }
        let round = one_round(&plan, number, folder, &mut ring, &subject)?;
        if args.json {
            progress.clear();
            out.json(&RoundLine::new(number + 1, &round))?;
        }
        rounds.push(round);
    }
    progress.clear();
    let summary = Summary::of(&plan, &rounds);
    if args.json {
        out.json(&summary)
    } else {
        summary.print(&plan, &rounds, out)
    }
}

fn one_round(
    plan: &Plan,
    number: usize,
    folder: &Folder,
    ring: &mut Ring,
    subject: &Measured,
) -> Result<Round, BenchError> {
    let mut limit = || plan.raw(ring, plan.part);
    let ours = || match subject {
        Measured::Journal(journal) if plan.tasks => {
            journal.tasks(plan.writers, plan.size, plan.part)
        }
        Measured::Journal(journal) => journal.threads(plan.writers, plan.size, plan.part),
        Measured::Steps(steps) => steps.threads(plan.writers, plan.size, plan.part),
    };
    let (limit, (stepwell, counts)) = match number % 2 {
        0 => (limit()?, ours()?),
        _ => {
            let ours = ours()?;
            (limit()?, ours)
        }
    };
    let mut file = Ring::growing(&folder.join("growing"))?;
    let growing = plan.raw(&mut file, plan.part.mul_f64(INFORMATION));
    file.remove()?;
    Ok(Round {
        limit,
        stepwell,
        counts,
        growing: growing?,
    })
}
