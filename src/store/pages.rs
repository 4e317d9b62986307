//! Listing in pages: which sessions, in which order, and where the next page begins.

use std::str::FromStr;

use super::listing::SessionEntry;
use super::{SessionStatus, Store, StoreError};
use crate::identity::{SessionId, Timestamp};

/// Which sessions a listing shows. The default shows all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    statuses: Vec<SessionStatus>,
    since: Option<Timestamp>,
    before: Option<Timestamp>,
    title: Option<String>,
}

impl Filter {
    /// All sessions, to be narrowed down.
    pub fn new() -> Filter {
        Filter::default()
    }

    /// Those with this status; said again, also those with the other.
    #[must_use]
    pub fn status(mut self, status: SessionStatus) -> Filter {
        self.statuses.push(status);
        self
    }

    /// Those that were active at this moment or later.
    #[must_use]
    pub fn active_since(self, since: Timestamp) -> Filter {
        Filter {
            since: Some(since),
            ..self
        }
    }

    /// Those that were active before this moment, and not since.
    #[must_use]
    pub fn active_before(self, before: Timestamp) -> Filter {
        Filter {
            before: Some(before),
            ..self
        }
    }

    /// Those whose title has this text in it; upper and lower case are the same.
    #[must_use]
    pub fn title(self, text: &str) -> Filter {
        Filter {
            title: Some(text.to_lowercase()),
            ..self
        }
    }

    fn shows(&self, entry: &SessionEntry) -> bool {
        let listed = entry.state.as_ref().ok();
        let active = listed.and_then(|listed| listed.last_active);
        let title = listed.and_then(|listed| listed.metadata.title.as_ref());
        (self.statuses.is_empty() || self.statuses.contains(&entry.status()))
            && self.since.is_none_or(|since| active >= Some(since))
            && self
                .before
                .is_none_or(|before| active.is_some_and(|active| active < before))
            && self.title.as_ref().is_none_or(|text| {
                title.is_some_and(|title| title.to_lowercase().contains(text.as_str()))
            })
    }
}

/// Which part of a listing is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    limit: usize,
    after: Option<Cursor>,
}

impl Page {
    /// The first page, of at most so many sessions; 0 counts as 1.
    pub fn first(limit: usize) -> Page {
        Page {
            limit: limit.max(1),
            after: None,
        }
    }

    /// All on one page.
    pub fn all() -> Page {
        Page::first(usize::MAX)
    }

    /// The page behind a place: [`Listing::next`] of the page before.
    #[must_use]
    pub fn after(self, cursor: Cursor) -> Page {
        Page {
            after: Some(cursor),
            ..self
        }
    }
}

/// A place in the order of a listing. As a string it is short, and of ASCII without spaces.
///
/// It is a place and not a number, so what happens between two pages does not move it: sessions that
/// are deleted or created leave nothing out and double nothing. One that becomes active meanwhile moves
/// to the front of the listing, where a new first page shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    active: Option<Timestamp>,
    id: SessionId,
}

impl Cursor {
    fn of(entry: &SessionEntry) -> Cursor {
        let listed = entry.state.as_ref().ok();
        Cursor {
            active: listed.and_then(|listed| listed.last_active),
            id: entry.id,
        }
    }
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.active {
            Some(at) => write!(f, "1.{}.{:09}.{}", at.secs(), at.nanos(), self.id),
            None => write!(f, "1.-.-.{}", self.id),
        }
    }
}

/// The text is no place in a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is no place in a listing: give the one that the page before named, as it is")]
pub struct CursorError;

impl FromStr for Cursor {
    type Err = CursorError;

    /// Only what [`Display`](std::fmt::Display) writes.
    fn from_str(text: &str) -> Result<Cursor, CursorError> {
        let parsed = || {
            let mut parts = text.strip_prefix("1.")?.splitn(3, '.');
            let (secs, nanos, id) = (parts.next()?, parts.next()?, parts.next()?);
            let active = match (secs, nanos) {
                ("-", "-") => None,
                _ => Some(Timestamp::new(secs.parse().ok()?, nanos.parse().ok()?).ok()?),
            };
            let id = id.parse().ok()?;
            Some(Cursor { active, id })
        };
        parsed()
            .filter(|cursor| cursor.to_string() == text)
            .ok_or(CursorError)
    }
}

/// A page of a listing.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Listing {
    /// The sessions: those that were active last come first, then by id; those of which nobody knows
    /// when they were active come last.
    pub entries: Vec<SessionEntry>,
    /// Where the next page begins; `None` if this is the last.
    pub next: Option<Cursor>,
    /// How many sessions the filter shows, on all pages.
    pub total: usize,
}

impl Store {
    /// A page of the store's sessions. As [`Store::sessions`], and as right as that: an index is asked
    /// first, but what it says of a session is checked against the log before it is shown, and what it
    /// does not say is read. The index begins with the first listing of a store.
    ///
    /// What a check cannot see is damage at rest to records that were intact when they were listed
    /// before, if the time of change of the file did not change; [`Store::sessions`] reads the tail of
    /// each log, and [`Store::verify`] everything.
    ///
    /// Waits for the index no longer than [`IndexOptions::patience`](super::IndexOptions).
    ///
    /// # Errors
    /// As for [`Store::sessions`].
    pub fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, StoreError> {
        let mut known = self.inner.catalog.known();
        let mut entries = self.gather(&mut known)?;
        self.inner.catalog.learn(known);
        entries.retain(|entry| filter.shows(entry));
        let total = entries.len();
        entries.sort_by_cached_key(|entry| std::cmp::Reverse(Cursor::of(entry)));
        if let Some(after) = page.after {
            entries.retain(|entry| Cursor::of(entry) < after);
        }
        let more = entries.len() > page.limit;
        entries.truncate(page.limit);
        let next = entries.last().filter(|_| more).map(Cursor::of);
        Ok(Listing {
            entries,
            next,
            total,
        })
    }
}
