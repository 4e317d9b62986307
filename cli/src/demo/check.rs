//! The judgement: what the books say against what the store gives back.

use std::collections::BTreeMap;

use stepwell::Store;
use stepwell::content::{Message, RawJson};
use stepwell::event::Body;
use stepwell::identity::SessionId;
use stepwell::journal::Seq;
use stepwell::store::{HistoryItem, Mode, Session};

use super::books::{Books, Digest, Record};
use super::script::{Script, Source};
use super::{DemoError, child};
use crate::story::Story;

/// A message of a history, in short.
pub(super) type Line = (u64, Digest);

/// What the store gives back of a session.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Restored {
    pub(super) session: SessionId,
    pub(super) records: BTreeMap<u64, RestoredRecord>,
    /// The history that the library restored, once and again.
    pub(super) history: Vec<Line>,
    pub(super) again: Vec<Line>,
    /// The answers that the round's script has, in order.
    pub(super) script: Vec<Digest>,
    /// Whether all of the script must be there: a transcript's turn may fail and leave some out.
    pub(super) whole_script: bool,
    /// Turns that were closed because their process had ended.
    pub(super) turns_closed: u64,
}

/// A record with what is needed to know where its results come from.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RestoredRecord {
    pub(super) record: Record,
    /// For each result of a step: the call that it answers, and whether the runner made it because
    /// the call's input is no JSON object.
    pub(super) results: Vec<(String, bool)>,
}

/// The judgement.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Findings {
    pub(super) steps_acknowledged: u64,
    pub(super) steps_restored: u64,
    /// Acknowledged records that are not there as they were acknowledged.
    pub(super) lost: u64,
    /// Restored steps and users' texts that were never offered.
    pub(super) phantom: u64,
    pub(super) history_equal: bool,
    pub(super) open_turns_closed: u64,
    /// What is wrong, in words.
    pub(super) problems: Vec<String>,
}

impl Findings {
    pub(super) fn is_kept(&self) -> bool {
        self.lost == 0 && self.phantom == 0 && self.history_equal && self.problems.is_empty()
    }
}

/// Judges.
pub(super) fn check(books: &Books, restored: &[Restored]) -> Findings {
    let mut findings = Findings {
        steps_acknowledged: books.steps(),
        history_equal: true,
        ..Findings::default()
    };
    for (session, seq) in &books.contradictions {
        findings.lost += 1;
        findings.problems.push(format!(
            "session {session}: record {seq} was acknowledged twice, differently"
        ));
    }
    let found: BTreeMap<SessionId, &Restored> = restored
        .iter()
        .map(|restored| (restored.session, restored))
        .collect();
    for ((session, seq), record) in &books.acknowledged {
        let there = found.get(session).and_then(|there| there.records.get(seq));
        if there.is_none_or(|there| there.record != *record) {
            findings.lost += 1;
            findings.problems.push(format!(
                "session {session}: record {seq} ({}) was acknowledged and is not there",
                record.kind
            ));
        }
    }
    for restored in restored {
        findings.take(books, restored);
    }
    findings
}

impl Findings {
    fn take(&mut self, books: &Books, restored: &Restored) {
        let session = restored.session;
        self.open_turns_closed += restored.turns_closed;
        let steps = restored.records.values();
        self.steps_restored += steps.filter(|there| there.record.is_step()).count() as u64;
        for (seq, there) in &restored.records {
            if !was_offered(books, session, there) {
                self.phantom += 1;
                self.problems.push(format!(
                    "session {session}: record {seq} ({}) was never offered",
                    there.record.kind
                ));
            }
        }
        let mut differs = |what: &str| {
            self.history_equal = false;
            self.problems.push(format!("session {session}: {what}"));
        };
        if restored.history != expected_history(books, restored) {
            differs("the restored history is not what was committed");
        }
        if restored.history != restored.again {
            differs("the history differs when it is restored again");
        }
        if !follows_script(restored) {
            differs("the steps are not those of the script, in its order");
        }
    }
}

/// The fold of what was acknowledged and, between it, of what was recovered: offered, and durable
/// although the kill came before the answer.
fn expected_history(books: &Books, restored: &Restored) -> Vec<Line> {
    let session = restored.session;
    let mut records: BTreeMap<u64, &Record> = BTreeMap::new();
    for (seq, there) in &restored.records {
        records.insert(*seq, &there.record);
    }
    let range = (session, 0)..=(session, u64::MAX);
    for ((_, seq), record) in books.acknowledged.range(range) {
        records.insert(*seq, record);
    }
    let lines = records.into_iter();
    lines
        .flat_map(|(seq, record)| record.messages.iter().map(move |digest| (seq, *digest)))
        .collect()
}

/// Whether all messages of the record were noted before they were offered.
fn was_offered(books: &Books, session: SessionId, there: &RestoredRecord) -> bool {
    let record = &there.record;
    let Some((first, results)) = record.messages.split_first() else {
        return true;
    };
    if !record.is_step() {
        return books.asked.contains(&(session, *first));
    }
    let noted = |((call, made_by_runner), digest): (&(String, bool), &Digest)| {
        *made_by_runner
            || books
                .results
                .contains(&(record.step, call.clone(), *digest))
    };
    books.offered.contains(&(session, record.step, *first))
        && there.results.len() == results.len()
        && there.results.iter().zip(results).all(noted)
}

/// Whether the answers are those of the script: each once, in its order.
fn follows_script(restored: &Restored) -> bool {
    let steps = restored.records.values().map(|there| &there.record);
    let steps: Vec<Digest> = steps
        .filter(|record| record.is_step())
        .filter_map(|record| record.messages.first().copied())
        .collect();
    if restored.whole_script {
        return steps == restored.script;
    }
    let mut script = restored.script.iter();
    steps.iter().all(|step| script.any(|said| said == step))
}

/// Opens every session of the store, twice, and reads what it gives back.
pub(super) fn restore(store: &Store, source: &Source) -> Result<Vec<Restored>, DemoError> {
    let mut all = Vec::new();
    for entry in store.sessions()? {
        let title = entry.state?.metadata.title.unwrap_or_default();
        let round = child::round_of(&title).unwrap_or_default();
        let (session, _) = store.open_session(entry.id, Mode::Write)?;
        let mut restored = read(&session, &source.round(round))?;
        session.close()?;
        drop(session);
        let (session, _) = store.open_session(entry.id, Mode::Read)?;
        restored.again = history(&session)?;
        all.push(restored);
    }
    Ok(all)
}

fn read(session: &Session, script: &Script) -> Result<Restored, DemoError> {
    let mut records = BTreeMap::new();
    for committed in session.replay(Seq::new(1)) {
        let committed = committed?;
        let results = match &committed.event().body {
            Body::StepDone(step) => {
                let calls = step
                    .assistant()
                    .into_iter()
                    .flat_map(|said| said.tool_uses());
                let runners = |input: &RawJson, is_error: bool| is_error && !input.is_object();
                calls
                    .zip(step.results())
                    .map(|(call, result)| (call.id.clone(), runners(&call.input, result.is_error)))
                    .collect()
            }
            _ => Vec::new(),
        };
        let record = Record::of(&committed);
        records.insert(committed.seq().get(), RestoredRecord { record, results });
    }
    let answers = script.turns.iter().flat_map(|turn| &turn.steps);
    Ok(Restored {
        session: session.id(),
        records,
        history: history(session)?,
        again: Vec::new(),
        script: answers
            .map(|step| Digest::of(&Message::Assistant(step.assistant.clone())))
            .collect(),
        whole_script: !script.recorded,
        turns_closed: Story::read(session, None).closed_by_restart,
    })
}

fn history(session: &Session) -> Result<Vec<Line>, DemoError> {
    let items = session.read_history(Seq::new(1));
    let line = |item: HistoryItem| (item.seq.get(), Digest::of(&item.message));
    items.map(|item| Ok(line(item?))).collect()
}
