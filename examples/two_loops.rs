//! Two loops in one session, one journal: a writer and a reviewer take turns at the same time, and
//! one subscription sees both in one order.

use stepwell::runtime::{
    AgentSpec, Delivery, Filter, LoopHandle, ModelEvent, ModelRequest, ModelStream, StartAt,
};
use stepwell::store::{LoopSpec, Session, SessionSpec, Store};

/// A real model would ask a provider.
fn agent(says: &'static str) -> AgentSpec {
    AgentSpec::new(move |request: ModelRequest| {
        let text = format!("{says} (turn {})", request.turn_index);
        ModelStream::ready([Ok(ModelEvent::text(0, text))])
    })
}

async fn spawn(
    session: &Session,
    name: &str,
    says: &'static str,
) -> Result<LoopHandle, Box<dyn std::error::Error>> {
    let owned = session.create_loop_async(LoopSpec::new(name)).await?;
    Ok(session.spawn_loop(owned, agent(says))?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Store::in_memory()?;
    let session = store.create_session(SessionSpec::new().title("a draft"))?;
    let writer = spawn(&session, "writer", "Here is the text.").await?;
    let reviewer = spawn(&session, "reviewer", "It needs a title.").await?;
    let mut events = session.subscribe(StartAt::now(), Filter::committed());

    // Neither waits for the other; what they commit at the same time shares a sync.
    let (first, second) = tokio::join!(writer.run_turn("write"), reviewer.run_turn("review"));
    println!("writer: {}", first?.text().unwrap_or_default());
    println!("reviewer: {}", second?.text().unwrap_or_default());

    let (writer, reviewer) = (writer.shutdown(), reviewer.shutdown());
    tokio::try_join!(writer, reviewer)?;
    session.close()?;
    while let Some(Delivery::Committed(event)) = events.recv().await.transpose()? {
        let header = &event.event().header;
        println!(
            "{:>3} {} {}",
            event.seq(),
            header.agent_name,
            event.event().kind()
        );
    }
    Ok(())
}
