//! Histories and contexts that are read from the log are what was committed (P4), wherever they are
//! read from and whatever is in memory; nothing is read but what is asked for (P13).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use stepwell::content::Message;
use stepwell::event::{ContextCompacted, Rewound};
use stepwell::identity::{LoopId, StepId};
use stepwell::store::{Draft, HistoryItem, HistoryPage};
use store_support::*;

/// Small segments, so that there are many; whose unfinished ones recovery closes.
fn small() -> StoreOptions {
    StoreOptions {
        journal: JournalOptions {
            first_capacity: 8 * 1024,
            max_capacity: 8 * 1024,
            supersede_limit: 1024,
            ..JournalOptions::default()
        },
        workers: stepwell::journal::Workers::manual(),
        ..options()
    }
}

#[derive(Debug, Clone)]
enum Act {
    Step(usize, u16),
    /// Back by some records.
    Rewind(usize, u64),
    /// Of what is kept, by how many records back from here; 0: nothing.
    Compact(usize, u64),
    /// Asks for a context, so that it is in memory from then on.
    Ask(usize),
    Reopen,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        6 => (0..2usize, 0..700u16).prop_map(|(of, length)| Act::Step(of, length)),
        1 => (0..2usize, 0..30u64).prop_map(|(of, back)| Act::Rewind(of, back)),
        1 => (0..2usize, 0..30u64).prop_map(|(of, back)| Act::Compact(of, back)),
        1 => (0..2usize).prop_map(Act::Ask),
        1 => Just(Act::Reopen),
    ];
    prop::collection::vec(act, 0..60)
}

/// What the loops say by the rules, kept here a second time: of each message its record and text.
#[derive(Debug, Clone, Default)]
struct Book {
    said: Vec<(u64, LoopId, String)>,
    compactions: Vec<(u64, LoopId, u64, String)>,
}

impl Book {
    fn rewind(&mut self, of: LoopId, to: u64) {
        self.said.retain(|(seq, id, _)| *id != of || *seq <= to);
        self.compactions
            .retain(|(seq, id, ..)| *id != of || *seq <= to);
    }

    fn history(&self) -> Vec<(u64, String)> {
        let said = self.said.iter();
        said.map(|(seq, _, text)| (*seq, text.clone())).collect()
    }

    fn context(&self, of: LoopId) -> Vec<String> {
        let own = self.said.iter().filter(|(_, id, _)| *id == of);
        let last = self.compactions.iter().rev().find(|(_, id, ..)| *id == of);
        let Some((at, _, keep_from, summary)) = last else {
            return own.map(|(_, _, text)| text.clone()).collect();
        };
        let stays = |seq: u64| seq > *at || *keep_from != 0 && seq >= *keep_from;
        let kept = own.filter(|(seq, ..)| stays(*seq));
        let kept = kept.map(|(_, _, text)| text.clone());
        std::iter::once(summary.clone()).chain(kept).collect()
    }
}

fn flat(items: &[HistoryItem]) -> Vec<(u64, String)> {
    let flat = |item: &HistoryItem| (item.seq.get(), item.message.to_text());
    items.iter().map(flat).collect()
}

fn context(session: &Session, of: LoopId) -> Vec<String> {
    let read = session.loop_context(of).unwrap();
    read.iter().map(|message| message.to_text()).collect()
}

fn step_of(number: u64, length: u16) -> (StepDraft, Vec<String>) {
    let text = format!("step {number} {}", "t".repeat(length.into()));
    let call = AssistantMessage::text(&*text).with_tool_use("c", "tool", RawJson::empty_object());
    let step = StepDraft::new(call).results([ToolResultMessage::text("c", "fine")]);
    (step, vec![text, "fine".into()])
}

struct Life {
    disk: SimVfs,
    store: Store,
    session: Session,
    loops: Vec<LoopId>,
    book: Book,
    books: Vec<(Seq, Book)>,
    number: u64,
}

impl Life {
    fn new(options: StoreOptions) -> Life {
        let disk = SimVfs::new();
        let store = store_with(&disk, options);
        let session = store.create_session(SessionSpec::new()).unwrap();
        let named = |name| session.create_loop(LoopSpec::new(name)).unwrap().id();
        Life {
            loops: vec![named("one"), named("two")],
            disk,
            store,
            session,
            book: Book::default(),
            books: Vec::new(),
            number: 0,
        }
    }

    fn commit(&self, of: LoopId, body: impl Into<Body>) -> u64 {
        let draft = Draft::new(body).in_loop(of);
        self.session.commit(vec![draft]).unwrap()[0].seq().get()
    }

    fn act(&mut self, act: &Act) {
        let last = self.session.last_seq().get();
        match act {
            Act::Step(of, length) => {
                let of = self.loops[*of];
                self.number += 1;
                let mut own = self.session.hold(of).unwrap();
                let said = format!("turn {}", self.number);
                let mut turn = own.begin_turn(UserMessage::text(&*said)).unwrap();
                self.book.said.push((turn.started().get(), of, said));
                let (step, texts) = step_of(self.number, *length);
                let seq = turn.commit_step(step).unwrap().seq().get();
                for text in texts {
                    self.book.said.push((seq, of, text));
                }
                turn.finish().unwrap();
            }
            Act::Rewind(of, back) => {
                let (of, to) = (self.loops[*of], last.saturating_sub(*back));
                self.commit(
                    of,
                    Rewound {
                        to,
                        ..Rewound::default()
                    },
                );
                self.book.rewind(of, to);
            }
            Act::Compact(of, back) => {
                let of = self.loops[*of];
                let keep_from = match back {
                    0 => 0,
                    back => last.saturating_sub(*back).max(1),
                };
                let summary = format!("summary at {last}");
                let compacted = ContextCompacted {
                    summary: UserMessage::text(&*summary),
                    keep_from,
                    reason: String::new(),
                };
                let seq = self.commit(of, compacted);
                let compaction = (seq, of, keep_from, summary);
                self.book.compactions.push(compaction);
            }
            Act::Ask(of) => {
                let of = self.loops[*of];
                assert_eq!(context(&self.session, of), self.book.context(of));
            }
            Act::Reopen => {
                let id = self.session.id();
                match last % 3 {
                    0 => drop(self.session.close()),
                    _ => self.disk.kill(),
                }
                self.store = store_with(&self.disk, small());
                self.session = self.store.open_session(id, Mode::Write).unwrap().0;
            }
        }
        let at = self.session.last_seq();
        self.books.push((at, self.book.clone()));
    }

    /// Everything that can be asked for, of a session that has none of it in memory, or some.
    fn judge(&self, session: &Session) {
        let all = self.book.history();
        let history = session.history().unwrap();
        assert_eq!(flat(&history), all);
        for of in &self.loops {
            assert_eq!(context(session, *of), self.book.context(*of));
            // And now it is in memory.
            assert_eq!(context(session, *of), self.book.context(*of));
            let own = history.iter().filter(|item| item.loop_id == *of);
            let own: Vec<_> = own.map(|item| item.message.clone()).collect();
            assert_eq!(session.loop_history(*of).unwrap(), own);
        }
        for (at, book) in &self.books {
            let then = session.history_at(*at).unwrap();
            assert_eq!(flat(&then), book.history(), "at {at}");
        }
        for messages in [1, 2, 5, 1000] {
            assert_eq!(forwards(session, messages), history);
            assert_eq!(backwards(session, messages), history);
        }
    }
}

/// All pages from the first on; records are not split.
fn forwards(session: &Session, messages: usize) -> Vec<HistoryItem> {
    let mut all: Vec<HistoryItem> = Vec::new();
    let mut page = session.history_page(HistoryPage::first(messages)).unwrap();
    while let Some(last) = page.last() {
        assert!(page.len() < messages + 2);
        let seq = last.seq;
        all.extend(page);
        let next = HistoryPage::after(seq, messages);
        page = session.history_page(next).unwrap();
    }
    all
}

fn backwards(session: &Session, messages: usize) -> Vec<HistoryItem> {
    let mut all: Vec<HistoryItem> = Vec::new();
    let mut page = session.history_page(HistoryPage::last(messages)).unwrap();
    while let Some(first) = page.first() {
        assert!(page.len() < messages + 2);
        let seq = first.seq;
        page.extend(all);
        all = page;
        let before = HistoryPage::before(seq, messages);
        page = session.history_page(before).unwrap();
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn what_is_read_is_what_was_committed(acts in acts(), room in 0..3usize) {
        let options = StoreOptions { context_bytes: [0, 3000, 1 << 20][room], ..small() };
        let mut life = Life::new(options);
        for act in &acts {
            life.act(act);
        }
        life.judge(&life.session);
        let id = life.session.id();
        let (cold, _) = store_with(&life.disk.new_process(), small())
            .open_session(id, Mode::Read)
            .unwrap();
        life.judge(&cold);
        assert!(life.store.verify(id).unwrap().is_intact());
    }
}

/// More compactions and rewindings than are remembered, and then back behind all of them.
#[test]
fn what_is_not_remembered_is_asked_of_the_log() {
    let mut life = Life::new(small());
    let mut acts = Vec::new();
    for _ in 0..90 {
        acts.extend([Act::Step(0, 10), Act::Compact(0, 3), Act::Step(0, 5)]);
        acts.push(Act::Rewind(0, 4));
    }
    for act in &acts {
        life.act(act);
    }
    life.judge(&life.session);
    life.act(&Act::Rewind(0, life.session.last_seq().get() - 40));
    life.judge(&life.session);
    life.act(&Act::Reopen);
    life.judge(&life.session);
    life.act(&Act::Step(0, 10));
    life.judge(&life.session);
}

/// What is committed while a context is read is in it once: the disk waits in the middle of the
/// reading.
#[test]
fn what_is_committed_while_a_context_is_read_is_in_it_once() {
    for length in [10, 3000] {
        let disk = SimVfs::new();
        let session = store(&disk).create_session(SessionSpec::new()).unwrap();
        let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
        let of = main.id();
        let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
        for number in 0..20 {
            let text = format!("before {number} {}", "x".repeat(length));
            turn.commit_step(text_step(&text)).unwrap();
        }
        let stall = disk.stall(|op| matches!(op, Op::Read { .. }));
        let reading = session.submit_context(of);
        assert!(stall.wait_for(1, std::time::Duration::from_secs(10)));
        turn.commit_step(text_step("meanwhile")).unwrap();
        drop(stall);
        let read = reading.wait().unwrap().unwrap();
        let text = read.last().unwrap().to_text();
        assert!(
            read.len() == 21 && text.starts_with("before 19")
                || read.len() == 22 && text == "meanwhile"
        );
        turn.commit_step(text_step("behind")).unwrap();
        let texts = context(&session, of);
        assert_eq!(texts.len(), 1 + 20 + 2);
        assert_eq!(texts[21..], ["meanwhile", "behind"]);
    }
}

/// Bytes that a piece of work reads of segments.
fn bytes_read(disk: &SimVfs, work: impl FnOnce()) -> u64 {
    let read = Arc::new(AtomicU64::new(0));
    let count = read.clone();
    disk.set_hook(move |op| {
        if let Op::Read { length, .. } = op {
            count.fetch_add(*length as u64, Ordering::Relaxed);
        }
    });
    work();
    disk.clear_hook();
    read.load(Ordering::Relaxed)
}

/// A context begins at its compaction, a page costs a segment, and what is in memory nothing.
#[test]
fn only_what_is_asked_for_is_read() {
    let disk = SimVfs::new();
    disk.set_tracing(false);
    let roomy = || StoreOptions {
        journal: JournalOptions {
            first_capacity: 64 * 1024,
            max_capacity: 64 * 1024,
            ..JournalOptions::default()
        },
        ..options()
    };
    let session = store_with(&disk, roomy())
        .create_session(SessionSpec::new())
        .unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let of = main.id();
    let mut steps = Vec::new();
    let mut fill = |main: &mut stepwell::store::Loop| {
        let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
        for _ in 0..400 {
            let id = StepId::try_new().unwrap();
            let step = text_step(&"x".repeat(2000)).id(id);
            turn.commit_step(step).unwrap();
            steps.push(id);
        }
        turn.finish().unwrap();
    };
    fill(&mut main);
    let whole = bytes_read(&disk, || assert_eq!(session.history().unwrap().len(), 401));
    assert!(whole > 800_000, "{whole}");
    let compacted = ContextCompacted {
        summary: UserMessage::text("all of it"),
        keep_from: session.last_seq().get() - 3,
        reason: String::new(),
    };
    let compaction = Draft::new(compacted).in_loop(of);
    session.commit(vec![compaction]).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("more")).unwrap();
    turn.commit_step(text_step("done")).unwrap();
    turn.finish().unwrap();
    let segment = 64 * 1024 + 16 * 1024;
    // Its first segment may have to be read from its beginning, to find it.
    let some = 2 * segment + 64 * 1024;
    let cold = bytes_read(&disk, || {
        let context = session.loop_context(of).unwrap();
        assert_eq!(context[0].to_text(), "all of it");
        assert_eq!(context.len(), 1 + 3 + 2);
    });
    assert!(cold > 0 && cold < some, "{cold}");
    let warm = bytes_read(&disk, || {
        assert_eq!(session.loop_context(of).unwrap().len(), 6);
    });
    assert_eq!(warm, 0);
    fill(&mut main);
    let last = session.last_seq();
    for (page, most) in [
        (HistoryPage::last(5), some),
        (HistoryPage::before(Seq::new(200), 5), some + 8 * 16 * 1024),
        (HistoryPage::first(5), 512 * 1024),
    ] {
        let cost = bytes_read(&disk, || {
            assert_eq!(session.history_page(page).unwrap().len(), 5);
        });
        assert!(cost < most, "{page:?} of {last}: {cost}");
    }
    let cost = bytes_read(&disk, || {
        let found = session.step(steps[795]).unwrap().unwrap();
        assert_eq!(found.header.coordinates.step, steps[795]);
    });
    assert!(cost < some, "{cost}");
    let old = session.step(steps[2]).unwrap().unwrap();
    assert!(matches!(&old.body.messages[..], [Message::Assistant(_)]));
    assert_eq!(session.step(StepId::try_new().unwrap()).unwrap(), None);
}

/// Nothing but a page stands in memory, and damage is named wherever it is met: in front of it and
/// behind it everything can be read (P6).
#[test]
fn damage_is_met_where_it_is_read_and_only_there() {
    let disk = SimVfs::new();
    let mut life_options = small();
    life_options.journal.supersede_limit = 4096;
    let session = store_with(&disk, life_options)
        .create_session(SessionSpec::new())
        .unwrap();
    let id = session.id();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    for number in 0..100 {
        let key = Key::new(format!("key {number}")).unwrap();
        let text = format!("step {number} {}", "x".repeat(300));
        turn.commit_step(text_step(&text).key(key)).unwrap();
    }
    turn.finish().unwrap();
    drop(main);
    session.close().unwrap();
    let store = store_with(&disk, small());
    let view = store.journal_view(id).unwrap();
    let hit = view
        .read(stepwell::journal::Lsn::ZERO)
        .nth(30)
        .unwrap()
        .unwrap();
    let path = store.session_dir(id).join(hit.position.segment.to_string());
    disk.flip_byte(&path, hit.position.offset + 100).unwrap();
    // Opening looks at the tail, and does not refuse for what it has not looked at.
    let (session, report) = store.open_session(id, Mode::Write).unwrap();
    assert!(report.is_clean());
    assert!(!store.verify(id).unwrap().is_intact());
    assert!(session.history().is_err());
    assert!(store.health().damaged.len() == 1);
    let read: Vec<_> = session.read_history(Seq::new(1)).collect();
    assert_eq!(read.iter().filter(|item| item.is_err()).count(), 1);
    assert_eq!(read.iter().filter(|item| item.is_ok()).count(), 100);
    let page = HistoryPage::last(20);
    assert_eq!(session.history_page(page).unwrap().len(), 20);
    let page = HistoryPage::before(hit.seq.next().next(), 3);
    assert!(session.history_page(page).is_err());
    // A repeat cannot be told any more: with a key it is refused, without one it goes on.
    let mut main = session.loop_by_name("main").unwrap().unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let keyed = turn.commit_step(text_step("x").key(Key::new("new").unwrap()));
    assert!(
        matches!(
            &keyed,
            Err(CommitError::NotCommitted(Refusal::KeysUnreadable(_)))
        ),
        "{keyed:?}"
    );
    turn.commit_step(text_step("x")).unwrap();
    turn.finish().unwrap();
}
