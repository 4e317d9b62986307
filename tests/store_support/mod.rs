//! What the tests of the store share.

#![allow(dead_code, unreachable_pub, unused_imports)]

pub use std::path::Path;
pub use std::sync::{Arc, Mutex};

pub use stepwell::content::{AssistantMessage, RawJson, ToolResultMessage, UserMessage};
pub use stepwell::event::{
    Body, ErrorKind, ErrorProjection, HostEvent, InterruptReason, Key, Kind, Limits, StepDone,
};
pub use stepwell::journal::{Fault, JournalOptions, NotCommitted, Seq};
pub use stepwell::store::{
    CommitError, Committed, LoopSpec, Mode, Observer, OrderError, Refusal, Session, SessionError,
    SessionSpec, StepDraft, Store, StoreError, StoreOptions,
};
pub use stepwell::vfs::Vfs;
pub use stepwell::vfs::sim::{FaultKind, Op, PowerLoss, SimVfs};

pub fn options() -> StoreOptions {
    StoreOptions {
        journal: JournalOptions {
            first_capacity: 16 * 1024,
            max_capacity: 16 * 1024,
            ..JournalOptions::default()
        },
        workers: stepwell::journal::Workers::groups_only(),
        ..StoreOptions::default()
    }
}

pub fn store(disk: &SimVfs) -> Store {
    store_with(disk, options())
}

pub fn store_with(disk: &SimVfs, options: StoreOptions) -> Store {
    Store::on(Arc::new(disk.clone()), "/store", options).unwrap()
}

pub fn text_step(text: &str) -> StepDraft {
    StepDraft::new(AssistantMessage::text(text))
}

pub fn tool_step() -> StepDraft {
    let call = AssistantMessage::text("looking")
        .with_tool_use("a", "list", RawJson::empty_object())
        .with_tool_use(
            "b",
            "read",
            RawJson::parse(br#"{"path": "x", "path": 1e400}"#).unwrap(),
        );
    StepDraft::new(call).results([
        ToolResultMessage::text("a", "x"),
        ToolResultMessage::error("b", "no such file"),
    ])
}

pub fn texts(session: &Session) -> Vec<String> {
    let history = session.history().unwrap();
    history.iter().map(|item| item.message.to_text()).collect()
}

/// Remembers what it was told, and how many syncs the log had seen by then.
#[derive(Default)]
pub struct Watcher {
    pub disk: Option<SimVfs>,
    pub committed: Mutex<Vec<(Seq, Kind, u64)>>,
    pub faults: Mutex<Vec<Fault>>,
}

impl Watcher {
    pub fn on(disk: &SimVfs, session: &Session) -> Arc<Watcher> {
        let watcher = Arc::new(Watcher {
            disk: Some(disk.clone()),
            ..Watcher::default()
        });
        let observer: Arc<dyn Observer> = watcher.clone();
        session.observe(&observer);
        watcher
    }

    pub fn seen(&self) -> Vec<(Seq, Kind, u64)> {
        self.committed.lock().unwrap().clone()
    }
}

impl Observer for Watcher {
    fn committed(&self, batch: &[Committed]) {
        let syncs = self.disk.as_ref().map_or(0, |disk| disk.sync_count("seg-"));
        let mut seen = self.committed.lock().unwrap();
        for event in batch {
            seen.push((event.seq(), event.event().kind(), syncs));
        }
    }

    fn faulted(&self, fault: &Fault) {
        self.faults.lock().unwrap().push(fault.clone());
    }
}
