//! Random mode: thousands of seeds, spread over the cores; each seed is one thread's.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::counts::Counts;
use crate::world::World;

/// Seeds that run by default: together with the exhaustive part a few minutes on two cores. A debug
/// build only looks whether all is well with the simulation itself.
const SEEDS: u64 = if cfg!(debug_assertions) { 200 } else { 2_000 };
/// Far above what a seed takes, far below a hang.
const LIMIT: Duration = Duration::from_secs(30);

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.trim()
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
    )
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a text").to_owned()
}

#[test]
fn random() {
    let seeds = number("STEPWELL_SIM_SEEDS").unwrap_or(SEEDS);
    let start = number("STEPWELL_SIM_SEED_START").unwrap_or(0);
    let trace = number("STEPWELL_SIM_TRACE").unwrap_or(0) > 0;
    let threads = match trace {
        true => 1,
        false => std::thread::available_parallelism().map_or(1, |cores| cores.get()),
    };
    let begun = Instant::now();
    let next = AtomicU64::new(0);
    let counts = Mutex::new(Counts::default());
    let failed: Mutex<Vec<(u64, String)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut mine = Counts::default();
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= seeds || failed.lock().unwrap().len() >= 20 {
                        break;
                    }
                    let seed = start.wrapping_add(seed);
                    let begun = Instant::now();
                    let outcome = catch_unwind(AssertUnwindSafe(|| World::run(seed, trace)));
                    let took = begun.elapsed();
                    let error = match outcome {
                        Ok(counts) => {
                            mine.merge(&counts);
                            (took > LIMIT).then(|| format!("VIOLATION: it took {took:?}"))
                        }
                        Err(panic) => Some(message(&*panic)),
                    };
                    if let Some(error) = error {
                        // At once too: a long run may be cut off.
                        println!("failed: seed {seed}");
                        failed.lock().unwrap().push((seed, error));
                    }
                }
                counts.lock().unwrap().merge(&mine);
            });
        }
    });
    let took = begun.elapsed();
    let counts = counts.into_inner().unwrap();
    println!("{counts}{seeds} seeds from {start} on {threads} threads in {took:.1?}");
    let failed = failed.into_inner().unwrap();
    for (seed, error) in &failed {
        println!("seed {seed}: {error}");
        println!(
            "STEPWELL_SIM_SEEDS=1 STEPWELL_SIM_SEED_START={seed} cargo test --release --features sim --test simulation random -- --nocapture"
        );
    }
    assert!(failed.is_empty(), "{} seeds failed", failed.len());
    if seeds >= 2_000 {
        counts.assert_exercised(EXERCISED);
    }
}

/// The random bytes that the library draws change nothing.
#[test]
fn a_seed_decides_everything() {
    for seed in 0..40 {
        let once = World::run(seed, false).to_string();
        assert_eq!(once, World::run(seed, false).to_string(), "seed {seed}");
    }
}

/// What two thousand seeds must have met.
const EXERCISED: &[&str] = &[
    "acts of a stale writer",
    "acts of a stale writer within a takeover",
    "batches acknowledged",
    "batches not committed",
    "batches submitted",
    "batches unknown",
    "clean closes",
    "crashes inside recovery",
    "crashes within a call",
    "creations",
    "damages in the window",
    "damages reported",
    "damages without an effect",
    "failed syncs",
    "forks cut off",
    "forks found whole",
    "forks from outside",
    "forks of the owner",
    "forks of what is not proven refused",
    "forks removed",
    "forks that outlived their parent",
    "forks within a batch refused",
    "forks written to",
    "full disks",
    "kills",
    "openings",
    "pieces run aside",
    "payloads with images of frames",
    "power losses",
    "reads by kept readers",
    "shared journals",
    "takeovers",
    "takeovers within a call",
    "torn tails",
    "unknown batches dropped",
    "unknown batches kept",
    "views",
    "views that show what is not proven",
    "views within a call",
    "views within a piece aside",
    "views within an opening",
    "witnesses",
];
