//! The layout with one journal for all sessions of a store (`docs/design.md`): one lock, one commit
//! token, one sync for the commits of many sessions. The boundary of each session stays its own.
//!
//! `journal` keeps the one journal, opens it again after a fault, and says which sessions are open;
//! `session` is one session of it as a log, `opening` creates and opens it, `listing` lists and reads
//! without a claim.

mod journal;
mod listing;
mod opening;
mod session;

pub(super) use journal::{Home, Opened, SharedJournal};
pub(super) use listing::has_sessions;
