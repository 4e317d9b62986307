//! Finding the store and the session that were meant.

use std::path::Path;

use stepwell::Store;
use stepwell::identity::SessionId;

use crate::failure::Failure;

/// A store that must exist, to be written to.
pub(crate) fn existing(dir: &Path) -> Result<Store, Failure> {
    Store::open_existing(dir)?;
    Ok(Store::open(dir)?)
}

/// The session whose id begins with what was given, in any case of letters. For a whole id the others
/// are not looked at.
pub(crate) fn session(store: &Store, given: &str) -> Result<SessionId, Failure> {
    let wanted = given.to_ascii_lowercase();
    if let Some(id) = whole(store, &wanted) {
        return Ok(id);
    }
    let mut matches: Vec<SessionId> = store
        .sessions()?
        .into_iter()
        .map(|entry| entry.id)
        .filter(|id| id.to_string().starts_with(&wanted))
        .collect();
    if wanted.is_empty() {
        matches.clear();
    }
    match (matches.pop(), matches.is_empty()) {
        (Some(id), true) => Ok(id),
        (Some(last), _) => {
            matches.push(last);
            Err(Failure::Ambiguous {
                given: given.to_owned(),
                matches,
            })
        }
        (None, _) => Err(Failure::NoSuchSession {
            given: given.to_owned(),
            dir: store.dir().to_owned(),
        }),
    }
}

fn whole(store: &Store, wanted: &str) -> Option<SessionId> {
    let id: SessionId = wanted.parse().ok()?;
    store.session_dir(id).is_dir().then_some(id)
}
