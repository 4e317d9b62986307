//! The runner (feature `runtime`, tokio): whole turns over a store, and what others see of them.
//!
//! | module | what it holds |
//! |---|---|
//! | `hub`, `subscription`, `filter`, `live` | publication: enduring events as [`Committed`](crate::store::Committed) only (P2), live ones beside them |
//! | `model`, `tool`, `gate`, `question` | what a host brings: [`Model`], [`Tool`], [`Policy`] |
//! | `asking`, `waiters` | a question at a gate, and who waits for its answer |
//! | `agent`, `handle` | [`AgentSpec`], [`LoopHandle`], [`TurnOutcome`] |
//! | `actor`, `desk`, `queue`, `closing`, `shutdown` | the task that owns a loop, its commands, what waits for it, its end |
//! | `hooks` | [`HookObserver`], [`HookGuard`]: what a host puts around all of it |
//! | `turn`, `step`, `reply`, `batch`, `shape` | a turn, as a machine whose states are types |
//! | `contained`, `unwanted`, `timer` | what a host brings may panic; a runtime need not have a timer |
//!
//! Nothing here can lose or half-do a commit: a step is submitted to the store's I/O thread, where it
//! runs to its end whatever becomes of the task that waits (P3, P7).

mod actor;
mod agent;
mod append;
mod asking;
mod batch;
mod closing;
mod contained;
mod desk;
mod filter;
mod gate;
mod handle;
mod hooks;
mod hub;
mod live;
mod model;
mod question;
mod queue;
mod reply;
#[cfg(all(test, shuttle))]
mod schedules;
mod shape;
mod shutdown;
mod step;
mod subscription;
mod timer;
mod tool;
mod turn;
mod unwanted;
mod waiters;

/// A stream of items, as [`ModelStream::new`] takes one.
pub use futures_core::Stream;
/// Tells a model or a tool that its work is no longer wanted.
pub use tokio_util::sync::CancellationToken;

pub use agent::{AgentSpec, TurnLimits};
pub use asking::AskError;
pub use filter::{Filter, LoopScope, StartAt};
pub use gate::{APPROVE, APPROVE_ALWAYS, DENY, Decision, Policy, Resolution, ToolCall};
pub use handle::{LoopHandle, LoopSnapshot, RunError, SpawnError, TurnEnd, TurnOutcome};
pub use hooks::{Denial, HookCall, HookGuard, HookObserver, HookResult, HookWork};
pub use hub::{Hub, HubOptions, IdleError};
pub use live::{Live, LiveBody};
pub use model::{Model, ModelError, ModelEvent, ModelRequest, ModelSender, ModelStream};
pub use question::Question;
pub use queue::{Input, InputId, InputOutcome, Submitted};
pub use shutdown::{ShutdownError, ShutdownLimits, ShutdownPhase, ShutdownReport, shutdown_all};
pub use subscription::{Delivery, StreamEnd, Subscription};
pub use timer::NoTimer;
pub use tool::{Effects, FnTool, Tool, ToolCallContext, ToolError, ToolOutput, ToolSpec};
