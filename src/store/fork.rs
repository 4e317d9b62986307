//! Forking a session: another one begins with its history up to a record, and goes its own way.

use super::carry::CarryRecord;
use super::making::{Maker, Making, MakingError};
use super::open::Prologue;
use super::restore::{Bounds, Start, fold};
use super::state::SessionState;
use super::{Layout, Mode, OpenReport, Refusal, ReplayError, Session, SessionError, Store};
use crate::event::{Body, Forked, SessionChanged};
use crate::identity::{AgentName, Coordinates, SessionId};
use crate::journal::{self, ForkPoint, Lsn, OpenError, Owner, Seq};

/// A fork to be made: where, and what the child is called.
#[derive(Debug, Clone, PartialEq, Default)]
#[must_use]
pub struct ForkSpec {
    at: Option<Seq>,
    id: Option<SessionId>,
    title: Option<String>,
}

impl ForkSpec {
    /// Behind the last record that is proven durable, for a child with a fresh id and the title of its
    /// parent.
    pub fn new() -> ForkSpec {
        ForkSpec::default()
    }

    /// Behind this record, inclusive: that of a step, or any other that is the last of its batch.
    pub fn at(seq: Seq) -> ForkSpec {
        ForkSpec {
            at: Some(seq),
            ..ForkSpec::default()
        }
    }

    /// With an id of the host's choice.
    pub fn id(self, id: SessionId) -> ForkSpec {
        ForkSpec {
            id: Some(id),
            ..self
        }
    }

    /// With a title of its own; an empty one takes that of the parent away.
    pub fn title(self, title: impl Into<String>) -> ForkSpec {
        ForkSpec {
            title: Some(title.into()),
            ..self
        }
    }
}

/// Why a session was not forked. The parent is as it was, and there is no child, but for
/// [`ForkError::Unopened`].
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ForkError {
    /// The parent is not there, was deleted, or its journal cannot be opened.
    #[error("the session cannot be forked: {0}")]
    Parent(SessionError),
    /// The id of the child is taken or was deleted, or its directory cannot be made.
    #[error("the fork cannot be made: {0}")]
    Child(SessionError),
    /// The caller's place is none at which the parent can be forked, or the files could not be made.
    #[error(transparent)]
    Journal(#[from] journal::ForkError),
    /// What the child would begin with cannot be read. Fork before that, or repair the parent.
    #[error("the history up to there cannot be read: {0}; fork before it, or repair the session")]
    History(#[from] ReplayError),
    /// The first events of the child could not be prepared.
    #[error("the first events of the fork could not be prepared: {0}")]
    Prepare(#[from] Refusal),
    /// Sessions of a store of this layout cannot be forked: a fork has further names of the files of its
    /// parent, and there they hold what other sessions have. Export the session, and import it into a
    /// store of the other layout.
    #[error("a session in a store of the layout {0:?} cannot be forked")]
    Layout(Layout),
    /// The child is there, whole and durable, but could not be opened now. Open it later.
    #[error("the session {child} was forked and cannot be opened now: {source}; open it later")]
    Unopened {
        /// The child.
        child: SessionId,
        /// Why.
        source: SessionError,
    },
}

impl From<MakingError> for ForkError {
    fn from(error: MakingError) -> ForkError {
        ForkError::Child(match error {
            MakingError::AlreadyExists(id) => SessionError::AlreadyExists(id),
            MakingError::Deleted(id) => SessionError::Deleted(id),
            MakingError::Mint(error) => SessionError::Prepare(error.into()),
            MakingError::Journal(error) => SessionError::Journal(error),
            MakingError::Disk(error) => SessionError::Disk(error),
        })
    }
}

/// How often a parent is tried whose files are replaced meanwhile by a new owner.
const ATTEMPTS: usize = 6;

impl Store {
    /// Forks a session: makes another one that has its history up to a record, and opens it for writing.
    /// The parent may be open here, closed, or open in another process; it is only read, and its commits
    /// go on. The child is durable when this returns; cut off at any moment, it is there whole or not
    /// at all. How much is written does not depend on the length of the history: the files of the parent
    /// get further names, and are copied only where the file system refuses that. Blocks.
    ///
    /// From then on both are sessions like any other: they can be written, forked, backed up and deleted
    /// apart. What they share on disk is never changed by either, and damage to it shows in both.
    ///
    /// In the child
    /// * history, contexts, loops, title, labels and data are those of the parent at that record, byte for
    ///   byte, with the same ids and sequences; behind it stands [`Forked`], which names the parent. Causes
    ///   in events that were there before go on naming the parent;
    /// * a key that was committed up to there is a repeat, as in the parent
    ///   ([`Outcome::Duplicate`](super::Outcome::Duplicate));
    /// * a turn that was open at that record is closed as interrupted, as at a restart;
    /// * gates that waited for an answer are closed as abandoned, and answers that no turn had used are
    ///   none there: what a person allowed is allowed once, in the parent;
    /// * calls of tools with intents whose step is not there are unknown effects, as after a crash
    ///   ([`OpenReport::unknown_effects`]).
    ///
    /// # Errors
    /// [`ForkError`]; with [`NotProven`](journal::ForkError::NotProven) if the record is not there or not
    /// proven durable, with [`WithinBatch`](journal::ForkError::WithinBatch) if it is not the last of its
    /// batch.
    pub fn fork(
        &self,
        parent: SessionId,
        spec: ForkSpec,
    ) -> Result<(Session, OpenReport), ForkError> {
        if self.inner.layout == Layout::Shared {
            return Err(ForkError::Layout(Layout::Shared));
        }
        self.sweep_making();
        self.refuse_deleted(parent).map_err(ForkError::Parent)?;
        let child = match spec.id {
            Some(id) => id,
            None => SessionId::try_new().map_err(MakingError::Mint)?,
        };
        self.require_free(child)?;
        let mut attempt = 0;
        loop {
            attempt += 1;
            // What was acknowledged here is durable, also where nothing vouches for it yet.
            let live = self.inner.open.find(parent).filter(|_| attempt == 1);
            let forked = self.fork_point(parent, live, spec.at);
            match forked.and_then(|point| self.fork_there(&point, child, &spec)) {
                Err(ForkError::Journal(journal::ForkError::Changed { .. }))
                    if attempt < ATTEMPTS => {}
                Err(error) => return Err(self.of_parent(parent, error)),
                Ok(()) => break,
            }
        }
        tracing::debug!(%parent, %child, "session forked");
        let opened = self.open_session(child, Mode::Write);
        opened.map_err(|source| ForkError::Unopened { child, source })
    }

    /// What happens to a parent that is deleted meanwhile is no failure of the disk.
    fn of_parent(&self, parent: SessionId, error: ForkError) -> ForkError {
        match self.refuse_deleted(parent) {
            Err(deleted @ SessionError::Deleted(_)) => ForkError::Parent(deleted),
            _ => error,
        }
    }

    fn fork_point(
        &self,
        parent: SessionId,
        live: Option<Session>,
        at: Option<Seq>,
    ) -> Result<ForkPoint, ForkError> {
        if let Some(live) = live {
            return Ok(live.core.log.fork_point(at)?);
        }
        let view = self.journal_view(parent).map_err(|error| {
            ForkError::Parent(match error {
                OpenError::NotFound { .. } => SessionError::NotFound(parent),
                other => SessionError::Journal(other),
            })
        })?;
        match view.owner() {
            Owner::Session(found) if found != parent => {
                let error = OpenError::WrongOwner {
                    path: self.session_dir(parent),
                    expected: parent,
                    found,
                };
                Err(ForkError::Parent(error.into()))
            }
            _ => match view.fork_point(at) {
                // Half a creation is no session.
                Err(journal::ForkError::Empty { .. }) if view.report().last == Lsn::ZERO => {
                    Err(ForkError::Parent(SessionError::NotFound(parent)))
                }
                point => Ok(point?),
            },
        }
    }

    fn fork_there(
        &self,
        point: &ForkPoint,
        child: SessionId,
        spec: &ForkSpec,
    ) -> Result<(), ForkError> {
        let options = &self.inner.options;
        let state = self.state_at(point)?;
        let prologue = Prologue::new(child, first_events(point, &state, spec)?, options)?;
        let payloads: Vec<&[u8]> = prologue.payloads.iter().map(Vec::as_slice).collect();
        let making = Making::new(self, Maker::Fork)?;
        let carry = CarryRecord::bytes_of(&state);
        let (vfs, dir) = (self.inner.vfs.clone(), &making.dir);
        let made = point.fork(vfs, dir, child, &options.journal, &payloads, carry);
        let made = made.map_err(ForkError::Journal).and_then(|()| {
            let bodies = self.decoder(point.session()).blobs;
            let linked = bodies.link_for(dir, point.seq());
            linked.map_err(|error| MakingError::Disk(error).into())
        });
        let published = made.and_then(|()| Ok(making.publish(self, child)?));
        making.leave(self);
        published
    }

    /// The state of the parent at the fork point: folded from the newest carry record on.
    fn state_at(&self, point: &ForkPoint) -> Result<SessionState, ForkError> {
        let options = &self.inner.options;
        let carried = point.newest_carry(|carried| CarryRecord::restore(carried, options));
        let start = Start::at(carried, options);
        let entries = point.read(start.last.next());
        let bounds = Bounds {
            watermark: point.lsn(),
            finished: Lsn::ZERO,
            publishes: false,
        };
        let folded = fold(&self.decoder(point.session()), start, entries, &bounds);
        match folded.unreadable {
            Some(error) => Err(error.into()),
            None => Ok(folded.state),
        }
    }
}

/// That it is a fork; that the gates of the parent are none of its own; its title.
fn first_events(
    point: &ForkPoint,
    state: &SessionState,
    spec: &ForkSpec,
) -> Result<Vec<(Coordinates, AgentName, Body)>, Refusal> {
    let of_session = |body: Body| (Coordinates::default(), AgentName::default(), body);
    let forked = Forked {
        parent: point.session(),
        at: point.seq().get(),
    };
    let mut bodies = vec![of_session(forked.into())];
    for gate in state.pending.abandon_all() {
        let coordinates = Coordinates::default()
            .in_loop(gate.loop_id)
            .in_turn(gate.turn)
            .in_step(gate.step);
        bodies.push((coordinates, gate.agent_name, gate.body));
    }
    if let Some(title) = &spec.title {
        let changed = SessionChanged {
            title: Some(title.clone()),
            ..SessionChanged::default()
        };
        state.metadata.admit(&changed)?;
        bodies.push(of_session(changed.into()));
    }
    Ok(bodies)
}
