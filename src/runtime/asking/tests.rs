//! The future of a question, polled by hand and dropped or cancelled at each of its awaits.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use super::*;
use crate::content::UserMessage;
use crate::event::{ErrorKind, ErrorProjection, Kind};
use crate::identity::{StepId, ToolExecutionId};
use crate::journal::{Seq, Workers};
use crate::runtime::{APPROVE, DENY};
use crate::store::{LoopSpec, Mode, Session, SessionSpec, Store, StoreOptions};
use crate::vfs::sim::SimVfs;

fn store(disk: &SimVfs) -> Store {
    let options = StoreOptions {
        workers: Workers::groups_only(),
        ..StoreOptions::default()
    };
    Store::on(Arc::new(disk.clone()), "/store", options).unwrap()
}

fn call() -> GatedCall {
    GatedCall {
        tool: "act".into(),
        call_id: "1".into(),
        execution: ToolExecutionId::new(),
        input: RawJson::empty_object(),
    }
}

fn count(session: &Session, kind: Kind) -> usize {
    let events = session.replay(Seq::new(1));
    let kinds = events.filter(|event| event.as_ref().unwrap().event().kind() == kind);
    kinds.count()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Cut {
    /// The future is dropped, as when a tool's time is over.
    Drop,
    /// The turn is cancelled and the future polled on.
    Cancel,
}

/// Polls a question `polls` times, then cuts it; gives whether it came that far.
async fn cut_at(polls: usize, cut: Cut, answered: bool, settle: bool) -> bool {
    let disk = SimVfs::new();
    let store = store(&disk);
    let session = store.create_session(SessionSpec::new()).unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let hub = session.hub();
    let at = Coordinates::session(session.id()).in_loop(main.id());
    let turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let at = at.in_turn(turn.id()).in_step(StepId::new());
    let cancel = CancellationToken::new();
    let gates = StepGates::new(
        hub.clone(),
        Arc::default(),
        AgentName::from("main"),
        at,
        cancel.clone(),
    );
    let soon = Duration::from_millis(3);
    let question = match answered {
        true => Question::permission("may I?").without_timeout(),
        false => Question::permission("may I?").timeout(soon, DENY),
    };
    let answerer = answered.then(|| {
        let session = session.clone();
        std::thread::spawn(move || {
            for _ in 0..200 {
                if let Some(pending) = session.pending_gates().into_iter().next() {
                    std::thread::sleep(Duration::from_millis(2));
                    return session.answer_gate(pending.gate.id, Answer::choose(APPROVE));
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            Err(AnswerError::UnknownGate(GateId::nil()))
        })
    });
    let call = call();
    let mut done = None;
    {
        let mut asking = pin!(gates.ask(&call, &question));
        let mut polled = 0;
        poll_fn(|context| {
            if polled == polls {
                return Poll::Ready(());
            }
            polled += 1;
            match asking.as_mut().poll(context) {
                Poll::Ready(outcome) => {
                    done = Some(outcome);
                    Poll::Ready(())
                }
                Poll::Pending => {
                    if polled == polls {
                        return Poll::Ready(());
                    }
                    Poll::Pending
                }
            }
        })
        .await;
        if done.is_none() && cut == Cut::Cancel {
            cancel.cancel();
            assert_eq!(asking.await, Err(AskError::Abandoned), "{polls}");
        }
    }
    // Also while the gate is open: whoever resolves it later finds nobody.
    assert!(hub.waiters().is_empty(), "{polls} {cut:?}");
    // What was submitted runs to its end, with or without time to do so before the turn ends.
    if settle {
        tokio::time::sleep(Duration::from_millis(6)).await;
    }
    let error = ErrorProjection::new(ErrorKind::Unknown, "for a test");
    turn.fail_async(error).await.unwrap();
    let answer = answerer.map(|thread| thread.join().unwrap());
    assert_eq!(session.pending_gates(), [], "{polls} {cut:?}");
    let opened = count(&session, Kind::GateOpened);
    assert_eq!(count(&session, Kind::GateResolved), opened, "closed once");
    assert!(opened <= 1);
    let taken = matches!(answer, Some(Ok(_)));
    assert_eq!(session.gate_answers().len(), usize::from(taken), "kept");
    match &done {
        Some(outcome) => {
            let resolution = outcome.as_ref().unwrap();
            assert_eq!(resolution.action == APPROVE, taken);
            assert_eq!(resolution.by_person, taken);
        }
        None => assert!(polls == 0 || opened == 1),
    }
    let (before, history) = (session.gate_answers(), session.history().unwrap());
    drop((gates, hub, main, session));
    let session = store_again(&store, &disk);
    assert_eq!(session.gate_answers(), before);
    assert_eq!(session.history().unwrap(), history);
    done.is_none()
}

fn store_again(first: &Store, disk: &SimVfs) -> Session {
    let id = first.sessions().unwrap()[0].id;
    let store = store(&disk.new_process());
    store.open_session(id, Mode::Read).unwrap().0
}

#[tokio::test]
async fn a_question_is_cut_at_each_of_its_awaits() {
    for answered in [true, false] {
        let mut most = 0;
        for cut in [Cut::Drop, Cut::Cancel] {
            for settle in [false, true] {
                let mut polls = 0;
                while cut_at(polls, cut, answered, settle).await {
                    polls += 1;
                }
                // On a busy machine the answer may be there as soon as somebody looks.
                most = most.max(polls);
            }
        }
        // Opening, waiting, (the timeout's commit,) and the end.
        assert!(most > 2, "{most}");
    }
}

#[tokio::test]
async fn who_asks_what_is_refused_waits_no_more() {
    let store = store(&SimVfs::new());
    let session = store.create_session(SessionSpec::new()).unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let hub = session.hub();
    let at = Coordinates::session(session.id()).in_loop(main.id());
    let turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let gates = StepGates::new(
        hub.clone(),
        Arc::default(),
        AgentName::from("main"),
        at.in_turn(turn.id()).in_step(StepId::new()),
        CancellationToken::new(),
    );
    // Larger than a record may be.
    let question = Question::permission("x".repeat(20 << 20));
    let asked = gates.ask(&call(), &question).await;
    assert!(matches!(asked, Err(AskError::NotAsked(_))), "{asked:?}");
    assert!(hub.waiters().is_empty());
    drop(turn);
}
