//! A host that uses the runner: a scripted model, a real tool, one turn.

use stepwell::runtime::{
    AgentSpec, Filter, FnTool, ModelEvent, ModelRequest, ModelStream, StartAt, ToolCallContext,
    ToolSpec,
};
use stepwell::store::{LoopSpec, SessionSpec, Store};

#[derive(serde::Deserialize)]
struct ListFiles {
    #[serde(default = "here")]
    path: String,
}

fn here() -> String {
    ".".to_owned()
}

async fn list_files(request: ListFiles, _call: ToolCallContext) -> std::io::Result<String> {
    let names = std::fs::read_dir(request.path)?.flatten();
    let names: Vec<_> = names
        .map(|entry| entry.file_name().display().to_string())
        .collect();
    Ok(names.join("\n"))
}

/// A real model would ask a provider; this one calls the tool and then says what it saw.
fn scripted(request: ModelRequest) -> ModelStream {
    let last = request.messages.last().map(|message| message.to_text());
    let answer = match request.step_index {
        0 => ModelEvent::tool_call(0, "call-1", "list_files", "{}").to_vec(),
        _ => vec![ModelEvent::text(
            0,
            format!("I see:\n{}", last.unwrap_or_default()),
        )],
    };
    ModelStream::ready(answer.into_iter().map(Ok))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Store::in_memory()?;
    let session = store.create_session(SessionSpec::new())?;
    let main = session.create_loop_async(LoopSpec::new("main")).await?;
    let spec = ToolSpec::new("list_files", "Lists the files of a directory").read_only();
    let spec = AgentSpec::new(scripted).tool(FnTool::new(spec, list_files));
    let agent = session.spawn_loop(main, spec)?;

    let mut events = agent.subscribe(StartAt::seq(1), Filter::all());
    let outcome = agent.run_turn("list the files").await?;
    println!("{}\n", outcome.text().unwrap_or_default());

    agent.shutdown().await?;
    session.close()?;
    while let Some(event) = events.recv().await {
        let event = event?;
        println!("{:>3} {}", event.seq(), event.event().kind());
    }
    Ok(())
}
