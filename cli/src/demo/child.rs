//! The child of the demo: a host like any other. It opens the store, sees in the restored history
//! what comes next, and goes on until it is killed.

use std::path::PathBuf;
use std::sync::Arc;

use stepwell::Store;
use stepwell::content::{Message, UserMessage};
use stepwell::identity::SessionId;
use stepwell::journal::Seq;
use stepwell::runtime::{Filter, LoopHandle, StartAt, Subscription, TurnEnd};
use stepwell::store::{LoopSpec, Mode, Session, SessionSpec};
use tokio::sync::watch;

use super::agent::Stage;
use super::books::{Digest, Ledger, Note, Record};
use super::script::{Place, Script, Source};
use super::{ChildError, Folder};
use crate::args::ChildArgs;

const LOOP: &str = "main";

/// Runs until it is killed, or, with `--finish`, to the end of the round.
pub(crate) fn run(args: &ChildArgs) -> Result<(), ChildError> {
    end_with_parent();
    let folder = Folder::new(args.dir.clone());
    let ledger = Arc::new(Ledger::open(&folder.ledger()).map_err(ChildError::Ledger)?);
    ledger.note(&Note::Opening {
        process: std::process::id(),
    });
    let (source, _) = Source::new(args.seed, args.transcript.as_deref())?;
    let store = Store::open(folder.store())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(ChildError::Runtime)?;
    runtime.block_on(async {
        let mut next = current_round(&store)?;
        loop {
            let round = Round {
                script: source.round(next.0),
                store: &store,
                ledger: &ledger,
                scratch: folder.scratch().join(format!("round-{}", next.0)),
            };
            match next.1 {
                Some(id) => round.go_on(id).await?,
                None => round.begin(title(next.0)).await?,
            }
            if args.finish {
                return Ok(());
            }
            next = (next.0 + 1, None);
        }
    })
}

/// The parent holds the other end of stdin: when it is gone, however it went, so is the child.
fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(1);
    });
}

/// The title of a round's session, by which it is found again.
pub(super) fn title(round: u64) -> String {
    format!("demo round {}", round + 1)
}

/// The round of a title.
pub(super) fn round_of(title: &str) -> Option<u64> {
    title
        .strip_prefix("demo round ")?
        .parse::<u64>()
        .ok()?
        .checked_sub(1)
}

/// The last round that the store knows; the first one if it knows none.
fn current_round(store: &Store) -> Result<(u64, Option<SessionId>), ChildError> {
    let mut last = (0, None);
    for entry in store.sessions()? {
        let listed = entry.state?;
        let round = listed.metadata.title.as_deref().and_then(round_of);
        if let Some(round) = round.filter(|round| last.1.is_none() || *round > last.0) {
            last = (round, Some(entry.id));
        }
    }
    Ok(last)
}

struct Round<'a> {
    script: Script,
    store: &'a Store,
    ledger: &'a Arc<Ledger>,
    scratch: PathBuf,
}

impl Round<'_> {
    /// Plays the rest of a round that was begun; there may be none.
    async fn go_on(&self, id: SessionId) -> Result<(), ChildError> {
        let (session, report) = self.store.open_session(id, Mode::Write)?;
        let place = Place::in_session(&session, &self.script)?;
        self.turns(session, report.committed, place).await
    }

    /// Plays a round in a session of its own.
    async fn begin(&self, title: String) -> Result<(), ChildError> {
        let session = self.store.create_session(SessionSpec::new().title(title))?;
        let from = session.last_seq();
        self.turns(session, from, Place::default()).await
    }

    /// Runs the turns that are left, and notes every event behind `from` when it is acknowledged.
    async fn turns(&self, session: Session, from: Seq, mut place: Place) -> Result<(), ChildError> {
        std::fs::create_dir_all(self.scratch.join("notes")).map_err(ChildError::Scratch)?;
        let events = session.subscribe(StartAt::Seq(from.next()), Filter::committed());
        let (told, acknowledged) = watch::channel(Seq::ZERO);
        let witness = tokio::spawn(witness(events, session.id(), self.ledger.clone(), told));
        let held = session.loop_by_name(LOOP)?;
        let main = match held {
            Some(main) => main,
            None => session.create_loop_async(LoopSpec::new(LOOP)).await?,
        };
        let stage = Arc::new(Stage::new(
            self.script.clone(),
            self.ledger.clone(),
            self.scratch.clone(),
        ));
        let agent = session.spawn_loop(main, stage.agent())?;
        while let Some(turn) = self.script.turns.get(place.turn) {
            stage.begin(place);
            self.turn(&agent, &turn.user, acknowledged.clone()).await?;
            place.next_turn();
        }
        agent.shutdown().await?;
        witness.abort();
        // What the witness still has is no loss: all of it was waited for.
        let _ = witness.await;
        session.close()?;
        Ok(())
    }

    /// Runs one turn, and waits until its end was acknowledged.
    async fn turn(
        &self,
        agent: &LoopHandle,
        user: &UserMessage,
        mut acknowledged: watch::Receiver<Seq>,
    ) -> Result<(), ChildError> {
        self.ledger.note(&Note::Asking {
            session: agent.session().id(),
            user: Digest::of(&Message::User(user.clone())),
        });
        let outcome = agent.run_turn(user.clone()).await?;
        match outcome.end {
            TurnEnd::Done { .. } => {}
            // A transcript may end a turn without an answer, or hold an answer that is too large.
            TurnEnd::Failed { .. } if self.script.recorded => {}
            TurnEnd::Failed { error } => return Err(ChildError::TurnFailed(error.message)),
            TurnEnd::Faulted(fault) => return Err(ChildError::Faulted(fault)),
            _ => return Err(ChildError::TurnInterrupted),
        }
        let last = outcome.terminal.unwrap_or(Seq::ZERO);
        let arrived = acknowledged.wait_for(|seq| *seq >= last).await;
        arrived.map_err(|_| ChildError::WitnessLost)?;
        Ok(())
    }
}

/// Notes what is acknowledged, in its order: an event that arrives here is durable.
async fn witness(
    mut events: Subscription,
    session: SessionId,
    ledger: Arc<Ledger>,
    told: watch::Sender<Seq>,
) {
    while let Some(Ok(delivery)) = events.recv().await {
        let Some(committed) = delivery.committed() else {
            continue;
        };
        ledger.note(&Note::Acknowledged {
            session,
            seq: committed.seq().get(),
            recovered: committed.is_replay(),
            record: Record::of(committed),
        });
        told.send_replace(committed.seq());
    }
}
