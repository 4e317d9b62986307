//! A host that uses the runner: a scripted model, a real tool, one turn.

use stepwell::runtime::{
    AgentSpec, Filter, From, ModelEvent, ModelRequest, ModelStream, Tool, ToolFuture, ToolInput,
    ToolOutput, ToolSpec,
};
use stepwell::store::{LoopSpec, SessionSpec, Store};

struct ListFiles;

impl Tool for ListFiles {
    fn spec(&self) -> ToolSpec {
        ToolSpec::new("list_files", "Lists the files of the current directory")
    }

    fn run(&self, _input: ToolInput) -> ToolFuture<'_> {
        Box::pin(async {
            let names = std::fs::read_dir(".").map(|entries| {
                let names = entries.flatten().map(|entry| entry.file_name());
                let names: Vec<_> = names.map(|name| name.display().to_string()).collect();
                names.join("\n")
            });
            ToolOutput::from(names)
        })
    }
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
    let agent = session.spawn_loop(main, AgentSpec::new(scripted).tool(ListFiles))?;

    let mut events = agent.subscribe(From::seq(1), Filter::all());
    let outcome = agent.run_turn("list the files").await?;
    println!("{}\n", outcome.text().unwrap_or_default());

    agent.shutdown().await;
    session.close()?;
    while let Some(event) = events.recv().await {
        let event = event?;
        println!("{:>3} {}", event.seq(), event.event().kind());
    }
    Ok(())
}
