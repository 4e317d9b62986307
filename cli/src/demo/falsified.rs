//! The judgement must see what is wrong: sound books, falsified one way at a time.

use std::collections::BTreeMap;
use std::path::PathBuf;

use stepwell::content::{AssistantMessage, Message, ToolResultMessage, UserMessage};
use stepwell::identity::{SessionId, StepId};

use super::books::{Books, Digest, Note, Record};
use super::check::{Findings, Restored, RestoredRecord, check};

fn digest(text: &str) -> Digest {
    Digest::of(&Message::User(UserMessage::text(text)))
}

/// A session of one turn: the user's text (record 3), a step with a result (4), the answer (5, not
/// acknowledged any more, but offered), the end (6, not acknowledged either).
struct Case {
    session: SessionId,
    notes: Vec<Note>,
    restored: Restored,
}

impl Case {
    fn sound() -> Case {
        let (session, first, second) = (SessionId::new(), StepId::new(), StepId::new());
        let user = digest("go");
        let call = Digest::of(&Message::Assistant(AssistantMessage::text("call")));
        let result = Digest::of(&Message::ToolResult(ToolResultMessage::text("c", "ok")));
        let answer = Digest::of(&Message::Assistant(AssistantMessage::text("done")));
        let record = |kind: &str, step: StepId, messages: &[Digest]| Record {
            kind: kind.to_owned(),
            step,
            messages: messages.to_vec(),
        };
        let plain = |record: Record| RestoredRecord {
            record,
            results: Vec::new(),
        };
        let none = StepId::nil();
        let records = BTreeMap::from([
            (2, plain(record("LoopStarted", none, &[]))),
            (3, plain(record("TurnStarted", none, &[user]))),
            (
                4,
                RestoredRecord {
                    record: record("StepDone", first, &[call, result]),
                    results: vec![("c".to_owned(), false)],
                },
            ),
            (5, plain(record("StepDone", second, &[answer]))),
            (6, plain(record("TurnDone", none, &[]))),
        ]);
        let acknowledged = |seq: u64| Note::Acknowledged {
            session,
            seq,
            recovered: false,
            record: records[&seq].record.clone(),
        };
        let notes = vec![
            acknowledged(2),
            Note::Asking { session, user },
            acknowledged(3),
            Note::Offered {
                session,
                step: first,
                assistant: call,
            },
            Note::Result {
                step: first,
                call: "c".to_owned(),
                result,
            },
            acknowledged(4),
            Note::Offered {
                session,
                step: second,
                assistant: answer,
            },
        ];
        let history = vec![(3, user), (4, call), (4, result), (5, answer)];
        let restored = Restored {
            session,
            records,
            again: history.clone(),
            history,
            script: vec![call, answer],
            whole_script: true,
            turns_closed: 2,
        };
        Case {
            session,
            notes,
            restored,
        }
    }

    fn judged(self) -> Findings {
        let mut books = Books::new(PathBuf::new());
        for note in self.notes {
            books.enter(note);
        }
        check(&books, &[self.restored])
    }
}

/// (lost, phantom, history equal)
fn verdict(findings: &Findings) -> (u64, u64, bool) {
    (findings.lost, findings.phantom, findings.history_equal)
}

#[test]
fn a_sound_case_is_kept() {
    let findings = Case::sound().judged();
    assert!(findings.is_kept(), "{findings:?}");
    assert_eq!(verdict(&findings), (0, 0, true));
    assert_eq!(
        (findings.steps_acknowledged, findings.steps_restored),
        (1, 2)
    );
    assert_eq!(findings.open_turns_closed, 2);
}

#[test]
fn a_missing_step_is_lost() {
    let mut case = Case::sound();
    case.restored.records.remove(&4);
    case.restored.history.retain(|line| line.0 != 4);
    case.restored.again = case.restored.history.clone();
    let findings = case.judged();
    assert_eq!(verdict(&findings), (1, 0, false));
    assert!(!findings.is_kept());
}

#[test]
fn a_missing_session_is_lost() {
    let case = Case::sound();
    let mut books = Books::new(PathBuf::new());
    for note in case.notes {
        books.enter(note);
    }
    assert_eq!(check(&books, &[]).lost, 3);
}

#[test]
fn a_step_with_other_contents_is_lost_and_a_phantom() {
    let mut case = Case::sound();
    case.restored.records.get_mut(&4).unwrap().record.messages[1] = digest("other");
    case.restored.history[2].1 = digest("other");
    case.restored.again = case.restored.history.clone();
    assert_eq!(verdict(&case.judged()), (1, 1, false));
}

#[test]
fn a_step_at_another_sequence_is_lost() {
    let mut case = Case::sound();
    let moved = case.restored.records.remove(&4).unwrap();
    case.restored.records.insert(7, moved);
    let findings = case.judged();
    assert_eq!(findings.lost, 1);
    assert!(!findings.history_equal);
}

#[test]
fn an_acknowledged_end_that_is_missing_is_lost() {
    let mut case = Case::sound();
    let end = case.restored.records.remove(&6).unwrap();
    case.notes.push(Note::Acknowledged {
        session: case.session,
        seq: 6,
        recovered: false,
        record: end.record,
    });
    assert_eq!(verdict(&case.judged()), (1, 0, true));
}

#[test]
fn a_step_that_was_never_offered_is_a_phantom() {
    let mut case = Case::sound();
    case.notes.pop();
    let findings = case.judged();
    assert_eq!(verdict(&findings), (0, 1, true));
    assert!(!findings.is_kept());
}

#[test]
fn a_result_that_no_tool_gave_is_a_phantom_unless_the_runner_made_it() {
    let without_result = || {
        let mut case = Case::sound();
        case.notes
            .retain(|note| !matches!(note, Note::Result { .. }));
        case
    };
    assert_eq!(verdict(&without_result().judged()), (0, 1, true));
    let mut case = without_result();
    case.restored.records.get_mut(&4).unwrap().results[0].1 = true;
    assert!(case.judged().is_kept());
}

#[test]
fn a_text_that_nobody_asked_is_a_phantom() {
    let mut case = Case::sound();
    case.notes
        .retain(|note| !matches!(note, Note::Asking { .. }));
    assert_eq!(verdict(&case.judged()), (0, 1, true));
}

#[test]
fn a_history_that_is_not_the_fold_is_unequal() {
    let falsify: [fn(&mut Restored); 4] = [
        |restored| restored.history.swap(0, 1),
        |restored| restored.history.truncate(3),
        |restored| restored.history.push((6, digest("more"))),
        |restored| restored.history[0].1 = digest("else"),
    ];
    for falsify in falsify {
        let mut case = Case::sound();
        falsify(&mut case.restored);
        case.restored.again = case.restored.history.clone();
        assert_eq!(verdict(&case.judged()), (0, 0, false));
    }
}

#[test]
fn a_history_that_differs_the_second_time_is_unequal() {
    let mut case = Case::sound();
    case.restored.again.pop();
    assert_eq!(verdict(&case.judged()), (0, 0, false));
}

#[test]
fn steps_out_of_the_script_are_seen() {
    let falsify: [fn(&mut Restored); 3] = [
        |restored| restored.script.swap(0, 1),
        |restored| restored.script.push(digest("more")),
        |restored| restored.script.truncate(1),
    ];
    for (number, falsify) in falsify.into_iter().enumerate() {
        let mut case = Case::sound();
        falsify(&mut case.restored);
        assert_eq!(verdict(&case.judged()), (0, 0, false));
        // Of a transcript a turn may fail: steps may be left out, but not stand in another order.
        let mut case = Case::sound();
        falsify(&mut case.restored);
        case.restored.whole_script = false;
        assert_eq!(case.judged().history_equal, number == 1);
    }
}

#[test]
fn two_acknowledgements_must_agree() {
    let mut case = Case::sound();
    let Note::Acknowledged { record, .. } = case.notes[5].clone() else {
        panic!();
    };
    let again = |record| Note::Acknowledged {
        session: case.session,
        seq: 4,
        recovered: true,
        record,
    };
    let same = again(record.clone());
    let other = again(Record {
        messages: vec![digest("x")],
        ..record
    });
    case.notes.push(same);
    let mut worse = Case {
        session: case.session,
        notes: case.notes.clone(),
        restored: case.restored.clone(),
    };
    assert!(case.judged().is_kept());
    worse.notes.push(other);
    assert_eq!(verdict(&worse.judged()), (1, 0, true));
}
