//! What the rounds of appends say together.

use serde::Serialize;

use super::append::{Plan, Round};
use super::measure::{Run, median, short};
use crate::failure::Failure;
use crate::output::{Output, Table, count};

/// One round, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct RoundLine {
    round: usize,
    appends_per_s: f64,
    limit_per_s: f64,
    ratio: f64,
    p50_us: f64,
    limit_p50_us: f64,
    p999_us: f64,
    limit_p999_us: f64,
    max_us: f64,
    limit_max_us: f64,
    syncs: u64,
    appends: u64,
    bytes_written: u64,
    rolls: u64,
}

impl RoundLine {
    pub(super) fn new(number: usize, round: &Round) -> RoundLine {
        let (ours, limit) = (&round.stepwell, &round.limit);
        RoundLine {
            round: number,
            appends_per_s: short(ours.per_second()),
            limit_per_s: short(limit.per_second()),
            ratio: short(rate_ratio(round)),
            p50_us: short(ours.quantile(P50)),
            limit_p50_us: short(limit.quantile(P50)),
            p999_us: short(ours.quantile(P999)),
            limit_p999_us: short(limit.quantile(P999)),
            max_us: short(ours.quantile(MAX)),
            limit_max_us: short(limit.quantile(MAX)),
            syncs: round.counts.syncs,
            appends: ours.appends(),
            bytes_written: round.counts.bytes,
            rolls: round.counts.segments,
        }
    }
}

/// All rounds together: medians over the rounds, but `max` and `rolls` over all of them.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    writers: usize,
    size: usize,
    appends_per_s: f64,
    limit_per_s: f64,
    ratio: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    syncs_per_append: f64,
    limit_p50_us: f64,
    limit_p99_us: f64,
    limit_p999_us: f64,
    p999_ratio: f64,
    max_us: f64,
    limit_max_us: f64,
    growing_per_s: f64,
    growing_ratio: f64,
    /// Bytes written, also for segments made, per byte of payload.
    write_amplification: f64,
    /// Segments that were made while it was measured.
    rolls: u64,
    rounds: usize,
}

const P50: f64 = 0.5;
const P99: f64 = 0.99;
const P999: f64 = 0.999;
const MAX: f64 = 1.0;

fn rate_ratio(round: &Round) -> f64 {
    round.stepwell.per_second() / round.limit.per_second()
}

impl Summary {
    pub(super) fn of(plan: &Plan, rounds: &[Round]) -> Summary {
        let over = |value: fn(&Round) -> f64| short(median(rounds.iter().map(value)));
        let most = |run: fn(&Round) -> &Run| {
            let worst = rounds.iter().map(|round| run(round).quantile(MAX));
            short(worst.fold(0.0, f64::max))
        };
        let total = |value: fn(&Round) -> u64| rounds.iter().map(value).sum::<u64>();
        let appends = total(|round| round.stepwell.appends());
        let per = |sum: u64, what: u64| short(sum as f64 / what.max(1) as f64);
        Summary {
            writers: plan.writers,
            size: plan.size,
            appends_per_s: over(|round| round.stepwell.per_second()),
            limit_per_s: over(|round| round.limit.per_second()),
            ratio: over(rate_ratio),
            p50_us: over(|round| round.stepwell.quantile(P50)),
            p99_us: over(|round| round.stepwell.quantile(P99)),
            p999_us: over(|round| round.stepwell.quantile(P999)),
            syncs_per_append: per(total(|round| round.counts.syncs), appends),
            limit_p50_us: over(|round| round.limit.quantile(P50)),
            limit_p99_us: over(|round| round.limit.quantile(P99)),
            limit_p999_us: over(|round| round.limit.quantile(P999)),
            p999_ratio: over(|round| round.stepwell.quantile(P999) / round.limit.quantile(P999)),
            max_us: most(|round| &round.stepwell),
            limit_max_us: most(|round| &round.limit),
            growing_per_s: over(|round| round.growing.per_second()),
            growing_ratio: over(|round| round.stepwell.per_second() / round.growing.per_second()),
            write_amplification: per(
                total(|round| round.counts.bytes),
                appends.saturating_mul(plan.size as u64),
            ),
            rolls: total(|round| round.counts.segments),
            rounds: rounds.len(),
        }
    }

    pub(super) fn print(
        &self,
        plan: &Plan,
        rounds: &[Round],
        out: &mut Output,
    ) -> Result<(), Failure> {
        out.line(&format!(
            "{}, {} B, medians of {} rounds of {:.1} s each",
            count(self.writers as u64, "writer", "writers"),
            self.size,
            self.rounds,
            plan.part.as_secs_f64()
        ))?;
        out.line("")?;
        let headings = [
            "",
            ">APPENDS/S",
            ">P50 µs",
            ">P99 µs",
            ">P99.9 µs",
            ">MAX µs",
        ];
        let mut table = Table::new(&headings);
        let mut row = |name: &str, values: [f64; 5]| {
            let cells = values.iter().map(|value| format!("{value:.0}"));
            table.row(std::iter::once(name.to_owned()).chain(cells).collect());
        };
        row(
            plan.limit(),
            [
                self.limit_per_s,
                self.limit_p50_us,
                self.limit_p99_us,
                self.limit_p999_us,
                self.limit_max_us,
            ],
        );
        row(
            "stepwell",
            [
                self.appends_per_s,
                self.p50_us,
                self.p99_us,
                self.p999_us,
                self.max_us,
            ],
        );
        let growing = |share| median(rounds.iter().map(|round| round.growing.quantile(share)));
        let worst = rounds.iter().map(|round| round.growing.quantile(MAX));
        row(
            plan.growing(),
            [
                self.growing_per_s,
                growing(P50),
                growing(P99),
                growing(P999),
                worst.fold(0.0, f64::max),
            ],
        );
        table.print(out)?;
        out.line("")?;
        out.line(&format!(
            "{}: a plain loop that writes over a file that is written and synced already; {}: one that makes its file longer",
            plan.limit(),
            plan.growing()
        ))?;
        out.line("")?;
        let mut facts = Table::new(&["", ">"]);
        let mut fact = |name: String, value: String| facts.row(vec![name, value]);
        let lowest = rounds.iter().map(rate_ratio).fold(f64::INFINITY, f64::min);
        let highest = rounds.iter().map(rate_ratio).fold(0.0, f64::max);
        fact(
            format!("stepwell to {}, rate", plan.limit()),
            format!("{:.2} ({lowest:.2} to {highest:.2})", self.ratio),
        );
        fact(
            format!("stepwell to {}, p99.9", plan.limit()),
            format!("{:.2}", self.p999_ratio),
        );
        fact(
            format!("stepwell to {}, rate", plan.growing()),
            format!("{:.2}", self.growing_ratio),
        );
        let syncs = format!("{:.3}", self.syncs_per_append);
        fact("syncs per append".to_owned(), syncs);
        let written = format!("{:.2}", self.write_amplification);
        fact("bytes written per byte".to_owned(), written);
        fact("segments made".to_owned(), self.rolls.to_string());
        let lines = facts.lines();
        lines.iter().skip(1).try_for_each(|line| out.line(line))
    }
}
