//! A host with an async loop of its own: the same as `commit_only`, and no thread of tokio ever
//! waits for the disk.

use stepwell::content::{AssistantMessage, RawJson, ToolResultMessage, UserMessage};
use stepwell::store::{LoopSpec, SessionSpec, StepDraft, Store};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("stepwell-async-{}", std::process::id()));
    let store = Store::open(&dir)?;
    let session = store.create_session(SessionSpec::new().title("listing files"))?;
    let mut main = session.create_loop_async(LoopSpec::new("main")).await?;

    let said = UserMessage::text("list the files");
    let mut turn = main.begin_turn_async(said).await?; // TurnStarted is durable
    let call =
        AssistantMessage::text("Looking.").with_tool_use("call-1", "list", RawJson::empty_object());
    let result = ToolResultMessage::text("call-1", "a.txt\nb.txt");
    let step = StepDraft::new(call).results([result]);
    let step = turn.commit_step_async(step).await?; // durable, or an error that says what is known
    println!("step committed as {}", step.seq());
    let answer = StepDraft::new(AssistantMessage::text("Two files."));
    turn.commit_last_step_async(answer).await?; // StepDone and TurnDone, one sync

    for message in session.submit_context(main.id()).await?? {
        println!("{}: {}", message.role(), message.to_text());
    }
    drop(main);
    session.close()?;
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
