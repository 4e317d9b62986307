//! What a consumer of events does: print the messages of a committed step, and require that an event
//! from elsewhere is one, telling an invalid one by field and rule.

use stepwell::content::{AssistantMessage, Message, RawJson, ToolResultMessage, UserMessage};
use stepwell::event::{Body, Event, Rule, StepDone, validate};
use stepwell::journal::Seq;
use stepwell::store::{Committed, LoopSpec, SessionSpec, StepDraft, Store};

/// `Committed` comes from the log only: what is printed here is durable.
fn print_step(step: &Committed<StepDone>) {
    println!("step {}", step.seq());
    for (index, message) in step.event().body.messages.iter().enumerate() {
        match message {
            Message::Assistant(answer) => {
                println!(
                    "  message[{index}] assistant, blocks: {}",
                    answer.blocks.len()
                );
            }
            Message::ToolResult(result) => {
                let (id, failed) = (&result.tool_use_id, result.is_error);
                println!("  message[{index}] tool result of {id}, failed: {failed}");
            }
            other => println!("  message[{index}] {}", other.role()),
        }
    }
}

/// An event that came over a wire proves nothing by itself: it must be a StepDone, and a valid one.
/// A missing one is never put together from what was streamed.
fn require_step(event: &Event) -> Result<&StepDone, String> {
    let Body::StepDone(step) = &event.body else {
        return Err(format!("not a committed step: {}", event.kind()));
    };
    validate(event).map_err(|invalid| match invalid.rule {
        Rule::MustBeSet => format!("{} must be set", invalid.field),
        rule => format!("{}: {rule}", invalid.field),
    })?;
    Ok(step)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Store::in_memory()?;
    let session = store.create_session(SessionSpec::new())?;
    let mut main = session.create_loop(LoopSpec::new("main"))?;
    let mut turn = main.begin_turn(UserMessage::text("list the files"))?;
    let call =
        AssistantMessage::text("Looking.").with_tool_use("1", "list", RawJson::empty_object());
    let result = ToolResultMessage::error("1", "no such directory");
    turn.commit_step(StepDraft::new(call).results([result]))?;
    turn.commit_last_step(StepDraft::new(AssistantMessage::text("There is none.")))?;

    for committed in session.replay(Seq::new(1)) {
        let committed = committed?;
        match committed.typed::<StepDone>() {
            Some(step) => print_step(&step),
            None => println!("{}", committed.event().kind()),
        }
        if let Err(reason) = require_step(committed.event()) {
            println!("  {reason}");
        }
    }

    // From somebody else's log: a step without its turn.
    let mut foreign = session
        .replay(Seq::new(1))
        .flatten()
        .map(|committed| committed.event().clone())
        .find(|event| matches!(event.body, Body::StepDone(_)))
        .ok_or("no step")?;
    foreign.header.coordinates.turn = Default::default();
    println!("{}", require_step(&foreign).err().unwrap_or_default());
    Ok(())
}
