//! Running work on threads for a while, and what its times say.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use super::BenchError;

/// What one measured stretch gave.
#[derive(Debug)]
pub(super) struct Run {
    elapsed: Duration,
    /// Nanoseconds of each append, sorted.
    latencies: Vec<u32>,
}

/// Room for so many latencies per thread is made beforehand: no allocation is measured before.
const RATE: f64 = 50_000.0;
const ROOM: (usize, usize) = (1 << 12, 1 << 22);

/// Runs each piece of work again and again on a thread of its own, all from the same moment on, until
/// the time is over.
pub(super) fn drive<W>(works: Vec<W>, duration: Duration) -> Result<Run, BenchError>
where
    W: FnMut() -> Result<(), BenchError> + Send,
{
    let room = ((duration.as_secs_f64() * RATE) as usize).clamp(ROOM.0, ROOM.1);
    let start_line = Barrier::new(works.len());
    let failed = AtomicBool::new(false);
    let one = |mut work: W| {
        let mut latencies: Vec<u32> = Vec::with_capacity(room);
        start_line.wait();
        let start = Instant::now();
        let mut before = start;
        while before - start < duration && !failed.load(Relaxed) {
            work().inspect_err(|_| failed.store(true, Relaxed))?;
            let now = Instant::now();
            latencies.push(u32::try_from((now - before).as_nanos()).unwrap_or(u32::MAX));
            before = now;
        }
        Ok((start, before, latencies))
    };
    let outcomes: Vec<Result<_, BenchError>> = thread::scope(|scope| {
        let threads: Vec<_> = works
            .into_iter()
            .map(|work| scope.spawn(|| one(work)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or(Err(BenchError::Panic)))
            .collect()
    });
    Ok(Run::of(outcomes.into_iter().collect::<Result<_, _>>()?))
}

/// The same with tasks of an async runtime: `work` makes one piece of work of each number.
pub(super) fn drive_tasks<W, F>(
    tasks: usize,
    duration: Duration,
    work: impl Fn(usize) -> W,
) -> Result<Run, BenchError>
where
    W: FnMut() -> F + Send + 'static,
    F: Future<Output = Result<(), BenchError>> + Send,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .build()
        .map_err(BenchError::Runtime)?;
    let room = ((duration.as_secs_f64() * RATE) as usize).clamp(ROOM.0, ROOM.1);
    let one = |mut work: W| async move {
        let mut latencies: Vec<u32> = Vec::with_capacity(room);
        let start = Instant::now();
        let mut before = start;
        while before - start < duration {
            work().await?;
            let now = Instant::now();
            latencies.push(u32::try_from((now - before).as_nanos()).unwrap_or(u32::MAX));
            before = now;
        }
        Ok((start, before, latencies))
    };
    let handles: Vec<_> = (0..tasks)
        .map(|number| runtime.spawn(one(work(number))))
        .collect();
    let parts = handles
        .into_iter()
        .map(|handle| runtime.block_on(handle).unwrap_or(Err(BenchError::Panic)))
        .collect::<Result<_, _>>()?;
    Ok(Run::of(parts))
}

/// When one thread or task began and ended, and how long each of its appends took.
type Part = (Instant, Instant, Vec<u32>);

impl Run {
    fn of(parts: Vec<Part>) -> Run {
        let start = parts.iter().map(|(start, ..)| *start).min();
        let end = parts.iter().map(|(_, end, _)| *end).max();
        let mut latencies: Vec<u32> = parts.into_iter().flat_map(|(.., all)| all).collect();
        latencies.sort_unstable();
        Run {
            elapsed: match (start, end) {
                (Some(start), Some(end)) => end - start,
                _ => Duration::ZERO,
            },
            latencies,
        }
    }

    pub(super) fn appends(&self) -> u64 {
        self.latencies.len() as u64
    }

    pub(super) fn per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Microseconds within which this share of the appends was acknowledged.
    pub(super) fn quantile(&self, share: f64) -> f64 {
        let rank = (share * self.latencies.len() as f64).ceil() as usize;
        let found = self.latencies.get(rank.saturating_sub(1));
        found.map_or(0.0, |nanos| f64::from(*nanos) / 1000.0)
    }
}

/// The median; 0 of nothing.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let upper = values.len() / 2;
    let lower = values.len().saturating_sub(1) / 2;
    match (values.get(lower), values.get(upper)) {
        (Some(lower), Some(upper)) => f64::midpoint(*lower, *upper),
        _ => 0.0,
    }
}

/// More than four digits behind the point say more than was measured.
pub(super) fn short(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// How long a piece of work took.
pub(super) fn time<T>(
    work: impl FnOnce() -> Result<T, BenchError>,
) -> Result<(T, f64), BenchError> {
    let start = Instant::now();
    let done = work()?;
    Ok((done, start.elapsed().as_secs_f64()))
}

/// Bytes that do not compress, others for each seed: some file systems compress what they can, and
/// none keeps zeros from being special.
pub(super) fn payload(size: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(size.div_ceil(8)).flatten().take(size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_medians() {
        let run = Run {
            elapsed: Duration::from_secs(2),
            latencies: (1..=1000).map(|micros| micros * 1000).collect(),
        };
        assert_eq!(run.per_second(), 500.0);
        assert_eq!(run.quantile(0.5), 500.0);
        assert_eq!(run.quantile(0.999), 999.0);
        assert_eq!(run.quantile(1.0), 1000.0);
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0]), 2.5);
        assert_eq!(median([]), 0.0);
    }

    #[test]
    fn all_threads_run_and_a_failure_ends_all() {
        let works = vec![|| Ok(()), || Ok(())];
        let run = drive(works, Duration::from_millis(5)).unwrap();
        assert!(run.appends() > 2);
        let mut left = 3;
        let failing = move || {
            left -= 1;
            if left == 0 {
                Err(BenchError::Stopped)
            } else {
                Ok(())
            }
        };
        let failed = drive(vec![failing, failing], Duration::from_secs(3600));
        assert!(matches!(failed, Err(BenchError::Stopped)));
    }

    #[test]
    fn payloads_differ_and_have_their_size() {
        assert_eq!(payload(13, 1).len(), 13);
        assert_ne!(payload(64, 1), payload(64, 2));
        assert!(payload(4096, 7).iter().filter(|byte| **byte == 0).count() < 64);
    }
}
