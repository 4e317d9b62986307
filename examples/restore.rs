//! Restore after a crash: a process dies in the middle of its second turn, and the next one finds what
//! was committed, and nothing else.

use std::process::Command;

use stepwell::content::{AssistantMessage, UserMessage};
use stepwell::identity::SessionId;
use stepwell::store::{LoopSpec, Mode, SessionSpec, StepDraft, Store};

type Failure = Box<dyn std::error::Error>;

/// Commits a turn, begins another one, and dies.
fn die_in_the_middle(dir: &str, id: SessionId) -> Result<(), Failure> {
    let store = Store::open(dir)?;
    let session = store.create_session(SessionSpec::new().id(id))?;
    let mut main = session.create_loop(LoopSpec::new("main"))?;
    let turn = main.begin_turn(UserMessage::text("what is two and two?"))?;
    turn.commit_last_step(StepDraft::new(AssistantMessage::text("Four.")))?;
    let _turn = main.begin_turn(UserMessage::text("and three and three?"))?;
    // The answer is never committed.
    std::process::abort()
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    if let (Some(dir), Some(id)) = (args.next(), args.next()) {
        return die_in_the_middle(&dir, id.parse()?);
    }
    let dir = std::env::temp_dir().join(format!("stepwell-restore-{}", std::process::id()));
    let id = SessionId::new();
    let mut child = Command::new(std::env::current_exe()?);
    let status = child.arg(&dir).arg(id.to_string()).status()?;
    println!("the first process ended: {status}");

    let store = Store::open(&dir)?;
    let (session, report) = store.open_session(id, Mode::Write)?;
    println!("{report}");
    for open in &report.open_turns {
        println!("turn {} was open and is closed as interrupted", open.index);
    }
    for item in session.history()? {
        println!(
            "{:>3} {}: {}",
            item.seq,
            item.message.role(),
            item.message.to_text()
        );
    }

    // The loop goes on where it was.
    let mut main = session.loop_by_name("main")?.ok_or("the loop is gone")?;
    let turn = main.begin_turn(UserMessage::text("once more: three and three?"))?;
    turn.commit_last_step(StepDraft::new(AssistantMessage::text("Six.")))?;
    println!("{} messages now", session.history()?.len());
    drop(main);
    session.close()?;
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
