//! A permission prompt in a terminal: the agent wants to run a command, and a person is asked.
//!
//! Kill it while it waits, and start it again: the question is still there, and the answer is used.

use std::io::{BufRead, Write};

use stepwell::event::Effect;
use stepwell::identity::SessionId;
use stepwell::runtime::{
    APPROVE, APPROVE_ALWAYS, AgentSpec, Decision, Effects, Filter, FnTool, ModelEvent,
    ModelRequest, ModelStream, Policy, Question, Resolution, StartAt, ToolCall, ToolCallContext,
    ToolSpec,
};
use stepwell::store::{Answer, LoopSpec, Mode, PendingGate, Session, SessionSpec, Store};

/// Tools that look are free; for others a person is asked, unless they said "always".
#[derive(Default)]
struct AskFirst {
    always: std::sync::Mutex<Vec<String>>,
}

impl AskFirst {
    fn rules(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        let rules = self.always.lock();
        rules.unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Policy for AskFirst {
    fn decide(&self, call: &ToolCall) -> Decision {
        if call.effects == Effects::ReadOnly || self.rules().contains(&call.tool) {
            return Decision::Allow;
        }
        let text = format!("{} wants to run with {}", call.tool, call.input);
        Decision::Ask(Question::permission(text).choice(APPROVE_ALWAYS))
    }

    fn answered(&self, call: &ToolCall, answer: &Resolution) -> Effect {
        match answer.action.as_str() {
            APPROVE_ALWAYS => {
                self.rules().push(call.tool.clone());
                Effect::Approve
            }
            APPROVE => Effect::Approve,
            _ => Effect::Deny,
        }
    }
}

#[derive(serde::Deserialize)]
struct Command {
    command: String,
}

/// A real one would run it.
async fn shell(request: Command, _call: ToolCallContext) -> String {
    format!("ran {:?}", request.command)
}

/// A real model would ask a provider.
fn scripted(request: ModelRequest) -> ModelStream {
    let answer = match request.step_index {
        0 => {
            let input = r#"{"command":"rm -r target"}"#;
            ModelEvent::tool_call(0, "call-1", "shell", input).to_vec()
        }
        _ => {
            let result = request.messages.last().map(|message| message.to_text());
            vec![ModelEvent::text(0, result.unwrap_or_default())]
        }
    };
    ModelStream::ready(answer.into_iter().map(Ok))
}

/// Asks in the terminal; by number, so that nobody has to spell an action.
fn prompt(pending: &PendingGate) -> std::io::Result<Option<Answer>> {
    let text = pending.gate.prompt.as_ref().map(|prompt| &prompt.body);
    println!("{}", text.map_or("?", String::as_str));
    let actions: Vec<&str> = pending.offered().collect();
    for (number, action) in actions.iter().enumerate() {
        println!("  {} {action}", number + 1);
    }
    let mut line = String::new();
    loop {
        print!("> ");
        std::io::stdout().flush()?;
        line.clear();
        if std::io::stdin().lock().read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let number = line.trim().parse::<usize>().ok();
        let action = number.and_then(|number| actions.get(number.checked_sub(1)?));
        if let Some(action) = action {
            return Ok(Some(Answer::choose(*action)));
        }
    }
}

/// Answers what waits. An error says that another answer was first, which is as good.
fn answer_all(session: &Session) -> std::io::Result<()> {
    for pending in session.pending_gates() {
        let Some(answer) = prompt(&pending)? else {
            return Ok(());
        };
        if let Err(error) = session.answer_gate(pending.gate.id, answer) {
            println!("{error}");
        }
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join("stepwell-permission-prompt");
    let id = SessionId::from_bytes([7; 16]);
    let store = Store::open(dir)?;
    let session = match store.open_session(id, Mode::Write) {
        Ok((session, report)) => {
            println!("{report}");
            session
        }
        Err(stepwell::store::SessionError::NotFound(_)) => {
            store.create_session(SessionSpec::new().id(id))?
        }
        Err(error) => return Err(error.into()),
    };
    // What an earlier run left.
    answer_all(&session)?;

    let main = match session.loop_by_name("main")? {
        Some(main) => main,
        None => session.create_loop(LoopSpec::new("main"))?,
    };
    let shell = FnTool::new(ToolSpec::new("shell", "Runs a command"), shell);
    let agent = AgentSpec::new(scripted)
        .tool(shell)
        .policy(AskFirst::default());
    let agent = session.spawn_loop(main, agent)?;

    // The terminal has a thread of its own: the runtime must not wait for a person.
    let mut events = agent.subscribe(StartAt::now(), Filter::committed());
    let asked = session.clone();
    let handle = tokio::runtime::Handle::current();
    let terminal = std::thread::spawn(move || {
        while let Some(Ok(event)) = handle.block_on(events.recv()) {
            if event.event().kind() == stepwell::event::Kind::GateOpened {
                answer_all(&asked)?;
            }
        }
        std::io::Result::Ok(())
    });

    let outcome = agent.run_turn("clean up").await?;
    println!("{}", outcome.text().unwrap_or_default());
    agent.shutdown().await?;
    session.close()?;
    let _ = terminal.join();
    Ok(())
}
