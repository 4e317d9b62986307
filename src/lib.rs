//! An embedded, crash-safe, event-sourced store for agent loops, with its own journal.
//!
//! An agent loop asks a model, runs the tools that the model wants, and goes on. Each such round is a
//! *step*; its durable record is [`StepDone`](event::StepDone): one assistant message followed by the
//! results of its tool calls. A step is durable before anybody hears of it, and after a crash the
//! history is rebuilt from the log.
//!
//! | module | what it is |
//! |---|---|
//! | [`store`] | sessions, loops and turns; the commit boundary. Begin here |
//! | `runtime` | the runner that drives whole turns (feature `runtime`, on by default) |
//! | [`journal`] | the log: durable records of opaque bytes |
//! | [`metrics`] | counters and times, for whoever collects them |
//! | [`event`], [`content`], [`identity`] | what is said: events, messages, ids |
//! | [`vfs`] | the storage seam, with a simulated disk for tests |
//!
//! The promises P1 to P14 and the writer's rules W1 to W12 that the documentation cites are listed in
//! `docs/guarantees.md`; the bytes on disk in `docs/format.md`.

mod contain;
pub mod content;
pub mod event;
pub mod identity;
pub mod journal;
pub mod metrics;
#[cfg(feature = "runtime")]
pub mod runtime;
pub mod store;
mod sync;
pub mod vfs;
mod wake;

pub use store::{Session, Store};

#[cfg(all(doctest, feature = "runtime"))]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../docs/guarantees.md")]
struct Guarantees;

#[cfg(all(doctest, feature = "runtime"))]
#[doc = include_str!("../docs/runtime.md")]
struct RuntimeManual;
