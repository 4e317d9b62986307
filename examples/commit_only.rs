//! A host with a loop of its own, without tokio: commit steps, crash, restore.

use stepwell::content::{AssistantMessage, RawJson, ToolResultMessage, UserMessage};
use stepwell::store::{LoopSpec, Mode, SessionSpec, StepDraft, Store};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("stepwell-example-{}", std::process::id()));
    let store = Store::open(&dir)?;
    let session = store.create_session(SessionSpec::new().title("listing files"))?;
    let mut main = session.create_loop(LoopSpec::new("main"))?;

    let mut turn = main.begin_turn(UserMessage::text("list the files"))?; // TurnStarted is durable
    let call =
        AssistantMessage::text("Looking.").with_tool_use("call-1", "list", RawJson::empty_object());
    let result = ToolResultMessage::text("call-1", "a.txt\nb.txt");
    let step = turn.commit_step(StepDraft::new(call).results([result]))?;
    println!("step committed as {}", step.seq());
    turn.commit_last_step(StepDraft::new(AssistantMessage::text("Two files.")))?;

    drop(main);
    let id = session.id();
    drop(session); // as a crash would: nothing is closed

    let (session, report) = store.open_session(id, Mode::Write)?;
    println!(
        "restored up to {}, {} turns were open",
        report.committed,
        report.open_turns.len()
    );
    for item in session.history()? {
        println!(
            "{:>3} {}: {}",
            item.seq,
            item.message.role(),
            item.message.to_text()
        );
    }
    session.close()?;
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
