//! Bodies of session and loop events, and of the host's own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ErrorProjection;
use crate::content::{RawJson, present};
use crate::identity::{CommandId, SessionId};

/// A session begins. What the engine knows of its configuration is opaque here and kept.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionStarted {
    /// The title, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Labels of the host. Keys that differ only in case are refused when the event is encoded.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The fingerprint of the configuration as older engines wrote it.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub config: Option<RawJson>,
    /// The manifest of the configuration.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub manifest: Option<RawJson>,
}

/// A session has work.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SessionActive {}

/// A session has no work.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SessionIdle {}

/// A session ends.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SessionStopped {}

/// A restore begins to write.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RestoreStarted {}

/// A restore is complete.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RestoreDone {}

/// A restore failed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RestoreErrored {
    /// Why.
    #[serde(rename = "err", default)]
    pub error: ErrorProjection,
}

/// The session was forked from another.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Forked {
    /// The session it was forked from.
    #[serde(default, skip_serializing_if = "SessionId::is_nil")]
    pub parent: SessionId,
    /// The last session sequence of the parent that belongs to the fork (1-based, inclusive).
    #[serde(default)]
    pub at: u64,
}

/// A loop begins. Its coordinates are those of the new loop, its name stands in the header, and its
/// cause is the spawner (empty for a root).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LoopStarted {
    /// What the host or the runner wants to know again about the loop; opaque.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub spec: Option<RawJson>,
    /// The model runtime, as imported.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RawJson>,
    /// The agent runtime, as imported.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub agent_runtime: Option<RawJson>,
    /// The tool call that spawned the loop.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub parent_tool_use_id: String,
    /// The id that another system knows the loop by.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub foreign_sid: String,
    /// The mode that the loop begins in.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub initial_mode: String,
    /// The request that the loop begins with.
    #[serde(skip_serializing_if = "CommandId::is_nil")]
    pub initial_request_id: CommandId,
    /// The name for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub display_name: String,
    /// What the loop is for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
}

/// A loop has no work.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LoopIdle {}

/// A loop went back: its history is again what it was after `to`. What it left stays in the log.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Rewound {
    /// The last session sequence that counts (inclusive; 0: back to the empty history).
    #[serde(default)]
    pub to: u64,
    /// Why, in the host's words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// What a host says of a session changed. What is absent stays as it was.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionChanged {
    /// The new title; empty: none any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Labels that are set, or (`null`) removed; the others stay. Keys that differ only in case are
    /// refused when the event is encoded.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, Option<String>>,
    /// What takes the place of the host's own data; opaque, kept byte for byte. `null`: none any
    /// more.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub host: Option<RawJson>,
}

impl SessionChanged {
    /// Bytes of title, labels and data of one change at most, and of what a session has of them in
    /// all: 64 KiB.
    pub const MAX_BYTES: u32 = 64 * 1024;

    /// Bytes of title, labels and data.
    pub(crate) fn bytes(&self) -> usize {
        let labels = self.labels.iter();
        let labels = labels.map(|(key, value)| key.len() + value.as_ref().map_or(0, String::len));
        self.title.as_ref().map_or(0, String::len)
            + labels.sum::<usize>()
            + self.host.as_ref().map_or(0, |host| host.get().len())
    }
}

/// An event of the host, bound to a session, a loop, a turn or a step by its coordinates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostEvent {
    /// The host's name for the kind of event; not empty.
    pub name: String,
    /// The version of the data's form.
    #[serde(default)]
    pub version: u32,
    /// The data, opaque and kept byte for byte.
    pub data: RawJson,
    /// Whether a reader that does not know it may skip it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}
