//! The futures of the runner's commits, dropped after any number of polls over a disk that works by
//! hand: the batch is absent or whole, and the loop closes what was left open, once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::content::AssistantMessage;
use crate::event::{ErrorKind, InterruptReason, Kind, PermissionDecided};
use crate::identity::{GateId, ToolExecutionId};
use crate::journal::Workers;
use crate::store::{Loop, LoopSpec, Mode, Session, SessionSpec, Store, StoreOptions};
use crate::vfs::sim::SimVfs;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Step,
    /// With its gates, and the end of the turn.
    LastStep,
    Fold,
    Fail,
    Interrupt,
}

impl What {
    fn batch(self) -> &'static [Kind] {
        match self {
            What::Step => &[Kind::PermissionDecided, Kind::StepDone],
            What::LastStep => &[Kind::PermissionDecided, Kind::StepDone, Kind::TurnDone],
            What::Fold => &[Kind::TurnFoldedInto, Kind::TurnFoldedInto],
            What::Fail => &[Kind::TurnFailed],
            What::Interrupt => &[Kind::TurnInterrupted],
        }
    }
}

fn kinds(session: &Session, from: Seq) -> Vec<Kind> {
    let events = session.replay(from);
    events.map(|it| it.unwrap().event().kind()).collect()
}

/// Polls so often, with work of the disk in between if it works, and gives whether it ended.
fn polled<T>(future: impl Future<Output = T>, polls: usize, workers: Option<&Workers>) -> bool {
    let mut future = Box::pin(future);
    let mut context = Context::from_waker(Waker::noop());
    for polled in 0..polls {
        if polled > 0
            && let Some(workers) = workers
        {
            assert!(workers.run_one());
        }
        let future: Pin<&mut _> = future.as_mut();
        if matches!(future.poll(&mut context), Poll::Ready(_)) {
            return true;
        }
    }
    false
}

fn cut(main: &mut Loop, what: What, polls: usize, works: Option<&Workers>) -> bool {
    let mut turn = main.begin_turn("go".into()).unwrap();
    let step = StepDraft::new(AssistantMessage::text("hello"));
    let decided = PermissionDecided {
        tool_execution_id: ToolExecutionId::new(),
        gate_id: GateId::nil(),
        effect: crate::event::Effect::Approve,
        reason: String::new(),
        subject: None,
        audit: None,
    };
    let decided = vec![Body::from(decided)];
    match what {
        What::Step => {
            let step = turn.commit_group_async(
                decided,
                step.id(crate::identity::StepId::new()),
                Last::No,
                false,
            );
            let ended = polled(step, polls, works);
            // The turn goes on behind it.
            turn.commit_step(StepDraft::new(AssistantMessage::text("more")))
                .unwrap();
            ended
        }
        What::LastStep => {
            let last = Last::Yes { usage: None };
            let step = turn.commit_group_async(
                decided,
                step.id(crate::identity::StepId::new()),
                last,
                true,
            );
            polled(step, polls, works)
        }
        What::Fold => {
            let folded = turn.fold_async(vec!["one".into(), "two".into()]);
            let ended = polled(folded, polls, works);
            turn.commit_step(StepDraft::new(AssistantMessage::text("more")))
                .unwrap();
            ended
        }
        What::Fail => {
            let error = ErrorProjection::new(ErrorKind::Unknown, "for a test");
            polled(turn.fail_async(error), polls, works)
        }
        What::Interrupt => polled(turn.interrupt_async(), polls, works),
    }
}

fn live(what: What, polls: usize, works: bool) -> bool {
    let workers = Workers::manual();
    let options = StoreOptions {
        workers: workers.clone(),
        ..StoreOptions::default()
    };
    let store = Store::on(Arc::new(SimVfs::new()), "/store", options).unwrap();
    let session = store.create_session(SessionSpec::new()).unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    while workers.run_one() {}
    // SessionStarted, LoopStarted, TurnStarted.
    let from = Seq::new(4);
    let ended = cut(&mut main, what, polls, works.then_some(&workers));
    while workers.run_one() {}
    let there = kinds(&session, from);
    let whole = there.starts_with(what.batch());
    let what_for = format!("{what:?} {polls} {works}: {there:?}");
    assert_eq!(whole, polls > 0, "{what_for}");
    let rest = there.len() - if whole { what.batch().len() } else { 0 };
    let goes_on = matches!(what, What::Step | What::Fold);
    assert_eq!(rest, usize::from(goes_on), "{what_for}");

    // The next turn closes what is open, and that only.
    let before = session.last_seq();
    let next = main.begin_turn("next".into()).unwrap();
    next.commit_last_step(StepDraft::new(AssistantMessage::text("done")))
        .unwrap();
    let mut expected = vec![Kind::TurnStarted, Kind::StepDone, Kind::TurnDone];
    if goes_on || !whole {
        expected.insert(0, Kind::TurnInterrupted);
        let closed = session.replay(before.next()).next().unwrap().unwrap();
        let closed = closed.typed::<TurnInterrupted>().unwrap();
        assert_eq!(
            closed.body.reason,
            Some(InterruptReason::Dropped),
            "{what_for}"
        );
    }
    assert_eq!(kinds(&session, before.next()), expected, "{what_for}");
    let history = session.history().unwrap();
    drop(main);
    session.close().unwrap();
    let (again, _) = store.open_session(session.id(), Mode::Read).unwrap();
    assert_eq!(again.history().unwrap(), history, "{what_for}");
    ended
}

#[test]
fn what_the_runner_commits_is_absent_or_whole_wherever_it_is_dropped() {
    for what in [
        What::Step,
        What::LastStep,
        What::Fold,
        What::Fail,
        What::Interrupt,
    ] {
        let mut polls = 0;
        while !live(what, polls, true) {
            polls += 1;
        }
        assert_eq!(polls, 2, "one await, and its end");
        for polls in 0..4 {
            assert!(!live(what, polls, false));
        }
    }
}
