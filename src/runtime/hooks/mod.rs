//! What a host puts around the work of a loop: observers, which see, and guards, which may refuse.
//!
//! Each is given values of its own, so that nothing it does to them changes what runs. An observer
//! that fails is logged and the work goes on; a guard that fails refuses.

mod denial;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use denial::Denial;

use crate::contain::{Held, Panicked, contained};
use crate::content::{Message, UserMessage};
use crate::event::Kind;
use crate::identity::{Coordinates, GateId, ToolExecutionId};
use crate::journal::Seq;

/// One operation, as observers and guards see it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HookCall {
    /// Its number, the same at its beginning and its end; unique within the process.
    pub number: u64,
    /// The session and loop, and the turn and step as far as there is one.
    pub at: Coordinates,
    /// What is done.
    pub work: HookWork,
}

/// What is done.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum HookWork {
    /// A whole turn: begins before its TurnStarted, ends behind its durable terminal.
    Turn {
        /// What the user said.
        message: UserMessage,
    },
    /// A step: ends when its commit was answered, before queued input is folded in.
    Step {
        /// Its number within its turn, from 0.
        index: u32,
    },
    /// One answer of the model.
    Inference {
        /// What the model sees; shared and never changed.
        messages: Vec<Arc<Message>>,
    },
    /// One call of a tool: its permission, the waiting for it, and its execution.
    ToolCall {
        /// The execution.
        execution: ToolExecutionId,
        /// The model's id of the call.
        call_id: String,
        /// The tool's name, which need not exist.
        tool: String,
        /// The input as the model wrote it, which need not be JSON.
        input: Vec<u8>,
    },
    /// The waiting for the answer of a gate, and nothing else.
    GateWait {
        /// The gate.
        gate: GateId,
    },
    /// An append to the journal. Its events are not shown.
    JournalAppend {
        /// The kinds of what is appended, as far as the runner asked for it.
        kinds: Vec<Kind>,
    },
}

/// How an operation ended.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum HookResult {
    /// Well.
    Done,
    /// An append is durable.
    Appended {
        /// The last sequence that is known of it.
        last: Seq,
    },
    /// Badly, for this reason.
    Failed {
        /// For people.
        error: String,
    },
    /// It was interrupted.
    Cancelled,
    /// A guard refused it, and it was not done.
    Denied(Denial),
    /// It was given up: its task was dropped or panicked, or what it belongs to was discarded.
    Discarded,
}

/// Sees the operations of a loop. Called in the loop's task, so it must not block. A panic is logged
/// and changes nothing.
///
/// Observers begin in the order of their registration and finish in reverse. Whoever began an
/// operation finishes it exactly once, also when it is cancelled, panics or is dropped; one whose
/// `begin` panicked did not begin.
pub trait HookObserver: Send + Sync {
    /// An operation begins.
    fn begin(&self, call: HookCall) {
        let _ = call;
    }

    /// An operation has ended.
    fn finish(&self, call: HookCall, result: HookResult) {
        let _ = (call, result);
    }
}

/// Refuses operations: turns, inferences and tool calls; it is not asked about others. Asked in the
/// order of registration, after all observers have begun; the first denial counts. Must not block.
/// A panic is a denial with the code [`Denial::PANIC`].
///
/// | denied | what follows |
/// |---|---|
/// | turn | no TurnStarted: [`RunError::Denied`](super::RunError::Denied), and a durable TurnRejected |
/// | inference | the turn fails; the model is not asked |
/// | tool call | the call gets an error result and does not run; no policy is asked |
pub trait HookGuard: Send + Sync {
    /// Whether the operation may be done.
    ///
    /// # Errors
    /// [`Denial`]: it may not.
    fn check(&self, call: HookCall) -> Result<(), Denial>;
}

impl<F: Fn(HookCall) -> Result<(), Denial> + Send + Sync> HookGuard for F {
    fn check(&self, call: HookCall) -> Result<(), Denial> {
        self(call)
    }
}

/// The observers and guards of a loop. Without any, nothing is copied and nothing is called.
#[derive(Clone, Default)]
pub(super) struct Hooks {
    observers: Vec<Held<Arc<dyn HookObserver>>>,
    guards: Vec<Held<Arc<dyn HookGuard>>>,
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooks")
            .field("observers", &self.observers.len())
            .field("guards", &self.guards.len())
            .finish()
    }
}

impl Hooks {
    pub(super) fn observe(&mut self, observer: Arc<dyn HookObserver>) {
        self.observers.push(Held::new(observer));
    }

    pub(super) fn guard(&mut self, guard: Arc<dyn HookGuard>) {
        self.guards.push(Held::new(guard));
    }

    pub(super) fn turn(
        self: &Arc<Self>,
        at: Coordinates,
        message: &UserMessage,
    ) -> Result<Operation, Denial> {
        self.begin_guarded(at, || HookWork::Turn {
            message: message.clone(),
        })
    }

    pub(super) fn step(self: &Arc<Self>, at: Coordinates, index: u32) -> Operation {
        self.begin(at, || HookWork::Step { index })
    }

    pub(super) fn inference(
        self: &Arc<Self>,
        at: Coordinates,
        messages: &[Arc<Message>],
    ) -> Result<Operation, Denial> {
        self.begin_guarded(at, || HookWork::Inference {
            messages: messages.to_vec(),
        })
    }

    pub(super) fn tool_call(
        self: &Arc<Self>,
        at: Coordinates,
        execution: ToolExecutionId,
        call: &crate::content::RawToolCall,
    ) -> Result<Operation, Denial> {
        self.begin_guarded(at, || HookWork::ToolCall {
            execution,
            call_id: call.id.clone(),
            tool: call.name.clone(),
            input: call.input.clone(),
        })
    }

    /// The waiting for a gate's answer.
    pub(super) fn gate_wait(self: &Arc<Self>, at: Coordinates, gate: GateId) -> Operation {
        self.begin(at, || HookWork::GateWait { gate })
    }

    pub(super) fn append(self: &Arc<Self>, at: Coordinates, kinds: &[Kind]) -> Operation {
        self.begin(at, || HookWork::JournalAppend {
            kinds: kinds.to_vec(),
        })
    }

    fn begin(self: &Arc<Self>, at: Coordinates, work: impl FnOnce() -> HookWork) -> Operation {
        if self.observers.is_empty() {
            return Operation(None);
        }
        self.open(call(at, work()))
    }

    fn begin_guarded(
        self: &Arc<Self>,
        at: Coordinates,
        work: impl FnOnce() -> HookWork,
    ) -> Result<Operation, Denial> {
        if self.observers.is_empty() && self.guards.is_empty() {
            return Ok(Operation(None));
        }
        let call = call(at, work());
        let operation = self.open(call.clone());
        let mut guards = self.guards.iter().filter_map(Held::get);
        match guards.try_for_each(|guard| ask(&**guard, &call)) {
            Ok(()) => Ok(operation),
            Err(denial) => {
                operation.finish(HookResult::Denied(denial.clone()));
                Err(denial)
            }
        }
    }

    fn open(self: &Arc<Self>, call: HookCall) -> Operation {
        let begun = self.observers.iter().filter(|observer| {
            let seen = call.clone();
            let Some(observer) = observer.get() else {
                return false;
            };
            told(contained(|| observer.begin(seen)))
        });
        let begun = begun.cloned().collect();
        Operation(Some(Open { call, begun }))
    }
}

fn call(at: Coordinates, work: HookWork) -> HookCall {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    HookCall {
        number: NUMBER.fetch_add(1, Ordering::Relaxed),
        at,
        work,
    }
}

fn ask(guard: &dyn HookGuard, call: &HookCall) -> Result<(), Denial> {
    let seen = call.clone();
    match contained(|| guard.check(seen)) {
        Ok(verdict) => verdict,
        Err(Panicked(detail)) => Err(Denial::new(Denial::PANIC, detail)),
    }
}

fn told(called: Result<(), Panicked>) -> bool {
    if let Err(Panicked(detail)) = &called {
        tracing::error!(detail, "an observer of a loop panicked");
    }
    called.is_ok()
}

/// An operation that goes on: whoever began it finishes it exactly once, whatever becomes of it.
#[derive(Default)]
#[must_use = "dropping it says that the operation was given up"]
pub(super) struct Operation(Option<Open>);

struct Open {
    call: HookCall,
    /// In the order in which they began.
    begun: Vec<Held<Arc<dyn HookObserver>>>,
}

impl Operation {
    /// Ends it. The result is made only if somebody sees it.
    pub(super) fn finish_with(mut self, result: impl FnOnce() -> HookResult) {
        if let Some(open) = self.0.take() {
            open.finish(&result());
        }
    }

    pub(super) fn finish(self, result: HookResult) {
        self.finish_with(|| result);
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            open.finish(&HookResult::Discarded);
        }
    }
}

impl Open {
    fn finish(self, result: &HookResult) {
        for observer in self.begun.iter().rev().filter_map(Held::get) {
            let (call, result) = (self.call.clone(), result.clone());
            told(contained(|| observer.finish(call, result)));
        }
    }
}
