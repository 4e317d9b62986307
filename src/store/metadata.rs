//! What a host says of a session: title, labels, data of its own. Changed by events, and part of the
//! fold (P4).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::committed::Committed;
use super::io::Ticket;
use super::{CommitError, Draft, OrderError, Outcome, Refusal, Session};
use crate::content::RawJson;
use crate::event::{SessionChanged, SessionStarted};

/// What a host says of a session.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Metadata {
    /// The title, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The host's own data, byte for byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<RawJson>,
}

impl Metadata {
    pub(super) fn start(&mut self, started: &SessionStarted) {
        self.title.clone_from(&started.title);
        self.labels.clone_from(&started.labels);
    }

    pub(super) fn change(&mut self, changed: &SessionChanged) {
        if let Some(title) = &changed.title {
            self.title = (!title.is_empty()).then(|| title.clone());
        }
        for (key, value) in &changed.labels {
            match value {
                Some(value) => drop(self.labels.insert(key.clone(), value.clone())),
                None => drop(self.labels.remove(key)),
            }
        }
        if let Some(host) = &changed.host {
            self.host = (host.get() != "null").then(|| host.clone());
        }
    }

    fn bytes(&self) -> usize {
        let labels = self.labels.iter();
        self.title.as_ref().map_or(0, String::len)
            + labels
                .map(|(key, value)| key.len() + value.len())
                .sum::<usize>()
            + self.host.as_ref().map_or(0, |host| host.get().len())
    }

    /// Whether a change fits: what a session has of this is carried from segment to segment.
    pub(super) fn admit(&self, changed: &SessionChanged) -> Result<(), OrderError> {
        let mut after = self.clone();
        after.change(changed);
        let (got, max) = (after.bytes(), SessionChanged::MAX_BYTES as usize);
        // One that was started with more may still be changed to less.
        match got > max && got > self.bytes() {
            true => Err(OrderError::TooMuchMetadata { got, max }),
            false => Ok(()),
        }
    }
}

/// A change of what a host says of a session; what is not named stays as it is.
#[derive(Debug, Clone, PartialEq, Default)]
#[must_use]
pub struct SessionChange(SessionChanged);

impl SessionChange {
    /// A change of nothing, to be filled.
    pub fn new() -> SessionChange {
        SessionChange::default()
    }

    /// A new title; an empty one takes the title away.
    pub fn title(title: impl Into<String>) -> SessionChange {
        SessionChange::new().and_title(title)
    }

    /// The same, behind other changes.
    pub fn and_title(mut self, title: impl Into<String>) -> SessionChange {
        self.0.title = Some(title.into());
        self
    }

    /// Sets a label.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> SessionChange {
        self.0.labels.insert(key.into(), Some(value.into()));
        self
    }

    /// Takes a label away.
    pub fn without_label(mut self, key: impl Into<String>) -> SessionChange {
        self.0.labels.insert(key.into(), None);
        self
    }

    /// Replaces the host's own data; `null` takes it away.
    pub fn host(mut self, data: RawJson) -> SessionChange {
        self.0.host = Some(data);
        self
    }

    /// The event that says so.
    pub fn into_event(self) -> SessionChanged {
        self.0
    }
}

impl From<SessionChange> for Draft {
    /// To be committed with others, as one batch: a step and what it makes of the title.
    fn from(change: SessionChange) -> Draft {
        Draft::new(change.0)
    }
}

impl Session {
    /// What the host says of it.
    pub fn metadata(&self) -> Metadata {
        self.core.state().metadata.clone()
    }

    /// Changes what the host says of the session: one event, durable when this returns. At most
    /// 64 KiB in all ([`SessionChanged::MAX_BYTES`]).
    ///
    /// # Errors
    /// As for [`Session::commit`]; [`OrderError::TooMuchMetadata`] in a refusal. An empty change is
    /// [`Refusal::Empty`].
    pub fn change(&self, change: SessionChange) -> Result<Committed<SessionChanged>, CommitError> {
        changed(self.commit(drafts(change))?)
    }

    /// The same for async callers: it never blocks, and runs to its end also when the ticket is
    /// dropped. The one outcome is the event.
    pub fn submit_change(
        &self,
        change: SessionChange,
    ) -> Ticket<Result<Vec<Outcome>, CommitError>> {
        self.submit(drafts(change))
    }
}

fn drafts(change: SessionChange) -> Vec<Draft> {
    match change.0 == SessionChanged::default() {
        true => Vec::new(),
        false => vec![change.into()],
    }
}

fn changed(outcomes: Vec<Outcome>) -> Result<Committed<SessionChanged>, CommitError> {
    let first = outcomes.first();
    let changed = first.and_then(|outcome| outcome.committed().typed());
    changed.ok_or_else(|| Refusal::Empty.into())
}
