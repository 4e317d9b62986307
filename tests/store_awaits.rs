//! Every await of what commits, without the runner: polled by hand and dropped after any number of
//! polls, before, while and after the disk works, and with a crash at every call that follows. What
//! was submitted is absent or whole, the loop goes on, nothing hangs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;
mod watchdog;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::task::{Context, Poll, Wake, Waker};

use stepwell::event::{Control, Gate, GateOpened, Prompt, Resolver};
use stepwell::identity::{GateId, SessionId, StepId};
use stepwell::journal::Workers;
use stepwell::store::{AnswerError, Draft, Loop, PERMISSION};
use store_support::*;
use watchdog::{PATIENCE, ends};

/// What is committed asynchronously.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    CreateLoop,
    Begin,
    /// Over a turn that is still open.
    BeginAgain,
    Step,
    LastStep,
    Answer,
    Submit,
}

use What::*;

const ALL: [What; 7] = [
    CreateLoop, Begin, BeginAgain, Step, LastStep, Answer, Submit,
];

impl What {
    /// The batch that it commits.
    fn batch(self) -> &'static [Kind] {
        match self {
            CreateLoop => &[Kind::LoopStarted],
            Begin => &[Kind::TurnStarted],
            BeginAgain => &[Kind::TurnInterrupted, Kind::TurnStarted],
            Step => &[Kind::StepDone, Kind::HostEvent, Kind::HostEvent],
            LastStep => &[Kind::StepDone, Kind::HostEvent, Kind::TurnDone],
            Answer => &[Kind::GateResolved],
            Submit => &[Kind::HostEvent, Kind::HostEvent, Kind::HostEvent],
        }
    }
}

struct World {
    disk: SimVfs,
    workers: Workers,
    store: Store,
    session: Session,
    /// Its last sequence before what is cut.
    before: Seq,
    gate: GateId,
}

fn options_with(workers: &Workers) -> StoreOptions {
    StoreOptions {
        workers: workers.clone(),
        ..options()
    }
}

fn note(text: &str) -> HostEvent {
    HostEvent {
        name: "note".into(),
        version: 1,
        data: RawJson::parse(format!("{text:?}").as_bytes()).unwrap(),
        optional: true,
    }
}

fn gate(id: GateId) -> Gate {
    let controls = ["Approve", "Deny"].map(|action| Control {
        action: action.into(),
        label: String::new(),
    });
    Gate {
        id,
        kind: PERMISSION.into(),
        resolver: Resolver::for_loop(),
        prompt: Some(Prompt {
            body: "may I?".into(),
            controls: controls.to_vec(),
            ..Prompt::default()
        }),
        restorable: true,
        ..Gate::default()
    }
}

fn world(workers: Workers) -> World {
    let disk = SimVfs::new();
    let store = store_with(&disk, options_with(&workers));
    let session = store.create_session(SessionSpec::new()).unwrap();
    World {
        before: session.last_seq(),
        gate: GateId::new(),
        disk,
        workers,
        store,
        session,
    }
}

type Cutting<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

impl World {
    /// Makes the future, has it driven and dropped, and goes on with what it borrowed; the driver
    /// gives whether the disk is still there.
    fn cut(&mut self, what: What, drive: impl FnOnce(&World, Cutting<'_>) -> bool) -> bool {
        let mut main = self.session.create_loop(LoopSpec::new("main")).unwrap();
        match what {
            CreateLoop => {
                self.before = self.session.last_seq();
                let session = &self.session;
                let created = async { drop(session.create_loop_async(LoopSpec::new("new")).await) };
                drive(self, Box::pin(created))
            }
            Begin | BeginAgain => {
                if what == BeginAgain {
                    drop(main.begin_turn(UserMessage::text("left open")).unwrap());
                }
                self.before = self.session.last_seq();
                let begun = async { drop(main.begin_turn_async("go".into()).await) };
                drive(self, Box::pin(begun))
            }
            Step => {
                let mut turn = main.begin_turn("go".into()).unwrap();
                self.before = self.session.last_seq();
                let step = tool_step().host_event(note("a")).host_event(note("b"));
                let committed = async { drop(turn.commit_step_async(step).await) };
                let alive = drive(self, Box::pin(committed));
                if alive {
                    // The turn goes on.
                    turn.commit_last_step(text_step("last")).unwrap();
                }
                alive
            }
            LastStep => {
                let turn = main.begin_turn("go".into()).unwrap();
                self.before = self.session.last_seq();
                let step = text_step("last").host_event(note("a"));
                let committed = async { drop(turn.commit_last_step_async(step).await) };
                drive(self, Box::pin(committed))
            }
            Answer => {
                let turn = main.begin_turn("go".into()).unwrap();
                let opened = Draft::new(GateOpened {
                    gate: gate(self.gate),
                });
                let opened = opened
                    .in_loop(self.session.loops()[0].0)
                    .in_turn(turn.id())
                    .in_step(StepId::new());
                self.session.commit(vec![opened]).unwrap();
                self.before = self.session.last_seq();
                let (session, gate) = (&self.session, self.gate);
                let answer = stepwell::store::Answer::choose("Approve");
                let answered = async { drop(session.answer_gate_async(gate, answer).await) };
                let alive = drive(self, Box::pin(answered));
                drop(turn);
                alive
            }
            Submit => {
                let batch = ["a", "b", "c"].map(|text| Draft::new(note(text)).in_loop(main.id()));
                self.before = self.session.last_seq();
                let session = &self.session;
                let submitted = async { drop(session.submit(batch.to_vec()).await) };
                drive(self, Box::pin(submitted))
            }
        }
    }

    /// What is there of the batch, in a session over the same disk: nothing, or all.
    fn is_whole(&self, what: What, session: &Session) -> bool {
        let events = session.replay(self.before.next());
        let kinds: Vec<Kind> = events.map(|it| it.unwrap().event().kind()).collect();
        let batch = what.batch();
        if kinds.starts_with(batch) {
            return true;
        }
        let part = kinds.iter().zip(batch).take_while(|(is, of)| is == of);
        let part = part.count();
        // What stands there instead begins another batch: that of the opening, or of going on.
        let going_on = what == Step && kinds.get(1) == Some(&Kind::TurnDone);
        assert!(
            part == 0 || what == BeginAgain || going_on,
            "{what:?}: {kinds:?}"
        );
        false
    }

    /// What another process sees now.
    fn looked_at(&self) -> Session {
        look(&self.disk, self.session.id())
    }

    /// The loops can be held and go on; live history is what the log restores.
    fn goes_on(&self, session: &Session) {
        assert_eq!(
            self.looked_at().history().unwrap(),
            session.history().unwrap()
        );
        for (id, _) in session.loops() {
            let mut held: Loop = session.hold(id).unwrap();
            let mut turn = held.begin_turn("on".into()).unwrap();
            turn.commit_step(tool_step()).unwrap();
            turn.commit_last_step(text_step("and on")).unwrap();
        }
        let events = session.replay(Seq::new(1));
        let kinds: Vec<Kind> = events.map(|it| it.unwrap().event().kind()).collect();
        let begun = kinds.iter().filter(|kind| **kind == Kind::TurnStarted);
        let ended = kinds.iter().filter(|kind| kind.ends_turn());
        assert_eq!(begun.count(), ended.count(), "{kinds:?}");
        assert_eq!(session.open_turns(), []);
        assert_eq!(
            self.looked_at().history().unwrap(),
            session.history().unwrap()
        );
    }

    /// A gate that was asked about is answered exactly once.
    fn assert_answered_once(&self, session: &Session, whole: bool) {
        let again = session.answer_gate(self.gate, stepwell::store::Answer::choose("Deny"));
        match again {
            Ok(_) => assert!(!whole, "it was answered twice"),
            Err(AnswerError::AlreadyAnswered { at, .. }) => {
                assert!(whole);
                assert_eq!(at, self.before.next());
            }
            other => panic!("{other:?}"),
        }
        let events = session.replay(Seq::new(1));
        let resolved =
            events.filter(|it| it.as_ref().unwrap().event().kind() == Kind::GateResolved);
        assert_eq!(resolved.count(), 1);
        assert_eq!(session.gate_answers().len(), 1, "kept for who asks again");
        assert_eq!(session.pending_gates(), []);
    }
}

fn look(disk: &SimVfs, id: SessionId) -> Session {
    let workers = Workers::manual();
    let store = store_with(&disk.new_process(), options_with(&workers));
    let (session, report) = store.open_session(id, Mode::Read).unwrap();
    assert_eq!((report.damage, report.unreadable), (None, None));
    session
}

/// Counts how often it is woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wakes {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// When the future is dropped, and when the disk crashes behind that.
#[derive(Debug, Clone, Copy)]
struct Cut {
    /// After so many polls.
    polls: usize,
    /// The disk works between two polls; otherwise they are all in vain.
    works: bool,
    /// Pieces of work that are done between the last poll and the drop.
    pieces: usize,
    /// The call to the disk at which it crashes, counted from the drop.
    crash: Option<u64>,
}

/// Whether the future came to its end.
fn drive(world: &World, mut future: Cutting<'_>, cut: Cut) -> bool {
    let mut last: Option<Arc<Wakes>> = None;
    for polled in 0..cut.polls {
        if polled > 0 && cut.works {
            // One piece of work is a group: it settles the commit, and wakes the last poll once.
            assert!(world.workers.run_one(), "nothing was submitted");
            assert_eq!(last.as_ref().unwrap().count(), 1, "{cut:?}");
        }
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        if future.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Ready(()) {
            return true;
        }
        // A waker that was replaced is not woken.
        assert_eq!(last.map_or(0, |wakes| wakes.count()), 0, "{cut:?}");
        last = Some(wakes);
    }
    for piece in 0..cut.pieces {
        world.workers.run_one();
        if piece == 0
            && let Some(wakes) = &last
        {
            assert_eq!(wakes.count(), 1, "the last waker is the one: {cut:?}");
        }
    }
    drop(future);
    false
}

/// One life; gives whether the future ended before it was cut, and whether the disk crashed.
fn live(what: What, cut: Cut) -> (bool, bool) {
    let mut world = world(Workers::manual());
    let mut ended = false;
    let mut crashed = false;
    world.cut(what, |world, future| {
        while world.workers.run_one() {}
        ended = drive(world, future, cut);
        // At the moment of the drop.
        let there = world.is_whole(what, &world.looked_at());
        assert_eq!(there, ended || cut.pieces > 0 && cut.polls > 0, "{cut:?}");
        if let Some(calls) = cut.crash {
            world.disk.crash_after(calls);
        }
        while world.workers.run_one() {}
        crashed = world.disk.has_crashed();
        if !crashed {
            world.disk.crash_after(u64::MAX);
        }
        !crashed
    });
    if crashed {
        // The process is gone, and with it what was not synced.
        world.disk.power_loss(PowerLoss::DropAll);
        let store = store_with(&world.disk, options_with(&Workers::manual()));
        let id = world.session.id();
        let (session, report) = store.open_session(id, Mode::Write).unwrap();
        assert!(
            report.is_clean() || report.journal.cut.is_some(),
            "{report}"
        );
        let whole = world.is_whole(what, &session);
        if what == What::Answer {
            world.assert_answered_once(&session, whole);
        }
        world.goes_on(&session);
        return (ended, crashed);
    }
    // What was submitted runs to its end, whoever waits for it; what was not is absent.
    let session = &world.session;
    let whole = world.is_whole(what, session);
    assert_eq!(whole, cut.polls > 0, "{what:?} {cut:?}");
    if what == CreateLoop {
        let made = session.loop_by_name("new").unwrap();
        assert_eq!(made.is_some(), whole);
    }
    if what == What::Answer {
        world.assert_answered_once(session, whole);
    }
    world.goes_on(session);
    let (id, history) = (session.id(), session.history().unwrap());
    session.close().unwrap();
    let (again, _) = world.store.open_session(id, Mode::Write).unwrap();
    assert_eq!(again.history().unwrap(), history);
    (ended, crashed)
}

#[test]
fn dropped_after_any_number_of_polls_it_is_absent_or_whole() {
    ends(|| {
        for what in ALL {
            for pieces in 0..=2 {
                let cut = |polls, works| Cut {
                    polls,
                    works,
                    pieces,
                    crash: None,
                };
                let mut polls = 0;
                while !live(what, cut(polls, true)).0 {
                    polls += 1;
                }
                assert_eq!(polls, 2, "one await, and its end");
                // Polls in vain change nothing.
                for polls in 0..4 {
                    assert!(!live(what, cut(polls, false)).0);
                }
            }
        }
    });
}

#[test]
fn dropped_and_crashed_at_every_call_that_follows_it_is_absent_or_whole() {
    ends(|| {
        for what in ALL {
            let mut crashes = 0;
            for calls in 0.. {
                let cut = Cut {
                    polls: 1,
                    works: true,
                    pieces: 0,
                    crash: Some(calls),
                };
                if !live(what, cut).1 {
                    break;
                }
                crashes += 1;
            }
            assert!(crashes >= 2, "a write and a sync at least: {what:?}");
        }
    });
}

/// The calls of a group to the disk, held one after the other.
struct Held {
    arrived: Receiver<()>,
    pass: std::sync::mpsc::Sender<()>,
}

fn hold_calls(disk: &SimVfs) -> Held {
    let (arrive, arrived) = channel();
    let (pass, passes) = channel();
    let passes = Mutex::new(passes);
    disk.set_hook(move |op| {
        if op.changes_disk() && arrive.send(()).is_ok() {
            let _ = passes.lock().unwrap().recv();
        }
    });
    Held { arrived, pass }
}

/// Dropped while another thread writes the group, at each of its calls to the disk.
fn drop_at_call(what: What, call: usize) -> bool {
    let mut world = world(Workers::groups_only());
    let mut reached = false;
    world.cut(what, |world, mut future| {
        let held = hold_calls(&world.disk);
        let waker = Waker::from(Arc::new(Wakes::default()));
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        assert_eq!(polled, Poll::Pending);
        for _ in 0..call {
            held.arrived.recv_timeout(PATIENCE).unwrap();
            held.pass.send(()).unwrap();
        }
        // A group is a write and a sync; there may be more where it needs a new segment.
        reached = call < 2;
        if reached {
            held.arrived.recv_timeout(PATIENCE).unwrap();
            assert!(!world.is_whole(what, &world.session), "not before its sync");
        }
        drop(future);
        drop(held);
        world.disk.clear_hook();
        // Whoever commits for the session itself goes behind all that is under way.
        world
            .session
            .commit(vec![Draft::new(note("behind"))])
            .unwrap();
        true
    });
    let session = &world.session;
    assert!(world.is_whole(what, session), "{what:?} at {call}");
    if what == What::Answer {
        world.assert_answered_once(session, true);
    }
    world.goes_on(session);
    reached
}

#[test]
fn dropped_while_the_disk_works_it_becomes_whole() {
    ends(|| {
        for what in ALL {
            let mut call = 0;
            while drop_at_call(what, call) {
                call += 1;
            }
        }
    });
}

/// Futures of one loop that were dropped one behind the other: each finds what those before it have
/// left, though nobody has waited for it.
#[test]
fn futures_that_are_dropped_in_a_row_leave_an_order_that_folds() {
    ends(|| {
        for cuts in 0..1 << 5 {
            let world = world(Workers::manual());
            let mut main = world.session.create_loop(LoopSpec::new("main")).unwrap();
            let mut begun = 0;
            for at in 0..5 {
                let waker = Waker::from(Arc::new(Wakes::default()));
                let mut begin = Box::pin(main.begin_turn_async(format!("turn {at}").into()));
                if cuts & 1 << at != 0 {
                    let polled = begin.as_mut().poll(&mut Context::from_waker(&waker));
                    assert!(polled.is_pending());
                    begun += 1;
                }
            }
            drop(main);
            world.goes_on(&world.session);
            let turns = world.session.turn_count(world.session.loops()[0].0);
            // And the one with which it went on.
            assert_eq!(turns, begun + 1, "{cuts:b}");
        }
    });
}

/// Two answers on their way at once: the first is taken, whoever is dropped, and the other is told.
#[test]
fn of_two_answers_on_their_way_one_is_taken_whoever_is_dropped() {
    ends(|| {
        for dropped in 0..1 << 2 {
            let mut world = world(Workers::manual());
            world.cut(What::Answer, |world, first| {
                let mut context = Context::from_waker(Waker::noop());
                let answer = stepwell::store::Answer::choose("Deny");
                let second = world.session.answer_gate_async(world.gate, answer);
                let (mut first, mut second) = (Some(first), Some(Box::pin(second)));
                assert!(
                    first
                        .as_mut()
                        .unwrap()
                        .as_mut()
                        .poll(&mut context)
                        .is_pending()
                );
                assert!(
                    second
                        .as_mut()
                        .unwrap()
                        .as_mut()
                        .poll(&mut context)
                        .is_pending()
                );
                if dropped & 1 != 0 {
                    first = None;
                }
                if dropped & 2 != 0 {
                    second = None;
                }
                while world.workers.run_one() {}
                if let Some(mut first) = first {
                    assert!(first.as_mut().poll(&mut context).is_ready());
                }
                if let Some(mut second) = second {
                    let Poll::Ready(Err(AnswerError::AlreadyAnswered { at, .. })) =
                        second.as_mut().poll(&mut context)
                    else {
                        panic!("the second is told that it counts, or hangs");
                    };
                    assert_eq!(at, world.before.next());
                }
                true
            });
            let kept = world.session.gate_answers();
            assert_eq!(kept.len(), 1);
            assert_eq!(kept[0].resolved.action, "Approve", "the first");
            world.assert_answered_once(&world.session, true);
            world.goes_on(&world.session);
        }
    });
}
